"""Waiting: by a given clock, between attempts, and for work that must not be interrupted.

Tests pass a clock of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

T = TypeVar("T")


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """Two readings and a wait, in seconds.

    `monotonic` measures spans; it is the same in every process of a machine. `now` is for people.
    """

    now: Callable[[], datetime] = _utc_now
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


SYSTEM_CLOCK = Clock()


def jittered(made: int, *, base: float, cap: float, random: Callable[[], float]) -> float:
    """Return the seconds to wait after `made` attempts: uniform in 0 to `base * 2**(made - 1)`, capped."""
    return random() * min(cap, base * 2.0 ** (made - 1))


async def to_its_end(work: Awaitable[T]) -> T:
    """Await `work`; a caller that is cancelled meanwhile returns only after it has ended."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # repeatedly: a deadline, a client that left, the shutdown
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved, so that it is not reported as lost
        raise


class SharedWork:
    """Work that concurrent callers share; it is cancelled when the last waiting caller leaves."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._begin = begin
        self._task: asyncio.Task[None] | None = None
        self._waiting = 0

    async def outcome(self) -> None:
        """Start the work unless it is running, and wait for its end. Raises its exception."""
        task = self._task = self._task or asyncio.create_task(self._begin())
        self._waiting += 1
        try:
            await asyncio.wait([task])
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._task = None
                if not task.cancel() and not task.cancelled():
                    task.exception()  # retrieved, so that it is not reported as lost
        task.result()
