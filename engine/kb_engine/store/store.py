"""The store: the durable state of the engine, and how an operation on it runs on each database.

    api ------ store.read(documents.find, key) ---.             .--> sqlite/    one file, one process
    worker --- store.write(jobs.take, lease) -----+--> Store ---+
    search --- store.search(query) ---------------'             '--> postgres/  one database, many engines

An operation is a coroutine of a module in `repository/`, run in one transaction: it is atomic, its blocking
work runs outside the event loop, and after the acknowledgement its effect survives `kill -9`. Subclasses add
the parts that are specific to a database (transactions, leases, search, closing).

An index that keeps its own data, such as Qdrant, has no access to the store; a `Follower` keeps the two in
step. A transaction that changes documents records their ids in a log of changes, in the same transaction; the
number of the last change is the store's *generation*. The follower reads the log from the index's own
generation on, reads the current state of these documents, applies them, and truncates the log. So neither an
outage of the index nor the death of the engine loses a change: a change that the index has not recorded is
applied again.

    store commits ──▶ log of changes ──▶ follower ──▶ index.apply(changes, generation)
    search ──▶ waits until the index has the store's generation ──▶ index.search(query)

If the log does not reach back to the index's generation (the index is new, was lost, or belongs to another
base), the index is rebuilt from all documents.
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

from kb_config import tracing
from kb_contracts.access.reach import REACH, Reach
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.query import Wording
from kb_contracts.semantics.requests import Idempotency
from kb_engine.index.port import Candidates, Changes, Index, IndexQuery, IndexUnavailable, Vector
from kb_engine.index.score import fused, is_doubtful
from kb_engine.store.clock import SteadyClock, stamp
from kb_engine.store.port import Bounds, Found, Query, StoreEventCallback
from kb_engine.store.repository import search, state
from kb_engine.store.repository.transaction import MAKES_ROOM, TOGETHER, Read, Work, Write, once
from kb_engine.store.wording import Find, find_passing
from kb_engine.tasks import end

A = TypeVar("A", bound=msgspec.Struct)
P = ParamSpec("P")
R = TypeVar("R", bound=Read)
T = TypeVar("T")

BATCH = 32
"""Number of documents applied to an index at once."""
BLOCK_BYTES = 256 * 1024
"""Block size for reading files, in bytes."""
MAX_INDEX_WAIT_SECONDS = 10.0
"""Maximum time that a search waits for the index, in seconds."""
_POLL_SECONDS = 1.0
"""Interval at which the log is read for changes by other engines, in seconds."""
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0
_LONGEST_REQUESTED_PAUSE = 60.0

logger = logging.getLogger(__name__)


def original_lost() -> EngineError:
    """Return the error for a file that is recorded in the base but missing."""
    return EngineError("original_not_kept", "The file was kept and cannot be found any more. Send it again.")


def utc_now() -> datetime:
    return datetime.now(UTC)


def _named(access: str, operation: Callable[..., object]) -> str:
    """Return the name of a transaction's span."""
    return f"store {access} {getattr(operation, '__name__', 'work')}"


def bounded(read: R, reach: Reach | None) -> R:
    """Restrict the transaction to an access scope."""
    read.reach = reach
    return read


