"""The store: what the engine knows, and every operation on it, once for all databases.

    api ------ reads, mutations ------.                       .--> sqlite/    one file, one process
    worker --- take, report, commit ---+--> Store --> repository/ (SQL, once)
    search --- search ----------------'                       '--> postgres/  one database, many engines

An operation is a repository's coroutine, run in one transaction: it happens whole or not at all, it does its
blocking work off the event loop, and what it acknowledged survives `kill -9`. What a database does in its own
way (transactions, leases, search, closing) its subclass adds.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.errors import EngineError
from kb_engine.index.follower import Follower
from kb_engine.index.port import Index
from kb_engine.store.port import (
    Counts,
    Found,
    Idempotency,
    KeptJob,
    LeasedJob,
    NewJob,
    Prepared,
    Query,
    StoreEventCallback,
)
from kb_engine.store.repository import (
    collections,
    documents,
    idempotency,
    ingest,
    jobs,
    results,
    tags,
    updates,
)
from kb_engine.store.repository.changes import ChangeLog
from kb_engine.store.repository.transaction import Read, Write
from kb_engine.store.times import stamp
from kb_engine.turns import LANES, Lane

A = TypeVar("A", bound=msgspec.Struct)
T = TypeVar("T")

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class Store(ABC):
    """The durable half of the engine.

    Raises (all methods): `EngineError` with a code of the contract; `storage_full` when the disk is.
    """

    def __init__(self, max_queued: int, clock: Clock) -> None:
        self._max_queued = max_queued
        self._clock = clock
        self._follower: Follower | None = None
        self._closing: asyncio.Future[None] | None = None

    # what each database does in its own way

    @property
    @abstractmethod
    def dimensions(self) -> int:
        """How many numbers its vectors have; 0: there never was one, and its embedder did not tell."""

    @abstractmethod
    def subscribe(self, callback: StoreEventCallback) -> None:
        """Call back, on the event loop, with what other engines do. Called once, at start."""

    @abstractmethod
    async def _run_read(self, work: Callable[[Read], Coroutine[Any, Any, T]]) -> T:
        """Several statements on one state of the base."""

    @abstractmethod
    async def _run_write(self, work: Callable[[Write], Coroutine[Any, Any, T]], *, makes_room: bool) -> T:
        """One write transaction, which runs to its end also where its caller is cancelled.

        One that `makes_room` is done on a full disk too, where the store can.
        """

    @abstractmethod
    async def _run_search(self, query: Query) -> Found:
        """A search of the base's own index, on one state of the base."""

    @abstractmethod
    async def _close(self) -> None:
        """Finish what is under way, queue again what runs here, and let go of the base."""

    @abstractmethod
    async def counts(self) -> Counts:
        """Totals for `/status`."""

    @abstractmethod
    async def ping(self) -> None:
        """Prove that the base can be read and written."""

    # transactions

    def _now(self) -> str:
        return stamp(self._clock())

    async def _read(self, work: Callable[[Read], Coroutine[Any, Any, T]]) -> T:
        return await self._run_read(work)

    async def _write(self, work: Callable[[Write], Coroutine[Any, Any, T]], *, makes_room: bool = False) -> T:
        done = await self._run_write(work, makes_room=makes_room)
        if self._follower is not None:
            self._follower.wake()
        return done

    async def _once(
        self,
        key: Idempotency | None,
        answer: type[A],
        effect: Callable[[Write], Coroutine[Any, Any, A]],
        *,
        makes_room: bool = False,
    ) -> A:
        """A mutation that a retry does not repeat."""
        return await self._write(
            lambda write: idempotency.once(write, key, answer, lambda: effect(write)), makes_room=makes_room
        )

    # its life

    def follow_with(self, index: Index) -> None:
        """Keep this index in step with the base, and search it. Called once, before anything else."""
        self._follower = Follower(ChangeLog(self._read, self._write), index, lambda: self.dimensions)
        self._follower.start()

    async def close(self) -> None:
        """Finish what is under way, queue again what runs here, and let go of the base."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close_all())
        await asyncio.shield(self._closing)

    async def _close_all(self) -> None:
        if self._follower is not None:
            await self._follower.close()
        await self._close()

    # jobs

    async def accept(self, job: NewJob, idempotency: Idempotency | None) -> m.Job:
        """Queue a job, durably. Raises `queue_full` over the store's limit."""
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
        """Queue the update of a note, durably, or join the one that does the same already.

        Joined is the job of the same key; else the update that was accepted last for this note, while it has
        not ended and asks for the same. Where the key's job has completed, its note as it was then answers
        (`replayed` gives it too); where it failed, the key is free again. A new job takes its turn among
        those of `caller`; `refusal` is raised where one would have to be queued.

        Raises `document_not_found`, `not_a_note`, `version_conflict` and `queue_full`.
        """
        return await self._write(
            lambda write: updates.accept(
                write, document_id, patch, idempotency, caller, refusal, self._max_queued
            )
        )

    async def job(self, job_id: str) -> m.Job:
        """Raises `job_not_found`."""
        return await self._read(lambda read: jobs.find(read, job_id))

    async def jobs(self, status: m.JobStatus | None, limit: int, offset: int) -> m.JobList:
        """Newest first."""
        return await self._read(lambda read: jobs.page(read, status, limit, offset))

    async def cancel(self, job_id: str, idempotency: Idempotency | None) -> m.Job:
        """Cancel a queued or running job: its lease is void from here on. Raises `job_finished`."""
        return await self._once(idempotency, m.Job, lambda write: jobs.cancel(write, job_id), makes_room=True)

    async def take(
        self, lease: str, lanes: Collection[Lane] = LANES, without: Collection[str] = ()
    ) -> LeasedJob | None:
        """Lease the queued job whose turn it is in these lanes, counting the attempt; None when none waits.

        `without`: callers whose jobs stay where they are. Not an update while an earlier one of the same note
        has not ended: they follow one another. Nor a job that rests because engines died on it.
        """
        return await self._write(lambda write: jobs.take(write, lease, lanes, without))

    async def change_lane(self, leased: LeasedJob, lane: Lane) -> bool:
        """Queue a job again, with the next turn of its caller in another lane; the attempt does not count.

        False when the lease is void.
        """
        return await self._write(lambda write: jobs.change_lane(write, leased, lane))

    async def report(self, lease: str, job_id: str, step: str, completed: int, total: int) -> bool:
        """Note progress; False when the lease is void and the work should stop."""
        return await self._write(lambda write: jobs.report(write, lease, job_id, step, completed, total))

    async def commit(self, leased: LeasedJob, prepared: Prepared) -> m.Job | None:
        """Insert the document and close the job, in one transaction; None when the lease is void.

        A document of the same kind, SHA-256 and `dedup_scope` is not doubled: the job closes with its
        id and `deduplicated`, tags are united (at most one `collection:` tag comes of it, the standing
        one) and the further source path is kept. For a job with `force_ocr` only a document that was read
        by OCR alone (`OCR_METHOD`) is the same.

        Of an update the text and chunks of its note are swapped: id, uid and `created_at` stay, `updated_at`
        and `version` change, hash and size follow the text. Raises `version_conflict` where the note has
        another version than expected, `document_not_found` where it is gone.
        """
        return await self._write(lambda write: ingest.commit(write, leased, prepared))

    async def commit_duplicate(self, leased: LeasedJob) -> m.Job | None:
        """As `commit` where the document stands already, without the work that is then not needed.

        None when no such document stands, or the lease is void: nothing has happened.
        """
        return await self._write(lambda write: ingest.commit_duplicate(write, leased))

    async def duplicate_of(self, job: NewJob) -> int | None:
        """The document that `commit` would take for the same at this moment; it may be removed the next."""
        return await self._read(lambda read: ingest.duplicate_of(read, job))

    async def fail(self, lease: str, job_id: str, error: m.JobError) -> bool:
        """Close the job as failed, its text and file kept; False when the lease is void."""
        return await self._write(lambda write: jobs.fail(write, lease, job_id, error))

    async def retry(self, job_id: str, idempotency: Idempotency | None) -> m.Job:
        """Queue a failed job again. Raises `job_not_found`, `job_not_retryable` or `queue_full`."""
        return await self._once(idempotency, m.Job, lambda write: jobs.retry(write, job_id, self._max_queued))

    async def kept(self) -> list[KeptJob]:
        """The failed jobs whose bytes are kept, the oldest failure first."""
        return await self._read(jobs.kept)

    async def let_go(self, job_ids: Sequence[str]) -> None:
        """Keep the bytes of these jobs no longer, those that have failed."""
        await self._write(lambda write: jobs.let_go(write, job_ids))

    async def release_all(self) -> int:
        """Queue again what runs nowhere any more; how many. Called once, at start.

        However often that happens to a job: its engine died, which is not its fault. `rules.rests_until` says
        when it may be taken again.
        """
        return await self._write(jobs.release)

    async def spooled(self) -> set[str]:
        """The spool names of waiting, running and kept jobs."""
        return await self._read(jobs.spooled)

    # documents

    async def document(
        self, key: int | str, *, chunk_offset: int = 0, chunk_limit: int = 200
    ) -> m.DocumentDetail:
        """By number or uid; `chunk_limit` 0 gives none. Raises `document_not_found`."""
        return await self._read(lambda read: documents.detail(read, key, chunk_offset, chunk_limit))

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
        """One page; `source_path` matches exactly, also further paths of a deduplicated document."""
        return await self._read(
            lambda read: documents.page(read, source_path, tag, doc_type, sort_by, sort_order, limit, offset)
        )

    async def delete(self, key: int | str, idempotency: Idempotency | None) -> m.Removed:
        """Raises `document_not_found`."""
        return await self._once(
            idempotency, m.Removed, lambda write: documents.delete(write, key), makes_room=True
        )

    async def clear(self, idempotency: Idempotency | None, *, collections: bool = False) -> m.Removed:
        """Remove all documents and cancel the jobs accepted before, at once.

        What is described stays a collection under its id, unless `collections` says that it goes too.
        """
        return await self._once(
            idempotency,
            m.Removed,
            lambda write: documents.clear(write, collections=collections),
            makes_room=True,
        )

    async def note(self, document_id: int) -> tuple[m.Document, str]:
        """A note and its whole text. Raises `document_not_found` or `not_a_note`."""
        return await self._read(lambda read: documents.note(read, document_id))

    async def add_tags(
        self, key: int | str, tags: Sequence[str], if_match: int | None, idempotency: Idempotency | None
    ) -> m.Document:
        """Raises `document_not_found` or `version_conflict`. Adding nothing new changes no version."""
        return await self._once(
            idempotency, m.Document, lambda write: documents.add_tags(write, key, tags, if_match)
        )

    async def remove_tag(
        self, key: int | str, tag: str, if_match: int | None, idempotency: Idempotency | None
    ) -> m.Document:
        """Raises `document_not_found`, `tag_not_found` or `version_conflict`."""
        return await self._once(
            idempotency, m.Document, lambda write: documents.remove_tag(write, key, tag, if_match)
        )

    async def tags(self, prefix: str, limit: int, offset: int) -> m.TagList:
        """Tags in use, in alphabetical order."""
        return await self._read(lambda read: tags.page(read, prefix, limit, offset))

    async def replayed(self, key: Idempotency) -> bytes | None:
        """The JSON answer given under this key before; raises `idempotency_mismatch`.

        None while an update is at work under it, and where that was cancelled.
        """
        return await self._read(lambda read: idempotency.stored(read, key))

    # collections

    async def collections(self) -> r.CollectionList:
        """Those that are in use and those that are described, by name (in the order of code points)."""
        return await self._read(collections.every)

    async def collection(self, id_: str) -> r.CollectionDetail:
        """One with its figures. Raises `collection_not_found`."""
        return await self._read(lambda read: collections.detail(read, id_))

    async def put_collection(
        self, id_: str, wanted: r.CollectionRequest, idempotency: Idempotency | None
    ) -> r.CollectionDetail:
        """Describe a collection. What it says already changes nothing, `updated_at` neither.

        `created_at` is that of the first document in it, else now. Raises `collection_exists` where the id
        is another name's, the name has another id (also one that nobody has described, while a document is
        in it), or the id may not be this name's (`ragler.may_have_id`).
        """
        return await self._once(
            idempotency, r.CollectionDetail, lambda write: collections.put(write, id_, wanted)
        )

    async def collection_name(self, id_: str) -> str:
        """The name alone, which costs no counting. Raises `collection_not_found`."""
        return await self._read(lambda read: collections.name_of(read, id_))

    async def collection_ids(self, names: Sequence[str]) -> dict[str, str]:
        """The ids by name, of those that are collections; costs no counting either."""
        return await self._read(lambda read: collections.ids(read, names))

    # search and state

    async def search(self, query: Query) -> Found:
        """The best chunks, best first, ties by chunk id; filters are part of the query, not applied after."""
        if self._follower is None:
            return await self._run_search(query)
        candidates = await self._follower.search(query)
        return await self._read(lambda read: results.found(read, query, candidates))
