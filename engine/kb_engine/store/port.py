"""The types that the engine and its store exchange, and the errors raised when a base cannot be opened.

BaseRefused
├── BaseInUse          another process owns the base
├── BaseLinked         its file has a second name (hard link)
├── BaseUnreachable    the server of the base does not answer or refuses access
├── BaseUnwritable     the folder or the file cannot be written
├── NotABase           not a SQLite file or PostgreSQL with pgvector, damaged, or of another program
├── BaseTooNew         a later version of the engine has written it
├── BaseUnfinished     `kb migrate` or `kb restore` began to fill it and did not finish
└── EmbedderMismatch   a different embedder filled it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from kb_contracts.access.reach import Reach
from kb_contracts.api import models as m
from kb_contracts.semantics.documents import note_hash
from kb_contracts.semantics.versions import KEPT_DAYS, KEPT_VERSIONS
from kb_engine.address import Address
from kb_engine.index.port import IndexQuery, Vectors
from kb_engine.turns import Lane

OCR_METHOD = "image_analysis"  # the `extraction_method` of a document whose text was read by OCR alone
StoreEventKind = Literal["queued", "ended", "cancelled", "cleared", "resumed"]
Place = Path | Address
"""The location of a base: a folder or file (SQLite) or the address of a PostgreSQL database."""
UNFINISHED = "unfinished"
"""Name of the table that marks a base as the target of an unfinished migration or restore."""
MARK = f"CREATE TABLE IF NOT EXISTS {UNFINISHED} (one integer)"
UNLIKE_ITS_NUMBER = "its layout is not what its number says"
_IN_CONTEXT = " with titles and headings"
REINDEX_BATCH = 32
ReindexProgress = Callable[[int, int], None]
"""Callback with the number of chunks done and the total number of chunks."""


@dataclass(frozen=True, slots=True)
class EmbedderIdentity:
    """Identity of the embedder that fills a base. A base filled by a different embedder is refused at
    opening.

    `dimensions` is 0 while unknown, because an embedding endpoint may be down when the base is opened. Then
    only the name is compared, and a new base takes the dimensions of its first vectors.

    `context` says that passages are embedded with title and headings (`embed/context.py`). A base filled
    without them keeps embedding the text alone until it is re-embedded.
    """

    name: str
    dimensions: int
    context: bool = False

    @classmethod
    def noted(cls, note: str, dimensions: int) -> EmbedderIdentity:
        """Parse the note that a base has stored."""
        name = note.removesuffix(_IN_CONTEXT)
        return cls(name, dimensions, context=name != note)

    @property
    def note(self) -> str:
        """The name stored in the base; engines that do not know its mark for context refuse the base."""
        return self.name + _IN_CONTEXT * self.context

    def fits(self, stored: EmbedderIdentity) -> bool:
        """True if vectors of this embedder are comparable with those of `stored`."""
        return self.note == stored.note and self.dimensions in {0, stored.dimensions}


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to accept. A note has `text`; a file has `spool`, the name of its file in the spool folder.

    `caller` is the digest of the caller's key and separates callers in the fair queue. `reach` is the access
    scope of the caller and therefore of the job; None is unrestricted. An update has the `document_id` of its
    note and the members of the `NotePatch`: `text` if that changes, `new_title` and `expected_version`.
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
    reach: Reach | None = None

    @property
    def content_hash(self) -> str:
        """The hash that identifies the content: the SHA-256 of a file, the `note_hash` of a note."""
        return self.sha256 if self.kind == "file" else note_hash(self.text or "")

    @property
    def updated_note(self) -> int:
        """The id of the note that an update changes. Raises LookupError if the job is not an update."""
        if self.document_id is None:
            raise LookupError(f"job {self.id} names no note")
        return self.document_id


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a base: number of queued jobs, number of old versions per document, and their retention in
    days.

    With `versions` 0 no old version is kept, nor removed documents. `originals` says that the uploaded files
    are kept; None: as the base was created. They have at most `originals_bytes`, unless that is 0.
    """

    queued: int = 100_000
    versions: int = KEPT_VERSIONS
    version_days: float = KEPT_DAYS
    originals: bool | None = False
    originals_bytes: int = 0