class Store(ABC):
    """The durable half of the engine. Its methods raise `EngineError`, such as `storage_full`."""

    def __init__(self, bounds: Bounds, clock: SteadyClock) -> None:
        self._bounds = bounds
        self._clock = clock
        self._follower: Follower | None = None
        self._closing: asyncio.Future[None] | None = None
        self._emptied_at: str | None = None
        self._lost: set[int] = set()

    @property
    def issues(self) -> list[str]:
        """Problems since the base was opened that an operator should know."""
        if self._emptied_at is None:
            return []
        return [
            f"The disk of the base was full at {self._emptied_at}: versions and removed documents made room"
        ]

    @property
    def keeps_originals(self) -> bool:
        """True if the files of new documents are kept."""
        return bool(self._bounds.originals)

    @property
    def index_failure(self) -> str | None:
        """The reason why the separate index, if there is one, cannot be searched; or None."""
        return None if self._follower is None else self._follower.failure

    def _note_emptied(self, count: int) -> None:
        """Record that `count` versions were dropped because a write found the disk full."""
        self._emptied_at = stamp(self._clock())
        logger.warning(
            "the disk is full: removed versions of documents and removed documents to make room",
            extra={"versions": count},
        )

    def _note_lost(self, chunk_ids: Collection[int]) -> None:
        """Record that these chunks have no vector."""
        if new := set(chunk_ids) - self._lost:
            self._lost = self._lost | new
            logger.warning(
                "passages have no vector; run kb check --repair to embed them again",
                extra={"passages": len(new)},
            )

    async def lost_vectors(self) -> int:
        """Return the number of passages known to lack a vector; a repair gives them new ids."""
        if self._lost:
            self._lost = set(await self.read(search.there, sorted(self._lost)))
        return len(self._lost)

    async def read(
        self,
        operation: Callable[Concatenate[Read, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation on one snapshot of the base."""
        reach = REACH.get()
        with tracing.step(_named("read", operation)):
            return await self._run_read(lambda read: operation(bounded(read, reach), *args, **kwargs))

    async def write(
        self,
        operation: Callable[Concatenate[Write, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation in one write transaction, which completes even if the caller is cancelled."""
        return await self._written(operation, lambda write: operation(write, *args, **kwargs))

    async def once(
        self,
        idempotency: Idempotency | None,
        operation: Callable[Concatenate[Write, P], Coroutine[Any, Any, A]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> A:
        """Like `write`; a repeated idempotency key gets the first response, or `idempotency_mismatch`."""
        return await self._written(
            operation, lambda write: once(write, idempotency, operation, *args, **kwargs)
        )

    async def _written(self, operation: Callable[..., object], work: Work[T]) -> T:
        reach = REACH.get()
        with tracing.step(_named("write", operation)):
            done = await self._run_write(
                lambda write: work(bounded(write, reach)),
                makes_room=operation in MAKES_ROOM,
                group=getattr(operation, "__name__", None) if operation in TOGETHER else None,
            )
        if self._follower is not None:
            self._follower.wake()
        return done

    @abstractmethod
    async def search(self, query: Query, vector: Awaitable[Vector] | None = None) -> Found:
        """Return the best chunks by descending score, ties by chunk id. Filters and access scope are part of
        the query, not applied afterwards.

        `vector` is awaited if the query's embedding is still being computed; its exceptions propagate.
        """

    async def judged(self, query: Query, found: Found) -> Found:
        """Return the result of a search in mode `vector`; if its best cosine is in doubt, the words of the
        query decide whether it is weak.
        """
        if not found.results or not is_doubtful(query.scoring, found.above):
            return found
        words = await self.search(replace(query, mode="fts", vector=None, top=1, min_score=0.0, arrange=None))
        return replace(found, weak=fused(query.scoring.weight, found.above, words.above) < 0)

    async def ping(self) -> None:
        """Check that the base can be read and written."""
        self.check_file()
        await self._run_write(state.ping, makes_room=False)
        await self.read(state.generation)

    def check_file(self) -> None:  # noqa: B027 - a base on a server has no file
        """Raise `EngineError` if the file of the base, where it has one, is gone or has become shorter."""

    @abstractmethod
    def original(self, sha256: str) -> AsyncGenerator[bytes, None]:
        """Yield the stored file with this SHA-256 in blocks; close the generator if you do not read to the
        end.
        Raises EngineError: `original_not_kept`, at the first block.
        """

    async def make_room(self) -> bool:
        """Drop old versions and trash if that frees space for uploads; return whether it did."""
        return False

    async def renew_damaged_index(self) -> int:
        """Rebuild the damaged files of the index; return their number."""
        return 0

    @property
    @abstractmethod
    def context(self) -> bool:
        """True if passages are embedded with title and headings (`EmbedderIdentity`)."""

    @property
    @abstractmethod
    def dimensions(self) -> int:
        """Dimensions of the vectors; 0 if there never was a vector and the embedder does not report them."""

    @abstractmethod
    def subscribe(self, callback: StoreEventCallback) -> None:
        """Register the callback for changes by other engines. Called once, at start, on the event loop."""

    @abstractmethod
    async def _run_read(self, work: Callable[[Read], Coroutine[Any, Any, T]]) -> T:
        """Run statements on one snapshot of the base."""

    @abstractmethod
    async def _run_write(self, work: Work[T], *, makes_room: bool, group: str | None = None) -> T:
        """Run one write transaction, which completes even if the caller is cancelled.

        Works of a `group` that wait may share it.

        If the disk is full, old versions and trash are dropped and the transaction is retried once. With
        `makes_room` it keeps no versions then, and uses reserved space if the store has any.
        """

    @abstractmethod
    async def _close(self) -> None:
        """Finish current work, requeue the jobs running here, and release the base."""

    def follow_with(self, index: Index) -> None:
        """Keep this index in step with the base and search it. Called once, before anything else."""
        self._follower = Follower(self, index)

    async def _search_elsewhere(self, follower: Follower, query: Query) -> Found:
        query = replace(query, languages=await self.read(search.languages))
        if query.wording is not None:
            return await self._search_for_wording(query, follower.search)
        return await self.read(search.found, query, await follower.search(query))

    async def _search_for_wording(self, query: Query, find: Find) -> Found:
        """Use several transactions; passages removed in between are left out."""

        async def passing(wording: Wording, chunk_ids: Sequence[int]) -> set[int]:
            return await self.read(search.passing, wording, chunk_ids)

        return await self.read(search.found, query, await find_passing(query, find, passing))

    async def close(self) -> None:
        """Finish current work, requeue the jobs running here, and release the base."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close_all())
        await asyncio.shield(self._closing)

    async def _close_all(self) -> None:
        if self._follower is not None:
            await self._follower.close()
        await self._close()


class Follower:
    """Keeps an index in step with a store from construction on, and searches it at the store's generation."""

    def __init__(self, store: Store, index: Index) -> None:
        self._store = store
        self._index = index
        self._applied = 0
        self._advanced = asyncio.Condition()
        self._woken = asyncio.Event()
        self.failure: str | None = None
        """The reason why the last update of the index failed, or None."""
        self._task = asyncio.create_task(self._follow())

    def wake(self) -> None:
        """Signal that a transaction was committed."""
        self._woken.set()

    async def close(self) -> None:
        """Stop. Changes not applied yet are applied after the next start."""
        await end(self._task)
        await self._index.close()

    async def search(self, query: IndexQuery) -> Candidates:
        """Return the candidates from a state that includes everything committed before this call.

        So a document is found as soon as its job is completed, and a deleted one is no longer found. No
        search is answered from an older state.
        Raises EngineError: `not_ready` if the index is out of service or stays behind.
        """
        wanted = await self._store.read(state.generation)
        try:
            async with asyncio.timeout(MAX_INDEX_WAIT_SECONDS):
                while True:
                    if self._applied < wanted:
                        self.wake()
                        with tracing.step("wait for index"):
                            async with self._advanced:
                                await self._advanced.wait_for(lambda: self._applied >= wanted)
                    found = await self._index.search(query)
                    if found.generation >= wanted:
                        return found
                    self._applied = 0  # the index was lost meanwhile
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
            try:
                behind = True
                while behind:
                    self._woken.clear()  # each time, because the last step's own write has set it
                    behind = await self._advance()
            except Exception as error:  # the follower must survive any exception of an index
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
        """Apply the next batch of changes; return whether there may be more."""
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
        """Rebuild the index from all documents. Its generation stays 0 until the last document is in it."""
        logger.info("building the search index from the store")
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
    """The pause that the index asks for, in seconds, at most `_LONGEST_REQUESTED_PAUSE`."""
    seconds = error.retry_after if isinstance(error, IndexUnavailable) else None
    return min(seconds or 0.0, _LONGEST_REQUESTED_PAUSE)
