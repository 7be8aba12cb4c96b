"""The clock of the running loop, advanced by a test, so that a time-out passes without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest


def advance_loop(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that advances the running loop's clock by some seconds; it runs on in between."""
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, 0.0

    def advance(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    monkeypatch.setattr(loop, "time", lambda: real() + ahead)
    return advance


def advance_new_loops(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that advances the clocks of all loops created from now on; any thread may call it."""
    make, ahead = asyncio.new_event_loop, 0.0
    loops: list[asyncio.AbstractEventLoop] = []

    def made() -> asyncio.AbstractEventLoop:
        loop = make()
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + ahead)
        loops.append(loop)
        return loop

    def advance(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds
        for loop in loops:
            if loop.is_running():
                loop.call_soon_threadsafe(int)  # wakes the loop, which then looks at its timers

    monkeypatch.setattr(asyncio, "new_event_loop", made)
    return advance


async def turns(count: int = 100) -> None:
    """Run `count` iterations of the loop, so that everything in this process that is ready makes progress."""
    for _ in range(count):
        await asyncio.sleep(0)