DEFAULT_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A job held by a worker. The worker passes `lease` with every operation on it."""

    lease: str
    attempts: int
    lane: Lane
    job: NewJob
    is_duplicate: bool = False  # true if a document like it was there when it was taken; the commit decides
    has_more: bool = False  # true if further jobs are queued in the lane
    has_next: bool = False  # true if one of them is of a caller that the next look does not leave out


class JobProgress(NamedTuple):
    """The step of a job, and its done and total amounts of work."""

    step: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A failed job whose bytes are kept for a retry. `spool` is None for a note."""

    id: str
    spool: str | None
    size_bytes: int
    finished_at: str


@dataclass(frozen=True, slots=True)
class PreparedChunk:
    """A passage on one page: `text[start:end]` of the document's text, the pages joined by `PAGE_BREAK`.

    Places are in code points, `end` is exclusive. Chunks are in document order.
    """

    text: str  # never blank; without leading and trailing blanks
    page: int | None
    heading: str | None
    """The headings above it, outermost first, as in "Guide > Install", including one at its beginning.

    If it begins in a table below the header row, that row follows on a second line, from the column on in
    which it begins, as in "Accounts\\n| No | Name |".
    """
    start: int
    end: int
    tokens: int  # the count of the embedder; 0 without it
    uid: str | None = None  # set for a chunk that was stored before

    def row(self, number: int, document_id: int, position: int) -> tuple[Any, ...]:
        """Return number, uid, document, position, text, page, heading, start, end, tokens."""
        uid = self.uid or str(uuid4())
        place = self.page, self.heading, self.start, self.end
        return number, uid, document_id, position, self.text, *place, self.tokens


@dataclass(frozen=True, slots=True)
class Prepared:
    """The result of extracting, chunking and embedding a source. Without chunks the document is `empty`.

    `status_reason` is the reason for that, or names the unreadable parts of a document with chunks. `of_note`
    is the SHA-256 of the note's stored text, if an update of the title alone was prepared from it. `language`
    is one of `kb_engine.index.languages`.
    """

    title: str
    extraction_method: str
    pages: int | None
    chunks: Sequence[PreparedChunk]
    vectors: Vectors
    status_reason: str | None = None
    of_note: str | None = None
    language: str | None = None
    fidelity: m.Fidelity | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A document exported from another base.

    `source_paths` are ordered, the primary one first. Times are RFC 3339; `text` is set for a note.
    """

    uid: str
    title: str
    doc_type: m.DocType
    format: str | None
    filename: str | None
    tags: Sequence[str]
    metadata: Mapping[str, Any]
    source_paths: Sequence[str]
    size_bytes: int
    sha256: str
    version: int
    created_at: str
    updated_at: str
    text: str | None


@dataclass(frozen=True, slots=True)
class Query(IndexQuery):
    """A search. `arrange` changes the results on a thread, which may take long."""

    explain: bool = False
    arrange: Callable[[list[m.SearchResult]], list[m.SearchResult]] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """Search results, the total number of matching chunks, and a flag for weak matches.

    `exact`: no chunk left out has a higher score than a returned one. If `total_exact` is false, `total` is a
    lower bound. `lost` is the number of chunks without a vector that might have matched. `above` is the
    distance of the best score from the floor (`score.above_floor`).
    """

    results: list[m.SearchResult]
    total: int
    weak: bool
    exact: bool = True
    total_exact: bool = True
    lost: int = 0
    above: float = 0.0


@dataclass(frozen=True, slots=True)
class Counts:
    """The figures of a base for `/status`."""

    documents: m.DocumentCounts
    chunks: int
    queue: m.QueueState
    open_failures: int
    originals_bytes: int
    kept_originals_bytes: int
    database_bytes: int
    last_updated: str | None


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """A committed change, of this engine or another one. `resumed`: events may have been missed."""

    kind: StoreEventKind
    job_id: str | None = None  # the id of the job, for `ended` and `cancelled`
    lane: Lane | None = None  # the lane of the job, for `queued`; None: any lane


StoreEventCallback = Callable[[StoreEvent], bool | None]
"""Returns True if this engine has a free worker for the queued job."""


class BaseRefused(Exception):
    """The base at `path` cannot be opened; the message gives the reason and the remedy."""

    def __init__(self, path: Place, why: str) -> None:
        # On one line for the log; a server's error message may have several.
        super().__init__(" ".join(f"The base {path} cannot be opened: {why}".splitlines()))


class BaseInUse(BaseRefused):
    """The process `pid` owns the base; `supervisor` is the `kb up` that would start it again."""

    def __init__(self, path: Path, pid: int | None = None, supervisor: int | None = None) -> None:
        owner = f"process {pid}" if pid else "another process"
        stop = f"`kb up` (process {supervisor}) with Ctrl-C" if supervisor else "that process"
        super().__init__(path, f"{owner} is using it. Stop {stop} or name another base.")


class BaseLinked(BaseRefused):
    """The file has a second name, beside which the last changes may lie in another write-ahead log."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            "its file has more than one name (a hard link), and its last changes may lie beside another one. "
            "Remove the other names; where one has a file beside it that ends in `-wal`, keep that one.",
        )


