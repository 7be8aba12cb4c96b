"""The types in which the engine and its store speak, and why a base cannot be opened.

BaseRefused
├── BaseInUse          another process owns the base
├── BaseLinked         its file has a second name
├── BaseUnreachable    the server of the base does not answer, or lets nobody in
├── BaseUnwritable     the folder or the file cannot be written
├── NotABase           it is no SQLite file or no PostgreSQL with pgvector, is damaged, or another program's
├── BaseTooNew         a later version of the engine has written it
├── BaseUnfinished     `kb migrate` or `kb restore` has begun to fill it, and has not ended
└── EmbedderMismatch   another embedder filled it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from kb_contracts.access.reach import Reach
from kb_contracts.api import models as m
from kb_contracts.semantics.documents import note_hash
from kb_contracts.semantics.query import Wording
from kb_contracts.semantics.versions import KEPT_DAYS, KEPT_VERSIONS
from kb_engine.address import Address
from kb_engine.index.port import IndexQuery, Vectors
from kb_engine.turns import Lane

OCR_METHOD = "image_analysis"
"""The `extraction_method` of a document all of whose words were read by OCR."""
StoreEventKind = Literal["queued", "ended", "cancelled", "cleared", "resumed"]
Place = Path | Address
"""Where a base lies."""
UNFINISHED = "unfinished"
"""The table that a base has while it is the target of a migration that has not ended."""
MARK = f"CREATE TABLE IF NOT EXISTS {UNFINISHED} (one integer)"
UNLIKE_ITS_NUMBER = "its layout is not what its number says"
_IN_CONTEXT = " with titles and headings"
REINDEX_BATCH = 32
ReindexProgress = Callable[[int, int], None]
"""Called with how many chunks of how many are done."""


@dataclass(frozen=True, slots=True)
class EmbedderIdentity:
    """Which embedder fills a base; a base filled by another one is refused at opening.

    `dimensions` 0: not known yet. An endpoint may be away when the base is opened; then the name counts,
    and a new base takes the dimensions of the first vectors that it is given.

    `context` says that passages are embedded with title and headings (`embed/context.py`). In a base that was
    filled before, they go on to be embedded by their text alone, until it is embedded anew.
    """

    name: str
    dimensions: int
    context: bool = False

    @classmethod
    def noted(cls, note: str, dimensions: int) -> EmbedderIdentity:
        """The one that a base knows by its note."""
        name = note.removesuffix(_IN_CONTEXT)
        return cls(name, dimensions, context=name != note)

    @property
    def note(self) -> str:
        """What a base calls it: an engine that knows no context refuses such a base instead of mixing."""
        return self.name + _IN_CONTEXT * self.context

    def fits(self, stored: EmbedderIdentity) -> bool:
        """Whether vectors of this one may be compared with those of the other."""
        return self.note == stored.note and self.dimensions in {0, stored.dimensions}


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
    `reach` is how far that caller reaches, and so the job; None: everywhere.
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
    reach: Reach | None = None

    @property
    def content_hash(self) -> str:
        """What submissions of the same content have in common: the SHA-256, of a note the `note_hash`."""
        return self.sha256 if self.kind == "file" else note_hash(self.text or "")

    @property
    def updated_note(self) -> int:
        """The id of the note that an update is of. Raises LookupError: it is no update."""
        if self.document_id is None:
            raise LookupError(f"job {self.id} names no note")
        return self.document_id


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a base keeps: jobs that wait, and versions of each document that was replaced or removed, for
    so many days. With no versions nothing is kept of them. `originals`: the files that were sent are kept."""

    queued: int = 100_000
    versions: int = KEPT_VERSIONS
    version_days: float = KEPT_DAYS
    originals: bool = False


