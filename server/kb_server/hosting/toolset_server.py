"""Toolsets as MCP servers of the official SDK: paths, listing, calls, cancelling."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from kb_server.hosting.calls import MAX_AGENT, Calls, admit, new_call, on_behalf_of
from kb_server.hosting.offers import HostedResources, HostedTasks, add_offers, code_of
from kb_server.observability.metrics import Metrics
from kb_server.tool import CANCEL, INVALID, OFFERS, TASKS, CancelTask, DeferredCall, ToolError, Toolset
from mcp_aiohttp.fastpath import FastPath
from mcp_aiohttp.protocol.caller import Caller
from mcp_aiohttp.protocol.elicitation import InputRequired, Person
from mcp_aiohttp.protocol.eras import declared_in
from mcp_aiohttp.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, SERVER_ERROR
from mcp_aiohttp.protocol.kernel import HostedServer
from mcp_aiohttp.protocol.subscriptions import SubscriptionLimits, Subscriptions
from mcp_aiohttp.protocol.tasks import HANDSHAKE_CAPABILITY, OfTask, ServedTasks, takes_task, wants_task

log = logging.getLogger(__name__)

ROOT = "/mcp"
_Context = ServerRequestContext[None, Caller]

_LISTING_TTL_MS = 60_000
"""Time that a 2026-07-28 client may cache lists that change only with the server, in milliseconds."""
_LASTING: tuple[CacheableMethod, ...] = (
    "tools/list",
    "prompts/list",
    "resources/templates/list",
    "server/discover",
)
_CHANGING: tuple[CacheableMethod, ...] = ("resources/list", "resources/read")


def hosted(
    toolset: Toolset,
    metrics: Metrics | None = None,
    *,
    fast_path: bool = True,
    subscription_limits: SubscriptionLimits | None = None,
) -> HostedServer:
    """`toolset`, ready to be hosted; without `fast_path` the SDK's kernel answers every call."""
    calls = Calls(toolset, metrics or Metrics())
    tasks = None if toolset.tasks is None else ServedTasks(HostedTasks(toolset.tasks, toolset.part_of(TASKS)))
    sdk = _sdk_server(toolset, calls, tasks)
    notification_handlers = {}
    subscriptions = None
    if toolset.resources is not None:
        subscriptions = Subscriptions(
            HostedResources(toolset.resources, toolset.part_of(OFFERS)), subscription_limits, tasks
        )
        subscriptions.add_to(sdk)
    if toolset.cancel is not None:
        cancellation = TaskCancellation(toolset.cancel, toolset.part_of(CANCEL))
        sdk.add_request_handler(CANCEL, OfTask, cancellation.on_request)
        notification_handlers[CANCEL] = cancellation.on_notification
    return HostedServer(
        sdk,
        NotificationOptions(
            tools_changed=toolset.tools_list_changed, prompts_changed=bool(toolset.prompts_list_changed)
        ),
        notification_handlers=notification_handlers,
        tasks=None if toolset.tasks is None else HANDSHAKE_CAPABILITY,
        subscriptions=subscriptions,
        fast_path=FastPath(calls, sdk) if fast_path else None,
        missing_scope=calls.missing_scope,
    )


