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

from kb_server.hosting import cancelling, jsonrpc, strict_json
from kb_server.hosting.caller import Caller
from kb_server.hosting.express import Express, Write
from kb_server.hosting.protocol import ReadyServer
from kb_server.hosting.refusal import TOO_MANY_CALLS

log = logging.getLogger(__name__)

_GREETING, _GREETED = "initialize", "notifications/initialized"
_GIVEN_UP = "notifications/cancelled"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be in flight on one connection. A call is, until its answer has been written."""

    calls: int
    bytes: int
    """Of the messages that asked for them."""


@asynccontextmanager
async def session(
    server: ReadyServer,
    stream: WriteStream[SessionMessage],
    *,
    caller: Caller | None = None,
    bounds: Bounds | None = None,
    write: Write | None = None,
) -> AsyncIterator[Session]:
    """Serve `server` to the `caller` that reads `stream`, until the block is left; then cancel what runs.

    Calls past `bounds` are refused, and any number is taken without. A client that opens with another request
    than `initialize` is served at the latest version that has one, as over HTTP. With `write`, which puts
    bytes where `stream` puts messages, plain calls take the lane.
    """
    caller = caller or Caller()
    send, receive = anyio.create_memory_object_stream[SessionMessage | Exception]()
    async with receive, anyio.create_task_group() as tasks:
        express = None if write is None or server.lane is None else Express(server.lane, caller, write, tasks)
        flying = _InFlight()
        answers = _Answers(stream, flying, express)

        async def drive() -> None:
            await serve_dual_era_loop(
                server.sdk, receive, answers, lifespan_state=None, init_options=server.initialization
            )
            tasks.cancel_scope.cancel()

        tasks.start_soon(drive)
        async with send:
            inward = _Inward(server, send, tasks, express, caller)
            yield Session(inward, answers, flying, bounds)


@dataclass(frozen=True, slots=True)
class _Inward:
    """Where messages of the `caller` go: into the SDK's loop, or past it into tasks beside it."""

    server: ReadyServer
    loop: MemoryObjectSendStream[SessionMessage | Exception]
    tasks: TaskGroup
    express: Express | None
    caller: Caller


