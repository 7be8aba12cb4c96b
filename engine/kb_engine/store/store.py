"""The store: what the engine knows, and how an operation on it is run, once for all databases.

    api ------ store.read(documents.find, key) ---.             .--> sqlite/    one file, one process
    worker --- store.write(jobs.take, lease) -----+--> Store ---+
    search --- store.search(query) ---------------'             '--> postgres/  one database, many engines

An operation is a coroutine of a module in `repository/`, run in one transaction: it happens whole or not at
all, it does its blocking work off the event loop, and what it acknowledged survives `kill -9`. What a
database does in its own way (transactions, leases, search, closing) its subclass adds.

Where the search index keeps its data for itself a `Follower` keeps it in step with the store, to which the
index has no access. A transaction that changes documents notes which ones, in the same transaction, in a log
of changes; the number of the last one is the store's *generation*. The follower reads the log behind the
index's own generation, takes the documents as they are now, applies them, and has the log forgotten that far.
So an outage of the index, and a death of the engine at any instant, leave nothing undone: what the index has
not remembered is applied again.

    store commits ──▶ log of changes ──▶ follower ──▶ index.apply(changes, generation)
    search ──▶ waits until the index has the store's generation ──▶ index.search(query)

Where the log does not reach back to the index's generation (the index is new or was lost, or is that of
another base) the index is made again from all documents.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from kb_contracts.access.reach import REACH, Reach
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.query import Wording
from kb_engine.index.port import Candidates, Changes, Index, IndexQuery, IndexUnavailable, Vector
from kb_engine.store.port import Bounds, Found, Idempotency, Query, StoreEventCallback
from kb_engine.store.repository import search, state
from kb_engine.store.repository.transaction import MAKES_ROOM, Clock, Read, Write, once, stamp
from kb_engine.store.wording import Find, find_passing

A = TypeVar("A", bound=msgspec.Struct)
P = ParamSpec("P")
R = TypeVar("R", bound=Read)
T = TypeVar("T")

BATCH = 32
"""Documents that are applied to an index at once."""
BLOCK_BYTES = 256 * 1024
"""Of a file that is read."""
PATIENCE_SECONDS = 10.0
"""So long a search waits for the index."""
_POLL_SECONDS = 1.0
"""Another engine may have changed documents."""
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0
_LONGEST_REQUESTED_PAUSE = 60.0

logger = logging.getLogger(__name__)


def original_lost() -> EngineError:
    """The error for a file that the base names and that is not there."""
    return EngineError(
        "original_not_kept",
        "The file was kept and cannot be found any more. Send it again, or restore it from a copy.",
    )


def utc_now() -> datetime:
    return datetime.now(UTC)


def bounded(read: R, reach: Reach | None) -> R:
    """The transaction, which sees no further than that."""
    read.reach = reach
    return read


class Store(ABC):
    """The durable half of the engine.

    Raises (all methods): `EngineError` with a code of the contract; `storage_full` when the disk is.
    """

    def __init__(self, bounds: Bounds, clock: Clock) -> None:
        self._bounds = bounds
        self._clock = clock
        self._follower: Follower | None = None
        self._closing: asyncio.Future[None] | None = None
        self._emptied_at: str | None = None
        self._lost: set[int] = set()

    @property
    def issues(self) -> list[str]:
        """What has happened to the base since it was opened that somebody should know."""
        if self._emptied_at is None:
            return []
        return [
            f"The disk of the base was full at {self._emptied_at}: versions and removed documents made room"
        ]

    @property
    def index_failure(self) -> str | None:
        """Why the index that keeps its data for itself cannot be asked; None: it can, or there is none."""
        return None if self._follower is None else self._follower.failure

    def _note_emptied(self, count: int) -> None:
        """So many versions were dropped, for a write that found no room."""
        self._emptied_at = stamp(self._clock())
        logger.warning(
            "the disk is full: versions of documents and removed ones made room", extra={"versions": count}
        )

    def _note_lost(self, chunk_ids: Collection[int]) -> None:
        """These chunks have no vector."""
        if new := set(chunk_ids) - self._lost:
            self._lost = self._lost | new
            logger.warning(
                "passages have no vector; kb check --repair makes them anew", extra={"passages": len(new)}
            )

    async def lost_vectors(self) -> int:
        """How many passages are known to have none; who repairs them gives them new numbers."""
        if self._lost:
            self._lost = set(await self.read(search.there, sorted(self._lost)))
        return len(self._lost)

    async def read(
        self,
        operation: Callable[Concatenate[Read, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation on one state of the base."""
        reach = REACH.get()
        return await self._run_read(lambda read: operation(bounded(read, reach), *args, **kwargs))

    async def write(
        self,
        operation: Callable[Concatenate[Write, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation in one write transaction, which ends also where its caller is cancelled."""
        reach = REACH.get()
        done = await self._run_write(
            lambda write: operation(bounded(write, reach), *args, **kwargs),
            makes_room=operation in MAKES_ROOM,
        )
        if self._follower is not None:
            self._follower.wake()
        return done

    async def once(
        self,
        idempotency: Idempotency | None,
        operation: Callable[Concatenate[Write, P], Coroutine[Any, Any, A]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> A:
        """As `write`, where a retry under the same key is answered as the first time.

        Raises `idempotency_mismatch`.
        """
        makes_room, reach = operation in MAKES_ROOM, REACH.get()
        done = await self._run_write(
            lambda write: once(bounded(write, reach), idempotency, operation, *args, **kwargs),
            makes_room=makes_room,
        )
        if self._follower is not None:
            self._follower.wake()
        return done

    async def search(self, query: Query, vector: Awaitable[Vector] | None = None) -> Found:
        """The best chunks, best first, ties by chunk id; filters are part of the query, not applied after.

        `vector` is waited for where that of the query is still to be made; what it raises is raised.
        """
        if (reach := REACH.get()) is not None:
            query = replace(query, selection=replace(query.selection, reach=reach))
        return await self._find(query, vector)

    async def ping(self) -> None:
        """Prove that the base can be read and written."""
        await self._run_write(state.ping, makes_room=False)
        await self.read(state.generation)

    @abstractmethod
    def original(self, sha256: str) -> AsyncGenerator[bytes, None]:
        """The file of this content that is kept, block by block; close it where not all is read.

        Raises:
            EngineError: `original_not_kept`, at the first block.
        """

    async def make_room(self) -> bool:
        """Let versions and trash go where that may leave room on the disk of the uploads; whether it did."""
        return False

    async def renew_damaged_index(self) -> int:
        """Make anew what of the index lies in files and is not as it was written; how many there were."""
        return 0

    @property
    @abstractmethod
    def context(self) -> bool:
        """Whether its passages are embedded with title and headings (`EmbedderIdentity`)."""

    @property
    @abstractmethod
    def dimensions(self) -> int:
        """How many numbers its vectors have; 0: there never was one, and its embedder did not tell."""

    @abstractmethod
    def subscribe(self, callback: StoreEventCallback) -> None:
        """Call back, on the event loop, with what other engines do. Called once, at start."""

    @abstractmethod
    async def _find(self, query: Query, vector: Awaitable[Vector] | None) -> Found:
        """As `search`; the reach is in the query."""

    @abstractmethod
    async def _run_read(self, work: Callable[[Read], Coroutine[Any, Any, T]]) -> T:
        """Several statements on one state of the base."""

    @abstractmethod
    async def _run_write(self, work: Callable[[Write], Coroutine[Any, Any, T]], *, makes_room: bool) -> T:
        """One write transaction, which runs to its end also where its caller is cancelled.

        Where the disk is full versions and trash are dropped, and it is tried once more. One that
        `makes_room` keeps nothing then, and is done on a full disk too, where the store can.
        """

    @abstractmethod
    async def _close(self) -> None:
        """Finish what is under way, queue again what runs here, and let go of the base."""

    def follow_with(self, index: Index) -> None:
        """Keep this index in step with the base, and search it. Called once, before anything else."""
        self._follower = Follower(self, index)

    async def _search_elsewhere(self, follower: Follower, query: Query) -> Found:
        query = replace(query, languages=await self.read(search.languages))
        if query.wording is not None:
            return await self._search_for_wording(query, follower.search)
        return await self.read(search.found, query, await follower.search(query))

    async def _search_for_wording(self, query: Query, find: Find) -> Found:
        """In several turns; what is removed meanwhile is left out."""

        async def passing(wording: Wording, chunk_ids: Sequence[int]) -> set[int]:
            return await self.read(search.passing, wording, chunk_ids)

        return await self.read(search.found, query, await find_passing(query, find, passing))

    async def close(self) -> None:
        """Finish what is under way, queue again what runs here, and let go of the base."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close_all())
        await asyncio.shield(self._closing)

    async def _close_all(self) -> None:
        if self._follower is not None:
            await self._follower.close()
        await self._close()


class Follower:
    """Keeps an index in step with a store, from construction on, and searches it in the store's state."""

    def __init__(self, store: Store, index: Index) -> None:
        self._store = store
        self._index = index
        self._applied = 0
        self._advanced = asyncio.Condition()
        self._woken = asyncio.Event()
        self.failure: str | None = None
        """Why the index could not be brought up to date, when that was tried last."""
        self._task = asyncio.create_task(self._follow())

    def wake(self) -> None:
        """Something was committed."""
        self._woken.set()

    async def close(self) -> None:
        """Stop; what is not applied by then is applied after the next start."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._index.close()

    async def search(self, query: IndexQuery) -> Candidates:
        """The candidates, from a state that has everything committed before this call.

        So a document is found as soon as its job is completed, and one that was deleted is not found any
        more. No search is answered from an older state.

        Raises:
            EngineError: `not_ready` where the index is out of service, or stays behind.
        """
        wanted = await self._store.read(state.generation)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    if self._applied < wanted:
                        self.wake()
                        async with self._advanced:
                            await self._advanced.wait_for(lambda: self._applied >= wanted)
                    found = await self._index.search(query)
                    if found.generation >= wanted:
                        return found
                    self._applied = 0  # the index was lost since
        except (TimeoutError, IndexUnavailable) as error:
            why = self.failure or str(error) or "it is being brought up to date"
            raise EngineError(
                "not_ready",
                f"The search index cannot answer: {why}. What was added is kept; retry when it is back.",
                retry_after=max(_LONGEST_PAUSE, _requested_pause(error)),
            ) from error

    async def _follow(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            self._woken.clear()
            try:
                while await self._advance():
                    pass
            except Exception as error:  # whatever an index raises, its follower goes on
                if self.failure is None:
                    expected = isinstance(error, IndexUnavailable | EngineError)
                    trace = None if expected else error
                    logger.warning(
                        "the search index is not up to date", extra={"why": str(error)}, exc_info=trace
                    )
                self.failure = str(error) or type(error).__name__
                await asyncio.sleep(max(pause, _requested_pause(error)))
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            if self.failure is not None:
                logger.info("the search index is up to date again")
            self.failure, pause = None, _FIRST_PAUSE
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._woken.wait()

    async def _advance(self) -> bool:
        """Apply what is next; whether there may be more."""
        applied = await self._index.generation()
        pending = await self._store.read(state.changes_since, applied, BATCH) if applied else None
        if pending is None:
            await self._rebuild()
            return True
        changes, generation = pending
        if generation > applied:
            await self._index.apply(changes, generation)
            await self._forget_changes(generation)
        async with self._advanced:
            self._applied = generation
            self._advanced.notify_all()
        return generation > applied

    async def _rebuild(self) -> None:
        """All documents, in an index of generation 0 until the last of them is in it."""
        logger.info("the search index is built from the store")
        generation = await self._store.read(state.generation)
        await self._index.create(self._store.dimensions)
        last = 0
        while documents := await self._store.read(state.documents_after, last, BATCH):
            await self._index.apply(Changes(upserts=documents), 0)
            last = documents[-1].id
        await self._index.apply(Changes(), generation)
        await self._forget_changes(generation)

    async def _forget_changes(self, generation: int) -> None:
        await self._store.write(state.forget_changes, generation)


def _requested_pause(error: Exception) -> float:
    """For how many seconds the index does not want to be called."""
    seconds = error.retry_after if isinstance(error, IndexUnavailable) else None
    return min(seconds or 0.0, _LONGEST_REQUESTED_PAUSE)
