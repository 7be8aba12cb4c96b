"""What the engine asks of a store: the types and the protocol that every store implements.

Every method is a coroutine that does its blocking work off the event loop, and every mutation is one
transaction: it happens whole or not at all, and what it acknowledged survives `kill -9`.

    api ------ reads, mutations ------.
    worker --- take, report, commit ---+--> Store --> SQLite (index/embedded)
    search --- search ----------------'     '-> PostgreSQL (index/postgres)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.errors import EngineError
from kb_engine.index.port import IndexQuery, Vectors
from kb_engine.turns import LANES, Lane

OCR_METHOD = "image_analysis"
"""The `extraction_method` of a document all of whose words were read by OCR."""


@dataclass(frozen=True, slots=True)
class EmbedderIdentity:
    """Which embedder fills a base; a base filled by another one is refused at opening.

    `dimensions` 0: not known yet. An endpoint may be away when the base is opened; then the name counts,
    and a new base takes the dimensions of the first vectors that it is given.
    """

    name: str
    dimensions: int

    def fits(self, stored: EmbedderIdentity) -> bool:
        """Whether vectors of this one may be compared with those of the other."""
        return self.name == stored.name and self.dimensions in {0, stored.dimensions}


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A retried mutation is recognised by `key` within `credential` and `operation`.

    `fingerprint` is a SHA-256 over what the request asks for. A mutation that was done under the same key
    with the same fingerprint answers as it did then; with another one it raises `idempotency_mismatch`.
    The answer is stored in the transaction of the effect and kept for 24 hours.
    """

    key: str
    credential: str
    operation: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to accept. A note has `text`; a file has `spool`, the name of its file in the spool folder.

    `caller` tells apart who takes turns with whom; it is a digest, never a key.
    An update has the `document_id` of its note, and the members of the `NotePatch`: `text` where that
    changes, `new_title` and `expected_version`.
    """

    id: str
    kind: m.JobKind
    title: str
    tags: Sequence[str]
    metadata: Mapping[str, Any]
    source_path: str | None
    dedup_scope: str
    sha256: str
    size_bytes: int
    text: str | None = None
    spool: str | None = None
    filename: str | None = None
    format: str | None = None
    doc_type: m.DocType = "note"
    force_ocr: bool = False
    caller: str = ""
    document_id: int | None = None
    new_title: str | None = None
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A job that a worker holds. Everything a worker does for it names `lease`."""

    lease: str
    attempts: int
    lane: Lane
    job: NewJob


@dataclass(frozen=True, slots=True)
class KeptJob:
    """A failed job whose bytes are kept, so that it can be tried again. `spool` is None for a note."""

    id: str
    spool: str | None
    size_bytes: int
    finished_at: str


