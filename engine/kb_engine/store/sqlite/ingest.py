"""The commit of a job: a new document, the standing one it turned out to be, or a note's other text.

In one transaction.
"""

from __future__ import annotations

import apsw

from kb_contracts.api import models as m
from kb_engine.store import rules
from kb_engine.store.port import LeasedJob, NewJob, Prepared
from kb_engine.store.sqlite import documents, jobs, tags, updates
from kb_engine.store.sqlite.connection import value
from kb_engine.store.sqlite.write import Write


def commit(write: Write, leased: LeasedJob, prepared: Prepared) -> m.Job | None:
    """Close the job with its document; None when the lease is void."""
    if not jobs.holds(write.db, leased):
        return None
    if leased.job.kind == "update":
        return updates.commit(write, leased.job, prepared)
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
    """The oldest document of the same kind, content and scope."""
    found = value(db, *rules.same_document(job))
    return None if found is None else int(found)


def _unite(write: Write, document_id: int, job: NewJob) -> m.Document:
    news = [
        tags.unite(write, document_id, job.tags),
        documents.add_source(write, document_id, job.source_path),
    ]
    if any(news):
        documents.raise_version(write, document_id)
    return documents.find(write.db, document_id)
