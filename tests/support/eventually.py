"""Waiting for what happens elsewhere, in another task, thread or process: a condition and a bound.

`eventually` is for tests without a loop, `eventually_async` for the others. Both look, pause, and look again,
so that whoever is waited for has the processor meanwhile; a loop that only spins takes it from them.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast, overload

from tests.support.patience import UNTIL_SECONDS

T = TypeVar("T")

_PAUSE_SECONDS = 0.02


def eventually(
    look: Callable[[], T],
    holds: Callable[[T], Any] = bool,
    *,
    seconds: float = UNTIL_SECONDS,
    what: str = "it",
) -> T:
    """Look again and again until `holds` of what was seen, and return that.

    Raises:
        AssertionError: it did not hold within `seconds`; the message says what was last seen.
    """
    deadline = time.monotonic() + seconds
    while not holds(seen := look()):
        _check(deadline, what, seconds, seen)
        time.sleep(_PAUSE_SECONDS)
    return seen


@overload
async def eventually_async(
    look: Callable[[], Awaitable[T]],
    holds: Callable[[T], Any] = ...,
    *,
    seconds: float = ...,
    what: str = ...,
) -> T: ...
@overload
async def eventually_async(
    look: Callable[[], T], holds: Callable[[T], Any] = ..., *, seconds: float = ..., what: str = ...
) -> T: ...
async def eventually_async(
    look: Callable[[], Awaitable[T] | T],
    holds: Callable[[T], Any] = bool,
    *,
    seconds: float = UNTIL_SECONDS,
    what: str = "it",
) -> T:
    """As `eventually`, and the loop is free between two looks; `look` may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        seen = cast("T", await found if inspect.isawaitable(found) else found)
        if holds(seen):
            return seen
        _check(deadline, what, seconds, seen)
        await asyncio.sleep(_PAUSE_SECONDS)


def _check(deadline: float, what: str, seconds: float, seen: object) -> None:
    assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s; last seen: {seen!r}"
