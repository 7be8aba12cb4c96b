"""The plan of the environment as Locust wants it: `KB_LOAD_SHAPE`, `KB_LOAD_USERS` and `KB_LOAD_SECONDS`."""

from __future__ import annotations

import os
from typing import cast

from locust import LoadTestShape

from kb_load.plan import Plan, ShapeName


class PlannedShape(LoadTestShape):
    """Follows the plan. Raises ValueError where there is no such shape, or a figure is out of bounds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Locust's
        name = cast("ShapeName", os.environ["KB_LOAD_SHAPE"])
        users, seconds = os.environ.get("KB_LOAD_USERS", "20"), os.environ.get("KB_LOAD_SECONDS", "60")
        self.plan = Plan(name, int(users), int(seconds))

    def tick(self) -> tuple[int, float] | None:
        """How many users there are to be now; None ends the run."""
        users = self.plan.users(self.get_run_time())  # type: ignore[no-untyped-call]  # Locust's
        return None if users is None else (users, self.plan.spawn_rate)


def chosen() -> type[PlannedShape] | None:
    """The shape; None where the environment names none, and Locust's page sets the users."""
    return PlannedShape if os.environ.get("KB_LOAD_SHAPE") else None
