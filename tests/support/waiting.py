"""Waiting for what happens in another process: a bound, a condition, and what was last seen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE_SECONDS = 0.05


def until(look: Callable[[], T], holds: Callable[[T], bool], *, seconds: float, what: str) -> T:
    """Look again and again until `holds` of what was seen; that.

    Raises:
        AssertionError: it did not hold within `seconds`; what was last seen is shown.
    """
    never = threading.Event()
    seen = look()
    for _ in range(int(seconds / _PAUSE_SECONDS)):
        if holds(seen):
            return seen
        never.wait(_PAUSE_SECONDS)
        seen = look()
    raise AssertionError(f"{what} did not happen within {seconds} s; last seen: {seen!r}")
