"""`kb_status` and `kb_jobs`: the state of the base, and of pending additions.

A completed job does not say if text was found in a file: its document does.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_server.collection_tags import split_tags
from kb_server.engine_client.errors import EngineFault, EngineTooOld, Refused
from kb_server.engine_client.port import MIN_ENGINE_VERSION, Engine, check_version, read_document
from kb_server.services import SERVER_VERSION
from kb_server.tool import MISSING, Annotations, Call, NoArguments, ToolError
from kb_server.toolsets import EXTRA, view
from kb_server.toolsets.kb.collections import collections_of
from kb_server.toolsets.kb.documents import fitting, more_from
from kb_server.toolsets.kb.kb_tool import JobId, KbTool, WaitSeconds

_PAGE, _PAGE_BYTES = 10, 1_500
"""Limits of a list without a requested length: number of jobs, and bytes of JSON.

An answer holds it twice, as text and as structure, and stays under 4 KB.
"""

MAX_ENTRY_TITLE, MAX_ENTRY_MESSAGE, MAX_ENTRY_TAGS = 60, 120, 100
"""Characters of a job's title, of its error message, and of its tags together, in a list."""


class StorageView(msgspec.Struct, kw_only=True):
    """The location of the data; its problems are among the issues."""

    path: str
    bytes: int
    free_bytes: int
    originals_bytes: int


class KbStatusResult(msgspec.Struct, kw_only=True):
    """`version` is the engine's. Sizes are bytes; `issues` is empty if there are no problems.

    `storage` is left out for a caller without permission. `collections` are the first fifty of
    `collection_count`, in alphabetical order; both are left out if the engine cannot list them.
    """

    version: str
    server_version: str
    min_engine_version: str
    model: m.ModelInfo
    device: m.DeviceInfo
    documents: m.DocumentCounts
    chunks: int
    collections: list[str] | UnsetType = UNSET
    collection_count: int | UnsetType = UNSET
    queue: dict[str, int]
    storage: StorageView | UnsetType = UNSET
    issues: list[str]
    started_at: str
    last_updated: str | None


class KbStatusTool(KbTool[NoArguments, KbStatusResult]):
    name = "kb_status"
    title = "Status"
    description = """\
State of the base: collections, version, model, documents, queue, storage, issues."""
    annotations = Annotations(read_only=True, idempotent=True)
    document_mark = "none"

    async def run(self, _arguments: NoArguments, _call: Call) -> KbStatusResult:
        status = await self.engine.call(ops.GET_STATUS)
        collections = await collections_of(self.engine)
        issues, storage = list(status.issues), status.storage
        try:
            check_version(status.version)
        except EngineTooOld as fault:
            issues.append(fault.detail)
        return view(
            KbStatusResult,
            status,
            server_version=f"v{SERVER_VERSION}",
            min_engine_version=MIN_ENGINE_VERSION,
            collections=UNSET if collections is None else collections.names,
            collection_count=UNSET if collections is None else collections.total,
            queue=msgspec.structs.asdict(status.queue),
            storage=(
                UNSET if storage.is_withheld else msgspec.convert(storage, StorageView, from_attributes=True)
            ),
            issues=issues,
        )


class JobView(msgspec.Struct, kw_only=True):
    """A job; `id` is the `job_id` of other tools. `progress` runs from 0 to 1.

    In a list a job has only its distinguishing members; the rest is given for a single job.
    `estimated_seconds`: until it will have ended; null if it has ended or is not known yet. `retryable`: it
    failed, and kb_retry_job queues it again.
    """

    id: str
    status: str
    title: str
    collection: str | None
    progress: float
    document_id: int | None
    error: m.JobError | None
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
    outcome: str | UnsetType = UNSET
    left_out: list[str] | UnsetType = UNSET
    started_at: str | UnsetType | None = UNSET
    finished_at: str | UnsetType | None = UNSET
    estimated_seconds: float | UnsetType | None = UNSET
    retryable: bool | UnsetType = UNSET


