"""How often one user may ask, in fixed windows of virtual time; one object a namespace."""

from __future__ import annotations

import math
from collections.abc import Callable

from kb_contracts.api.errors import EngineError
from kb_contracts.api.ragler import LIMITS, WINDOW_SECONDS
from kb_contracts.http.mount import Incoming

MOST_WINDOWS = 20_000
"""Over it, the window that began first is forgotten early."""

_WINDOW = WINDOW_SECONDS * 1_000_000
_MILLISECOND = 1_000

Key = tuple[str, bool, str]
"""Operation, whether a user is named, and the user or the credential."""


class Limits:
    """Counts what is asked; `now` gives microseconds. A refused call is not counted."""

    def __init__(self, now: Callable[[], int], most: int = MOST_WINDOWS) -> None:
        self._now = now
        self._most = most
        self._begun: dict[Key, int] = {}  # in the order of beginning
        self._calls: dict[Key, int] = {}

    def __len__(self) -> int:
        """How many windows are kept."""
        return len(self._begun)

    def count(self, incoming: Incoming) -> None:
        """One more call. Raises EngineError: `rate_limited`."""
        now, limit = self._now(), LIMITS[incoming.operation.id]
        key = (incoming.operation.id, incoming.user is not None, incoming.user or incoming.credential)
        self._make_room(key, now)
        if self._calls.get(key, 0) >= limit:
            left = math.ceil((self._begun[key] + _WINDOW - now) / _MILLISECOND) / 1000
            raise EngineError(
                "rate_limited",
                f"{limit} calls of {incoming.operation.id} in {WINDOW_SECONDS} seconds are a user's limit.",
                retry_after=left,
            )
        self._begun.setdefault(key, now)
        self._calls[key] = self._calls.get(key, 0) + 1

    def _make_room(self, key: Key, now: int) -> None:
        """Forget what has ended, and the oldest where there are too many."""
        while self._begun:
            oldest, begun = next(iter(self._begun.items()))
            full = len(self._begun) >= self._most and key not in self._begun
            if now - begun < _WINDOW and not full:
                return
            del self._begun[oldest], self._calls[oldest]
