"""What a note or a file brings with it, read and ready to be taken in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kb_contracts.api import models as m
from kb_contracts.api.formats import Format
from kb_contracts.semantics.documents import note_title, text_digest
from kb_readers import Extraction


@dataclass(frozen=True, slots=True)
class Submission:
    """One source. `identity` tells submissions apart and seeds their ids; without a `title` one is found.

    `content` is the text, or why there is none: extraction happens before the state is asked, so that the
    state holds no bytes and cannot fail on them.
    """

    identity: str
    kind: Literal["note", "file"]
    content: Extraction | m.JobError
    sha256: str
    size_bytes: int
    title: str | None = None
    tags: Sequence[str] = ()
    metadata: Mapping[str, Any] | None = None
    source_path: str | None = None
    dedup_scope: str = ""
    filename: str | None = None
    format: str | None = None
    doc_type: m.DocType = "note"

    @property
    def job_title(self) -> str:
        """What its job is called."""
        if self.title is not None:
            return self.title
        return self.filename or _first_line(self.content)

    @property
    def document_title(self) -> str:
        """What its document is called: the title given, else its own, else the file's name."""
        own = self.content.title if isinstance(self.content, Extraction) and self.kind == "file" else None
        return self.title or own or self.job_title


@dataclass(frozen=True, slots=True)
class Update:
    """What `PATCH /notes/{id}` asks for, to be done by a job. `identity` is as in `Submission`."""

    identity: str
    document_id: int
    patch: m.NotePatch


def note(identity: str, request: m.NoteRequest) -> Submission:
    """A note as `POST /jobs` brings it."""
    sha256, size = text_digest(request.text)
    return Submission(
        identity=identity,
        kind="note",
        content=text_of_note(request.text),
        sha256=sha256,
        size_bytes=size,
        title=request.title,
        tags=tuple(dict.fromkeys(request.tags)),
        metadata=request.metadata,
        source_path=request.source_path,
        dedup_scope=request.dedup_scope,
    )


def file(
    identity: str,
    fields: m.FileFields,
    filename: str,
    kind: Format,
    content: Extraction | m.JobError,
    *,
    size: int,
    sha256: str,
) -> Submission:
    """A file as `POST /jobs` brings it; `size` is in bytes."""
    return Submission(
        identity=identity,
        kind="file",
        content=content,
        sha256=sha256,
        size_bytes=size,
        title=fields.title,
        tags=tuple(dict.fromkeys(fields.tags)),
        metadata=fields.metadata,
        source_path=fields.source_path,
        dedup_scope=fields.dedup_scope,
        filename=filename,
        format=kind.name,
        doc_type=kind.doc_type,
    )


def text_of_note(text: str) -> Extraction:
    """A note's text as extraction would give it; agents write Markdown, so its headings count."""
    return Extraction.of_note(text)


def _first_line(content: Extraction | m.JobError) -> str:
    return note_title(content.pages[0].text) if isinstance(content, Extraction) and content.pages else ""
