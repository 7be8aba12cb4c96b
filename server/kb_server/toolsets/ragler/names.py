"""The names of collections by their ids, kept for a while.

Each search in a collection needs its name, and the backend lets a server ask for 50 collections a minute
and search 100 times. So a name is asked for once in five minutes, and by one of those who want it at the
same time; lists and details that were asked for anyway bring names as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from kb_server.engine_client.ragler import Collection, Ragler
from kb_server.waiting import Clock

KEPT_SECONDS = 300.0
KEPT_NAMES = 10_000


class _Services(Protocol):
    @property
    def ragler(self) -> Ragler: ...

    @property
    def clock(self) -> Clock: ...


class CollectionNames:
    """Names that were told within the last five minutes, and those being asked for."""

    def __init__(self, services: _Services) -> None:
        self._services = services
        self._known: dict[str, tuple[str, float]] = {}
        self._requests: dict[str, asyncio.Task[str]] = {}

    async def of(self, collection_id: str) -> str:
        """The name of a collection.

        Raises:
            EngineFault: the backend does not tell it.
        """
        name, until = self._known.get(collection_id, ("", 0.0))
        if self._services.clock.monotonic() < until:
            return name
        request = self._requests.get(collection_id)
        if request is None:
            request = asyncio.create_task(self._ask(collection_id), name="collection-name")
            self._requests[collection_id] = request
            request.add_done_callback(partial(self._answered, collection_id))
        # A caller who leaves takes nothing from the others who wait.
        return await asyncio.shield(request)

    def learn(self, collections: Iterable[Collection]) -> None:
        """Keep the names of what the backend told."""
        until = self._services.clock.monotonic() + KEPT_SECONDS
        for collection in collections:
            if len(self._known) >= KEPT_NAMES:
                self._known.clear()  # so many are nobody's working set; it is not worth an order of eviction
            self._known[collection.id] = (collection.name, until)

    def forget(self, collection_id: str | None) -> None:
        """The name may no longer be true."""
        self._known.pop(collection_id or "", None)

    async def _ask(self, collection_id: str) -> str:
        collection = await self._services.ragler.collection(collection_id)
        self._known.pop(collection_id, None)
        self.learn([collection])
        # Kept under the id that was asked for, however the backend writes it.
        self._known[collection_id] = self._known[collection.id]
        return collection.name

    def _answered(self, collection_id: str, task: asyncio.Task[str]) -> None:
        """Nobody may be left who waits for it; its failure is not to be reported as lost."""
        del self._requests[collection_id]
        if not task.cancelled():
            task.exception()
