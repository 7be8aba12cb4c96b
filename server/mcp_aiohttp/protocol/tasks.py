"""Tasks of the protocol, in the form of either era, over work that is stored by a `TaskSource`.

| | 2025-11-25 | 2026-07-28, the extension `io.modelcontextprotocol/tasks` |
|---|---|---|
| a call becomes a task | if it has `task` | if the client has the extension, and the server chooses so |
| `tasks/get` | the task | the task, and once it has ended its result |
| `tasks/result` | waits for the end; the result of the call | - |
| `tasks/list` | pages | - |
| `tasks/cancel` | the task as it is then | an empty answer, also if there is nothing to cancel |
| `tasks/update` | - | an empty answer: no task here requests input |

No state is kept here, so a task outlives the server and is known to every replica. The SDK has the types of
2025-11-25 and dispatches neither era: the methods are registered as the server's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_aiohttp.protocol.caller import Caller
from mcp_aiohttp.protocol.jsonrpc import INVALID_PARAMS, SERVER_ERROR

EXTENSION = "io.modelcontextprotocol/tasks"
WITH_TASKS = "2025-11-25"
"""The only version with a handshake that has tasks."""
RESULT_SECONDS = 600.0
"""Maximum time that `tasks/result` waits, in seconds; then the client has to repeat the request."""
POLL_MS = 2_000
"""Polling interval suggested to clients, in milliseconds."""
_LOOK_SECONDS = 20.0
_REPORT_SECONDS = 0.5
_LEAST_PROGRESS = 0.001
_RELATED = "io.modelcontextprotocol/related-task"

Context = ServerRequestContext[Any, Any]
Status = Literal["working", "completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class TaskState:
    """A task as it is now. Times are ISO 8601; `message` is for people, and may be empty."""

    id: str
    status: Status
    created_at: str
    changed_at: str
    message: str = ""
    progress: float = 0.0
    """From 0 to 1."""

    @property
    def has_ended(self) -> bool:
        return self.status != "working"


class TaskSource(Protocol):
    """The store of tasks.

    Raises (all methods): `MCPError`; `INVALID_PARAMS` if the task does not exist.
    """

    async def state(self, context: Context, task_id: str, wait: float = 0.0) -> TaskState:
        """Return the task when it has ended, or its current state after `wait` seconds."""

    async def result(self, context: Context, task_id: str) -> dict[str, Any]:
        """Return the result that `tools/call` would have returned, for a task that has ended."""

    async def page(self, context: Context, cursor: str | None) -> tuple[Sequence[TaskState], str | None]:
        """Return some of the tasks, the newest first, and the cursor of the next page."""

    async def cancel(self, context: Context, task_id: str) -> TaskState:
        """Cancel the task; `INVALID_PARAMS` if it has ended already."""


class TaskCreated(Exception):
    """A call of 2025-11-25 became a task: `result` is the answer, which the SDK's models of a call reject."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__("the call goes on as a task")
        self.result = result


def wants_task(context: Context, params: types.CallToolRequestParams) -> bool:
    """True if the call is to become a task; only 2025-11-25 has this parameter."""
    return context.protocol_version == WITH_TASKS and params.task is not None


def takes_task(context: Context) -> bool:
    """True if the client of this call accepts a task in place of the result."""
    capabilities = context.session.client_capabilities
    declared = (capabilities.extensions if capabilities is not None else None) or {}
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in declared


def created(context: Context, task: TaskState) -> dict[str, Any]:
    """Return the answer to a call that became a task.

    Raises:
        TaskCreated: with that answer, if it must bypass the SDK's models; let it out of the handler.
    """
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return {"resultType": "task", **_modern(task)}
    # In this version every task begins as "working", even if it has already ended.
    raise TaskCreated({"task": {**_of_2025(task), "status": "working"}})


class _OfTask(types.RequestParams):
    """On the wire the id is `taskId`."""

    task_id: str


def add_tasks(server: Server[Any], source: TaskSource) -> None:
    """Serve the methods of tasks on `server`, and announce the extension."""
    tasks = _Tasks(source)
    server.extensions[EXTENSION] = {}
    server.middleware.append(_past_the_models)
    for method, handler in (
        ("tasks/get", tasks.get),
        ("tasks/result", tasks.result),
        ("tasks/cancel", tasks.cancel),
        ("tasks/update", tasks.update),
    ):
        server.add_request_handler(method, _OfTask, handler)
    server.add_request_handler("tasks/list", types.PaginatedRequestParams, tasks.list)


