"""The shapes as Locust wants them. Which one runs is told by `KB_LOAD_SHAPE`, `_USERS` and `_SECONDS`."""

from __future__ import annotations

import os

from locust import LoadTestShape

from kb_load.plan import Plan, ShapeName


class _Planned(LoadTestShape):
    """Follows a plan."""

    abstract = True
    name: ShapeName

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Locust's
        users, seconds = os.environ.get("KB_LOAD_USERS", "20"), os.environ.get("KB_LOAD_SECONDS", "60")
        self.plan = Plan(self.name, int(users), int(seconds))

    def tick(self) -> tuple[int, float] | None:
        """How many users there are to be now; None ends the run."""
        users = self.plan.users(self.get_run_time())  # type: ignore[no-untyped-call]  # Locust's
        return None if users is None else (users, self.plan.spawn_rate)


class Steady(_Planned):
    """The same number of users all the time."""

    name: ShapeName = "steady"


class Ramp(_Planned):
    """More users step by step: where does it bend?"""

    name: ShapeName = "ramp"


class Spike(_Planned):
    """A burst in the middle: does it come back?"""

    name: ShapeName = "spike"


class Soak(_Planned):
    """Long and flat: does anything grow?"""

    name: ShapeName = "soak"


SHAPES: dict[str, type[_Planned]] = {shape.name: shape for shape in (Steady, Ramp, Spike, Soak)}


def chosen() -> type[_Planned] | None:
    """The shape of the environment; None where it names none, and Locust's page sets the users."""
    name = os.environ.get("KB_LOAD_SHAPE", "")
    if not name:
        return None
    if name not in SHAPES:
        raise ValueError(f"KB_LOAD_SHAPE={name!r}: there are {', '.join(SHAPES)}")
    return SHAPES[name]
