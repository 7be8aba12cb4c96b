"""`knowledge-task-status`, and the cancelling of tasks. A task is a job of the engine, under the job's id."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kb_contracts.api import models as m
from kb_contracts.api.operations import CANCEL_JOB, GET_DOCUMENT, GET_JOB, WITHOUT_CHUNKS
from kb_server.engine_client.errors import EngineFault
from kb_server.engine_client.port import Engine
from kb_server.engine_faults import tool_error
from kb_server.services import Services
from kb_server.tool import INVALID, Annotations, Call, CancelTask, ToolError
from kb_server.toolsets.knowledge.errors import ENGINE_WORDS
from kb_server.toolsets.knowledge.tool import KnowledgeTool, Success, is_uuid, name_of

CANCELLED = "The task was cancelled; nothing was added"


class KnowledgeTaskStatusArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    task_id: Annotated[UUID, Meta(description="from knowledge-add")]


class TaskResult(msgspec.Struct, kw_only=True):
    """What a completed task has made."""

    document_id: str
    filename: str
    chunks_created: Annotated[int, Meta(description="passages of the document")] | None


class KnowledgeTaskStatusResult(Success, kw_only=True):
    """`success` is false where the task failed, which `error` and `message` then tell of.

    What a client that polls reads is always there, whatever became of the task.
    """

    task_id: str
    status: m.JobStatus
    progress: Annotated[float, Meta(ge=0, le=1)]
    current_step: Annotated[str, Meta(description="of a task that has ended: the last one")]
    completed_steps: Annotated[int, Meta(ge=0)]
    total_steps: Annotated[int, Meta(ge=0)]
    elapsed_time_seconds: Annotated[
        float, Meta(ge=0, description="since it was started, before that since it was submitted")
    ]
    estimated_remaining_seconds: Annotated[
        float | None,
        Meta(description="with what waits before it; 0 once it has ended, null: nothing is known yet"),
    ]
    error: Annotated[str | None, Meta(description="a stable code; null where it has not failed")]
    result: TaskResult | UnsetType = UNSET
    total_time_seconds: Annotated[float, Meta(ge=0, description="from its submission")] | UnsetType = UNSET
    message: str | UnsetType = UNSET


class KnowledgeTaskStatusTool(KnowledgeTool[KnowledgeTaskStatusArguments, KnowledgeTaskStatusResult]):
    """Shows a job."""

    name = "knowledge-task-status"
    title = "Status of a task"
    description = """\
Get status of an async processing task: queued, running, completed, failed or cancelled.

Use it with the task_id of knowledge-add. A running task tells its step and progress, a completed one its \
document_id, a failed one what went wrong.

Example: {"task_id": "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"}"""
    annotations = Annotations(read_only=True, idempotent=True)
    arguments = KnowledgeTaskStatusArguments
    result = KnowledgeTaskStatusResult

    async def run(self, arguments: KnowledgeTaskStatusArguments, _call: Call) -> KnowledgeTaskStatusResult:
        """`GET /jobs/{id}`."""
        task_id = str(arguments.task_id)
        job = await self.engine.call(GET_JOB, path={"job_id": task_id})
        status = _status(job, self._elapsed(job))
        if job.status == "completed":
            document = await self._document(job)
            status.result = _result(job, document)
            status.message = UNSET if document is None else document.status_reason or UNSET
            status.total_time_seconds = seconds_between(job.created_at, job.finished_at)
        elif job.status in m.FINAL_STATUSES:
            status.message = CANCELLED if job.error is None else job.error.message
        return status

    async def _document(self, job: m.Job) -> m.Document | None:
        """The document; None where it has been removed since, which takes nothing from the task."""
        try:
            return await document_of(self.engine, job)
        except ToolError as error:
            if error.code != "document_not_found":
                raise
            return None

    def _elapsed(self, job: m.Job) -> float:
        """By the engine's clock, which the job's times are of; by ours only where it does not tell."""
        if job.elapsed_seconds is not None:
            return job.elapsed_seconds
        now = self.services.clock.now().isoformat()
        return seconds_between(job.started_at or job.created_at, job.finished_at or now)


def canceller(services: Services) -> CancelTask:
    """What `tools/cancel` does here: `DELETE /jobs/{id}`.

    It raises `task_not_found`, `task_finished` and `invalid_parameter`.
    """

    async def cancel(task_id: str, _call: Call) -> None:
        if not is_uuid(task_id):
            raise ToolError(INVALID, "taskId takes a UUID, as knowledge-add answers it.", parameter="taskId")
        try:
            await services.engine.call(CANCEL_JOB, path={"job_id": task_id.lower()})
        except EngineFault as fault:
            raise tool_error(fault, ENGINE_WORDS, task_id=task_id) from fault

    return cancel


async def document_of(engine: Engine, job: m.Job) -> m.Document:
    """The document of a completed job, without its chunks; raises `document_not_found` where it is gone."""
    document_id = job.document_uid or ""
    try:
        return await engine.call(GET_DOCUMENT, path={"document_id": document_id}, query=WITHOUT_CHUNKS)
    except EngineFault as fault:
        raise tool_error(fault, ENGINE_WORDS, document_id=document_id) from fault


def failure(job: m.Job) -> ToolError | None:
    """Why a job that has ended made no document; None where it did."""
    if job.status == "cancelled":
        return ToolError("task_cancelled", CANCELLED, task_id=job.id)
    if job.error is not None:
        return ToolError(job.error.code, job.error.message, task_id=job.id)
    return None


def seconds_between(start: str, end: str | None) -> float:
    """The seconds from one time of the engine's to another, three decimals; never less than none.

    The clocks of two machines may disagree, which must not show as a span that runs backwards.
    """
    if end is None:
        return 0.0
    span = datetime.fromisoformat(end) - datetime.fromisoformat(start)
    return max(0.0, round(span.total_seconds(), 3))


def _result(job: m.Job, document: m.Document | None) -> TaskResult:
    if document is None:
        name = job.filename or job.title
        return TaskResult(document_id=job.document_uid or "", filename=name, chunks_created=None)
    return TaskResult(
        document_id=document.uid, filename=name_of(document), chunks_created=document.chunk_count
    )


def _status(job: m.Job, elapsed: float) -> KnowledgeTaskStatusResult:
    """A task in any state. To fail is a state of the task, and no error of this call."""
    return KnowledgeTaskStatusResult(
        success=job.status != "failed",
        task_id=job.id,
        status=job.status,
        progress=job.progress,
        current_step=job.step,
        completed_steps=job.completed_steps,
        total_steps=job.total_steps,
        elapsed_time_seconds=elapsed,
        estimated_remaining_seconds=_remaining(job, elapsed),
        error=None if job.error is None else job.error.code,
    )


def _remaining(job: m.Job, elapsed: float) -> float | None:
    if job.status in m.FINAL_STATUSES:
        return 0.0
    if job.estimated_seconds is not None:
        return job.estimated_seconds
    return round(elapsed * (1 - job.progress) / job.progress, 3) if job.progress else None
