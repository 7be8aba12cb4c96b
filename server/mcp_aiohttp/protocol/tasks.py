"""Tasks of the protocol, in the form of either era, over work that is stored by a `TaskSource`.

| | 2025-11-25 | 2026-07-28, the extension `io.modelcontextprotocol/tasks` |
|---|---|---|
| a call becomes a task | if it has `task` | if the client has the extension, and the server chooses so |
| `tasks/get` | the task | the task, and once it has ended its result |
| `tasks/result` | waits for the end; the result of the call | - |
| `tasks/list` | pages | - |
| `tasks/cancel` | the task as it is then | an empty answer, also if there is nothing to cancel |
| `tasks/update` | - | an empty answer: no task here requests input |
| `notifications/tasks/status` | to the connection of the call, over stdio and WebSocket | - |
| `notifications/tasks` | - | on a stream of `subscriptions/listen` with `taskIds` |

A connection whose call became a task of 2025-11-25 is sent the task's changes until its end, and progress
under the call's token, which is valid as long as the task. A stream of 2026-07-28 is sent its tasks, as
`tasks/get` answers, at once and after each change. The caller is authenticated again before each look.

No state is kept here, so a task outlives the server and is known to every replica. The SDK has the types of
2025-11-25 and dispatches neither era: the methods are registered as the server's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Literal, Protocol, cast

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import SerializerFunctionWrapHandler, model_serializer

from mcp_aiohttp.protocol.caller import Caller, Connected
from mcp_aiohttp.protocol.jsonrpc import INVALID_PARAMS, SERVER_ERROR, Refusal

log = logging.getLogger(__name__)

EXTENSION = "io.modelcontextprotocol/tasks"
WITH_TASKS = "2025-11-25"
"""The only version with a handshake that has tasks."""
RESULT_SECONDS = 600.0
"""Maximum time that `tasks/result` waits, in seconds; then the client has to repeat the request."""
POLL_MS = 2_000
"""Polling interval suggested to clients, in milliseconds."""
_LOOK_SECONDS = 20.0
_REPORT_SECONDS = 0.5
_FOLLOW_SECONDS = 3.0
"""Maximum time between two looks at a task for a connection that has not asked, in seconds."""
_LEAST_PROGRESS = 0.001
MOST_FOLLOWED = 16
"""Maximum number of tasks whose changes are sent to one connection or stream; clients poll further ones."""
_RELATED = "io.modelcontextprotocol/related-task"

Context = ServerRequestContext[Any, Any]
ReportTask = Callable[[str, dict[str, Any]], None]
"""Called with the id of a task, and the task as 2026-07-28 has it."""
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


class _StatusNotification(types.TaskStatusNotification):
    @model_serializer(mode="wrap")
    def _with_ttl(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keep `ttl`, which is required and null, from being left out with the members that are None."""
        written: dict[str, Any] = handler(self)
        written["params"]["ttl"] = self.params.ttl
        return written


class _TaskNotification(types.Notification[dict[str, Any], Literal["notifications/tasks"]]):
    """The notification of 2026-07-28, which the SDK does not have: its parameters are a task."""


class OfTask(types.RequestParams):
    """The parameters of a method on one task. On the wire the id is `taskId`."""

    task_id: str


