"""One client on one connection that carries messages both ways: the common part of stdio and WebSocket.

The SDK drives the protocol, in the era that the client opens with: it runs calls concurrently, cancels calls
on request, and reports progress. This module does the reading: a message is parsed as strictly as over HTTP,
an invalid message is answered with an error instead of dropped, and the work in flight is counted.

Plain calls bypass the SDK's loop, with the same behaviour: such a call runs concurrently, ends without an
answer if the client cancels it, and is answered with an error if the connection is closed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import mcp_types as types
import msgspec
from anyio.abc import ObjectSendStream, TaskGroup
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.runner import serve_dual_era_loop
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_NAME_HEADER
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from pydantic import ValidationError

from mcp_aiohttp.fastpath import FastPath, FastRequest
from mcp_aiohttp.options import Bounds
from mcp_aiohttp.protocol import jsonrpc
from mcp_aiohttp.protocol.caller import Caller, Connected
from mcp_aiohttp.protocol.kernel import HostedServer

log = logging.getLogger(__name__)

Write = Callable[[bytes], Awaitable[None]]
"""Writes a message; raises `anyio.BrokenResourceError` if the peer no longer reads."""

_INITIALIZE, _INITIALIZED = "initialize", "notifications/initialized"
_CANCELLED = "notifications/cancelled"
_LAST_WRITE_SECONDS = 1.0


@asynccontextmanager
async def session(
    server: HostedServer,
    stream: WriteStream[SessionMessage],
    *,
    caller: Caller | None = None,
    bounds: Bounds | None = None,
    write: Write | None = None,
) -> AsyncIterator[Session]:
    """Serve `server` to the `caller` that reads `stream`, until the block is left; then cancel running calls.

    Calls past `bounds` are refused; without `bounds` there is no limit. A client that opens with another
    request than `initialize` is served at the latest version that has one, as over HTTP. With `write`, which
    sends bytes to the client of `stream`, plain calls take the fast path.
    """
    connected = Connected()
    caller = msgspec.structs.replace(caller or Caller(), connection=connected)
    send, receive = anyio.create_memory_object_stream[SessionMessage | Exception]()
    async with receive, anyio.create_task_group() as tasks:
        client = Session(server, stream, send, tasks, caller, bounds, write)

        async def drive() -> None:
            await serve_dual_era_loop(
                server.sdk,
                receive,
                client,
                lifespan_state=server.lifespan_state,
                init_options=server.initialization,
            )
            tasks.cancel_scope.cancel()

        tasks.start_soon(drive)
        try:
            async with send:
                yield client
        finally:
            connected.end()


@dataclass(eq=False)
class Session(ObjectSendStream[SessionMessage]):
    """Takes the messages of one client; the SDK's loop writes its answers to it."""

    server: HostedServer
    stream: WriteStream[SessionMessage]
    loop: MemoryObjectSendStream[SessionMessage | Exception]
    """Sends to the SDK's loop."""
    tasks: TaskGroup
    """Runs notification handlers and plain calls beside the loop."""
    caller: Caller
    bounds: Bounds | None
    write: Write | None
    _opened: bool = False
    _version: str | None = None
    """The protocol version of the connection; None until it is negotiated."""
    _initialize_id: jsonrpc.RequestId | None = None
    """The id of the request that negotiates the version."""
    _plain: dict[jsonrpc.RequestId, anyio.CancelScope] = field(default_factory=dict)
    """The plain calls in flight."""
    _in_flight: dict[Hashable, int] = field(default_factory=dict)
    """The size in bytes of each message in flight, by its id, or by a unique object for a notification."""
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when work in flight ends."""

    async def take(self, data: bytes) -> None:
        """Start the work of the message in `data`, or answer that it is invalid.

        Return before a call has ended, so that the next message can be taken meanwhile.
        """
        try:
            message = jsonrpc.as_message(await jsonrpc.parse_in_thread_if_long(data))
        except jsonrpc.ParseError as error:
            await self.refuse(None, jsonrpc.PARSE_ERROR, f"Parse error: {error}")
        except jsonrpc.InvalidRequestError as error:
            await self.refuse(error.id, jsonrpc.INVALID_REQUEST, f"Invalid request: {error}")
        else:
            if isinstance(message, jsonrpc.Request):
                await self._request(message, len(data))
            elif isinstance(message, jsonrpc.Notification):
                await self._notification(message, len(data))
            elif self._opened:
                await self._reply(message)

    async def refuse(
        self, request_id: jsonrpc.RequestId | None, code: int, message: str, data: Any = None
    ) -> None:
        """Answer a message that is not accepted, and so is not in flight, with an error."""
        error = types.ErrorData(code=code, message=message, data=jsonrpc.error_data(code, data))
        await self.stream.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)))

    def recognise(self, caller: Caller) -> None:
        """Serve the following messages for this caller; the connection stays the same."""
        self.caller = msgspec.structs.replace(caller, connection=self.caller.connection)

    async def settled(self, seconds: float) -> None:
        """Wait until nothing is in flight, at most `seconds`."""
        with anyio.move_on_after(seconds):
            while self._in_flight:
                self._ended.clear()
                await self._ended.wait()

    async def send(self, item: SessionMessage) -> None:
        message = item.message
        if isinstance(message, types.JSONRPCResponse) and message.id == self._initialize_id:
            self._initialize_id, self._version = None, message.result.get("protocolVersion")
        if isinstance(message, types.JSONRPCError):
            message.error.data = jsonrpc.error_data(message.error.code, message.error.data)
        try:
            await self.stream.send(item)
        finally:
            if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
                self._end(message.id)

    async def aclose(self) -> None:
        await self.stream.aclose()

    async def _request(self, request: jsonrpc.Request, size: int) -> None:
        if request.id in self._in_flight:
            words = "Invalid request: a request with this `id` is still in flight"
            await self.refuse(request.id, jsonrpc.INVALID_REQUEST, words)
            return
        if self.bounds is not None and self._would_exceed(self.bounds, size):
            words = (
                f"Too many calls are in flight on this connection: the maximum is {self.bounds.calls} "
                f"calls, with messages of {self.bounds.bytes} bytes together. Read responses before sending "
                "more."
            )
            details = {"limit_calls": self.bounds.calls, "limit_bytes": self.bounds.bytes}
            data = {"error_type": "too_many_calls", "details": details}
            await self.refuse(request.id, jsonrpc.TOO_MANY_CALLS, words, data)
            return
        self._in_flight[request.id] = size
        if self._starts_plain(request):
            return
        if not self._opened:
            await self._open(request)
        if request.method == _INITIALIZE:
            self._initialize_id, self._version = request.id, None
        await self._pass(
            types.JSONRPCRequest(jsonrpc="2.0", id=request.id, method=request.method, params=request.params)
        )

    async def _open(self, request: jsonrpc.Request) -> None:
        """Note the era of the first request, as the SDK does; open the loop if no handshake comes."""
        self._opened = True
        meta = request.params.get("_meta") if request.params else None
        if request.method == _INITIALIZE:
            return
        if isinstance(meta, dict) and types.PROTOCOL_VERSION_META_KEY in meta:
            self._version = LATEST_MODERN_VERSION
        else:
            await self._pass(types.JSONRPCNotification(jsonrpc="2.0", method=_INITIALIZED))
            self._version = LATEST_HANDSHAKE_VERSION

    async def _notification(self, notification: jsonrpc.Notification, size: int) -> None:
        handler = self.server.notification_handlers.get(notification.method)
        if handler is not None:
            # Not by the SDK, which would run any number at once and does not report their end.
            if self.bounds is not None and self._would_exceed(self.bounds, size):
                log.info("Dropped a notification: limit of requests in flight reached")
                return
            mark = object()
            self._in_flight[mark] = size

            async def run() -> None:
                await handler(notification.params, self.caller)
                self._end(mark)

            self.tasks.start_soon(run)
            return
        if notification.method == _CANCELLED:
            given_up = cancelled_request_id_from_params(notification.params)
            # A client may write an id as a number in one message and as a string in another; the SDK uses one
            # key for both.
            if given_up is not None and (scope := self._plain.get(coerce_request_id(given_up))) is not None:
                scope.cancel()
        await self._pass(
            types.JSONRPCNotification(jsonrpc="2.0", method=notification.method, params=notification.params)
        )

    async def _reply(self, reply: jsonrpc.Reply) -> None:
        """Hand a response to the call that waits for it; the loop ignores a response without one."""
        if reply.id is None:
            return
        answer: types.JSONRPCResponse | types.JSONRPCError
        try:
            if reply.error is None:
                answer = types.JSONRPCResponse(jsonrpc="2.0", id=reply.id, result=reply.result)
            else:
                answer = types.JSONRPCError(jsonrpc="2.0", id=reply.id, error=reply.error)
        except ValidationError:  # let the waiting call fail
            unusable = types.ErrorData(
                code=jsonrpc.INVALID_REQUEST, message="The response is not valid JSON-RPC"
            )
            answer = types.JSONRPCError(jsonrpc="2.0", id=reply.id, error=unusable)
        await self.loop.send(SessionMessage(answer))

    async def _pass(self, message: types.JSONRPCRequest | types.JSONRPCNotification) -> None:
        async def unanswered() -> None:
            if isinstance(message, types.JSONRPCRequest):
                self._end(message.id)

        metadata = ServerMessageMetadata(request_context=self.caller, on_request_unanswered=unanswered)
        await self.loop.send(SessionMessage(message, metadata))

    def _would_exceed(self, bounds: Bounds, size: int) -> bool:
        in_flight = self._in_flight
        return len(in_flight) >= bounds.calls or sum(in_flight.values()) + size > bounds.bytes

    def _end(self, key: Hashable) -> None:
        """Note that the work of a message has ended, answered or not."""
        self._in_flight.pop(key, None)
        self._ended.set()

    # --- plain calls ------------------------------------------------------------------------------

    def _starts_plain(self, request: jsonrpc.Request) -> bool:
        """Run the call past the SDK's loop and return True if it is a plain one."""
        fast_path, write = self.server.fast_path, self.write
        if fast_path is None or write is None or self._version is None:
            return False
        # There are no headers here that could disagree with the message.
        name = (request.params or {}).get("name")
        headers = {MCP_METHOD_HEADER: request.method, MCP_NAME_HEADER: name if type(name) is str else ""}
        plain = fast_path.match(request, self._version, headers, self.caller)
        if plain is None:
            return False
        # Registered before it runs: the message that cancels it may have been read already.
        scope = self._plain[coerce_request_id(request.id)] = anyio.CancelScope()
        self.tasks.start_soon(self._run_plain, fast_path, write, plain, scope)
        return True

    async def _run_plain(
        self, fast_path: FastPath, write: Write, request: FastRequest, scope: anyio.CancelScope
    ) -> None:
        answering = False
        try:
            with suppress(anyio.BrokenResourceError), scope:
                body = await fast_path.answer(request, self.caller)
                answering = True
                await write(body)
        except anyio.get_cancelled_exc_class():
            if not answering:  # a second answer would be worse than no answer
                with (
                    anyio.move_on_after(_LAST_WRITE_SECONDS, shield=True),
                    suppress(anyio.BrokenResourceError),
                ):
                    await write(jsonrpc.error_bytes(request.id, types.CONNECTION_CLOSED, "Connection closed"))
            raise
        finally:
            if self._plain.get(key := coerce_request_id(request.id)) is scope:
                del self._plain[key]
            self._end(request.id)
