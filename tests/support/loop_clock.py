"""The clock of the running loop, moved on by a test, so that a time-out passes without being waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest


def advance_loop(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """What moves the clock of the running loop on by so many seconds; it goes on as it did in between."""
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, 0.0

    def advance(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    monkeypatch.setattr(loop, "time", lambda: real() + ahead)
    return advance
