"""`kb_status` and `kb_jobs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from kb_contracts.api import models as m
from kb_contracts.api.operations import GET_STATUS, LIST_JOBS, JobsQuery
from kb_server.engine_client.errors import EngineTooOld
from kb_server.engine_client.port import MIN_ENGINE_VERSION, check_version
from kb_server.services import SERVER_VERSION
from kb_server.tool import Annotations, Call, NoArguments, ToolError
from kb_server.toolsets.kb.parameters import JobId, WaitSeconds
from kb_server.toolsets.kb.submissions import document_of, why_empty
from kb_server.toolsets.kb.tool import KbTool
from kb_server.toolsets.kb.views import JobView, fitting, job_entry, job_view

_PAGE, _PAGE_BYTES = 10, 1_500
"""Of a list whose length nobody asked for: how many jobs, and how much of JSON. An answer holds it twice, as
text and as structure, and stays under 4 KB."""


class StorageView(msgspec.Struct, kw_only=True):
    """Where the data lies; what is wrong with it is among the issues."""

    path: str
    bytes: int
    free_bytes: int
    originals_bytes: int


class KbStatusResult(msgspec.Struct, kw_only=True):
    """`version` is the engine's. Sizes are bytes; `issues` is empty when all is well."""

    version: str
    server_version: str
    min_engine_version: str
    model: m.ModelInfo
    device: m.DeviceInfo
    documents: m.DocumentCounts
    chunks: int
    queue: dict[str, int]
    storage: StorageView
    issues: list[str]
    started_at: str
    last_updated: str | None


class KbStatusTool(KbTool[NoArguments, KbStatusResult]):
    """Tells how the engine is."""

    name = "kb_status"
    title = "Status"
    description = """\
Tell how the knowledge base is: version, embedding model, documents and chunks, queue, storage, issues."""
    annotations = Annotations(read_only=True, idempotent=True)
    arguments = NoArguments
    result = KbStatusResult

    async def run(self, _arguments: NoArguments, _call: Call) -> KbStatusResult:
        """`GET /status`."""
        status = await self.engine.call(GET_STATUS)
        return KbStatusResult(
            version=status.version,
            server_version=f"v{SERVER_VERSION}",
            min_engine_version=MIN_ENGINE_VERSION,
            model=status.model,
            device=status.device,
            documents=status.documents,
            chunks=status.chunks,
            queue=msgspec.structs.asdict(status.queue),
            storage=msgspec.convert(status.storage, StorageView, from_attributes=True),
            issues=[*status.issues, *_outdated(status.version)],
            started_at=status.started_at,
            last_updated=status.last_updated,
        )


class KbJobsArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    status: Annotated[m.JobStatus, Meta(description="only these")] | None = None
    limit: (
        Annotated[int, Meta(ge=1, le=1_000, description="how many (default: what fits a short page)")] | None
    ) = None
    offset: Annotated[int, Meta(ge=0, description="jobs to skip")] = 0
    job_id: Annotated[JobId, Meta(description="this job, in full")] | None = None
    wait_seconds: Annotated[WaitSeconds, Meta(description="with job_id: seconds to wait")] = 0.0


class KbJobsResult(msgspec.Struct, kw_only=True):
    """Newest first; `total` counts all that match. One that was named by its id is there in full."""

    jobs: list[JobView]
    total: int
    hint: str


class KbJobsTool(KbTool[KbJobsArguments, KbJobsResult]):
    """Lists jobs, or follows one."""

    name = "kb_jobs"
    title = "Ingestion jobs"
    description = """\
List recent ingestion jobs, newest first, a short page at a time, or follow one by job_id: \
{"job_id": "...", "wait_seconds": 30} answers once it has ended and its content can be searched."""
    annotations = Annotations(read_only=True, idempotent=True)
    arguments = KbJobsArguments
    result = KbJobsResult

    async def run(self, arguments: KbJobsArguments, _call: Call) -> KbJobsResult:
        """`GET /jobs` or `GET /jobs/{id}`."""
        _check(arguments)
        if arguments.job_id is not None:
            job = await self.engine.wait_for_job(arguments.job_id, arguments.wait_seconds)
            document = await document_of(self.engine, job)
            hint = (
                why_empty(document) if document is not None and document.status == "empty" else _retry([job])
            )
            return KbJobsResult(jobs=[job_view(job)], total=1, hint=hint)
        query = JobsQuery(
            status=arguments.status, limit=arguments.limit or JobsQuery().limit, offset=arguments.offset
        )
        found = await self.engine.call(LIST_JOBS, query=query)
        jobs = [job_entry(job) for job in found.jobs]
        if arguments.limit is None:
            jobs = fitting(jobs[:_PAGE], _PAGE_BYTES)
        hints = (_more(len(jobs), found.total, arguments), _retry(found.jobs[: len(jobs)]))
        return KbJobsResult(jobs=jobs, total=found.total, hint=" ".join(filter(None, hints)))


def _check(arguments: KbJobsArguments) -> None:
    listing = (arguments.status, arguments.limit, arguments.offset) != (None, None, 0)
    if arguments.job_id is not None and listing:
        raise ToolError("contradiction", "job_id names one job; leave out status, limit and offset.")
    if arguments.job_id is None and arguments.wait_seconds:
        raise ToolError(
            "missing_required_parameter", "wait_seconds needs the job_id to wait for.", parameter="job_id"
        )


def _more(listed: int, total: int, arguments: KbJobsArguments) -> str:
    following = arguments.offset + listed
    return f"{total - following} more: offset={following}." if listed and total > following else ""


def _retry(jobs: Sequence[m.Job]) -> str:
    retryable = any(job.retryable for job in jobs)
    return (
        "What was sent for a failed job is kept: kb_retry_job (toolset kb-extra) or `kb jobs ID --retry` "
        "queues it again."
        if retryable
        else ""
    )


def _outdated(version: str) -> list[str]:
    try:
        check_version(version)
    except EngineTooOld as fault:
        return [fault.detail]
    return []
