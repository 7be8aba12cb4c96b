"""The commit of a job: a new document, the standing one it turned out to be, or a note's other text.

In one transaction.
"""

from __future__ import annotations

from kb_contracts.api import models as m
from kb_engine.store import rules
from kb_engine.store.port import LeasedJob, NewJob, Prepared
from kb_engine.store.repository import documents, jobs, tags, updates
from kb_engine.store.repository.transaction import Read, Write


async def commit(write: Write, leased: LeasedJob, prepared: Prepared) -> m.Job | None:
    """Close the job with its document; None when the lease is void."""
    await write.hold_base()
    if not await jobs.hold(write, leased):
        return None
    if leased.job.kind == "update":
        return await updates.commit(write, leased.job, prepared)
    if (closed := await _closed_as_duplicate(write, leased.job)) is not None:
        return closed
    added = await documents.insert(write, leased.job, prepared)
    return await jobs.complete(write, leased.job.id, added.id, added.uid, deduplicated=False)


async def commit_duplicate(write: Write, leased: LeasedJob) -> m.Job | None:
    """Close the job with the standing document; None when there is none or the lease is void."""
    await write.hold_base()
    if not await jobs.hold(write, leased):
        return None
    return await _closed_as_duplicate(write, leased.job)


async def _closed_as_duplicate(write: Write, job: NewJob) -> m.Job | None:
    same = await duplicate_of(write, job)
    if same is None:
        return None
    standing = await _unite(write, same, job)
    return await jobs.complete(write, job.id, standing.id, standing.uid, deduplicated=True)


async def duplicate_of(read: Read, job: NewJob) -> int | None:
    found = await read.value(*rules.same_document(job))
    return None if found is None else int(found)


async def _unite(write: Write, document_id: int, job: NewJob) -> m.Document:
    changes = [
        await tags.unite(write, document_id, job.tags),
        await documents.add_source(write, document_id, job.source_path),
    ]
    if any(changes):
        await documents.raise_version(write, document_id)
    return await documents.find(write, document_id)