HANDSHAKE_CAPABILITY = types.ServerTasksCapability.model_validate(
    {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
)
"""The capability that a server with tasks announces in a handshake."""


async def _past_the_models(ctx: Context, call_next: CallNext) -> HandlerResult:
    try:
        return await call_next(ctx)
    except TaskCreated as task:
        return task.result


@contextmanager
def _following() -> Iterator[None]:
    """Log errors: nothing awaits the tasks that follow others."""
    try:
        yield
    except (MCPError, Refusal) as refused:
        log.info("A task is no longer followed", extra={"error": str(refused)})
    except Exception:  # the boundary
        log.exception("A task can no longer be followed")


def _is_temporary(refused: MCPError | Refusal) -> bool:
    """True unless the task is unknown, or its caller has lost access."""
    if isinstance(refused, Refusal):
        return refused.status == HTTPStatus.SERVICE_UNAVAILABLE
    error = refused.error
    forbidden = isinstance(error.data, dict) and error.data.get("error_type") == "forbidden"
    return error.code != INVALID_PARAMS and not forbidden


class _Reported:
    """The progress of a task that was reported last; the protocol wants it to increase each time."""

    def __init__(self) -> None:
        self._progress, self._message = -1.0, ""

    def next(self, task: TaskState) -> float | None:
        """Return the progress to report now, or None if there is nothing to report."""
        if task.status not in ("working", "completed"):
            return None
        progress = 1.0 if task.status == "completed" else task.progress
        if progress <= self._progress and task.message == self._message:
            return None
        self._progress = min(1.0, max(progress, self._progress + _LEAST_PROGRESS))
        self._message = task.message
        return self._progress


class ServedTasks:
    """The tasks of one server."""

    def __init__(self, source: TaskSource) -> None:
        self._source = source
        self._followed: dict[Connected, set[asyncio.Task[None]]] = {}

    def add_to(self, server: Server[Any]) -> None:
        """Serve the methods of tasks on `server`, and announce the extension."""
        server.extensions[EXTENSION] = {}
        server.middleware.append(_past_the_models)
        for method, handler in (
            ("tasks/get", self.get),
            ("tasks/result", self.result),
            ("tasks/cancel", self.cancel),
            ("tasks/update", self.update),
        ):
            server.add_request_handler(method, OfTask, handler)
        server.add_request_handler("tasks/list", types.PaginatedRequestParams, self.list)

    def created(self, context: Context, task: TaskState) -> dict[str, Any]:
        """Return the answer to a call that became a task; its connection is sent the changes of the task.
        Raises TaskCreated: with that answer, if it must bypass the SDK's models; let it out of the handler.
        """
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return {"resultType": "task", **_modern(task)}
        connection = context.request.connection if isinstance(context.request, Caller) else None
        if connection is not None and connection.is_open:
            self._follow(context, connection, task.id)
        # In this version every task begins as "working", even if it has already ended.
        raise TaskCreated({"task": {**_of_2025(task), "status": "working"}})

    def _follow(self, context: Context, connection: Connected, task_id: str) -> None:
        followed = self._followed.get(connection)
        if followed is None:
            followed = self._followed[connection] = set()

            def end() -> None:
                for each in self._followed.pop(connection):
                    each.cancel()

            connection.on_end(end)
        if len(followed) < MOST_FOLLOWED:
            following = asyncio.create_task(self._send_changes(context, task_id))
            followed.add(following)
            following.add_done_callback(followed.discard)

    async def _send_changes(self, context: Context, task_id: str) -> None:
        """Send each change of the task until it has ended, or its caller has lost access."""
        token = progress_token_from_params(context.params)
        seconds = _FOLLOW_SECONDS if token is None else _REPORT_SECONDS
        reported, status, message = _Reported(), "working", ""
        with _following():
            async for task, formed in self._looks(context, task_id, seconds, _formed_as_2025):
                changed = (task.status, task.message) != (status, message)
                if token is not None and (progress := reported.next(task)) is not None:
                    await context.session.send_progress_notification(token, progress, 1.0, task.message)
                status, message = task.status, task.message
                if changed:
                    params = types.TaskStatusNotificationParams.model_validate(formed)
                    notification = _StatusNotification(params=params)
                    # The SDK has this notification, and its union of notifications lacks it.
                    await context.session.send_notification(cast("types.ServerNotification", notification))

    @asynccontextmanager
    async def followed(
        self, context: Context, task_ids: Sequence[str], report: ReportTask
    ) -> AsyncIterator[list[str]]:
        """Report the changes of tasks of 2026-07-28 in the block, which gets the ids of the followed ones.
        Raises MCPError: the client did not declare the extension.
        """
        if not _is_modern(context):
            raise _no_method(context)
        known = [each for each in task_ids[:MOST_FOLLOWED] if await self._exists(context, each)]
        following = [asyncio.create_task(self._report_changes(context, each, report)) for each in known]
        try:
            yield known
        finally:
            for each in following:
                each.cancel()

    async def _exists(self, context: Context, task_id: str) -> bool:
        try:
            await self._source.state(context, task_id)
        except MCPError as error:
            if _is_temporary(error):
                raise
            return False
        return True

    async def _report_changes(self, context: Context, task_id: str, report: ReportTask) -> None:
        before: TaskState | None = None
        with _following():
            async for task, detailed in self._looks(context, task_id, _FOLLOW_SECONDS, self._detailed):
                if before is None or (task.status, task.message) != (before.status, before.message):
                    report(task_id, detailed)
                before = task

    async def _looks(
        self,
        context: Context,
        task_id: str,
        seconds: float,
        form: Callable[[Context, TaskState], Awaitable[dict[str, Any]]],
    ) -> AsyncIterator[tuple[TaskState, dict[str, Any]]]:
        """Yield the task and its `form`, every `seconds` and at its end; access is checked anew each time.
        Raises MCPError, Refusal: the task is gone, or its caller has lost access.
        """
        caller = context.request if isinstance(context.request, Caller) else Caller()
        while True:
            try:
                now = replace(context, request=await caller.current())
                task = await self._source.state(now, task_id, seconds)
                formed = await form(now, task)
            except (MCPError, Refusal) as refused:
                if not _is_temporary(refused):
                    raise
                await asyncio.sleep(_FOLLOW_SECONDS)
                continue
            yield task, formed
            if task.has_ended:
                return

    async def _detailed(self, context: Context, task: TaskState) -> dict[str, Any]:
        """Return a task of 2026-07-28, with its result once it has ended."""
        if task.status in ("working", "cancelled"):
            return _modern(task)
        # A call whose result is an error has completed: here only the protocol's own errors are failures.
        result = await self._source.result(context, task.id)
        return {**_modern(task), "status": "completed", "result": result}

    async def get(self, context: Context, params: OfTask) -> dict[str, Any]:
        modern = _checked(context, params)
        task = await self._source.state(context, params.task_id)
        return await self._detailed(context, task) if modern else _of_2025(task)

    async def result(self, context: Context, params: OfTask) -> dict[str, Any]:
        if _checked(context, params):
            raise _no_method(context)
        reports = bool({"progressToken", "progress_token"} & set(context.meta or ()))
        seconds = _REPORT_SECONDS if reports else _LOOK_SECONDS
        reported, waited, has_ended = _Reported(), 0.0, False
        while not has_ended:
            task = await self._source.state(context, params.task_id, seconds)
            if reports and (progress := reported.next(task)) is not None:
                await context.session.report_progress(progress, 1.0, task.message)
            has_ended = task.has_ended
            waited += seconds
            if waited >= RESULT_SECONDS and not has_ended:
                words = f"The task has not ended within {RESULT_SECONDS:.0f} s. Ask again."
                raise MCPError(SERVER_ERROR, words, {"error_type": "task_not_ended"})
        result = await self._source.result(context, params.task_id)
        meta = {**result.get("_meta", {}), _RELATED: {"taskId": params.task_id}}
        return {**result, "_meta": meta}

    async def list(self, context: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        if _is_modern(context):
            raise _no_method(context)
        tasks, cursor = await self._source.page(context, params.cursor)
        following = {} if cursor is None else {"nextCursor": cursor}
        return {"tasks": [_of_2025(task) for task in tasks], **following}

    async def cancel(self, context: Context, params: OfTask) -> dict[str, Any]:
        modern = _checked(context, params)
        try:
            task = await self._source.cancel(context, params.task_id)
        except MCPError as error:
            if modern and error.error.code == INVALID_PARAMS:
                return {}
            raise
        return {} if modern else _of_2025(task)

    async def update(self, context: Context, params: OfTask) -> dict[str, Any]:
        if not _checked(context, params):
            raise _no_method(context)
        return {}


def task_notification(task: dict[str, Any], meta: dict[str, Any]) -> types.ServerNotification:
    """Return the notification of 2026-07-28 for a task."""
    notification = _TaskNotification(method="notifications/tasks", params={**task, "_meta": meta})
    return cast("types.ServerNotification", notification)  # the SDK's union lacks it


def _checked(context: Context, params: OfTask) -> bool:
    """True if the request is of 2026-07-28.
    Raises MCPError: its version has no tasks, its client did not declare them, or a header names another
    task.
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


async def _formed_as_2025(_context: Context, task: TaskState) -> dict[str, Any]:
    return _of_2025(task)


def _modern(task: TaskState) -> dict[str, Any]:
    return {**_task(task), "ttlMs": None, "pollIntervalMs": POLL_MS}
