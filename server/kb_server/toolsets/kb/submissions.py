"""What a note or a file becomes first: a job, followed for a while where the caller wants to.

A completed job says nothing about what was found in a file: of that its document tells.
"""

from __future__ import annotations

import msgspec

from kb_contracts.api import models as m
from kb_contracts.api.operations import GET_DOCUMENT, WITHOUT_CHUNKS
from kb_server.engine_client.errors import EngineFault
from kb_server.engine_client.port import Engine
from kb_server.engine_faults import tool_error
from kb_server.toolsets.kb.errors import ENGINE_WORDS
from kb_server.toolsets.kb.views import JobFailure, failure_of


class Submission(msgspec.Struct, kw_only=True):
    """An accepted submission. `document_id` is known when `status` is completed.

    `document_status` is `searchable` or `empty` (no text was found), null where it is not known.
    """

    job_id: str
    status: str
    collection: str
    document_id: int | None
    document_uid: str | None
    document_status: str | None
    deduplicated: bool
    error: JobFailure | None
    hint: str


async def followed(engine: Engine, job: m.Job, collection: str, wait: float) -> Submission:
    """The submission, after up to `wait` seconds for its job to end.

    A job that cannot be followed is still accepted: its id is never lost to a fault that comes after it.
    """
    if wait > 0 and job.status not in m.FINAL_STATUSES:
        try:
            job = await engine.wait_for_job(job.id, wait)
        except EngineFault as fault:
            why = tool_error(fault, ENGINE_WORDS).message
            return _submission(job, collection, f"Accepted, but not followed: {why}")
    document = await document_of(engine, job)
    hint = _hint(job) if job.status != "completed" else _hint_of_completed(job, document)
    return _submission(job, collection, hint, document)


async def document_of(engine: Engine, job: m.Job) -> m.Document | None:
    """The document of a completed job; None where there is none yet, or it cannot be had any more."""
    if job.document_id is None:
        return None
    try:
        return await engine.call(GET_DOCUMENT, path={"document_id": job.document_id}, query=WITHOUT_CHUNKS)
    except EngineFault:
        return None


def why_empty(document: m.Document) -> str:
    """What to say of a document that no search finds."""
    return f"No search finds document {document.id}: {document.status_reason or 'no text was found in it.'}"


def _submission(job: m.Job, collection: str, hint: str, document: m.Document | None = None) -> Submission:
    return Submission(
        job_id=job.id,
        status=job.status,
        collection=collection,
        document_id=job.document_id,
        document_uid=job.document_uid,
        document_status=None if document is None else document.status,
        deduplicated=job.deduplicated,
        error=failure_of(job),
        hint=hint,
    )


def _hint(job: m.Job) -> str:
    if job.status == "failed":
        return "Ingestion failed; `error` says why. Nothing was added."
    if job.status == "cancelled":
        return "The job was cancelled. Nothing was added."
    return "It can be searched once its job has completed; ask kb_jobs with this job_id."


def _hint_of_completed(job: m.Job, document: m.Document | None) -> str:
    if document is None:
        return "Its job has completed; kb_get tells what was found in it."
    if document.status == "empty":
        return why_empty(document)
    done = "It was there already; nothing was doubled." if job.deduplicated else "It can be searched now."
    return f"{done} {document.status_reason}" if document.status_reason else done
