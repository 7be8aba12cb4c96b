"""A toolset as an MCP server of the official SDK: identity, capabilities, listing and calls.

Nothing here knows a transport. HTTP hosts run single requests through `ProtocolServer.runner`, stdio
runs the SDK's loop over `ProtocolServer.sdk`.
"""

from __future__ import annotations

from typing import Any

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.runner import ServerRunner
from mcp.shared.exceptions import MCPError

from kb_server.hosting.caller import Caller, correlation_id
from kb_server.hosting.calls import UNKNOWN, BrokenToolError, Calls, UnknownToolError
from kb_server.hosting.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS
from kb_server.observability.metrics import Metrics
from kb_server.tool import Call, Toolset

_Context = ServerRequestContext[None, Caller]

_LISTING_TTL_MS = 60_000
"""How long a 2026-07-28 client may keep the tool list: it changes only when the server is replaced."""


class ProtocolServer:
    """One toolset behind the SDK's server kernel, for any number of connections."""

    def __init__(self, toolset: Toolset, metrics: Metrics | None = None) -> None:
        self.toolset = toolset
        self._calls = Calls(toolset, metrics or Metrics())
        self._listing: dict[str, Any] = {"tools": self._calls.listing(), "resultType": "complete"}
        self.sdk = self._build()
        self.initialization = self.sdk.create_initialization_options(
            NotificationOptions(
                tools_changed=toolset.tools_list_changed, prompts_changed=bool(toolset.prompts_list_changed)
            )
        )

    def runner(self, connection: Connection) -> ServerRunner[None]:
        """The SDK's kernel for one connection of this server."""
        return ServerRunner(self.sdk, connection, None, init_options=self.initialization)

    def _build(self) -> Server[None]:
        hint = CacheHint(ttl_ms=_LISTING_TTL_MS, scope="private")
        server: Server[None] = Server(
            self.toolset.server_name,
            version=self.toolset.version,
            title=self.toolset.title,
            instructions=self.toolset.instructions or None,
            cache_hints={"tools/list": hint, "server/discover": hint},
        )
        server.add_request_handler("tools/list", types.PaginatedRequestParams, self._list_tools)
        server.add_request_handler("tools/call", types.CallToolRequestParams, self._call_tool)
        if self.toolset.prompts_list_changed is not None:
            server.add_request_handler("prompts/list", types.PaginatedRequestParams, _list_prompts)
        return server

    async def _list_tools(self, _context: _Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        if params.cursor is not None:
            raise _invalid("The tool list has one page: `cursor` must be left out", "invalid_cursor")
        return self._listing

    async def _call_tool(self, context: _Context, params: types.CallToolRequestParams) -> dict[str, Any]:
        caller = context.request or Caller()
        meta = context.params.get("_meta") if context.params else None
        call = Call(correlation_id(meta, caller), caller.credential, context.session.report_progress)
        if agent := caller.header("User-Agent"):
            call.log["user_agent"] = agent[:200]
        try:
            return await self._calls.run(params.name, params.arguments or {}, call)
        except UnknownToolError as error:
            raise _invalid(str(error), UNKNOWN) from None
        except BrokenToolError as fault:
            # Raised as an MCPError: any other exception the SDK's handshake loop puts on the wire in words.
            data = {"error_type": "internal_error", "correlation_id": fault.correlation_id}
            raise MCPError(INTERNAL_ERROR, "Internal error", data) from None


def _invalid(message: str, error_type: str) -> MCPError:
    return MCPError(INVALID_PARAMS, message, {"error_type": error_type})


async def _list_prompts(_context: _Context, _params: types.PaginatedRequestParams) -> dict[str, Any]:
    return {"prompts": [], "resultType": "complete", "ttlMs": _LISTING_TTL_MS, "cacheScope": "private"}
