"""Extent of a run of tests: the rows of every day, or all of them, as in `.ci/run --all`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

ALL_VARIABLE = "KB_TEST_ALL"
"""Environment variable: set to anything but "" or "0", a run has all rows."""


def is_whole() -> bool:
    """True in a run of everything."""
    return os.environ.get(ALL_VARIABLE, "") not in ("", "0")


ALL = is_whole()
"""The same, as it was when the tests were collected."""


def rows(*daily: T, whole: Sequence[T] = ()) -> tuple[T, ...]:
    """Parameters of a test: those of every day, and in a run of everything those of `whole` too."""
    return (*daily, *whole) if ALL else daily
