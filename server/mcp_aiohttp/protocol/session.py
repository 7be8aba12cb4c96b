"""One client on one connection that carries messages both ways: what stdio and WebSocket have in common.

The SDK drives the protocol, in the era that the client opens with: it runs calls side by side, cancels
those that are given up, and reports progress. Reading is ours: a message is parsed as strictly as over HTTP,
what is no message is answered with an error instead of dropped, and what is in flight is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.runner import serve_dual_era_loop
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    PROTOCOL_VERSION_META_KEY,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from mcp_aiohttp.fastpath.session_fast_path import SessionFastPath, Write
from mcp_aiohttp.options import Bounds
from mcp_aiohttp.protocol import jsonrpc
from mcp_aiohttp.protocol.caller import Caller
from mcp_aiohttp.protocol.kernel import HostedServer, NotificationHandler
from mcp_aiohttp.protocol.refusal import TOO_MANY_CALLS

log = logging.getLogger(__name__)

_INITIALIZE, _INITIALIZED = "initialize", "notifications/initialized"
_CANCELLED = "notifications/cancelled"


@asynccontextmanager
async def session(
    server: HostedServer,
    stream: WriteStream[SessionMessage],
    *,
    caller: Caller | None = None,
    bounds: Bounds | None = None,
    write: Write | None = None,
) -> AsyncIterator[Session]:
    """Serve `server` to the `caller` that reads `stream`, until the block is left; then cancel what runs.

    Calls past `bounds` are refused, and any number is taken without. A client that opens with another request
    than `initialize` is served at the latest version that has one, as over HTTP. With `write`, which puts
    bytes where `stream` puts messages, plain calls take the fast path.
    """
    caller = caller or Caller()
    send, receive = anyio.create_memory_object_stream[SessionMessage | Exception]()
    async with receive, anyio.create_task_group() as tasks:
        fast_path = None
        if write is not None and server.fast_path is not None:
            fast_path = SessionFastPath(server.fast_path, caller, write, tasks)
        in_flight = _InFlight()
        answers = _Responses(stream, in_flight, fast_path)

        async def drive() -> None:
            await serve_dual_era_loop(
                server.sdk,
                receive,
                answers,
                lifespan_state=server.lifespan_state,
                init_options=server.initialization,
            )
            tasks.cancel_scope.cancel()

        tasks.start_soon(drive)
        async with send:
            inward = _Inward(server, send, tasks, fast_path, caller)
            yield Session(inward, answers, in_flight, bounds)


@dataclass(frozen=True, slots=True)
class _Inward:
    """Where messages of the `caller` go: into the SDK's loop, or past it into tasks beside it."""

    server: HostedServer
    loop: MemoryObjectSendStream[SessionMessage | Exception]
    tasks: TaskGroup
    fast_path: SessionFastPath | None
    caller: Caller