class Session:
    """Takes the messages of one client."""

    def __init__(
        self,
        inward: _Inward,
        answers: _Answers,
        flying: _InFlight,
        bounds: Bounds | None,
    ) -> None:
        self._inward = inward
        self._answers = answers
        self._flying = flying
        self._bounds = bounds
        self._opened = False

    async def take(self, data: bytes) -> None:
        """Begin what the message in `data` asks for, or answer that it is none.

        Returns before a call has ended, so that the next message can be taken meanwhile.
        """
        try:
            message = jsonrpc.as_message(await strict_json.parse_aside(data))
        except strict_json.ParseError as error:
            await self.refuse(None, jsonrpc.PARSE_ERROR, f"Parse error: {error}")
        except jsonrpc.InvalidRequestError as error:
            await self.refuse(error.id, jsonrpc.INVALID_REQUEST, f"Invalid request: {error}")
        else:
            if isinstance(message, jsonrpc.Request):
                await self._request(message, len(data))
            elif isinstance(message, jsonrpc.Notification):
                await self._notification(message, len(data))
            # A response is passed over: nothing is asked of a client here.

    async def refuse(
        self, request_id: jsonrpc.RequestId | None, code: int, message: str, data: Any = None
    ) -> None:
        """Answer with an error what is not taken."""
        error = ErrorData(code=code, message=message, data=data)
        await self._answers.write(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))

    async def settled(self, seconds: float) -> None:
        """Wait until nothing is in flight, at most `seconds`."""
        await self._flying.settled(seconds)

    async def _request(self, request: jsonrpc.Request, size: int) -> None:
        if request.id in self._flying:
            words = "Invalid request: a request with this `id` is still in flight"
            await self.refuse(request.id, jsonrpc.INVALID_REQUEST, words)
        elif self._bounds is not None and self._flying.would_exceed(self._bounds, size):
            await self._refuse_for_now(request.id, self._bounds)
        else:
            self._flying.add(request.id, size)
            await self._begin(request)

    async def _begin(self, request: jsonrpc.Request) -> None:
        express = self._inward.express
        if express is not None and (passage := express.admits(request)) is not None:
            express.begin(passage, self._flying.discard)
            return
        if not self._opened:
            await self._open(request)
        if request.method == _GREETING:
            self._answers.await_version(request.id)
        await self._pass(
            JSONRPCRequest(jsonrpc="2.0", id=request.id, method=request.method, params=request.params)
        )

    async def _open(self, request: jsonrpc.Request) -> None:
        """Note the era that the first request opens; that it comes without a handshake the SDK is told."""
        self._opened = True
        version = None
        if _has_envelope(request):
            version = LATEST_MODERN_VERSION
        elif request.method != _GREETING:
            version = LATEST_HANDSHAKE_VERSION
            await self._pass(JSONRPCNotification(jsonrpc="2.0", method=_GREETED))
        if self._inward.express is not None:
            self._inward.express.version = version

    async def _refuse_for_now(self, request_id: jsonrpc.RequestId, bounds: Bounds) -> None:
        words = (
            f"Too much is in flight on this connection, where {bounds.calls} calls may be, with messages of "
            f"{bounds.bytes} bytes together. Read answers before you send more."
        )
        details = {"limit_calls": bounds.calls, "limit_bytes": bounds.bytes}
        data = {"error_type": "too_many_calls", "details": details}
        await self.refuse(request_id, TOO_MANY_CALLS, words, data)

    async def _notification(self, notification: jsonrpc.Notification, size: int) -> None:
        if notification.method == cancelling.METHOD:
            # Not by the SDK, which would run any number of them at once and tells nobody when they end.
            self._note_aside(notification, size)
            return
        if notification.method == _GIVEN_UP and self._inward.express is not None:
            self._inward.express.give_up(notification)
        await self._pass(
            JSONRPCNotification(jsonrpc="2.0", method=notification.method, params=notification.params)
        )

    def _note_aside(self, notification: jsonrpc.Notification, size: int) -> None:
        if self._bounds is not None and self._flying.would_exceed(self._bounds, size):
            log.info("Passed over a notification: too much is in flight")
            return
        mark = object()
        self._flying.add(mark, size)
        self._inward.tasks.start_soon(self._note, notification, mark)

    async def _note(self, notification: jsonrpc.Notification, mark: object) -> None:
        await self._inward.server.note(notification, self._inward.caller)
        self._flying.discard(mark)

    async def _pass(self, message: JSONRPCRequest | JSONRPCNotification) -> None:
        async def unanswered() -> None:
            if isinstance(message, JSONRPCRequest):
                self._flying.discard(message.id)

        metadata = ServerMessageMetadata(
            request_context=self._inward.caller, on_request_unanswered=unanswered, can_send_request=False
        )
        await self._inward.loop.send(SessionMessage(message, metadata))


def _has_envelope(request: jsonrpc.Request) -> bool:
    """Whether the request opens a connection of 2026-07-28, as the SDK sees it."""
    meta = request.params.get("_meta") if request.params else None
    return request.method != _GREETING and isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta


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
        """Note that what it asked for is over, answered or not."""
        self._bytes -= self._sizes.pop(key, 0)
        self._settled.set()

    async def settled(self, seconds: float) -> None:
        """Wait until nothing is in flight, at most `seconds`."""
        with anyio.move_on_after(seconds):
            while self._sizes:
                self._settled.clear()
                await self._settled.wait()


class _Answers:
    """The SDK's write stream: each answer ends what it answers, and that to a greeting tells the version."""

    def __init__(
        self, stream: WriteStream[SessionMessage], flying: _InFlight, express: Express | None
    ) -> None:
        self._stream = stream
        self._flying = flying
        self._express = express
        self._greeting: jsonrpc.RequestId | None = None

    def await_version(self, greeting: jsonrpc.RequestId) -> None:
        """The request of this id agrees on a version; until it is answered none is known."""
        self._greeting = greeting
        if self._express is not None:
            self._express.version = None

    async def write(self, message: JSONRPCError) -> None:
        """Write an error that answers nothing in flight."""
        message.error.data = jsonrpc.error_data(message.error.code, message.error.data)
        await self._stream.send(SessionMessage(message))

    async def send(self, item: SessionMessage, /) -> None:
        """Write what the SDK answers or tells."""
        message = item.message
        if isinstance(message, JSONRPCResponse):
            self._learn(message)
        try:
            if isinstance(message, JSONRPCError):
                await self.write(message)
            else:
                await self._stream.send(item)
        finally:
            if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
                self._flying.discard(message.id)

    def _learn(self, response: JSONRPCResponse) -> None:
        if self._greeting is not None and response.id == self._greeting:
            self._greeting = None
            if self._express is not None:
                self._express.version = response.result.get("protocolVersion")

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> _Answers:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
