"""What tools show of the engine's answers: the same members, with the collection taken out of the tags."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from kb_contracts import models as m
from kb_server import collections

S = TypeVar("S", bound=msgspec.Struct)


class DocumentView(msgspec.Struct, kw_only=True):
    """A document. `version` is for `expected_version`; `collection` is null where it is in none."""

    id: int
    uid: str
    title: str
    doc_type: str
    format: str | None
    filename: str | None
    source_path: str | None
    source_paths: list[str]
    size_bytes: int
    sha256: str
    collection: str | None
    tags: list[str]
    metadata: dict[str, Any]
    status: str
    status_reason: str | None
    extraction_method: str
    pages: int | None
    chunk_count: int
    version: int
    created_at: str
    updated_at: str


class ChunkView(msgspec.Struct, kw_only=True):
    """A passage; `start` and `end` are offsets into the document's text. `truncated`: cut by `max_chars`."""

    id: int
    uid: str
    index: int
    text: str
    page: int | None
    heading: str | None
    start: int
    end: int
    truncated: bool = False


class JobFailure(msgspec.Struct, kw_only=True):
    """Why a job failed, and what to do."""

    code: str
    message: str


class JobView(msgspec.Struct, kw_only=True):
    """A job; `id` is what other tools call `job_id`. `progress` runs from 0 to 1.

    `estimated_seconds`: until it will have ended; null where it has, or where nothing is known yet.
    `retryable`: it failed, and kb_retry_job queues it again.
    """

    id: str
    status: str
    kind: str
    title: str
    filename: str | None
    collection: str | None
    tags: list[str]
    step: str
    progress: float
    completed_steps: int
    total_steps: int
    attempts: int
    document_id: int | None
    document_uid: str | None
    deduplicated: bool
    error: JobFailure | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    estimated_seconds: float | None = None
    retryable: bool = False


def document_view(document: m.Document) -> DocumentView:
    """A document as tools show it."""
    return _shown(document, DocumentView, **placed(document.tags))


def chunk_view(chunk: m.Chunk) -> ChunkView:
    """A chunk as tools show it."""
    return _shown(chunk, ChunkView)


def job_view(job: m.Job) -> JobView:
    """A job as tools show it."""
    return _shown(job, JobView, error=failure_of(job), **placed(job.tags))


def failure_of(job: m.Job) -> JobFailure | None:
    """Why a job failed, None where it did not."""
    return None if job.error is None else JobFailure(code=job.error.code, message=job.error.message)


def placed(tags: list[str]) -> dict[str, Any]:
    """The members `collection` and `tags`."""
    split = collections.split(tags)
    return {"collection": split.collection, "tags": split.tags}


def document_members(document: m.Document) -> dict[str, Any]:
    """The members of `DocumentView`, by name."""
    return msgspec.structs.asdict(document_view(document))


def _shown(answer: msgspec.Struct, view: type[S], **members: Any) -> S:
    """A `view` with the members of `answer` that it has, and `members` over them."""
    known = {name: getattr(answer, name) for name in view.__struct_fields__ if hasattr(answer, name)}
    return view(**{**known, **members})
