"""Keeps an index in step with a store that it has no access to, and searches it in the state of the store.

A transaction of the store that changes documents notes which ones, in the same transaction, in a log of
changes; the number of the last one is the store's *generation*. The follower reads the log behind the index's
own generation, takes the documents as they are now, applies them, and has the log forgotten that far. So an
outage of the index, and a death of the engine at any instant, leave nothing undone: what the index has not
remembered is applied again.

    store commits ──▶ log of changes ──▶ follower ──▶ index.apply(changes, generation)
    search ──▶ waits until the index has the store's generation ──▶ index.search(query)

Where the log does not reach back to the index's generation (the index is new or was lost, or is that of
another base) the index is made again from all documents.

A search waits for everything that was committed before it began, so that a document is found as soon as its
job is completed, and one that was deleted is not found any more. Where the index stays behind for too long
the search is refused with `not_ready`; it never answers from an older state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from kb_contracts.api.errors import EngineError
from kb_engine.index.port import Candidates, Changes, Index, IndexedDocument, IndexQuery, IndexUnavailable

BATCH = 32
"""Documents that are applied at once."""
PATIENCE_SECONDS = 10.0
"""So long a search waits for the index."""
_POLL_SECONDS = 1.0
"""Another engine may have changed documents."""
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pending:
    """Changes that an index lacks, and the generation that it has with them."""

    changes: Changes
    generation: int


class Source(Protocol):
    """The store, as the one whose documents are indexed. All methods raise `EngineError`."""

    async def generation(self) -> int:
        """The number of the last change; 1 at least."""

    async def changes_since(self, generation: int, limit: int) -> Pending | None:
        """What has changed in up to `limit` documents; None where the log does not reach back so far."""

    async def documents_after(self, document_id: int, limit: int) -> list[IndexedDocument]:
        """The next documents by id."""

    async def forget_changes(self, generation: int) -> None:
        """The index has this generation: the log up to it is not needed any more."""


class Follower:
    """Runs one index. `dimensions` is the length of vectors; 0 while it is unknown."""

    def __init__(self, source: Source, index: Index, dimensions: Callable[[], int]) -> None:
        self._source = source
        self._index = index
        self._dimensions = dimensions
        self._applied = 0
        self._advanced = asyncio.Condition()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failure: str | None = None

    def start(self) -> None:
        """Follow from here on."""
        self._task = asyncio.create_task(self._follow())

    def wake(self) -> None:
        """Something was committed."""
        self._woken.set()

    async def close(self) -> None:
        """Stop; what is not applied by then is applied after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._index.close()

    async def search(self, query: IndexQuery) -> Candidates:
        """The candidates, from a state that has everything committed before this call.

        Raises:
            EngineError: `not_ready` where the index is out of service, or stays behind.
        """
        wanted = await self._source.generation()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    await self._reached(wanted)
                    found = await self._index.search(query)
                    if found.generation >= wanted:
                        return found
                    self._applied = 0  # the index was lost since
        except (TimeoutError, IndexUnavailable) as error:
            why = self._failure or str(error) or "it is being brought up to date"
            raise EngineError(
                "not_ready",
                f"The search index cannot answer: {why}. What was added is kept; retry when it is back.",
                retry_after=_LONGEST_PAUSE,
            ) from error

    async def _reached(self, generation: int) -> None:
        if self._applied < generation:
            self.wake()
            async with self._advanced:
                await self._advanced.wait_for(lambda: self._applied >= generation)

    async def _follow(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            self._woken.clear()
            try:
                while await self._advance():
                    pass
            except Exception as error:  # whatever an index raises, its follower goes on
                if self._failure is None:
                    expected = isinstance(error, IndexUnavailable | EngineError)
                    trace = None if expected else error
                    logger.warning(
                        "the search index is not up to date", extra={"why": str(error)}, exc_info=trace
                    )
                self._failure = str(error) or type(error).__name__
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            if self._failure is not None:
                logger.info("the search index is up to date again")
            self._failure, pause = None, _FIRST_PAUSE
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._woken.wait()

    async def _advance(self) -> bool:
        """Apply what is next; whether there may be more."""
        applied = await self._index.generation()
        pending = await self._source.changes_since(applied, BATCH) if applied else None
        if pending is None:
            await self._rebuild()
            return True
        if pending.generation > applied:
            await self._index.apply(pending.changes, pending.generation)
            await self._source.forget_changes(pending.generation)
        async with self._advanced:
            self._applied = pending.generation
            self._advanced.notify_all()
        return pending.generation > applied

    async def _rebuild(self) -> None:
        """All documents, in an index of generation 0 until the last of them is in it."""
        logger.info("the search index is built from the store")
        generation = await self._source.generation()
        await self._index.create(self._dimensions())
        last = 0
        while documents := await self._source.documents_after(last, BATCH):
            await self._index.apply(Changes(upserts=documents), 0)
            last = documents[-1].id
        await self._index.apply(Changes(), generation)
        await self._source.forget_changes(generation)
