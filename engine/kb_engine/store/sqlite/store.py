"""The store on SQLite: one file, one process, every transaction synced to the disk.

One thread writes, a few read, each on a connection of its own. A write that touches chunks becomes
visible to searches together with its vectors: commit and publication happen under the index's guard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.errors import EngineError
from kb_engine.index.embedded.search import search
from kb_engine.index.embedded.vectors import Changes, ExactVectors
from kb_engine.index.embedded.words import Words
from kb_engine.index.follower import Follower
from kb_engine.index.port import Index
from kb_engine.store import filters, results
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
from kb_engine.store.sqlite import collections, documents, ingest, jobs, state, tags, updates
from kb_engine.store.sqlite.connection import Journal, Threads, answer, connect, roll_back, value
from kb_engine.store.sqlite.idempotency import once, stored
from kb_engine.store.sqlite.lock import BaseLock
from kb_engine.store.sqlite.opening import own, prepare
from kb_engine.store.sqlite.reads import SQLITE
from kb_engine.store.sqlite.reserve import Reserve
from kb_engine.store.sqlite.schema import set_meta
from kb_engine.store.sqlite.write import Write
from kb_engine.store.times import stamp
from kb_engine.turns import LANES, Lane

A = TypeVar("A", bound=msgspec.Struct)
T = TypeVar("T")

Clock = Callable[[], datetime]

READERS = 3


def _utc_now() -> datetime:
    return datetime.now(UTC)


async def open_sqlite(
    path: Path,
    *,
    embedder: EmbedderIdentity,
    max_queued: int = 100_000,
    clock: Clock = _utc_now,
    index: Index | None = None,
) -> SqliteStore:
    """Open the base at `path`, creating or migrating it first. Reads all vectors into memory.

    `index`, which is closed with the store, answers the searches in place of the base's own.

    Raises:
        BaseRefused: one of its kinds, with a message for the person who starts the engine.
    """
    store = await asyncio.to_thread(_open, path, embedder, max_queued, clock)
    if index is not None:
        store.follow_with(index)
    return store


def _open(path: Path, embedder: EmbedderIdentity, max_queued: int, clock: Clock) -> SqliteStore:
    lock = own(path)
    try:
        reserve = Reserve(lock.path)
        reserve.give()
        index = prepare(lock.path, embedder)
        reserve.take()
    except BaseException:
        lock.release()
        raise
    return SqliteStore(lock, reserve, index, max_queued, clock)


class SqliteStore:
    """A `Store`; made by `open_sqlite`."""

    def __init__(
        self,
        lock: BaseLock,
        reserve: Reserve,
        index: ExactVectors,
        max_queued: int,
        clock: Clock,
    ) -> None:
        path = self._path = lock.path
        self._lock = lock
        self._reserve = reserve
        self._index = index
        self._max_queued = max_queued
        self._clock = clock
        self._words = Words()
        self._journal = Journal()
        self._writer = Threads(partial(self._journal.connect, path), 1, "kb-write")
        self._readers = Threads(partial(connect, path), READERS, "kb-read")
        self._follower: Follower | None = None
        self._closing: asyncio.Future[None] | None = None

    def follow_with(self, index: Index) -> None:
        """Keep this index in step with the base, and search it. Called once, before anything else."""
        log = ChangeLog(
            lambda make: self._read(lambda db: answer(db, make())),
            lambda generation: self._write(partial(_forget_changes, generation)),
            SQLITE,
        )
        self._follower = Follower(log, index, lambda: self.dimensions)
        self._follower.start()

    @property
    def dimensions(self) -> int:
        """How many numbers its vectors have; 0: there never was one."""
        return self._index.dimensions

    async def close(self) -> None:
        """Finish what is under way, queue again what runs, and let go of the base."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    def listen(self, heard: Heard) -> None:
        """One process owns the base: there is nobody to hear of."""

    async def _close(self) -> None:
        if self._follower is not None:
            await self._follower.close()
        try:
            # Where this fails, as on a full disk, `release_all` does the same at the next start.
            with suppress(EngineError, apsw.Error):
                await self._write(jobs.hand_back)
        finally:
            await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        self._readers.close()
        self._writer.close()
        self._lock.release()

    # transactions

    def _now(self) -> str:
        return stamp(self._clock())

    async def _write(self, work: Callable[[Write], T]) -> T:
        """One write transaction, with what it means for the index."""
        done = await self._writer.run(partial(self._transact, work))
        if self._follower is not None:
            self._follower.wake()
        return done

    def _transact(self, work: Callable[[Write], T], db: apsw.Connection) -> T:
        db.execute("BEGIN IMMEDIATE")
        try:
            write = Write(db, self._now(), logs_changes=self._follower is not None)
            answer = work(write)
            self._commit(db, write.changes)
        except BaseException:
            roll_back(db)
            raise
        self._journal.settle(db)
        return answer

    def _commit(self, db: apsw.Connection, changes: Changes) -> None:
        if not changes:
            db.execute("COMMIT")
            return
        # Memory is found before the commit: after it nothing may fail.
        staged = self._index.stage(changes)
        if changes.added and not self._index.dimensions:
            set_meta(db, "dimensions", str(changes.added[0].vectors.shape[1]))
        # A savepoint makes FTS5 write its words now rather than inside the commit.
        db.execute("SAVEPOINT words; RELEASE words")
        with self._index.guard:
            db.execute("COMMIT")
            self._index.publish(staged)

    async def _once(
        self, idempotency: Idempotency | None, answer: type[A], effect: Callable[[Write], A]
    ) -> A:
        """A mutation that a retry does not repeat."""
        return await self._write(lambda write: once(write, idempotency, answer, lambda: effect(write)))

    async def _once_on_full_disk(
        self, idempotency: Idempotency | None, answer: type[A], effect: Callable[[Write], A]
    ) -> A:
        """As `_once`, for what makes room: where there is none left, that of the reserve is used."""
        try:
            return await self._once(idempotency, answer, effect)
        except EngineError as error:
            if error.code != "storage_full":
                raise
        again = partial(self._transact, lambda write: once(write, idempotency, answer, lambda: effect(write)))
        return await self._writer.run(partial(self._reserve.spend, again))

    async def _read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Several statements on one state of the base."""
        return await self._readers.run(partial(_look, work))

    def _search(self, query: Query, db: apsw.Connection) -> Found:
        """One read transaction, and the vectors of the same instant."""
        try:
            with self._index.guard:
                db.execute("BEGIN")
                # SQLite takes its snapshot at the first read, not at BEGIN.
                db.pragma("user_version")
                vectors = self._index.snapshot
            documents = filters.documents(db, query.selection)
            candidates = search(db, vectors, self._words, documents, query)
            return answer(db, results.found(query, candidates, SQLITE))
        finally:
            roll_back(db)

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
        return await self._once_on_full_disk(idempotency, m.Job, lambda write: jobs.cancel(write, job_id))

    async def take(
        self, lease: str, lanes: Collection[Lane] = LANES, without: Collection[str] = ()
    ) -> LeasedJob | None:
        """Lease the job whose turn it is."""
        return await self._write(lambda write: jobs.take(write, lease, lanes, without))

    async def change_lane(self, leased: LeasedJob, lane: Lane) -> bool:
        """Queue a job again in another lane; False when the lease is void."""
        return await self._write(lambda write: jobs.change_lane(write, leased, lane))

    async def report(self, lease: str, job_id: str, step: str, completed: int, total: int) -> bool:
        """Note progress; False when the lease is void."""
        return await self._write(lambda write: jobs.report(write, lease, job_id, step, completed, total))

    async def commit(self, leased: LeasedJob, prepared: Prepared) -> m.Job | None:
        """Store the document and close the job; None when the lease is void."""
        return await self._write(lambda write: ingest.commit(write, leased, prepared))

    async def commit_duplicate(self, leased: LeasedJob) -> m.Job | None:
        """Close the job with the document that stands already; None where there is none, or no lease."""
        return await self._write(lambda write: ingest.commit_duplicate(write, leased))

    async def duplicate_of(self, job: NewJob) -> int | None:
        """The document that `commit` would take for the same."""
        return await self._read(lambda db: ingest.duplicate_of(db, job))

    async def fail(self, lease: str, job_id: str, error: m.JobError) -> bool:
        """Close the job as failed; False when the lease is void."""
        return await self._write(lambda write: jobs.fail(write, lease, job_id, error))

    async def release_all(self) -> int:
        """Queue again what ran when the last process died."""
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
        return await self._read(lambda db: jobs.spooled(db))

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
        return await self._once_on_full_disk(
            idempotency, m.Removed, lambda write: documents.delete(write, key)
        )

    async def clear(self, idempotency: Idempotency | None, *, collections: bool = False) -> m.Removed:
        """Remove all documents, with `collections` descriptions too, and cancel the jobs accepted before."""
        return await self._once_on_full_disk(
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
            return await self._readers.run(partial(self._search, query))
        candidates = await self._follower.search(query)
        return await self._read(lambda db: answer(db, results.found(query, candidates, SQLITE)))

    async def counts(self) -> Counts:
        """Totals for `/status`."""
        return await self._read(lambda db: state.counts(db, self._path))

    async def ping(self) -> None:
        """Prove that the base can be read and written."""
        await self._write(lambda write: set_meta(write.db, "pinged_at", write.now))
        await self._read(lambda db: value(db, "SELECT value FROM meta WHERE name = 'pinged_at'"))


def _forget_changes(generation: int, write: Write) -> None:
    write.db.execute(FORGET, (generation,))


def _look(work: Callable[[apsw.Connection], T], db: apsw.Connection) -> T:
    db.execute("BEGIN")
    try:
        return work(db)
    finally:
        roll_back(db)