DEFAULT_BOUNDS = Bounds()


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

    `tokens` is how many it has, as the embedder counts. `uid` is that of a chunk which was stored before.
    """

    text: str
    page: int | None
    heading: str | None
    start: int
    end: int
    tokens: int
    uid: str | None = None

    def row(self, number: int, document_id: int, position: int) -> tuple[Any, ...]:
        """Number, uid, document, position, text, page, heading, where it begins and ends, tokens."""
        uid = self.uid or str(uuid4())
        place = self.page, self.heading, self.start, self.end
        return number, uid, document_id, position, self.text, *place, self.tokens


@dataclass(frozen=True, slots=True)
class Prepared:
    """What extraction, chunking and embedding made of a source. No chunks: the document is `empty`.

    `status_reason` says why, or what of a document with chunks could not be read. `of_note` is the SHA-256 of
    the note's own text where that was read for an update which does not change it. `language` is that of
    `kb_engine.index.languages`.
    """

    title: str
    extraction_method: str
    pages: int | None
    chunks: Sequence[PreparedChunk]
    vectors: Vectors
    status_reason: str | None = None
    of_note: str | None = None
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A document of another base, as it is to stand in this one.

    `source_paths` begin with the first one. Times are RFC 3339; `text` is that of a note.
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
    """A search: what the index is asked for, what each passage must pass, and what of it is read besides.

    `required` is the store's to fill in, of `wording`, which the index does not know.
    """

    wording: Wording | None = None
    explain: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The best results, how many chunks match however many were asked for, and whether none matches well.

    `exact`: no chunk outside has a higher score than one inside; not `total_exact`: as many match, or more.
    `lost`: so many chunks that might have answered have no vector.
    """

    results: list[m.SearchResult]
    total: int
    weak: bool
    exact: bool = True
    total_exact: bool = True
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """What `/status` tells of a base."""

    documents: m.DocumentCounts
    chunks: int
    queue: m.QueueState
    originals_bytes: int
    kept_originals_bytes: int
    database_bytes: int
    last_updated: str | None


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """Something that another engine on the same base has done. `resumed`: anything may have happened."""

    kind: StoreEventKind
    job_id: str | None = None
    """Of `ended` and `cancelled`."""


StoreEventCallback = Callable[[StoreEvent], None]


class BaseRefused(Exception):
    """The base at `path` cannot be opened; the message says why and what to do."""

    def __init__(self, path: Place, why: str) -> None:
        # One line: it stands in a log, and what a server says of its fault may have several.
        super().__init__(" ".join(f"The base {path} cannot be opened: {why}".splitlines()))
        self.path = path


class BaseInUse(BaseRefused):
    """One process owns a base; `pid` is its number where it left one."""

    def __init__(self, path: Path, pid: int | None) -> None:
        owner = f"process {pid}" if pid else "another process"
        super().__init__(path, f"{owner} is using it. Stop that process or name another base.")
        self.pid = pid


class BaseLinked(BaseRefused):
    """Its file has a second name, a hard link. SQLite keeps its log beside the one that it is opened by."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            "its file has more than one name (a hard link), and its last changes may lie beside another one. "
            "Remove the other names; where one has a file beside it that ends in `-wal`, keep that one.",
        )


class BaseUnreachable(BaseRefused):
    """Its server is down, out of reach, or does not know the user or the database."""


class BaseUnwritable(BaseRefused):
    """The operating system or the server refuses to create or write it."""


class NotABase(BaseRefused):
    """What lies there is not (or no longer) a base."""


class BaseTooNew(BaseRefused):
    """Its layout has a higher number than this engine knows; nothing was changed."""

    def __init__(self, path: Place, found: int, known: int) -> None:
        super().__init__(
            path,
            f"its layout has version {found}, this engine knows {known} at the most. "
            "Start it with the engine that wrote it, or a later one.",
        )
        self.found = found
        self.known = known


class BaseUnfinished(BaseRefused):
    """It holds a part of another base; `command` completes it."""

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
        self.stored = stored
        self.wanted = wanted


def described(embedder: EmbedderIdentity) -> str:
    """Its name, with the dimensions where they are known."""
    size = f" ({embedder.dimensions} dimensions)" if embedder.dimensions else ""
    return f"{embedder.note}{size}"


def bound_embedder(
    path: Place, stored: EmbedderIdentity | None, wanted: EmbedderIdentity
) -> EmbedderIdentity:
    """The embedder that fills the base from here on, with the dimensions that the base knows.

    Raises:
        EmbedderMismatch: another one has filled it.
    """
    if stored is None or not stored.dimensions:  # of which there never was a vector
        return wanted
    if not replace(wanted, context=stored.context).fits(stored):
        raise EmbedderMismatch(path, stored, wanted)
    return stored


def check_shape(vectors: Vectors, count: int, embedder: EmbedderIdentity) -> None:
    """Raises ValueError: these are not `count` vectors of the dimensions that the embedder says."""
    if vectors.shape != (count, embedder.dimensions):
        raise ValueError(
            f"{count} chunks of {embedder.dimensions} dimensions, but vectors of shape {vectors.shape}"
        )
