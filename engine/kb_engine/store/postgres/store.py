"""The store on PostgreSQL: many engines on one database, every transaction whole.

Changes of documents follow one another (`write.py`); jobs, leases and files do not wait for them. A search
reads one snapshot of the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import asyncpg
import msgspec

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.errors import EngineError
from kb_engine.address import Address
from kb_engine.index.follower import Follower
from kb_engine.index.port import Index
from kb_engine.index.postgres.search import search
from kb_engine.index.postgres.words import Words
from kb_engine.store import results
from kb_engine.store.changes import FORGET, ChangeLog
from kb_engine.store.port import (
    Counts,
    EmbedderIdentity,
    Found,
    Heard,
    Idempotency,
    KeptJob,
    LeasedJob,
    NewJob,
    Prepared,
    Query,
)
from kb_engine.store.postgres import collections, documents, ingest, jobs, state, tags, updates
from kb_engine.store.postgres.connection import (
    GONE,
    READ_SECONDS,
    Connections,
    Db,
    Lost,
    answer,
    as_engine_errors,
    attempted,
    not_ready,
    rows,
    value,
    was_cut_off,
)
from kb_engine.store.postgres.idempotency import once, stored
from kb_engine.store.postgres.keeping import Beats, Ear
from kb_engine.store.postgres.opening import WAIT_SECONDS, prepare
from kb_engine.store.postgres.reads import POSTGRES
from kb_engine.store.postgres.spool import PostgresSpool
from kb_engine.store.postgres.write import Write
from kb_engine.store.times import stamp
from kb_engine.turns import LANES, Lane

A = TypeVar("A", bound=msgspec.Struct)
T = TypeVar("T")

Clock = Callable[[], datetime]

LEASE_SECONDS = 30.0
"""So long after the last sign of life of an engine its jobs are free for the others."""
BEATS = 3
"""Signs of life in that time."""
_FILE_LEASES = 4
"""An upload that nobody accepts is kept for so many leases."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


async def open_postgres(
    address: Address,
    *,
    embedder: EmbedderIdentity,
    max_queued: int = 100_000,
    lease_seconds: float = LEASE_SECONDS,
    clock: Clock = _utc_now,
    wait: float = WAIT_SECONDS,
    index: Index | None = None,
) -> PostgresStore:
    """Open the base at `address`, creating or migrating it first; `wait` seconds for its server to answer.

    `index`, which is closed with the store, answers the searches in place of the base's own.

    Raises:
        BaseRefused: one of its kinds, with a message for the person who starts the engine.
    """
    search_path, bound = await prepare(address, embedder, wait)
    connections = Connections(address, search_path)
    store = PostgresStore(address, connections, bound, max_queued, lease_seconds, clock)
    if index is not None:
        store.follow_with(index)
    return store


