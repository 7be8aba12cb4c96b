"""`knowledge-status` and `knowledge-task-status`, and the cancelling of tasks.

A task is a job of the engine, under the job's id.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kb_contracts.api import models as m
from kb_contracts.api.operations import CANCEL_JOB, GET_JOB, GET_STATUS
from kb_server.engine_client.errors import EngineFault
from kb_server.engine_client.port import Engine, read_document
from kb_server.engine_faults import tool_error
from kb_server.services import Services
from kb_server.tool import INVALID, Annotations, Call, CancelTask, NoArguments, ToolError
from kb_server.toolsets import view
from kb_server.toolsets.knowledge.knowledge_tool import (
    ENGINE_WORDS,
    KnowledgeTool,
    Success,
    is_uuid,
    megabytes,
    name_of,
)

NAME = "default"
CANCELLED = "The task was cancelled; nothing was added"


class KnowledgeBase(msgspec.Struct, kw_only=True):
    """The content of the base. Sizes count files and notes; null: unknown, or hidden from this key."""

    name: str = NAME
    document_count: int | None = None
    total_chunks: int | None = None
    total_size_bytes: int | None = None
    total_size_mb: Annotated[float, Meta(description="in units of 1048576 bytes")] | None = None
    average_chunks_per_document: float | None = None
    storage_path: Annotated[str, Meta(description="the engine's data folder")] | None = None
    vector_db_path: Annotated[str, Meta(description="location of the vectors")] | None = None


class BaseHealth(msgspec.Struct, kw_only=True):
    """The health of the base; `issues` describes the problems, and is absent without problems."""

    status: Literal["healthy", "degraded"]
    vector_db_connected: bool
    storage_accessible: bool
    embedding_model_loaded: bool
    issues: list[str] | UnsetType = UNSET


class BaseConfiguration(msgspec.Struct, kw_only=True):
    """`chunk_size` is in tokens of the embedding model, at the most; null: the engine could not be asked."""

    embedding_model: str | None = None
    chunk_size: int | None = None
    max_file_size_mb: float


class KnowledgeStatusResult(Success, kw_only=True):
    """An unhealthy base is reported with `success` true: the status itself was available."""

    knowledge_base: KnowledgeBase
    health: BaseHealth
    configuration: BaseConfiguration
    last_updated: (
        Annotated[str, Meta(description="time of the last addition, change or removal of a document")] | None
    )


class KnowledgeStatusTool(KnowledgeTool[NoArguments, KnowledgeStatusResult]):
    name = "knowledge-status"
    title = "Status of the knowledge base"
    description = """\
Get knowledge base statistics and health status: numbers and sizes of documents and passages, the state of \
storage, vectors and embedding model, and the causes of faults."""
    annotations = Annotations(read_only=True, idempotent=True)
    document_mark = "none"

    async def run(self, _arguments: NoArguments, call: Call) -> KnowledgeStatusResult:
        limit = megabytes(self.services.settings.max_upload_bytes)
        try:
            status = await self.engine.call(GET_STATUS)
        except EngineFault as fault:
            error = self.error_of(fault)
            call.log |= {"engine_error": error.code, "reason": error.message}
            # No part of an engine that does not answer can be used.
            return KnowledgeStatusResult(
                knowledge_base=KnowledgeBase(),
                health=BaseHealth(
                    status="degraded",
                    vector_db_connected=False,
                    storage_accessible=False,
                    embedding_model_loaded=False,
                    issues=[error.message],
                ),
                configuration=BaseConfiguration(max_file_size_mb=limit),
                last_updated=None,
            )
        documents, storage = status.documents.total, status.storage
        loaded, accessible = status.model.loaded, storage.accessible
        issues = list(status.issues) or ([] if loaded else ["The embedding model is not loaded yet"])
        return KnowledgeStatusResult(
            knowledge_base=KnowledgeBase(
                document_count=documents,
                total_chunks=status.chunks,
                total_size_bytes=None if storage.is_withheld else storage.originals_bytes,
                total_size_mb=None if storage.is_withheld else megabytes(storage.originals_bytes),
                average_chunks_per_document=round(status.chunks / documents, 1) if documents else 0.0,
                storage_path=storage.path or None,
                vector_db_path=storage.path or None,  # the engine keeps vectors and documents together
            ),
            health=BaseHealth(
                status="healthy" if accessible and not issues else "degraded",
                vector_db_connected=accessible,
                storage_accessible=accessible,
                embedding_model_loaded=loaded,
                issues=issues or UNSET,
            ),
            configuration=BaseConfiguration(
                embedding_model=status.model.name, chunk_size=status.model.max_tokens, max_file_size_mb=limit
            ),
            # A base without changes has the state from the start of the engine.
            last_updated=status.last_updated or status.started_at,
        )


class KnowledgeTaskStatusArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    task_id: Annotated[UUID, Meta(description="from knowledge-add")]


class TaskResult(msgspec.Struct, kw_only=True):
    """The result of a completed task."""

    document_id: str
    filename: str
    chunks_created: Annotated[int, Meta(description="passages of the document")] | None


class KnowledgeTaskStatusResult(Success, kw_only=True):
    """`success` is false if the task failed, which `error` and `message` then describe.

    The members read by a polling client are always present, for every state of the task.
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
        Meta(description="including the tasks before it; 0 once it has ended, null: not known yet"),
    ]
    error: Annotated[str | None, Meta(description="a stable code; null if the task has not failed")]
    result: TaskResult | UnsetType = UNSET
    total_time_seconds: Annotated[float, Meta(ge=0, description="from its submission")] | UnsetType = UNSET
    message: str | UnsetType = UNSET


