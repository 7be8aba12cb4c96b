"""The rules of documents, jobs and idempotency, without I/O.

What they hold of SQL reads the same on both databases, with a `?` for each value.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from kb_contracts.api import models as m
from kb_contracts.semantics.documents import text_digest
from kb_contracts.semantics.requests import KEPT_SECONDS
from kb_engine.store.port import OCR_METHOD, NewJob, Prepared
from kb_engine.store.rows import LEASED_COLUMNS, json_text
from kb_engine.store.times import parse, stamp
from kb_engine.turns import Lane

NO_TEXT = "No text was found."

BY_FILENAME = "coalesce(d.filename, d.title)"
SAME = "SELECT min(id) FROM documents WHERE kind = ? AND sha256 = ? AND dedup_scope = ?"
KEPT = "SELECT id, spool, size_bytes, finished_at FROM jobs WHERE retryable ORDER BY finished_at, seq"
_BY_OCR = " AND extraction_method = ?"
_STILL_THERE = " AND id IN (SELECT document_id FROM document_tags WHERE tag = ?)"

_FREE_CRASHES = 2
_FIRST_REST = timedelta(seconds=10)
_LONGEST_REST = timedelta(hours=1)
_ANSWERS_KEPT = timedelta(seconds=KEPT_SECONDS)


def new_uid() -> str:
    return str(uuid.uuid4())


# documents


def document_columns(job: NewJob, prepared: Prepared, uid: str, now: str) -> dict[str, Any]:
    """The columns of a new document."""
    source_type = job.metadata.get("source_type")
    return {
        "uid": uid,
        "kind": job.kind,
        "title": prepared.title,
        "doc_type": job.doc_type,
        "format": job.format,
        "filename": job.filename,
        "source_path": job.source_path,
        "size_bytes": job.size_bytes,
        "sha256": job.sha256,
        "dedup_scope": job.dedup_scope,
        "metadata": json_text(job.metadata),
        # A column of its own, so that a filter need not read the JSON of every document.
        "source_type": source_type if isinstance(source_type, str) else None,
        "created_at": now,
        "updated_at": now,
        **_outcome(prepared),
    }


def note_columns(text: str, prepared: Prepared) -> dict[str, Any]:
    """The columns that change with a note's text."""
    sha256, size = text_digest(text)
    return {"title": prepared.title, "sha256": sha256, "size_bytes": size, **_outcome(prepared)}


def _outcome(prepared: Prepared) -> dict[str, Any]:
    searchable = bool(prepared.chunks)
    return {
        "status": "searchable" if searchable else "empty",
        "status_reason": prepared.status_reason or (None if searchable else NO_TEXT),
        "extraction_method": prepared.extraction_method,
        "pages": prepared.pages,
        "chunk_count": len(prepared.chunks),
        "token_count": sum(chunk.tokens for chunk in prepared.chunks),
    }


def one_vector_each(prepared: Prepared) -> None:
    """Raises ValueError: not one vector for each chunk."""
    if len(prepared.vectors) != len(prepared.chunks):
        raise ValueError(f"{len(prepared.chunks)} chunks, but {len(prepared.vectors)} vectors")


def named(key: int | str) -> tuple[str, int | str] | None:
    """The column and value that a key stands for; None for a number beyond any document's."""
    number = int(key) if isinstance(key, str) and key.isdecimal() else key
    if isinstance(number, str):
        return "uid", number
    return ("id", number) if number <= m.MAX_INTEGER else None


def listed(source_path: str | None, tag: str | None, doc_type: str | None) -> tuple[str, list[str]]:
    """The condition of a list of documents `d`, and its values; `tag` may be several, between commas."""
    tags = [] if tag is None else dict.fromkeys(tag.split(","))
    conditions = [
        ("d.id IN (SELECT document_id FROM document_sources WHERE source_path = ?)", source_path),
        *(("d.id IN (SELECT document_id FROM document_tags WHERE tag = ?)", one) for one in tags),
        ("d.doc_type = ?", doc_type),
    ]
    given = [(condition, wanted) for condition, wanted in conditions if wanted is not None]
    return " AND ".join(condition for condition, _ in given) or "true", [wanted for _, wanted in given]


