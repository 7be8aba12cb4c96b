"""A toolset as an MCP server of the official SDK: identity, capabilities, listing and calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.shared.exceptions import MCPError

from kb_server.hosting.calls import MAX_AGENT, Calls, new_call
from kb_server.hosting.task_cancellation import METHOD, TaskCancellation
from kb_server.observability.metrics import Metrics
from kb_server.tool import Toolset
from mcp_aiohttp.fastpath import FastPath
from mcp_aiohttp.protocol.caller import Caller
from mcp_aiohttp.protocol.eras import declared_in
from mcp_aiohttp.protocol.jsonrpc import INVALID_PARAMS
from mcp_aiohttp.protocol.kernel import HostedServer

_Context = ServerRequestContext[None, Caller]

_LISTING_TTL_MS = 60_000
"""How long a 2026-07-28 client may keep the tool list: it changes only when the server is replaced."""


def hosted(toolset: Toolset, metrics: Metrics | None = None, *, fast_path: bool = True) -> HostedServer:
    """`toolset`, ready to be hosted; without `fast_path` the SDK's kernel answers every call."""
    calls = Calls(toolset, metrics or Metrics())
    cancellation = None if toolset.cancel is None else TaskCancellation(toolset.cancel)
    sdk = _sdk_server(toolset, calls)
    if cancellation is not None:
        cancellation.add_to(sdk)
    return HostedServer(
        sdk,
        NotificationOptions(
            tools_changed=toolset.tools_list_changed, prompts_changed=bool(toolset.prompts_list_changed)
        ),
        notification_handlers={} if cancellation is None else {METHOD: cancellation.on_notification},
        fast_path=FastPath(calls, sdk) if fast_path else None,
    )


def _sdk_server(toolset: Toolset, calls: Calls) -> Server[None]:
    listing: dict[str, Any] = {"tools": calls.listing(), "resultType": "complete"}

    async def list_tools(_context: _Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        if params.cursor is not None:
            words = "The tool list has one page: `cursor` must be left out"
            raise MCPError(INVALID_PARAMS, words, {"error_type": "invalid_cursor"})
        return listing

    async def call_tool(context: _Context, params: types.CallToolRequestParams) -> dict[str, Any]:
        meta = context.params.get("_meta") if context.params else None
        call = new_call(meta, context.request or Caller(), context.session.report_progress)
        if (client := context.session.client_params) is not None:
            # Over stdio there is no header that says who calls.
            agent = f"{client.client_info.name}/{client.client_info.version}"
            call.log.setdefault("user_agent", agent[:MAX_AGENT])
        return (await calls.outcome(params.name, params.arguments or {}, call)).as_result()

    @asynccontextmanager
    async def lifespan(_server: Server[None]) -> AsyncIterator[None]:
        async with toolset.lifespan():
            yield

    hint = CacheHint(ttl_ms=_LISTING_TTL_MS, scope="private")
    server: Server[None] = Server(
        toolset.server_name,
        version=toolset.version,
        title=toolset.title,
        instructions=toolset.instructions or None,
        cache_hints={"tools/list": hint, "server/discover": hint},
        get_tool_input_schema=declared_in(listing["tools"]),
        lifespan=lifespan,
    )
    server.add_request_handler("tools/list", types.PaginatedRequestParams, list_tools)
    server.add_request_handler("tools/call", types.CallToolRequestParams, call_tool)
    if toolset.prompts_list_changed is not None:
        server.add_request_handler("prompts/list", types.PaginatedRequestParams, _list_prompts)
    # The SDK's tracing: a third of a call's cost where nobody collects it. Where somebody does, `Calls`
    # makes the spans, for a call may not come by the kernel at all.
    server.middleware.clear()
    return server


async def _list_prompts(_context: _Context, _params: types.PaginatedRequestParams) -> dict[str, Any]:
    return {"prompts": [], "resultType": "complete", "ttlMs": _LISTING_TTL_MS, "cacheScope": "private"}
