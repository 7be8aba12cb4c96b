"""How often one user may ask: fixed windows, one for each user and operation, kept in memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from kb_contracts.api.errors import EngineError
from kb_contracts.api.ragler import LIMITS, WINDOW_SECONDS
from kb_contracts.http.mount import Incoming

MOST_WINDOWS = 20_000
"""Windows that are kept at the most, some 10 MB: over it, the oldest is forgotten early."""


@dataclass(slots=True)
class _Window:
    begun: float
    calls: int = 0


class RateLimits:
    """Counts calls before they are worked on; `clock` is in seconds. What is refused does not count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = MOST_WINDOWS) -> None:
        self._clock = clock
        self._most = most
        # All windows are equally long, so that the order in which they begin is that in which they end.
        self._windows: dict[tuple[str, str, str], _Window] = {}

    def __len__(self) -> int:
        """How many windows are kept."""
        return len(self._windows)

    def count(self, incoming: Incoming) -> None:
        """One more call. Raises EngineError: `rate_limited`, with the seconds that are left."""
        operation = incoming.operation.id
        now = self._clock()
        self._forget(now)
        window = self._window(_key(incoming), now)
        if window.calls >= LIMITS[operation]:
            left = math.ceil((window.begun + WINDOW_SECONDS - now) * 1000) / 1000
            raise EngineError(
                "rate_limited",
                f"One user may ask {operation} {LIMITS[operation]} times in {WINDOW_SECONDS} seconds. "
                f"Ask again in {math.ceil(left)} seconds.",
                retry_after=left,
            )
        window.calls += 1

    def _window(self, key: tuple[str, str, str], now: float) -> _Window:
        if (window := self._windows.get(key)) is None:
            if len(self._windows) >= self._most:
                del self._windows[next(iter(self._windows))]
            window = self._windows[key] = _Window(now)
        return window

    def _forget(self, now: float) -> None:
        """Drop the windows that have ended."""
        while self._windows:
            oldest = next(iter(self._windows))
            if now - self._windows[oldest].begun < WINDOW_SECONDS:
                return
            del self._windows[oldest]


def _key(incoming: Incoming) -> tuple[str, str, str]:
    # Two kinds, so that nobody's name is taken for another one's key.
    who = ("credential", incoming.credential) if incoming.user is None else ("user", incoming.user)
    return (incoming.operation.id, *who)