class BaseUnreachable(BaseRefused):
    """The server is down or unreachable, or does not know the user or the database."""


class BaseUnwritable(BaseRefused):
    """The operating system or the server refuses to create or write the base."""


class NotABase(BaseRefused):
    """The file or database is not a base, or is damaged."""


class BaseTooNew(BaseRefused):
    """The layout has a higher number than this engine knows; nothing was changed."""

    def __init__(self, path: Place, found: int, known: int) -> None:
        super().__init__(
            path,
            f"its layout has version {found}, this engine knows {known} at the most. "
            "Start it with the engine that wrote it, or a later one.",
        )


class BaseUnfinished(BaseRefused):
    """The base holds only a part of another base; `command` completes it."""

    def __init__(self, path: Place, command: str = "kb migrate") -> None:
        super().__init__(
            path,
            f"`{command}` has begun to fill it and has not ended well, so that it may hold a part only. "
            f"Run `{command}` again, which completes it, or remove it.",
        )


class EmbedderMismatch(BaseRefused):
    """Vectors of two embedders cannot be compared, so they are never mixed."""

    def __init__(self, path: Place, stored: EmbedderIdentity, wanted: EmbedderIdentity) -> None:
        super().__init__(
            path,
            f"it was filled by the embedder {described(stored)}, and the settings name "
            f"{described(wanted)}. `kb reindex` re-embeds the base with the embedder of the settings.",
        )


def described(embedder: EmbedderIdentity) -> str:
    """Return the embedder's name, with the dimensions if known."""
    size = f" ({embedder.dimensions} dimensions)" if embedder.dimensions else ""
    return f"{embedder.note}{size}"


def bound_embedder(
    path: Place, stored: EmbedderIdentity | None, wanted: EmbedderIdentity
) -> EmbedderIdentity:
    """Return the embedder that fills the base from now on, with the dimensions recorded in the base.
    Raises EmbedderMismatch: a different embedder filled the base.
    """
    if stored is None or not stored.dimensions:  # the base never held a vector
        return wanted
    if not replace(wanted, context=stored.context).fits(stored):
        raise EmbedderMismatch(path, stored, wanted)
    return stored


def check_used(path: Place, stored: EmbedderIdentity | None) -> EmbedderIdentity:
    """Return the embedder that filled a base. Raises NotABase: no engine has used it."""
    if stored is None:
        raise NotABase(path, "no engine has used it. Name the base that the engine uses.")
    return stored


def check_shape(vectors: Vectors, count: int, embedder: EmbedderIdentity) -> None:
    """Raise ValueError unless `vectors` has `count` rows of the embedder's dimensions."""
    if vectors.shape != (count, embedder.dimensions):
        raise ValueError(
            f"{count} chunks of {embedder.dimensions} dimensions, but vectors of shape {vectors.shape}"
        )