def job_view(job: m.Job) -> JobView:
    """Return a single job, with all its members."""
    place = split_tags(job.tags)
    return view(JobView, job, collection=place.collection, tags=place.tags)


def job_entry(job: m.Job) -> JobView:
    """Return a job for a list: long members are cut or left out, and given in full for a single job."""
    error, place = job.error, split_tags(job.tags)
    if error is not None:
        error = msgspec.structs.replace(error, message=_cut(error.message, MAX_ENTRY_MESSAGE))
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


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


async def document_of(
    engine: Engine, job: m.Job, query: ops.DocumentQuery = ops.WITHOUT_CHUNKS
) -> m.DocumentDetail | None:
    """Return the document of a completed job, or None if there is none yet or it cannot be read.

    An engine that does not know a member of `query` is asked again without it.
    """
    if job.document_id is None:
        return None
    try:
        return await read_document(engine, job.document_id, query)
    except EngineFault as fault:
        if (
            isinstance(fault, Refused)
            and fault.reason == "unknown_parameter"
            and query is not ops.WITHOUT_CHUNKS
        ):
            return await document_of(engine, job)
        return None


def why_empty(document: m.Document) -> str:
    """Return the message about a document that no search finds."""
    return (
        f"Searches cannot find document {document.id}: {document.status_reason or 'no text was found in it.'}"
    )


class KbJobsArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    status: Annotated[m.JobStatus, Meta(description="only these")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000, description="default: a short page")] | None = None
    offset: Annotated[int, Meta(ge=0, description="jobs to skip")] = 0
    job_id: Annotated[JobId, Meta(description="this job, in full")] | None = None
    wait_seconds: Annotated[WaitSeconds, Meta(description="with job_id: seconds to wait")] = 0.0


class KbJobsResult(msgspec.Struct, kw_only=True):
    """Newest first; `total` counts all matches. A job named by its id is given in full."""

    jobs: list[JobView]
    total: int
    hint: str


class KbJobsTool(KbTool[KbJobsArguments, KbJobsResult]):
    name = "kb_jobs"
    title = "Ingestion jobs"
    description = """\
List recent ingestion jobs, newest first, or follow one: {"job_id": "...", "wait_seconds": 30} answers once \
it has ended and its content can be searched."""
    annotations = Annotations(read_only=True, idempotent=True)

    async def run(self, arguments: KbJobsArguments, call: Call) -> KbJobsResult:
        listing = (arguments.status, arguments.limit, arguments.offset) != (None, None, 0)
        if arguments.job_id is not None and listing:
            raise ToolError("contradiction", "job_id names one job; leave out status, limit and offset.")
        if arguments.job_id is None and arguments.wait_seconds:
            raise ToolError(MISSING, "wait_seconds needs the job_id to wait for.", parameter="job_id")
        hints = []
        if arguments.job_id is not None:
            job = await self.engine.wait_for_job(arguments.job_id, arguments.wait_seconds)
            document = await document_of(self.engine, job)
            listed, entries, total = [job], [job_view(job)], 1
            if document is not None and document.status == "empty":
                hints.append(why_empty(document))
        else:
            limit = arguments.limit or ops.JobsQuery().limit
            query = ops.JobsQuery(status=arguments.status, limit=limit, offset=arguments.offset)
            found = await self.engine.call(ops.LIST_JOBS, query=query)
            entries, total = [job_entry(job) for job in found.jobs], found.total
            if arguments.limit is None:
                entries = [*fitting(entries[:_PAGE], _PAGE_BYTES)]
            listed = found.jobs[: len(entries)]
            if entries and (more := more_from(arguments.offset + len(entries), total)):
                hints.append(more)
        if any(job.retryable for job in listed):
            may_retry = call.grant.may_have("write", EXTRA)
            tool = f"kb_retry_job (toolset {EXTRA}) or " if may_retry else ""
            hints.append(f"The input of a failed job is kept: {tool}`kb jobs ID --retry` queues it again.")
        return KbJobsResult(jobs=entries, total=total, hint=" ".join(hints))
