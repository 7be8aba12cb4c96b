"""What a note or a file becomes first: a job, followed for a while where the caller wants to."""

from __future__ import annotations

import msgspec

from kb_contracts import models as m
from kb_server.engine_client import ENDED, Engine, EngineFault, tool_error
from kb_server.toolsets.kb.views import JobFailure, failure_of


class Submission(msgspec.Struct, kw_only=True):
    """An accepted submission. `document_id` is known when `status` is completed."""

    job_id: str
    status: str
    collection: str
    document_id: int | None
    document_uid: str | None
    deduplicated: bool
    error: JobFailure | None
    hint: str


async def followed(engine: Engine, job: m.Job, collection: str, wait: float) -> Submission:
    """The submission, after up to `wait` seconds for its job to end.

    A job that cannot be followed is still accepted: its id is never lost to a fault that comes after it.
    """
    if wait > 0 and job.status not in ENDED:
        try:
            job = await engine.job(job.id, wait=wait)
        except EngineFault as fault:
            return _submission(job, collection, f"Accepted, but not followed: {tool_error(fault).message}")
    return _submission(job, collection, _hint(job))


def _submission(job: m.Job, collection: str, hint: str) -> Submission:
    return Submission(
        job_id=job.id,
        status=job.status,
        collection=collection,
        document_id=job.document_id,
        document_uid=job.document_uid,
        deduplicated=job.deduplicated,
        error=failure_of(job),
        hint=hint,
    )


def _hint(job: m.Job) -> str:
    if job.status == "failed":
        return "Ingestion failed; `error` says why. Nothing was added."
    if job.status == "cancelled":
        return "The job was cancelled. Nothing was added."
    if job.status == "completed":
        return "It was there already; nothing was doubled." if job.deduplicated else "It can be searched now."
    return "It can be searched once its job has completed; ask kb_jobs with this job_id."