def _sdk_server(toolset: Toolset, calls: Calls, tasks: ServedTasks | None) -> Server[None]:
    every = calls.listing()

    async def list_tools(context: _Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        if params.cursor is not None:
            words = "The tool list has one page: `cursor` must be left out"
            raise MCPError(INVALID_PARAMS, words, {"error_type": "invalid_cursor"})
        visible = calls.view(context.request or Caller())
        return {"tools": [each for each in every if each["name"] in visible], "resultType": "complete"}

    async def call_tool(
        context: _Context, params: types.CallToolRequestParams
    ) -> dict[str, Any] | types.InputRequiredResult:
        meta = context.params.get("_meta") if context.params else None
        call = new_call(meta, context.request or Caller(), context.session.report_progress)
        if (client := context.session.client_params) is not None:
            # Over stdio no header names the client.
            agent = f"{client.client_info.name}/{client.client_info.version}"
            call.log.setdefault("user_agent", agent[:MAX_AGENT])
        if calls.asks(params.name) and (person := Person.of(context, params)) is not None:
            call.ask = person.answer
        task_wanted = wants_task(context, params)
        if calls.may_be_task(params.name):
            call.deferral = "always" if task_wanted else "waiting" if takes_task(context) else "never"
        elif task_wanted and calls.knows(params.name):
            words = f"The tool {params.name} cannot be called as a task: leave `task` out."
            raise MCPError(types.METHOD_NOT_FOUND, words, {"error_type": "no_task"})
        try:
            outcome = await calls.outcome(params.name, params.arguments or {}, call)
        except InputRequired as first:
            return first.result
        except DeferredCall as deferred:
            # The tool decides: its caller may not support tasks, or may have no other call free.
            assert tasks is not None, "only a toolset with tasks defers calls"
            return tasks.created(context, deferred.task)
        if task_wanted:  # its client waits for a task, and does not read a result
            assert outcome.is_error, "a tool that can run as a task defers each accepted call"
            failed = msgspec.json.decode(outcome.encoded)
            raise MCPError(code_of(failed["error"]), failed["message"], {"error_type": failed["error"]})
        return outcome.as_result()

    hint = CacheHint(ttl_ms=_LISTING_TTL_MS, scope="private")
    server: Server[None] = Server(
        toolset.server_name,
        version=toolset.version,
        title=toolset.title,
        instructions=toolset.instructions or None,
        cache_hints={**dict.fromkeys(_LASTING, hint), **dict.fromkeys(_CHANGING, CacheHint(0, "private"))},
        get_tool_input_schema=declared_in(every),
        lifespan=lambda _server: toolset.lifespan(),
    )
    server.add_request_handler("tools/list", types.PaginatedRequestParams, list_tools)
    server.add_request_handler("tools/call", types.CallToolRequestParams, call_tool)
    add_offers(server, toolset)
    # The SDK's tracing costs a third of a call even if tracing is off. If it is on, `Calls` makes the spans,
    # because the fast path bypasses the kernel.
    server.middleware.clear()
    if tasks is not None:
        tasks.add_to(server)
    return server


@dataclass(frozen=True, slots=True)
class Mount:
    """A path and the toolset served there."""

    path: str
    toolset: Toolset


def mount(toolsets: Sequence[Toolset], at_root: Sequence[str]) -> list[Mount]:
    """Return `/mcp` with the toolsets named in `at_root`, then `/mcp/<name>` for each of `toolsets`.

    Raises:
        KeyError: a name in `at_root` is not in `toolsets`.
        ValueError: `at_root` is empty, or two toolsets there have a tool of the same name.
    """
    by_name = {toolset.name: toolset for toolset in toolsets}
    chosen = combine([by_name[name] for name in at_root])
    if len(at_root) > 1:
        # Its parts are entered at their own paths; entering them here too would build them twice.
        chosen = replace(chosen, lifespan=nullcontext)
    own = [Mount(f"{ROOT}/{toolset.name}", toolset) for toolset in toolsets]
    return [Mount(ROOT, chosen), *own]


def combine(toolsets: Sequence[Toolset]) -> Toolset:
    """Return one toolset with the tools of all; a single one is returned as it is.

    The first gives the name and the version, the first that can cancel tasks cancels them, the first that has
    resources or tasks gives these, each gives its instructions and prompts; the lifespan enters all in order.
    Raises ValueError: `toolsets` is empty, or two have a tool of the same name.
    """
    if not toolsets:
        raise ValueError("no toolset is chosen")
    if len(toolsets) == 1:
        return toolsets[0]
    owners: dict[str, str] = {}
    for toolset in toolsets:
        for tool in toolset.tools:
            if tool.name in owners:
                raise ValueError(
                    f"the toolsets {owners[tool.name]} and {toolset.name} both have a tool {tool.name}"
                )
            owners[tool.name] = toolset.name

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for toolset in toolsets:
                await stack.enter_async_context(toolset.lifespan())
            yield

    prompts = [
        toolset.prompts_list_changed for toolset in toolsets if toolset.prompts_list_changed is not None
    ]
    return replace(
        toolsets[0],
        instructions="\n\n".join(toolset.instructions for toolset in toolsets if toolset.instructions),
        tools=tuple(tool for toolset in toolsets for tool in toolset.tools),
        tools_list_changed=any(toolset.tools_list_changed for toolset in toolsets),
        prompts_list_changed=any(prompts) if prompts else None,
        prompts=tuple(prompt for toolset in toolsets for prompt in toolset.prompts),
        resources=next((each.resources for each in toolsets if each.resources is not None), None),
        tasks=next((each.tasks for each in toolsets if each.tasks is not None), None),
        completer=next((each.completer for each in toolsets if each.completer is not None), None),
        parts={
            **owners,
            CANCEL: next((each.name for each in toolsets if each.cancel is not None), ""),
            OFFERS: next((each.name for each in toolsets if each.resources or each.prompts), ""),
            TASKS: next((each.name for each in toolsets if each.tasks is not None), ""),
        },
        cancel=next((toolset.cancel for toolset in toolsets if toolset.cancel is not None), None),
        lifespan=lifespan,
    )


class TaskCancellation:
    """Serves `tools/cancel`, which ends a task by its id, even if another request or process began it.

    A method of its own beside `tools/call`, for toolsets with tasks that outlive their requests. It comes as
    a request, or as a notification, which has no answer.
    """

    def __init__(self, cancel: CancelTask, toolset: str) -> None:
        """`toolset` is the owner of the tasks."""
        self._cancel = cancel
        self._toolset = toolset

    async def on_notification(self, params: Mapping[str, Any] | None, caller: Caller) -> None:
        """Cancel the task named by a notification with these `params`; failures are logged."""
        try:
            task_id = OfTask.model_validate(params or {}, by_name=False).task_id
            await self._run(task_id, params, caller)
        except ValidationError:
            log.info("A cancel notification has no task id")
        except MCPError as error:
            log.info("A task was not cancelled", extra={"error": error.error.data})

    async def on_request(self, context: _Context, params: OfTask) -> dict[str, Any]:
        """Cancel the task named by a request."""
        await self._run(params.task_id, context.params, context.request or Caller())
        return {}

    async def _run(self, task_id: str, params: Mapping[str, Any] | None, caller: Caller) -> None:
        """Cancel the task.
        Raises MCPError: with the toolset's error, or without details for an unexpected exception.
        """
        call = new_call((params or {}).get("_meta"), caller)
        fields = {"correlation_id": call.correlation_id, "caller": call.grant.name}
        try:
            with on_behalf_of(call):
                admit(call.grant, "write", self._toolset)
                await self._cancel(task_id, call)
        except ToolError as error:
            code = INVALID_PARAMS if error.code == INVALID else SERVER_ERROR
            details = {"details": error.details} if error.details else {}
            raise MCPError(code, error.message, {"error_type": error.code, **details}) from None
        except Exception:
            # The boundary, as for a tool: the SDK's handshake loop would send the message to the client.
            log.exception("Cancelling a task failed unexpectedly", extra=fields)
            raise MCPError(INTERNAL_ERROR, "Internal error") from None
        log.info("Cancelled a task", extra=fields)
