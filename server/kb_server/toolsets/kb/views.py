"""What tools show of the engine's answers: the same members, with the collection taken out of the tags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from kb_contracts.api import models as m
from kb_server import collection_tags

S = TypeVar("S", bound=msgspec.Struct)

MAX_ENTRY_TITLE, MAX_ENTRY_MESSAGE, MAX_ENTRY_TAGS = 60, 120, 100
"""Characters of a job's title, of why it failed, and of its tags together, in a list."""


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


class DocumentEntry(msgspec.Struct, kw_only=True):
    """A document in a list."""

    id: int
    title: str
    doc_type: str
    source_path: str | None
    collection: str | None
    tags: list[str]
    status: str
    chunk_count: int
    version: int
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

    In a list a job has what tells it from others; the rest comes with the job alone.
    `estimated_seconds`: until it will have ended; null where it has, or where nothing is known yet.
    `retryable`: it failed, and kb_retry_job queues it again.
    """

    id: str
    status: str
    title: str
    collection: str | None
    progress: float
    document_id: int | None
    error: JobFailure | None
    created_at: str
    tags: list[str] | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    filename: str | UnsetType | None = UNSET
    step: str | UnsetType = UNSET
    completed_steps: int | UnsetType = UNSET
    total_steps: int | UnsetType = UNSET
    attempts: int | UnsetType = UNSET
    document_uid: str | UnsetType | None = UNSET
    deduplicated: bool | UnsetType = UNSET
    started_at: str | UnsetType | None = UNSET
    finished_at: str | UnsetType | None = UNSET
    estimated_seconds: float | UnsetType | None = UNSET
    retryable: bool | UnsetType = UNSET


def document_view(document: m.Document) -> DocumentView:
    """A document as tools show it."""
    return _view_of(document, DocumentView, **placed(document.tags))


def document_entry(document: m.Document) -> DocumentEntry:
    """A document as lists show it."""
    return _view_of(document, DocumentEntry, **placed(document.tags))


def chunk_view(chunk: m.Chunk) -> ChunkView:
    """A chunk as tools show it."""
    return _view_of(chunk, ChunkView)


def job_view(job: m.Job) -> JobView:
    """A job as tools show it."""
    return _view_of(job, JobView, error=failure_of(job), **placed(job.tags))


def job_entry(job: m.Job) -> JobView:
    """A job as lists show it: what may be long is cut or left out, for the job alone has it whole."""
    error, place = failure_of(job), collection_tags.split_tags(job.tags)
    if error is not None:
        error.message = _cut(error.message, MAX_ENTRY_MESSAGE)
    return JobView(
        id=job.id,
        status=job.status,
        kind=job.kind,
        retryable=job.retryable or UNSET,
        title=_cut(job.title, MAX_ENTRY_TITLE),
        collection=place.collection,
        tags=place.tags if sum(map(len, place.tags)) <= MAX_ENTRY_TAGS else UNSET,
        progress=job.progress,
        document_id=job.document_id,
        error=error,
        created_at=job.created_at,
    )


def fitting(entries: Iterable[S], max_bytes: int) -> list[S]:
    """The first entries whose JSON stays within `max_bytes` together, one at least where there is any."""
    kept: list[S] = []
    left = max_bytes
    for entry in entries:
        left -= len(msgspec.json.encode(entry))
        if left < 0 and kept:
            break
        kept.append(entry)
    return kept


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def failure_of(job: m.Job) -> JobFailure | None:
    """Why a job failed, None where it did not."""
    return None if job.error is None else JobFailure(code=job.error.code, message=job.error.message)


def placed(tags: list[str]) -> dict[str, Any]:
    """The members `collection` and `tags`."""
    split = collection_tags.split_tags(tags)
    return {"collection": split.collection, "tags": split.tags}


def document_members(document: m.Document) -> dict[str, Any]:
    """The members of `DocumentView`, by name."""
    return msgspec.structs.asdict(document_view(document))


def _view_of(answer: msgspec.Struct, view: type[S], **members: Any) -> S:
    """A `view` with the members of `answer` that it has, and `members` over them."""
    known = {name: getattr(answer, name) for name in view.__struct_fields__ if hasattr(answer, name)}
    return view(**{**known, **members})