class Session:
    """Takes the messages of one client."""

    def __init__(
        self,
        inward: _Inward,
        answers: _Responses,
        in_flight: _InFlight,
        bounds: Bounds | None,
    ) -> None:
        self._inward = inward
        self._answers = answers
        self._in_flight = in_flight
        self._bounds = bounds
        self._opened = False

    async def take(self, data: bytes) -> None:
        """Begin what the message in `data` asks for, or answer that it is none.

        Returns before a call has ended, so that the next message can be taken meanwhile.
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
            # A response is passed over: a client is sent no requests.

    async def refuse(
        self, request_id: jsonrpc.RequestId | None, code: int, message: str, data: Any = None
    ) -> None:
        """Answer with an error what is not taken."""
        error = ErrorData(code=code, message=message, data=data)
        await self._answers.write(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))

    async def settled(self, seconds: float) -> None:
        """Wait until nothing is in flight, at most `seconds`."""
        await self._in_flight.settled(seconds)

    async def _request(self, request: jsonrpc.Request, size: int) -> None:
        if request.id in self._in_flight:
            words = "Invalid request: a request with this `id` is still in flight"
            await self.refuse(request.id, jsonrpc.INVALID_REQUEST, words)
        elif self._bounds is not None and self._in_flight.would_exceed(self._bounds, size):
            await self._refuse_for_now(request.id, self._bounds)
        else:
            self._in_flight.add(request.id, size)
            await self._begin(request)

    async def _begin(self, request: jsonrpc.Request) -> None:
        fast_path = self._inward.fast_path
        if fast_path is not None and fast_path.start(request, self._in_flight.discard):
            return
        if not self._opened:
            await self._open(request)
        if request.method == _INITIALIZE:
            self._answers.await_version(request.id)
        await self._pass(
            JSONRPCRequest(jsonrpc="2.0", id=request.id, method=request.method, params=request.params)
        )

    async def _open(self, request: jsonrpc.Request) -> None:
        """Note the era that the first request opens, and open the SDK's loop where no handshake comes."""
        self._opened = True
        version = None
        if _has_envelope(request):
            version = LATEST_MODERN_VERSION
        elif request.method != _INITIALIZE:
            version = LATEST_HANDSHAKE_VERSION
            await self._pass(JSONRPCNotification(jsonrpc="2.0", method=_INITIALIZED))
        if self._inward.fast_path is not None:
            self._inward.fast_path.version = version

    async def _refuse_for_now(self, request_id: jsonrpc.RequestId, bounds: Bounds) -> None:
        words = (
            f"Too much is in flight on this connection, where {bounds.calls} calls may be, with messages of "
            f"{bounds.bytes} bytes together. Read answers before you send more."
        )
        details = {"limit_calls": bounds.calls, "limit_bytes": bounds.bytes}
        data = {"error_type": "too_many_calls", "details": details}
        await self.refuse(request_id, TOO_MANY_CALLS, words, data)

    async def _notification(self, notification: jsonrpc.Notification, size: int) -> None:
        handler = self._inward.server.notification_handlers.get(notification.method)
        if handler is not None:
            # Not by the SDK, which would run any number of them at once and tells nobody when they end.
            self._start_handler(handler, notification, size)
            return
        if notification.method == _CANCELLED and self._inward.fast_path is not None:
            self._inward.fast_path.cancel(notification)
        await self._pass(
            JSONRPCNotification(jsonrpc="2.0", method=notification.method, params=notification.params)
        )

    def _start_handler(
        self, handler: NotificationHandler, notification: jsonrpc.Notification, size: int
    ) -> None:
        if self._bounds is not None and self._in_flight.would_exceed(self._bounds, size):
            log.info("Passed over a notification: too much is in flight")
            return
        mark = object()
        self._in_flight.add(mark, size)

        async def run() -> None:
            await handler(notification.params, self._inward.caller)
            self._in_flight.discard(mark)

        self._inward.tasks.start_soon(run)

    async def _pass(self, message: JSONRPCRequest | JSONRPCNotification) -> None:
        async def unanswered() -> None:
            if isinstance(message, JSONRPCRequest):
                self._in_flight.discard(message.id)

        metadata = ServerMessageMetadata(
            request_context=self._inward.caller, on_request_unanswered=unanswered, can_send_request=False
        )
        await self._inward.loop.send(SessionMessage(message, metadata))


def _has_envelope(request: jsonrpc.Request) -> bool:
    """Whether the request opens a connection of 2026-07-28, as the SDK sees it."""
    meta = request.params.get("_meta") if request.params else None
    return request.method != _INITIALIZE and isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta


class _InFlight:
    """What is in flight: the bytes of each message by its id, or by a mark where it has none."""

    def __init__(self) -> None:
        self._sizes: dict[Hashable, int] = {}
        self._bytes = 0
        self._settled = asyncio.Event()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._sizes

    def would_exceed(self, bounds: Bounds, size: int) -> bool:
        """Whether a message of `size` bytes is too much beside what is in flight."""
        return len(self._sizes) >= bounds.calls or self._bytes + size > bounds.bytes

    def add(self, key: Hashable, size: int) -> None:
        """Note that a message of `size` bytes has been taken."""
        self._sizes[key] = size
        self._bytes += size

    def discard(self, key: Hashable) -> None:
        """Note that its work is over, answered or not."""
        self._bytes -= self._sizes.pop(key, 0)
        self._settled.set()

    async def settled(self, seconds: float) -> None:
        """Wait until nothing is in flight, at most `seconds`."""
        with anyio.move_on_after(seconds):
            while self._sizes:
                self._settled.clear()
                await self._settled.wait()


class _Responses:
    """The SDK's write stream: a response ends its request, and that to `initialize` settles the version."""

    def __init__(
        self, stream: WriteStream[SessionMessage], in_flight: _InFlight, fast_path: SessionFastPath | None
    ) -> None:
        self._stream = stream
        self._in_flight = in_flight
        self._fast_path = fast_path
        self._initialize_id: jsonrpc.RequestId | None = None

    def await_version(self, initialize_id: jsonrpc.RequestId) -> None:
        """The request of this id agrees on a version; until it is answered none is known."""
        self._initialize_id = initialize_id
        if self._fast_path is not None:
            self._fast_path.version = None

    async def write(self, message: JSONRPCError) -> None:
        """Write an error that answers nothing in flight."""
        message.error.data = jsonrpc.error_data(message.error.code, message.error.data)
        await self._stream.send(SessionMessage(message))

    async def send(self, item: SessionMessage, /) -> None:
        """Write what the SDK answers or tells."""
        message = item.message
        if isinstance(message, JSONRPCResponse):
            self._note_version(message)
        try:
            if isinstance(message, JSONRPCError):
                await self.write(message)
            else:
                await self._stream.send(item)
        finally:
            if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
                self._in_flight.discard(message.id)

    def _note_version(self, response: JSONRPCResponse) -> None:
        if self._initialize_id is not None and response.id == self._initialize_id:
            self._initialize_id = None
            if self._fast_path is not None:
                self._fast_path.version = response.result.get("protocolVersion")

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> _Responses:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
