"""A toolset as an MCP server of the official SDK: identity, capabilities, listing and calls.

Nothing here knows a transport. HTTP answers single requests through `ProtocolServer.respond`, stdio
and WebSocket run the SDK's loop over `ProtocolServer.sdk`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.runner import ServerRunner
from mcp.shared.dispatcher import DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.transport_context import TransportContext

from kb_server.hosting import cancelling
from kb_server.hosting.caller import Caller, agent_of, new_call
from kb_server.hosting.calls import UNKNOWN, BrokenToolError, Calls, UnknownToolError
from kb_server.hosting.cancelling import Cancelling
from kb_server.hosting.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, Notification, Request
from kb_server.hosting.lane import LIST, Lane
from kb_server.hosting.parameter_headers import declared_in
from kb_server.observability.metrics import Metrics
from kb_server.tool import Toolset

_Context = ServerRequestContext[None, Caller]

_LISTING_TTL_MS = 60_000
"""How long a 2026-07-28 client may keep the tool list: it changes only when the server is replaced."""


class ReadyServer:
    """A server built with the official SDK, for any number of connections.

    Hosting serves one as it is where a toolset cannot say what is wanted: prompts, resources, input that
    a call asks for. Its lifespan is not entered, and where its tools ask for `Mcp-Param-*` headers, its
    `get_tool_input_schema` must be set.
    """

    lane: Lane | None = None
    """The short way past the kernel, where there is one."""

    def __init__(self, sdk: Server[None], notifications: NotificationOptions | None = None) -> None:
        self.sdk = sdk
        self.initialization = sdk.create_initialization_options(notifications)

    async def respond(
        self, connection: Connection, context: DispatchContext[TransportContext], request: Request
    ) -> Mapping[str, Any]:
        """The result of one request that came on its own, outside a loop of the SDK's.

        Raises:
            MCPError, pydantic.ValidationError: what the SDK's table of errors tells the client.
        """
        runner = ServerRunner(self.sdk, connection, None, init_options=self.initialization)
        return await runner.on_request(context, request.method, request.params)

    async def note(self, notification: Notification, caller: Caller) -> None:
        """Take a notification that came on its own. None that a client sends so concerns this server."""


class ProtocolServer(ReadyServer):
    """One toolset behind the SDK's server kernel."""

    def __init__(self, toolset: Toolset, metrics: Metrics | None = None) -> None:
        self.toolset = toolset
        self._calls = Calls(toolset, metrics or Metrics())
        self._cancelling = None if toolset.cancel is None else Cancelling(toolset.cancel)
        self._listing: dict[str, Any] = {"tools": self._calls.listing(), "resultType": "complete"}
        notifications = NotificationOptions(
            tools_changed=toolset.tools_list_changed, prompts_changed=bool(toolset.prompts_list_changed)
        )
        super().__init__(self._build(), notifications)
        self.lane = Lane(self._calls, self.sdk)

    async def respond(
        self, connection: Connection, context: DispatchContext[TransportContext], request: Request
    ) -> Mapping[str, Any]:
        """As for every server; the lane learns the tool list, the same for everybody."""
        result = await super().respond(connection, context, request)
        if self.lane is not None and request.method == LIST:
            self.lane.remember(connection.protocol_version, result)
        return result

    async def note(self, notification: Notification, caller: Caller) -> None:
        """A toolset with tasks may be told to cancel one."""
        if self._cancelling is not None and notification.method == cancelling.METHOD:
            await self._cancelling.tell(notification.params, caller)

    def _build(self) -> Server[None]:
        hint = CacheHint(ttl_ms=_LISTING_TTL_MS, scope="private")
        server: Server[None] = Server(
            self.toolset.server_name,
            version=self.toolset.version,
            title=self.toolset.title,
            instructions=self.toolset.instructions or None,
            cache_hints={"tools/list": hint, "server/discover": hint},
            get_tool_input_schema=declared_in(self._listing["tools"]),
        )
        server.add_request_handler("tools/list", types.PaginatedRequestParams, self._list_tools)
        server.add_request_handler("tools/call", types.CallToolRequestParams, self._call_tool)
        if self.toolset.prompts_list_changed is not None:
            server.add_request_handler("prompts/list", types.PaginatedRequestParams, _list_prompts)
        if self._cancelling is not None:
            self._cancelling.add_to(server)
        # The SDK's tracing: a third of a call's cost where nobody collects it. Where somebody does, `Calls`
        # makes the spans, for a call may not come by the kernel at all.
        server.middleware.clear()
        return server

    async def _list_tools(self, _context: _Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        if params.cursor is not None:
            raise _invalid("The tool list has one page: `cursor` must be left out", "invalid_cursor")
        return self._listing

    async def _call_tool(self, context: _Context, params: types.CallToolRequestParams) -> dict[str, Any]:
        meta = context.params.get("_meta") if context.params else None
        call = new_call(meta, context.request or Caller(), context.session.report_progress)
        if (client := context.session.client_params) is not None:
            # Over stdio there is no header that says who calls.
            call.log.setdefault("user_agent", agent_of(client.client_info.name, client.client_info.version))
        try:
            return await self._calls.run(params.name, params.arguments or {}, call)
        except UnknownToolError as error:
            raise _invalid(str(error), UNKNOWN) from None
        except BrokenToolError as fault:
            # Raised as an MCPError: any other exception the SDK's handshake loop puts on the wire in words.
            raise MCPError(INTERNAL_ERROR, str(fault), fault.data) from None


def _invalid(message: str, error_type: str) -> MCPError:
    return MCPError(INVALID_PARAMS, message, {"error_type": error_type})


async def _list_prompts(_context: _Context, _params: types.PaginatedRequestParams) -> dict[str, Any]:
    return {"prompts": [], "resultType": "complete", "ttlMs": _LISTING_TTL_MS, "cacheScope": "private"}