class KnowledgeTaskStatusTool(KnowledgeTool[KnowledgeTaskStatusArguments, KnowledgeTaskStatusResult]):
    name = "knowledge-task-status"
    title = "Status of a task"
    description = """\
Get status of an async processing task: queued, running, completed, failed or cancelled.

Use it with the task_id of knowledge-add. A running task has its step and progress, a completed one its \
document_id, a failed one its error.

Example: {"task_id": "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"}"""
    annotations = Annotations(read_only=True, idempotent=True)

    async def run(self, arguments: KnowledgeTaskStatusArguments, _call: Call) -> KnowledgeTaskStatusResult:
        job = await self.engine.call(GET_JOB, path={"job_id": str(arguments.task_id)})
        elapsed = job.elapsed_seconds
        if elapsed is None:  # by our clock only as a fallback, because the job's times are the engine's
            now = self.services.clock.now().isoformat()
            elapsed = seconds_between(job.started_at or job.created_at, job.finished_at or now)
        remaining = job.estimated_seconds
        if job.status in m.FINAL_STATUSES:
            remaining = 0.0
        elif remaining is None and job.progress:
            remaining = round(elapsed * (1 - job.progress) / job.progress, 3)
        status = view(
            KnowledgeTaskStatusResult,
            job,
            success=job.status != "failed",  # a state of the task, not an error of this call
            task_id=job.id,
            current_step=job.step,
            elapsed_time_seconds=elapsed,
            estimated_remaining_seconds=remaining,
            error=None if job.error is None else job.error.code,
        )
        if job.status == "completed":
            status.total_time_seconds = seconds_between(job.created_at, job.finished_at)
            try:
                document = await document_of(self.engine, job)
                status.result = TaskResult(
                    document_id=document.uid, filename=name_of(document), chunks_created=document.chunk_count
                )
                status.message = document.status_reason or UNSET
            except ToolError as error:
                if error.code != "document_not_found":
                    raise
                # Removed since, which does not change the state of the task.
                status.result = TaskResult(
                    document_id=job.document_uid or "",
                    filename=job.filename or job.title,
                    chunks_created=None,
                )
        elif job.status in m.FINAL_STATUSES:
            status.message = CANCELLED if job.error is None else job.error.message
        return status


def canceller(services: Services) -> CancelTask:
    """Return the handler of `tools/cancel`: `DELETE /jobs/{id}`.

    It raises `task_not_found`, `task_finished` and `invalid_parameter`.
    """

    async def cancel(task_id: str, _call: Call) -> None:
        if not is_uuid(task_id):
            raise ToolError(
                INVALID, "taskId must be a UUID, as returned by knowledge-add.", parameter="taskId"
            )
        try:
            await services.engine.call(CANCEL_JOB, path={"job_id": task_id.lower()})
        except EngineFault as fault:
            raise tool_error(fault, ENGINE_WORDS, task_id=task_id) from fault

    return cancel


async def document_of(engine: Engine, job: m.Job) -> m.Document:
    """Return the document of a completed job, without its chunks; raises `document_not_found`."""
    document_id = job.document_uid or ""
    try:
        return await read_document(engine, document_id)
    except EngineFault as fault:
        raise tool_error(fault, ENGINE_WORDS, document_id=document_id) from fault


def seconds_between(start: str, end: str | None) -> float:
    """Return the seconds between two times of the engine, three decimals; never negative.

    The clocks of two machines may differ, which must not result in a negative duration.
    """
    if end is None:
        return 0.0
    span = datetime.fromisoformat(end) - datetime.fromisoformat(start)
    return max(0.0, round(span.total_seconds(), 3))
