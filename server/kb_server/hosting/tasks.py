"""The tasks of a toolset, as the protocol asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kb_server.hosting.offers import answered
from kb_server.offers import Task, Tasks
from mcp_aiohttp.protocol.tasks import Context, TaskState


class HostedTasks:
    """`TaskSource` of a toolset: asks on behalf of the caller, and answers faults in words."""

    def __init__(self, tasks: Tasks, toolset: str) -> None:
        """`toolset` is the one whose tasks they are."""
        self._tasks = tasks
        self._toolset = toolset

    async def state(self, context: Context, task_id: str, wait: float = 0.0) -> TaskState:
        return _state(await answered(context, lambda: self._tasks.get(task_id, wait), self._toolset))

    async def result(self, context: Context, task_id: str) -> dict[str, Any]:
        outcome = await answered(context, lambda: self._tasks.result(task_id), self._toolset)
        return outcome.as_result()

    async def page(self, context: Context, cursor: str | None) -> tuple[Sequence[TaskState], str | None]:
        found, following = await answered(context, lambda: self._tasks.page(cursor), self._toolset)
        return [_state(task) for task in found], following

    async def cancel(self, context: Context, task_id: str) -> TaskState:
        return _state(await answered(context, lambda: self._tasks.cancel(task_id), self._toolset))


def _state(task: Task) -> TaskState:
    return TaskState(task.id, task.status, task.created_at, task.changed_at, task.message)
