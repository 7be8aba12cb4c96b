"""Shapes of load as pure functions: how many users there are at each moment. No Locust in here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Literal

ShapeName = Literal["steady", "ramp", "spike", "soak"]

MOST_USERS = 5_000
MOST_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class Plan:
    """How many users at most, and for how long in seconds.

    Raises:
        ValueError: one of them is out of bounds.
    """

    shape: ShapeName
    peak: int
    seconds: int

    def __post_init__(self) -> None:
        if self.shape not in CURVES:
            raise ValueError(f"there is no shape {self.shape!r}; there are {', '.join(CURVES)}")
        if not 1 <= self.peak <= MOST_USERS:
            raise ValueError(f"users: from 1 to {MOST_USERS}, not {self.peak}")
        if not 5 <= self.seconds <= MOST_SECONDS:
            raise ValueError(f"seconds: from 5 to {MOST_SECONDS}, not {self.seconds}")

    def users(self, second: float) -> int | None:
        """How many users there are at `second`; None when the run is over."""
        if second >= self.seconds:
            return None
        return max(1, ceil(self.peak * CURVES[self.shape](second / self.seconds)))

    @property
    def spawn_rate(self) -> float:
        """How many users come or go a second: a tenth of the run is enough for all of them."""
        return max(1.0, self.peak / max(1.0, self.seconds / 10))


CURVES: dict[ShapeName, Callable[[float], float]] = {
    "steady": lambda _at: 1.0,
    # Up in five steps, and the whole peak for the last third.
    "ramp": lambda at: min(1.0, (int(at * 7.5) + 1) / 5),
    # A fifth, but for the fifth of the time in the middle, which has the peak.
    "spike": lambda at: 1.0 if 0.4 <= at < 0.6 else 0.2,
    # From a tenth up over the first twentieth, then flat to the end.
    "soak": lambda at: min(1.0, 0.1 + 18 * at),
}
"""The share of the peak at a share of the time, both from 0 to 1."""
