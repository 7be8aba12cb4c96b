"""Jobs of the engine as tasks of the protocol: a job's id is the task's, and only the engine stores them.

So tasks outlive this server, any replica knows them, and a caller sees the same tasks as jobs.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec

from kb_contracts.api import models as m
from kb_contracts.api.operations import CANCEL_JOB, GET_JOB, JOB_ID, LIST_JOBS, JobsQuery
from kb_server.cursors import next_cursor, offset_of
from kb_server.document_marks import DocumentMark, meta_of, opening
from kb_server.engine_client.errors import EngineFault, Refused
from kb_server.engine_client.port import Engine
from kb_server.engine_faults import tool_error
from kb_server.services import Services
from kb_server.tool import EngineWords, ToolError
from mcp_aiohttp.fastpath import ToolOutcome
from mcp_aiohttp.protocol.tasks import Status, TaskState

_PAGE = 100
_ID = re.compile(get_args(JOB_ID)[1].pattern)
_MOST_QUOTED = 100
_STATUS: Mapping[m.JobStatus, Status] = {
    "queued": "working",
    "running": "working",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}


@dataclass(frozen=True)
class JobTasks:
    """The tasks of a toolset; implements `Tasks`.

    `tools` may be called as tasks; `result_of` returns the result of such a call from its ended job. Its
    errors begin with `error_members`, and its results are marked by `mark`.
    """

    services: Services
    tools: Collection[str]
    result_of: Callable[[m.Job], Awaitable[msgspec.Struct]]
    words: EngineWords
    error_members: Mapping[str, Any] = field(default_factory=dict)
    mark: DocumentMark = "member"

    @property
    def _engine(self) -> Engine:
        return self.services.engine

    async def get(self, task_id: str, wait: float = 0.0) -> TaskState:
        return task_of(await self._job(task_id, wait))

    async def result(self, task_id: str) -> ToolOutcome:
        job = await self._job(task_id)
        try:
            encoded = opening(self.mark) + msgspec.json.encode(await self.result_of(job))[1:]
            return ToolOutcome(encoded, meta=meta_of(self.mark))
        except ToolError as error:
            mark = self.mark if error.quotes else "none"
            encoded = opening(mark) + msgspec.json.encode({**self.error_members, **error.payload()})[1:]
            return ToolOutcome(encoded, is_error=True, meta=meta_of(mark))

    async def page(self, cursor: str | None) -> tuple[Sequence[TaskState], str | None]:
        offset = offset_of(cursor)
        found = await self._engine.call(LIST_JOBS, query=JobsQuery(offset=offset, limit=_PAGE))
        return [task_of(job) for job in found.jobs], next_cursor(offset, len(found.jobs), found.total)

    async def cancel(self, task_id: str) -> TaskState:
        place = {"job_id": self._job_id(task_id)}
        try:
            return task_of(await self._engine.call(CANCEL_JOB, path=place))
        except EngineFault as fault:
            raise tool_error(fault, self.words, task_id=task_id) from fault

    async def _job(self, task_id: str, wait: float = 0.0) -> m.Job:
        job_id = self._job_id(task_id)
        try:
            if wait:
                return await self._engine.wait_for_job(job_id, wait)
            return await self._engine.call(GET_JOB, path={"job_id": job_id})
        except EngineFault as fault:
            raise tool_error(fault, self.words, task_id=task_id) from fault

    def _job_id(self, task_id: str) -> str:
        if (job_id := job_id_in(task_id)) is not None:
            return job_id
        absent = Refused("job_not_found", "There is none.")
        raise tool_error(absent, self.words, task_id=task_id[:_MOST_QUOTED])


def job_id_in(text: str) -> str | None:
    """Return the job id in `text`, in the spelling of the engine, or None if `text` is not a job id."""
    return job_id if _ID.match(job_id := text.lower()) else None


def task_of(job: m.Job) -> TaskState:
    """A job as a task."""
    return TaskState(
        id=job.id,
        status=_STATUS[job.status],
        created_at=job.created_at,
        changed_at=job.finished_at or job.started_at or job.created_at,
        message=job.step if job.error is None else job.error.message,
        progress=job.progress,
    )
