"""Waiting with a time limit for a condition that another task, thread or process makes true.

`eventually` is for tests without an event loop, `eventually_async` for tests with one. Both sleep between two
polls, longer each time, because polling takes the processor from the awaited task.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, cast, overload

from tests.support.patience import UNTIL_SECONDS

T = TypeVar("T")

_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 0.1


def eventually(
    look: Callable[[], T],
    holds: Callable[[T], Any] = bool,
    *,
    seconds: float = UNTIL_SECONDS,
    what: str = "it",
) -> T:
    """Poll `look` until `holds` of its result is true, and return the result.

    Raises:
        AssertionError: the condition was not true within `seconds`; the message has the last result.
    """
    deadline, pauses = time.monotonic() + seconds, _pauses()
    while not holds(seen := look()):
        _check(deadline, what, seconds, seen)
        time.sleep(next(pauses))
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
    """Like `eventually`, but the event loop runs between two polls; `look` may be a coroutine function."""
    deadline, pauses = time.monotonic() + seconds, _pauses()
    while True:
        found = look()
        seen = cast("T", await found if inspect.isawaitable(found) else found)
        if holds(seen):
            return seen
        _check(deadline, what, seconds, seen)
        await asyncio.sleep(next(pauses))


def _pauses() -> Iterator[float]:
    pause = _PAUSE_SECONDS
    while True:
        yield pause
        pause = min(1.1 * pause, _LONGEST_PAUSE_SECONDS)


def _check(deadline: float, what: str, seconds: float, seen: object) -> None:
    assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s; last seen: {seen!r}"