HANDSHAKE_CAPABILITY = types.ServerTasksCapability.model_validate(
    {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
)
"""The capability that a server with tasks announces in a handshake."""


async def _past_the_models(ctx: Context, call_next: CallNext) -> HandlerResult:
    try:
        return await call_next(ctx)
    except TaskCreated as task:
        return task.result


class _Tasks:
    def __init__(self, source: TaskSource) -> None:
        self._source = source

    async def get(self, context: Context, params: _OfTask) -> dict[str, Any]:
        modern = _checked(context, params)
        task = await self._source.state(context, params.task_id)
        if not modern:
            return _of_2025(task)
        if task.status in ("working", "cancelled"):
            return _modern(task)
        # A call whose result is an error has completed: here only the protocol's own errors are failures.
        result = await self._source.result(context, params.task_id)
        return {**_modern(task), "status": "completed", "result": result}

    async def result(self, context: Context, params: _OfTask) -> dict[str, Any]:
        if _checked(context, params):
            raise _no_method(context)
        # The token of the call is spent with its answer; that of this request lives as long as the wait.
        reports = bool({"progressToken", "progress_token"} & set(context.meta or ()))
        seconds = _REPORT_SECONDS if reports else _LOOK_SECONDS
        waited, reached, message = 0.0, -1.0, ""
        while not (task := await self._source.state(context, params.task_id, seconds)).has_ended:
            if reports and (task.progress > reached or task.message != message):
                reached, message = max(task.progress, reached + _LEAST_PROGRESS), task.message
                await context.session.report_progress(reached, 1.0, message)
            waited += seconds
            if waited >= RESULT_SECONDS:
                words = f"The task has not ended within {RESULT_SECONDS:.0f} s. Ask again."
                raise MCPError(SERVER_ERROR, words, {"error_type": "task_not_ended"})
        if reports and task.status == "completed":
            await context.session.report_progress(1.0, 1.0, task.message)
        result = await self._source.result(context, params.task_id)
        meta = {**result.get("_meta", {}), _RELATED: {"taskId": params.task_id}}
        return {**result, "_meta": meta}

    async def list(self, context: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        if _is_modern(context):
            raise _no_method(context)
        tasks, cursor = await self._source.page(context, params.cursor)
        following = {} if cursor is None else {"nextCursor": cursor}
        return {"tasks": [_of_2025(task) for task in tasks], **following}

    async def cancel(self, context: Context, params: _OfTask) -> dict[str, Any]:
        modern = _checked(context, params)
        try:
            task = await self._source.cancel(context, params.task_id)
        except MCPError as error:
            if modern and error.error.code == INVALID_PARAMS:
                return {}
            raise
        return {} if modern else _of_2025(task)

    async def update(self, context: Context, params: _OfTask) -> dict[str, Any]:
        if not _checked(context, params):
            raise _no_method(context)
        return {}


def _checked(context: Context, params: _OfTask) -> bool:
    """True if the request is of 2026-07-28.

    Raises:
        MCPError: its version has no tasks, its client did not declare them, or a header names another task.
    """
    modern = _is_modern(context)
    caller = context.request
    name = caller.headers.get(MCP_NAME_HEADER) if modern and isinstance(caller, Caller) else None
    if name is not None and decode_header_value(name) != params.task_id:
        words = "The Mcp-Name header and `taskId` disagree."
        raise MCPError(types.HEADER_MISMATCH, words, {"error_type": "header_mismatch"})
    return modern


def _is_modern(context: Context) -> bool:
    """Like `_checked`, without a task."""
    if context.protocol_version == WITH_TASKS:
        return False
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise _no_method(context)
    if not takes_task(context):
        words = f"Declare the extension {EXTENSION} in the client's capabilities."
        required: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, words, required)
    return True


def _no_method(context: Context) -> MCPError:
    return MCPError(types.METHOD_NOT_FOUND, "Method not found", context.method)


def _task(task: TaskState) -> dict[str, Any]:
    about = {"statusMessage": task.message} if task.message else {}
    times = {"createdAt": task.created_at, "lastUpdatedAt": task.changed_at}
    return {"taskId": task.id, "status": task.status, **about, **times}


def _of_2025(task: TaskState) -> dict[str, Any]:
    return {**_task(task), "ttl": None, "pollInterval": POLL_MS}


def _modern(task: TaskState) -> dict[str, Any]:
    return {**_task(task), "ttlMs": None, "pollIntervalMs": POLL_MS}
