"""The extent of a test run: the daily rows of parametrised tests, or all of them, as in `.ci/run --all`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

ALL_VARIABLE = "KB_TEST_ALL"
"""Environment variable: any value but "" or "0" selects all rows."""


def is_whole() -> bool:
    """True in a run of all rows."""
    return os.environ.get(ALL_VARIABLE, "") not in ("", "0")


ALL = is_whole()
"""The extent at the time when the tests were collected."""


def rows(*daily: T, whole: Sequence[T] = ()) -> tuple[T, ...]:
    """Parameters of a test: the daily ones, and in a run of all rows those of `whole` too."""
    return (*daily, *whole) if ALL else daily
