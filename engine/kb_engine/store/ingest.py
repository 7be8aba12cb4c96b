"""The commit of a job: a new document, or the standing one it turned out to be, in one transaction."""

from __future__ import annotations

import apsw

from kb_contracts import models as m
from kb_engine.store import documents, jobs, tags
from kb_engine.store.connection import value
from kb_engine.store.port import OCR_METHOD, LeasedJob, NewJob, Prepared
from kb_engine.store.write import Write

_SAME = "SELECT min(id) FROM documents WHERE kind = ? AND sha256 = ? AND dedup_scope = ?"
_STILL_THERE = " AND id IN (SELECT document_id FROM document_tags WHERE tag = ?)"
_BY_OCR = " AND extraction_method = ?"


def commit(write: Write, leased: LeasedJob, prepared: Prepared) -> m.Job | None:
    """Close the job with its document; None when the lease is void."""
    if not jobs.holds(write.db, leased):
        return None
    if (closed := _closed_as_duplicate(write, leased.job)) is not None:
        return closed
    added = documents.insert(write, leased.job, prepared)
    return jobs.complete(write, leased.job.id, added.id, added.uid, deduplicated=False)


def commit_duplicate(write: Write, leased: LeasedJob) -> m.Job | None:
    """Close the job with the standing document; None when there is none or the lease is void."""
    return _closed_as_duplicate(write, leased.job) if jobs.holds(write.db, leased) else None


def _closed_as_duplicate(write: Write, job: NewJob) -> m.Job | None:
    same = duplicate_of(write.db, job)
    if same is None:
        return None
    standing = _unite(write, same, job)
    return jobs.complete(write, job.id, standing.id, standing.uid, deduplicated=True)


def duplicate_of(db: apsw.Connection, job: NewJob) -> int | None:
    """The oldest document of the same kind, content and scope.

    Where the scope is itself a tag of the job (a collection), the document must still carry it: one
    that was moved elsewhere since is no duplicate here. Nor, for a job that forces OCR, is one whose text
    was taken from the file: whoever asks for that wants it read in the other way.
    """
    wanted, values = _SAME, [job.kind, job.sha256, job.dedup_scope]
    if job.dedup_scope in job.tags:
        wanted, values = wanted + _STILL_THERE, [*values, job.dedup_scope]
    if job.force_ocr:
        wanted, values = wanted + _BY_OCR, [*values, OCR_METHOD]
    found = value(db, wanted, values)
    return None if found is None else int(found)


def _unite(write: Write, document_id: int, job: NewJob) -> m.Document:
    news = [
        tags.unite(write, document_id, job.tags),
        documents.add_source(write, document_id, job.source_path),
    ]
    if any(news):
        documents.raise_version(write, document_id)
    return documents.find(write.db, document_id)
