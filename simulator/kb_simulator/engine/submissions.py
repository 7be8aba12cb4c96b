"""The input of jobs: a new note or file, or an update of a note."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kb_contracts.access.reach import Reach
from kb_contracts.api import models as m
from kb_contracts.api.formats import Format
from kb_contracts.semantics.documents import note_hash, note_title, text_digest
from kb_contracts.semantics.jobs import Origin
from kb_contracts.semantics.sources import source_scope
from kb_readers.model import Extraction
from kb_simulator.engine.stored import DedupKey


@dataclass(frozen=True, slots=True)
class Submission:
    """A new note or file.

    `identity` identifies the submission and seeds its ids; `title` has a derived default.

    `content_hash` is equal for submissions with the same content. `content` is the extracted text or the
    extraction error: extraction happens before the state is involved, so that the state cannot fail on bytes.
    `original` is the content of a file that is to be kept.
    """

    identity: str
    kind: Literal["note", "file"]
    content: Extraction | m.JobError
    sha256: str
    content_hash: str
    size_bytes: int
    title: str | None
    tags: Sequence[str]
    metadata: Mapping[str, Any] | None
    source_path: str | None
    dedup_scope: str
    filename: str | None = None
    format: str | None = None
    doc_type: m.DocType = "note"
    original: bytes | None = None
    reach: Reach | None = None
    """The caller's access scope: documents outside it are neither duplicates nor replaced."""

    @property
    def dedup_key(self) -> DedupKey:
        return self.kind, self.content_hash, self.dedup_scope

    @property
    def job_title(self) -> str:
        if self.title is not None:
            return self.title
        content = self.content
        first = note_title(content.pages[0].text) if isinstance(content, Extraction) and content.pages else ""
        return self.filename or first

    @property
    def document_title(self) -> str:
        """The given title, or the file's own title, or its name."""
        own = self.content.title if isinstance(self.content, Extraction) and self.kind == "file" else None
        return self.title or own or self.job_title


@dataclass(frozen=True, slots=True)
class Update:
    """The input of `PATCH /notes/{id}`, done by a job. `identity` is as in `Submission`."""

    identity: str
    document_id: int
    patch: m.NotePatch
    reach: Reach | None = None
    if_match: int | None = None
    """A version that the note must have on acceptance, beside the version in the patch."""


Line = int | tuple[str, str] | None
"""A job's lane: the note of an update, scope and path of a source, or None. Jobs of a lane run in order."""


def line_of(wanted: Submission | Update) -> Line:
    """The lane of a job."""
    if isinstance(wanted, Update):
        return wanted.document_id
    if wanted.source_path is None:
        return None
    return source_scope(wanted.tags, wanted.dedup_scope), wanted.source_path


def origin_of(wanted: Submission | Update) -> Origin:
    """The source of a job; an update has none."""
    if isinstance(wanted, Update):
        return Origin(None, None, None, "")
    scope = source_scope(wanted.tags, wanted.dedup_scope)
    return Origin(wanted.source_path, scope, wanted.filename, wanted.dedup_scope)


def note(identity: str, request: m.NoteRequest, reach: Reach | None = None) -> Submission:
    """Return the submission of a note from `POST /jobs`."""
    sha256, size = text_digest(request.text)
    content = Extraction.of_note(request.text)
    of_note = {"kind": "note", "content_hash": note_hash(request.text), "reach": reach}
    return _submission(identity, request, content, sha256, size, **of_note)


def file(
    identity: str,
    fields: m.FileFields,
    filename: str,
    fmt: Format,
    content: Extraction | m.JobError,
    *,
    size: int,
    sha256: str,
    original: bytes | None = None,
    reach: Reach | None = None,
) -> Submission:
    """Return the submission of a file from `POST /jobs`; `size` is in bytes."""
    of_file = {
        "kind": "file",
        "content_hash": sha256,
        "filename": filename,
        "format": fmt.name,
        "doc_type": fmt.doc_type,
        "original": original,
        "reach": reach,
    }
    return _submission(identity, fields, content, sha256, size, **of_file)


def _submission(
    identity: str,
    sent: m.NoteRequest | m.FileFields,
    content: Extraction | m.JobError,
    sha256: str,
    size: int,
    **members: Any,
) -> Submission:
    return Submission(
        identity=identity,
        content=content,
        sha256=sha256,
        size_bytes=size,
        title=sent.title,
        tags=tuple(dict.fromkeys(sent.tags)),
        metadata=sent.metadata,
        source_path=sent.source_path,
        dedup_scope=sent.dedup_scope,
        **members,
    )
