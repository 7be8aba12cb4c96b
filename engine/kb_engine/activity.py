"""Whether anybody wants something of the engine, so that work which can wait finds a time of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from kb_contracts.http.mount import Handler, Incoming

_PROBES = frozenset({"getStatus", "getHealth", "getReadiness"})
"""Asked for by machines, every few seconds, whether or not anybody uses the engine."""


class Activity:
    """Requests under way, and since when there has been none. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._under_way = 0
        self._last = clock()

    def noting(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """The same handlers, whose requests are noted, but for probes."""
        return {
            operation: handler if operation in _PROBES else partial(self._noted, handler)
            for operation, handler in handlers.items()
        }

    @property
    def idle_seconds(self) -> float:
        """For how long nobody has wanted anything; 0 while a request is under way."""
        return 0.0 if self._under_way else self._clock() - self._last

    async def _noted(self, handler: Handler, incoming: Incoming) -> msgspec.Struct:
        self._under_way += 1
        try:
            return await handler(incoming)
        finally:
            self._under_way -= 1
            self._last = self._clock()