@dataclass(frozen=True, slots=True)
class PreparedChunk:
    """A chunk ready to be stored, in the document's order; its vector is the row of the same index.

    `tokens` is how many it has, as the embedder counts.
    """

    text: str
    page: int | None
    heading: str | None
    start: int
    end: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """What extraction, chunking and embedding made of a source. No chunks: the document is `empty`.

    `status_reason` says why, or what of a document with chunks could not be read.
    """

    title: str
    extraction_method: str
    pages: int | None
    chunks: Sequence[PreparedChunk]
    vectors: Vectors
    status_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Query(IndexQuery):
    """A search: what the index is asked for, and what of each result is read besides."""

    neighbors: int = 0
    explain: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The best results, how many chunks match however many were asked for, and whether none matches well.

    `exact`: neither is an estimate of the index.
    """

    results: list[m.SearchResult]
    total: int
    weak: bool
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Counts:
    """What `/status` tells of a base."""

    documents: m.DocumentCounts
    chunks: int
    queue: m.QueueState
    originals_bytes: int
    database_bytes: int
    last_updated: str | None


@dataclass(frozen=True, slots=True)
class News:
    """What another engine on the same base has done, or this one. `resumed`: anything may have happened."""

    kind: Literal["queued", "ended", "cancelled", "cleared", "resumed"]
    job_id: str | None = None
    """Of `ended` and `cancelled`."""


Heard = Callable[[News], None]


class Store(Protocol):
    """The durable half of the engine.

    Raises (all methods): `EngineError` with a code of the contract; `storage_full` when the disk is.
    """

    @property
    def dimensions(self) -> int:
        """How many numbers its vectors have; 0: there never was one, and its embedder did not tell."""

    async def close(self) -> None:
        """Finish what is under way and let go of the base."""

    def listen(self, heard: Heard) -> None:
        """Tell `heard`, on the event loop, what other engines do. Called once, at start."""

    # jobs

    async def accept(self, job: NewJob, idempotency: Idempotency | None) -> m.Job:
        """Queue a job, durably. Raises `queue_full` over the store's limit."""

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

    async def job(self, job_id: str) -> m.Job:
        """Raises `job_not_found`."""

    async def jobs(self, status: m.JobStatus | None, limit: int, offset: int) -> m.JobList:
        """Newest first."""

    async def cancel(self, job_id: str, idempotency: Idempotency | None) -> m.Job:
        """Cancel a queued or running job: its lease is void from here on. Raises `job_finished`."""

    async def take(
        self, lease: str, lanes: Collection[Lane] = LANES, without: Collection[str] = ()
    ) -> LeasedJob | None:
        """Lease the queued job whose turn it is in these lanes, counting the attempt; None when none waits.

        `without`: callers whose jobs stay where they are. Not an update while an earlier one of the same note
        has not ended: they follow one another. Nor a job that rests because engines died on it.
        """

    async def change_lane(self, leased: LeasedJob, lane: Lane) -> bool:
        """Queue a job again, with the next turn of its caller in another lane; the attempt does not count.

        False when the lease is void.
        """

    async def report(self, lease: str, job_id: str, step: str, completed: int, total: int) -> bool:
        """Note progress; False when the lease is void and the work should stop."""

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

    async def commit_duplicate(self, leased: LeasedJob) -> m.Job | None:
        """As `commit` where the document stands already, without the work that is then not needed.

        None when no such document stands, or the lease is void: nothing has happened.
        """

    async def duplicate_of(self, job: NewJob) -> int | None:
        """The document that `commit` would take for the same at this moment; it may be removed the next."""

    async def fail(self, lease: str, job_id: str, error: m.JobError) -> bool:
        """Close the job as failed, its text and file kept; False when the lease is void."""

    async def retry(self, job_id: str, idempotency: Idempotency | None) -> m.Job:
        """Queue a failed job again. Raises `job_not_found`, `job_not_retryable` or `queue_full`."""

    async def kept(self) -> list[KeptJob]:
        """The failed jobs whose bytes are kept, the oldest failure first."""

    async def let_go(self, job_ids: Sequence[str]) -> None:
        """Keep the bytes of these jobs no longer, those that have failed."""

    async def release_all(self) -> int:
        """Queue again what runs nowhere any more; how many. Called once, at start.

        However often that happens to a job: its engine died, which is not its fault. `rules.rests_until` says
        when it may be taken again.
        """

    async def spooled(self) -> set[str]:
        """The spool names of waiting, running and kept jobs."""

    # documents

    async def document(
        self, key: int | str, *, chunk_offset: int = 0, chunk_limit: int = 200
    ) -> m.DocumentDetail:
        """By number or uid; `chunk_limit` 0 gives none. Raises `document_not_found`."""

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

    async def delete(self, key: int | str, idempotency: Idempotency | None) -> m.Removed:
        """Raises `document_not_found`."""

    async def clear(self, idempotency: Idempotency | None, *, collections: bool = False) -> m.Removed:
        """Remove all documents and cancel the jobs accepted before, at once.

        What is described stays a collection under its id, unless `collections` says that it goes too.
        """

    async def note(self, document_id: int) -> tuple[m.Document, str]:
        """A note and its whole text. Raises `document_not_found` or `not_a_note`."""

    async def add_tags(
        self, key: int | str, tags: Sequence[str], if_match: int | None, idempotency: Idempotency | None
    ) -> m.Document:
        """Raises `document_not_found` or `version_conflict`. Adding nothing new changes no version."""

    async def remove_tag(
        self, key: int | str, tag: str, if_match: int | None, idempotency: Idempotency | None
    ) -> m.Document:
        """Raises `document_not_found`, `tag_not_found` or `version_conflict`."""

    async def tags(self, prefix: str, limit: int, offset: int) -> m.TagList:
        """Tags in use, in alphabetical order."""

    async def replayed(self, idempotency: Idempotency) -> bytes | None:
        """The JSON answer given under this key before; raises `idempotency_mismatch`.

        None while an update is at work under it, and where that was cancelled.
        """

    # collections

    async def collections(self) -> r.CollectionList:
        """Those that are in use and those that are described, by name (in the order of code points)."""

    async def collection(self, id_: str) -> r.CollectionDetail:
        """One with its figures. Raises `collection_not_found`."""

    async def put_collection(
        self, id_: str, wanted: r.CollectionRequest, idempotency: Idempotency | None
    ) -> r.CollectionDetail:
        """Describe a collection. What it says already changes nothing, `updated_at` neither.

        `created_at` is that of the first document in it, else now. Raises `collection_exists` where the id
        is another name's, the name has another id (also one that nobody has described, while a document is
        in it), or the id may not be this name's (`ragler.may_have_id`).
        """

    async def collection_name(self, id_: str) -> str:
        """The name alone, which costs no counting. Raises `collection_not_found`."""

    async def collection_ids(self, names: Sequence[str]) -> dict[str, str]:
        """The ids by name, of those that are collections; costs no counting either."""

    # search and state

    async def search(self, query: Query) -> Found:
        """The best chunks, best first, ties by chunk id; filters are part of the query, not applied after."""

    async def counts(self) -> Counts:
        """Totals for `/status`."""

    async def ping(self) -> None:
        """Prove that the base can be read and written."""