def same_document(job: NewJob) -> tuple[str, list[str]]:
    """The query for the oldest document of the same kind, content and scope, and its values.

    Where the scope is itself a tag of the job (a collection), the document must still carry it: one
    that was moved elsewhere since is no duplicate here. Nor, for a job that forces OCR, is one whose text
    was taken from the file: whoever asks for that wants it read in the other way.
    """
    wanted, values = SAME, [job.kind, job.sha256, job.dedup_scope]
    if job.dedup_scope in job.tags:
        wanted, values = wanted + _STILL_THERE, [*values, job.dedup_scope]
    if job.force_ocr:
        wanted, values = wanted + _BY_OCR, [*values, OCR_METHOD]
    return wanted, values


# jobs


LAST_TURN = "SELECT max(turn) FROM jobs WHERE caller = ? AND lane = ? AND status IN ('queued', 'running')"
"""The highest turn of a caller in a lane."""
SERVED_TURN = (
    "SELECT coalesce((SELECT min(turn) FROM jobs WHERE lane = ? AND status = 'queued'), "
    "(SELECT max(turn) FROM jobs WHERE lane = ? AND status = 'running'), 0)"
)
"""The turn that is being served in a lane."""


def job_columns(new: NewJob, lane: Lane, turn: int, now: str) -> dict[str, Any]:
    """The columns of a job that waits."""
    return {
        "id": new.id,
        "status": "queued",
        "kind": new.kind,
        "title": new.title,
        "tags": json_text(list(dict.fromkeys(new.tags))),
        "metadata": json_text(new.metadata),
        "source_path": new.source_path,
        "dedup_scope": new.dedup_scope,
        "sha256": new.sha256,
        "size_bytes": new.size_bytes,
        "spool": new.spool,
        "filename": new.filename,
        "format": new.format,
        "doc_type": new.doc_type,
        "force_ocr": new.force_ocr,
        "caller": new.caller,
        "lane": lane,
        "turn": turn,
        "document_id": new.document_id,
        "new_title": new.new_title,
        "expected_version": new.expected_version,
        "step": "queued",
        "created_at": now,
    }


def update_job(standing: m.Document, text: str, patch: m.NotePatch, caller: str = "") -> NewJob:
    """The job that patches a note with this text for `caller`."""
    result = text if patch.text is None else patch.text
    sha256, size = text_digest(result)
    return NewJob(
        id=new_uid(),
        kind="update",
        title=patch.title or standing.title,
        tags=standing.tags,
        metadata={},
        source_path=None,
        dedup_scope="",
        sha256=sha256,
        size_bytes=size,
        text=patch.text,
        document_id=standing.id,
        new_title=patch.title,
        expected_version=patch.expected_version,
        caller=caller,
    )


def updated_note(job: NewJob) -> int:
    """The id of the note that an update is of. Raises LookupError: it is no update."""
    if job.document_id is None:
        raise LookupError(f"job {job.id} names no note")
    return job.document_id


def same_update(one: NewJob, other: NewJob) -> bool:
    """Whether two updates of one note, the second accepted right after the first, do what one does."""
    return (one.text, one.new_title, one.expected_version) == (
        other.text,
        other.new_title,
        other.expected_version,
    )


NOT_BEHIND_AN_UPDATE = (
    "NOT EXISTS (SELECT 1 FROM jobs e WHERE e.kind = 'update' AND jobs.kind = 'update' "
    "AND e.document_id = jobs.document_id AND e.finished_at IS NULL AND e.seq < jobs.seq)"
)
"""The condition that no earlier update of the same note is unfinished, so that they follow one another."""
LAST_UPDATE = (
    f"SELECT {LEASED_COLUMNS} FROM jobs "  # noqa: S608
    "WHERE kind = 'update' AND document_id = ? AND finished_at IS NULL ORDER BY seq DESC LIMIT 1"
)
"""The update of a note that was accepted last and has not ended."""


def rests_until(crashes: int, now: str) -> str | None:
    """When a job may be taken again that ran at so many deaths of an engine in a row; None: at once.

    Such a death is not the job's fault and costs it nothing. But one that ran at the third in a row may be
    what kills, so that it lets the others go first: ten seconds, each time twice as long, at most an hour.
    """
    if crashes <= _FREE_CRASHES:
        return None
    doublings = min(crashes - _FREE_CRASHES - 1, 16)
    return stamp(parse(now) + min(_FIRST_REST * 2**doublings, _LONGEST_REST))


# idempotency


def answers_kept_since(now: str) -> str:
    """Answers from this instant and before are forgotten."""
    return stamp(parse(now) - _ANSWERS_KEPT)
