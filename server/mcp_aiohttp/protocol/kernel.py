"""A server of the official SDK, ready to be hosted. Nothing here knows a transport.

HTTP answers single requests through `HostedServer.respond`; stdio and WebSocket run the SDK's loop over
`HostedServer.sdk`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from mcp.server.connection import Connection
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.runner import ServerRunner, aclose_shielded, modern_error_data
from mcp.shared.dispatcher import DispatchContext
from mcp.shared.transport_context import TransportContext
from mcp_types import ServerTasksCapability

from mcp_aiohttp.fastpath import LIST, FastPath
from mcp_aiohttp.protocol.caller import Caller
from mcp_aiohttp.protocol.jsonrpc import Request, error_bytes, result_bytes
from mcp_aiohttp.protocol.subscriptions import Subscriptions

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

MissingScope = Callable[[str, Caller], str]
"""Returns the scopes that a token needs to call a tool, separated by blanks; "" if no scope would help."""

NotificationHandler = Callable[[Mapping[str, Any] | None, Caller], Awaitable[None]]
"""Handles a notification by its params; must not raise, because a notification has no answer."""


class HostedServer:
    """A server built with the official SDK, for any number of connections and paths.

    `notifications` is announced in the handshake. `notification_handlers`, by method, take notifications of
    the server's own, which the SDK's loop would drop; they count as work in flight. `tasks` is announced in
    the handshake, for a server with `ServedTasks`; `subscriptions` is the object that was added to the
    server. `fast_path` answers plain calls past the SDK's kernel. `missing_scope` lets a client over HTTP
    request a token with more scopes before a call is refused. If tools of a low-level server declare
    `x-mcp-header`, its `get_tool_input_schema` must be set.
    """

    def __init__(
        self,
        server: Server[Any] | MCPServer[Any],
        notifications: NotificationOptions | None = None,
        *,
        notification_handlers: Mapping[str, NotificationHandler] | None = None,
        tasks: ServerTasksCapability | None = None,
        subscriptions: Subscriptions | None = None,
        fast_path: FastPath | None = None,
        missing_scope: MissingScope | None = None,
    ) -> None:
        if not isinstance(server, Server):
            # The one public way from an MCPServer to the server below it: the manager of its own HTTP
            # application, which is built for this purpose and not served.
            server.streamable_http_app()
            server = server.session_manager.app
        self.sdk: Server[Any] = server
        self.initialization = self.sdk.create_initialization_options(notifications)
        self.initialization.capabilities.tasks = tasks
        self._initialization_alone = self.initialization.model_copy(deep=True)
        if (resources := self._initialization_alone.capabilities.resources) is not None:
            resources.subscribe = False  # not announced to a client whose requests are independent
        self._subscriptions = subscriptions
        self.notification_handlers = dict(notification_handlers or {})
        self.fast_path = fast_path
        self.missing_scope = missing_scope
        self.lifespan_state: Any = None
        """The value yielded by the server's lifespan."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Enter the server's own lifespan; required before the first call."""
        looking = nullcontext() if self._subscriptions is None else self._subscriptions.run()
        async with self.sdk.lifespan(self.sdk) as self.lifespan_state, looking:
            yield

    def stop(self) -> None:
        """End the streams, which would never end by themselves."""
        if self._subscriptions is not None:
            self._subscriptions.end_streams()

    async def respond(
        self,
        connection: Connection,
        context: DispatchContext[TransportContext],
        request: Request,
        caller: Caller,
    ) -> tuple[bytes, int | None]:
        """Return the JSON-RPC response to an independent request, and its code if it is an error."""
        runner = ServerRunner(
            self.sdk, connection, self.lifespan_state, init_options=self._initialization_alone
        )
        try:
            result = await runner.on_request(context, request.method, request.params)
            if self.fast_path is not None and request.method == LIST:
                self.fast_path.remember_listing(connection.protocol_version, caller, result)
            return result_bytes(request.id, result), None
        except asyncio.CancelledError:
            raise
        except Exception as fault:  # noqa: BLE001 - the boundary: the SDK's table says what a client learns
            error = modern_error_data(fault)
            return error_bytes(request.id, error.code, error.message, error.data), error.code
        finally:
            await aclose_shielded(connection)
