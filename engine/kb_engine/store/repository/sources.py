"""Sources of documents: a path within the document's collection, and the effect of a job with that path.

The collection of a source is read from the tags of its document: moving a document moves its sources with it,
without a second record.
"""

from __future__ import annotations

from typing import Any

from kb_contracts.api import models as m
from kb_contracts.semantics.sources import Holder, Plan, plan, source_scope, takes_over
from kb_engine.store.port import OCR_METHOD, NewJob
from kb_engine.store.repository.transaction import Read, Write


async def duplicate_of(read: Read, job: NewJob) -> int | None:
    """Return the document that a commit would treat as a duplicate now. It may be removed at any time.

    It is the oldest one with the same kind, content and scope. If the scope is itself a tag of the job (a
    collection), the document must carry it: a document that is being moved is no duplicate. For a job that
    forces OCR, a document whose text was extracted from the file is no duplicate, because the caller wants it
    read by OCR. With a source path the document must be in the collection of the source.

    Only documents within the access scope count, so that hidden documents do not affect a submission.
    """
    content = "sha256" if job.kind == "file" else "note_hash"
    sql = (
        f"SELECT d.id, {read.tags} FROM documents d "  # noqa: S608
        f"WHERE d.kind = ? AND d.{content} = ? AND d.dedup_scope = ?"
    )
    values: list[Any] = [job.kind, job.content_hash, job.dedup_scope]
    if job.dedup_scope in job.tags:
        sql += " AND d.id IN (SELECT document_id FROM document_tags WHERE tag = ?)"
        values.append(job.dedup_scope)
    if job.force_ocr:
        sql += " AND d.extraction_method = ?"
        values.append(OCR_METHOD)
    within, reached = read.within("d.id")
    sql, values = sql + within, [*values, *reached]
    scope = source_scope(job.tags, job.dedup_scope)
    for document_id, tags in await read.rows(f"{sql} ORDER BY d.id", values):
        if job.source_path is None or source_scope(read.read_list(tags), job.dedup_scope) == scope:
            return int(document_id)
    return None


async def duplicate_for(read: Read, job: NewJob) -> int | None:
    """Return the duplicate like `duplicate_of`, within the access scope of the job's caller."""
    read.reach = job.reach
    return await duplicate_of(read, job)


async def hold_plan(write: Write, job: NewJob) -> Plan:
    """Plan a job and lock its documents until the transaction ends."""
    await write.hold_content(job.kind, job.content_hash, job.dedup_scope)
    if job.source_path is not None:
        await write.hold_content("source", job.source_path, source_scope(job.tags, job.dedup_scope))
    held: set[int] = set()
    while True:
        planned = await plan_of(write, job)
        # Data read before the lock may be out of date.
        changed = [await write.hold_document(each) for each in sorted(planned.documents - held)]
        if not any(changed):
            return planned
        held |= planned.documents


async def plan_of(read: Read, job: NewJob) -> Plan:
    """Return the effect that a commit of the job would have now."""
    pointing = [] if job.source_path is None else await holders(read, job.source_path, job)
    return plan(job.source_path, await duplicate_of(read, job), pointing)


async def holders(read: Read, path: str, job: NewJob) -> list[Holder]:
    """Return the documents to which the source of a job points."""
    scope = source_scope(job.tags, job.dedup_scope)
    within, reached = read.within("d.id")
    pointed_to = "d.id IN (SELECT document_id FROM document_sources WHERE source_path = ?)"
    sql = (
        f"SELECT d.id, d.dedup_scope, d.unsourced, {read.sources}, {read.tags} FROM documents d "  # noqa: S608
        f"WHERE {pointed_to}{within} ORDER BY d.id"
    )
    return [
        Holder(document_id, read.read_list(paths), bool(unsourced))
        for document_id, dedup_scope, unsourced, paths, tags in await read.rows(sql, (path, *reached))
        if source_scope(read.read_list(tags), dedup_scope) == scope
    ]


async def holder(read: Read, document: m.Document) -> Holder:
    unsourced = await read.value("SELECT unsourced FROM documents WHERE id = ?", (document.id,))
    return Holder(document.id, document.source_paths, bool(unsourced))


async def attach(write: Write, document: m.Document, job: NewJob) -> bool:
    """Add the job's source path to a document, or mark it as unsourced; return whether the path was new."""
    document_id, path = document.id, job.source_path
    if path is None:
        await write.rows("UPDATE documents SET unsourced = true WHERE id = ?", (document_id,))
        return False
    known = "SELECT true FROM document_sources WHERE document_id = ? AND source_path = ?"
    if await write.value(known, (document_id, path)):
        return False
    if takes_over(job.kind, document.source_paths):
        await write.rows("UPDATE documents SET unsourced = false WHERE id = ?", (document_id,))
    await point(write, path, document_id)
    await _set_first(write, document_id)
    return True


async def point(write: Write, path: str, document_id: int) -> None:
    sql = "INSERT INTO document_sources (document_id, source_path) VALUES (?, ?)"
    await write.rows(sql, (document_id, path))


async def detach(write: Write, document_id: int, path: str) -> None:
    gone = "DELETE FROM document_sources WHERE document_id = ? AND source_path = ?"
    await write.rows(gone, (document_id, path))
    await _set_first(write, document_id)


async def _set_first(write: Write, document_id: int) -> None:
    first = "SELECT source_path FROM document_sources WHERE document_id = ? ORDER BY id LIMIT 1"
    await write.rows(f"UPDATE documents SET source_path = ({first}) WHERE id = ?", (document_id, document_id))  # noqa: S608
