"""From rows to wire models: the columns that a model needs, in one place, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from kb_contracts.api import models as m
from kb_engine.store.port import LeasedJob, NewJob
from kb_engine.store.times import seconds_between

Row = Sequence[Any]
ReadList = Callable[[Any], list[str]]
"""The texts of a list, as a driver returns it."""

_DOCUMENT = (
    "id", "uid", "title", "doc_type", "format", "filename", "source_path", "size_bytes", "sha256", "metadata",
    "status", "status_reason", "extraction_method", "pages", "chunk_count", "version", "created_at",
    "updated_at",
)  # fmt: skip
DOCUMENT_COLUMNS = ", ".join(f"d.{name}" for name in _DOCUMENT)
"""Its sources and tags stand behind them."""
_DOCUMENT_FIELDS = (*_DOCUMENT, "source_paths", "tags")

CHUNK_COLUMNS = "c.id, c.uid, c.position, c.text, c.page, c.heading, c.first, c.beyond"
_CHUNK_FIELDS = ("id", "uid", "index", "text", "page", "heading", "start", "end")

_SUMMARY = (
    "id", "uid", "title", "doc_type", "format", "filename", "source_path", "metadata", "extraction_method",
    "version", "created_at", "updated_at",
)  # fmt: skip
SUMMARY_COLUMNS = ", ".join(f"d.{name}" for name in _SUMMARY)
"""Its tags stand behind them."""

_JOB = (
    "id", "status", "kind", "title", "filename", "step", "completed_steps", "total_steps", "attempts",
    "document_id", "document_uid", "created_at", "started_at", "finished_at",
)  # fmt: skip
_WORK = ("id", "status", "lane", "seq", "kind", "format", "force_ocr", "size_bytes")
JOB_COLUMNS = ", ".join([*_WORK, *_JOB, "tags", "deduplicated", "retryable", "error_code", "error_message"])

_NEW_JOB = (
    "id", "kind", "title", "source_path", "dedup_scope", "sha256", "size_bytes", "spool", "filename",
    "format", "doc_type", "document_id", "new_title", "expected_version", "caller",
)  # fmt: skip
_TEXT = "(SELECT text FROM job_texts WHERE job_id = jobs.id) AS text"
LEASED_COLUMNS = ", ".join([*_NEW_JOB, _TEXT, "force_ocr", "tags", "metadata", "lease", "attempts", "lane"])


def json_text(content: Any) -> str:
    """JSON as the base keeps it."""
    return msgspec.json.encode(content).decode()


def document_fields(row: Row, read_list: ReadList) -> dict[str, Any]:
    """The members of a document, by name, from `DOCUMENT_COLUMNS`, its sources and its tags."""
    fields = dict(zip(_DOCUMENT_FIELDS, row, strict=True))
    fields["metadata"] = msgspec.json.decode(fields["metadata"])
    for name in ("source_paths", "tags"):
        fields[name] = read_list(fields[name])
    return fields


def chunk(row: Row) -> m.Chunk:
    return m.Chunk(**dict(zip(_CHUNK_FIELDS, row, strict=True)))


def summary(row: Row, read_list: ReadList) -> tuple[m.DocumentSummary, list[str]]:
    """The document of a result and its tags, from `SUMMARY_COLUMNS` and its tags."""
    *values, tags = row
    fields = dict(zip(_SUMMARY, values, strict=True))
    fields["metadata"] = msgspec.json.decode(fields["metadata"])
    return m.DocumentSummary(**fields), read_list(tags)


class Work(NamedTuple):
    """What a job asks of the engine, and where it stands in the queue."""

    id: str
    status: m.JobStatus
    lane: str
    seq: int
    kind: str
    format: str | None
    force_ocr: bool
    size_bytes: int


def work(row: Row) -> Work:
    """What a row of `JOB_COLUMNS` asks of the engine."""
    return Work(*row[: len(_WORK)])


def job(row: Row, now: str) -> m.Job:
    """A job from `JOB_COLUMNS`, as it is at `now`."""
    *values, tags, deduplicated, retryable, code, message = row[len(_WORK) :]
    fields = dict(zip(_JOB, values, strict=True))
    return m.Job(
        **fields,
        tags=msgspec.json.decode(tags),
        deduplicated=bool(deduplicated),
        retryable=bool(retryable),
        error=m.JobError(code=code, message=message) if code else None,
        progress=_progress(fields),
        elapsed_seconds=round(
            seconds_between(fields["started_at"] or fields["created_at"], fields["finished_at"] or now), 3
        ),
    )


def _progress(fields: dict[str, Any]) -> float:
    if fields["status"] == "completed":
        return 1.0
    done, total = fields["completed_steps"], fields["total_steps"]
    return min(1.0, done / total) if total else 0.0


def leased_job(row: Row) -> LeasedJob:
    """A job as a worker gets it, from `LEASED_COLUMNS`."""
    *values, force_ocr, tags, metadata, lease, attempts, lane = row
    fields = dict(zip((*_NEW_JOB, "text"), values, strict=True))
    wanted = NewJob(
        **fields,
        force_ocr=bool(force_ocr),
        tags=msgspec.json.decode(tags),
        metadata=msgspec.json.decode(metadata),
    )
    return LeasedJob(lease=lease, attempts=attempts, lane=lane, job=wanted)