class PostgresStore:
    """A `Store`; made by `open_postgres`."""

    def __init__(
        self,
        address: Address,
        connections: Connections,
        embedder: EmbedderIdentity,
        max_queued: int,
        lease_seconds: float,
        clock: Clock,
    ) -> None:
        self._connections = connections
        self._embedder = embedder
        self._max_queued = max_queued
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._words = Words()
        self._leases: set[str] = set()
        self._taking: set[str] = set()
        self._spool: PostgresSpool | None = None
        self._writing: set[asyncio.Task[object]] = set()
        self._ear = Ear(address)
        self._beats = Beats(self.beat, lease_seconds / BEATS)
        self._follower: Follower | None = None
        self._closing: asyncio.Future[None] | None = None

    def follow_with(self, index: Index) -> None:
        """Keep this index in step with the base, and search it. Called once, before anything else."""
        log = ChangeLog(
            lambda make: self._read(lambda db: answer(db, make())),
            lambda generation: self._write(partial(_forget_changes, generation)),
            POSTGRES,
        )
        self._follower = Follower(log, index, lambda: self.dimensions)
        self._follower.start()

    @property
    def dimensions(self) -> int:
        """How many numbers its vectors have; 0: there never was one, when this engine last changed it."""
        return self._embedder.dimensions

    def spool(self, folder: Path) -> PostgresSpool:
        """The uploads in this base; `folder` is for the files that are just read."""
        self._spool = PostgresSpool(self._connections, folder)
        return self._spool

    def listen(self, heard: Heard) -> None:
        """Hear of the other engines from here on, and give them signs of life."""
        self._ear.start(heard)
        self._beats.start()

    async def beat(self) -> None:
        """A sign of life: this engine's leases and uploads live on, those of dead engines do not."""
        if self._leases:
            held = list(self._leases)
            good = await self._read(lambda db: jobs.renew(db, held, self._lease_seconds), readonly=False)
            self._leases -= set(held) - good
        if self._spool is not None:
            await self._spool.keep(_FILE_LEASES * self._lease_seconds)
        await self.release_all()

    async def close(self) -> None:
        """Finish what is under way, queue again what runs here, and let go of the base."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._follower is not None:
            await self._follower.close()
        await self._beats.stop()
        await self._ear.stop()
        if self._writing:
            await asyncio.wait(self._writing)
        try:
            # Where this fails the leases lapse.
            with suppress(EngineError, asyncpg.PostgresError):
                if leases := [*self._leases, *self._taking]:
                    await self._through(lambda write: jobs.hand_back(write, leases))
        finally:
            await self._connections.close()

    # transactions

    def _now(self) -> str:
        return stamp(self._clock())

    async def _write(self, work: Callable[[Write], Awaitable[T]]) -> T:
        """One write transaction. It runs to its end although its caller may be cancelled meanwhile."""
        if self._closing is not None:
            raise not_ready("The engine is shutting down.")
        task = asyncio.ensure_future(self._through(work))
        self._writing.add(task)
        task.add_done_callback(self._written)
        done = await asyncio.shield(task)
        if self._follower is not None:
            self._follower.wake()
        return done

    def _written(self, task: asyncio.Task[T]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have gone

    async def _through(self, work: Callable[[Write], Awaitable[T]]) -> T:
        with as_engine_errors():
            try:
                return await attempted(partial(self._transact, work))
            except Lost:
                # The pool had kept a connection of before the server's restart.
                return await attempted(partial(self._transact, work))

    async def _transact(self, work: Callable[[Write], Awaitable[T]]) -> T:
        async with self._connections.writing() as db:
            transaction = db.transaction()
            try:
                await transaction.start()
                write = Write(db, self._now(), self._embedder, logs_changes=self._follower is not None)
                answer = await work(write)
                await write.send()
            except BaseException as error:
                with suppress(*GONE, asyncpg.PostgresError):
                    await transaction.rollback()
                if was_cut_off(db, error):
                    raise Lost from error
                raise
            await transaction.commit()
            if write.embedder.dimensions:  # once known they stay, whatever a slower transaction has seen
                self._embedder = write.embedder
            return answer

    async def _once(
        self,
        idempotency: Idempotency | None,
        answer: type[A],
        effect: Callable[[Write], Awaitable[A]],
    ) -> A:
        """A mutation that a retry does not repeat."""
        return await self._write(lambda write: once(write, idempotency, answer, lambda: effect(write)))

    async def _read(self, work: Callable[[Db], Awaitable[T]], *, readonly: bool = True) -> T:
        """Several statements on one state of the base."""
        if self._closing is not None:
            raise not_ready("The engine is shutting down.")
        with as_engine_errors():
            try:
                return await attempted(partial(self._look, work, readonly))
            except Lost:
                return await attempted(partial(self._look, work, readonly))

    async def _look(self, work: Callable[[Db], Awaitable[T]], readonly: bool) -> T:
        async with self._connections.one() as db:
            isolation = "repeatable_read" if readonly else "read_committed"
            try:
                async with asyncio.timeout(READ_SECONDS):
                    async with db.transaction(isolation=isolation, readonly=readonly):
                        return await work(db)
            except GONE as error:
                if was_cut_off(db, error):
                    raise Lost from error
                raise

    # jobs

    async def accept(self, job: NewJob, idempotency: Idempotency | None) -> m.Job:
        """Queue a job, durably."""
        return await self._once(idempotency, m.Job, lambda write: jobs.accept(write, job, self._max_queued))

    async def accept_update(
        self,
        document_id: int,
        patch: m.NotePatch,
        idempotency: Idempotency,
        *,
        caller: str = "",
        refusal: EngineError | None = None,
    ) -> m.Job | m.Document:
        """Queue the update of a note, durably, or join the one that does the same."""
        return await self._write(
            lambda write: updates.accept(
                write, document_id, patch, idempotency, caller, refusal, self._max_queued
            )
        )

    async def job(self, job_id: str) -> m.Job:
        """One job."""
        return await self._read(lambda db: jobs.find(db, job_id, self._now()))

    async def jobs(self, status: m.JobStatus | None, limit: int, offset: int) -> m.JobList:
        """Newest first."""
        return await self._read(lambda db: jobs.page(db, status, limit, offset, self._now()))

    async def cancel(self, job_id: str, idempotency: Idempotency | None) -> m.Job:
        """Cancel what has not ended; its lease is void."""
        return await self._once(idempotency, m.Job, lambda write: jobs.cancel(write, job_id))

    async def take(
        self, lease: str, lanes: Collection[Lane] = LANES, without: Collection[str] = ()
    ) -> LeasedJob | None:
        """Lease the job whose turn it is."""
        # Not among the leases yet: a beat that does not see it in the base would call it void.
        self._taking.add(lease)
        try:
            leased = await self._write(
                lambda write: jobs.take(write, lease, self._lease_seconds, lanes, without)
            )
        except asyncio.CancelledError:
            raise  # the transaction goes on, and what it takes is handed back in the end
        except BaseException:
            self._taking.discard(lease)
            raise
        self._taking.discard(lease)
        if leased is not None:
            self._leases.add(lease)
        return leased

    async def change_lane(self, leased: LeasedJob, lane: Lane) -> bool:
        """Queue a job again in another lane; False when the lease is void."""
        changed = await self._write(lambda write: jobs.change_lane(write, leased, lane))
        self._leases.discard(leased.lease)
        return changed

    async def report(self, lease: str, job_id: str, step: str, completed: int, total: int) -> bool:
        """Note progress; False when the lease is void."""
        return await self._write(
            lambda write: jobs.report(write, lease, job_id, self._lease_seconds, step, completed, total)
        )

    async def commit(self, leased: LeasedJob, prepared: Prepared) -> m.Job | None:
        """Store the document and close the job; None when the lease is void."""
        done = await self._write(lambda write: ingest.commit(write, leased, prepared))
        self._leases.discard(leased.lease)
        return done

    async def commit_duplicate(self, leased: LeasedJob) -> m.Job | None:
        """Close the job with the document that stands already; None where there is none, or no lease."""
        done = await self._write(lambda write: ingest.commit_duplicate(write, leased))
        if done is not None:
            self._leases.discard(leased.lease)
        return done

    async def duplicate_of(self, job: NewJob) -> int | None:
        """The document that `commit` would take for the same."""
        return await self._read(lambda db: ingest.duplicate_of(db, job))

    async def fail(self, lease: str, job_id: str, error: m.JobError) -> bool:
        """Close the job as failed; False when the lease is void."""
        failed = await self._write(lambda write: jobs.fail(write, lease, job_id, error))
        self._leases.discard(lease)
        return failed

    async def release_all(self) -> int:
        """Queue again what dead engines held, never what another one still works on."""
        return await self._write(jobs.release)

    async def retry(self, job_id: str, idempotency: Idempotency | None) -> m.Job:
        """Queue a failed job again."""
        return await self._once(idempotency, m.Job, lambda write: jobs.retry(write, job_id, self._max_queued))

    async def kept(self) -> list[KeptJob]:
        """The failed jobs whose bytes are kept, the oldest failure first."""
        return await self._read(jobs.kept)

    async def let_go(self, job_ids: Sequence[str]) -> None:
        """Keep the bytes of these jobs no longer."""
        await self._write(lambda write: jobs.let_go(write, job_ids))

    async def spooled(self) -> set[str]:
        """The spool names of waiting, running and kept jobs."""
        return await self._read(jobs.spooled)

    # documents

    async def document(
        self, key: int | str, *, chunk_offset: int = 0, chunk_limit: int = 200
    ) -> m.DocumentDetail:
        """One document with a slice of its chunks."""
        return await self._read(lambda db: documents.detail(db, key, chunk_offset, chunk_limit))

    async def documents(
        self,
        *,
        source_path: str | None,
        tag: str | None,
        doc_type: m.DocType | None,
        sort_by: m.SortBy,
        sort_order: m.SortOrder,
        limit: int,
        offset: int,
    ) -> m.DocumentList:
        """One page of documents."""
        return await self._read(
            lambda db: documents.page(db, source_path, tag, doc_type, sort_by, sort_order, limit, offset)
        )

    async def delete(self, key: int | str, idempotency: Idempotency | None) -> m.Removed:
        """Remove one document."""
        return await self._once(idempotency, m.Removed, lambda write: documents.delete(write, key))

    async def clear(self, idempotency: Idempotency | None, *, collections: bool = False) -> m.Removed:
        """Remove all documents, with `collections` descriptions too, and cancel the jobs accepted before."""
        return await self._once(
            idempotency, m.Removed, lambda write: documents.clear(write, collections=collections)
        )

    async def note(self, document_id: int) -> tuple[m.Document, str]:
        """A note and its whole text."""
        return await self._read(lambda db: documents.note(db, document_id))

    async def add_tags(
        self, key: int | str, tags: Sequence[str], if_match: int | None, idempotency: Idempotency | None
    ) -> m.Document:
        """Add tags to a document."""
        return await self._once(
            idempotency, m.Document, lambda write: documents.add_tags(write, key, tags, if_match)
        )

    async def remove_tag(
        self, key: int | str, tag: str, if_match: int | None, idempotency: Idempotency | None
    ) -> m.Document:
        """Take a tag off a document."""
        return await self._once(
            idempotency, m.Document, lambda write: documents.remove_tag(write, key, tag, if_match)
        )

    async def tags(self, prefix: str, limit: int, offset: int) -> m.TagList:
        """Tags in use, in alphabetical order."""
        return await self._read(lambda db: tags.page(db, prefix, limit, offset))

    async def replayed(self, idempotency: Idempotency) -> bytes | None:
        """The JSON answer given under this key before."""
        return await self._read(lambda db: stored(db, idempotency, self._now()))

    # collections

    async def collections(self) -> r.CollectionList:
        """Those in use and those described, by name."""
        return await self._read(collections.every)

    async def collection(self, id_: str) -> r.CollectionDetail:
        """One with its figures."""
        return await self._read(lambda db: collections.detail(db, id_))

    async def put_collection(
        self, id_: str, wanted: r.CollectionRequest, idempotency: Idempotency | None
    ) -> r.CollectionDetail:
        """Describe a collection."""
        return await self._once(
            idempotency, r.CollectionDetail, lambda write: collections.put(write, id_, wanted)
        )

    async def collection_name(self, id_: str) -> str:
        """The name alone."""
        return await self._read(lambda db: collections.name_of(db, id_))

    async def collection_ids(self, names: Sequence[str]) -> dict[str, str]:
        """The ids by name, of those that are collections."""
        return await self._read(lambda db: collections.ids(db, names))

    # search and state

    async def search(self, query: Query) -> Found:
        """The best chunks, best first."""
        if self._follower is None:
            return await self._read(partial(self._search, query))
        candidates = await self._follower.search(query)
        return await self._read(lambda db: answer(db, results.found(query, candidates, POSTGRES)))

    async def _search(self, query: Query, db: Db) -> Found:
        candidates = await search(db, self._embedder, self._words, query)
        return await answer(db, results.found(query, candidates, POSTGRES))

    async def counts(self) -> Counts:
        """Totals for `/status`."""
        return await self._read(state.counts)

    async def ping(self) -> None:
        """Prove that the base can be read and written."""
        await self._write(_ping)
        await self._read(lambda db: value(db, "SELECT at FROM pings"))


async def _forget_changes(generation: int, write: Write) -> None:
    await rows(write.db, FORGET, (generation,))


async def _ping(write: Write) -> None:
    sql = "INSERT INTO pings (at) VALUES (?) ON CONFLICT (one) DO UPDATE SET at = EXCLUDED.at"
    await rows(write.db, sql, (write.now,))
