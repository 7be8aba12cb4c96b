"""How often one user may call RAGler's operations: fixed windows for each user and operation, in memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from kb_contracts.api.errors import EngineError
from kb_contracts.api.ragler import LIMITS, WINDOW_SECONDS

MAX_WINDOWS = 20_000
"""Windows kept at the most, some 10 MB: beyond it the oldest is forgotten early."""

_WINDOW = WINDOW_SECONDS * 1_000_000


def _monotonic() -> int:
    return time.monotonic_ns() // 1000


@dataclass(slots=True)
class _Window:
    start: int
    calls: int = 0


class RateWindows:
    """Counts calls before they are carried out; a refused call does not count.

    `clock` gives microseconds: whole numbers, so that a caller who waits exactly `retry_after` is
    let through.
    """

    def __init__(self, clock: Callable[[], int] = _monotonic, max_windows: int = MAX_WINDOWS) -> None:
        self._clock = clock
        self._max_windows = max_windows
        # All windows are equally long, so that they end in the order in which they started.
        self._windows: dict[tuple[str, str, str], _Window] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def count(self, operation: str, user: str | None, credential: str) -> None:
        """Count one call of `user`, or of the credential where it names no user.

        Raises:
            EngineError: `rate_limited`, with the seconds that are left.
        """
        now = self._clock()
        while self._windows and now - self._windows[oldest := next(iter(self._windows))].start >= _WINDOW:
            del self._windows[oldest]
        # Two kinds, so that no user's name is taken for a credential.
        key = (operation, *(("credential", credential) if user is None else ("user", user)))
        if (window := self._windows.get(key)) is None:
            if len(self._windows) >= self._max_windows:
                del self._windows[next(iter(self._windows))]
            window = self._windows[key] = _Window(now)
        if window.calls >= LIMITS[operation]:
            left = math.ceil((window.start + _WINDOW - now) / 1000) / 1000
            raise EngineError(
                "rate_limited",
                f"One user may call {operation} {LIMITS[operation]} times in {WINDOW_SECONDS} seconds. "
                f"Try again in {math.ceil(left)} seconds.",
                retry_after=left,
            )
        window.calls += 1
