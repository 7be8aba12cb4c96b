"""One client on one connection that carries messages both ways: what stdio and WebSocket have in common.

The SDK drives the protocol, in the era that the client opens with: it runs calls side by side, cancels
those that are given up, and reports progress. Reading is ours: a message is parsed as strictly as over HTTP,
what is no message is answered with an error instead of dropped, and what is in flight is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
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

from kb_server.hosting import cancelling, jsonrpc, strict_json
from kb_server.hosting.caller import Caller
from kb_server.hosting.protocol import ReadyServer
from kb_server.hosting.refusal import TOO_MANY_CALLS

log = logging.getLogger(__name__)


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
    handshake: bool = True,
) -> AsyncIterator[Session]:
    """Serve `server` to the `caller` that reads `stream`, until the block is left; then cancel what runs.

    Calls past `bounds` are refused, and any number is taken without. Where no `handshake` is needed, a client
    that opens with another request is served at the latest version that has one.
    """
    send, receive = anyio.create_memory_object_stream[SessionMessage | Exception]()
    answers = _Answers(stream)

    async def drive(tasks: TaskGroup) -> None:
        await serve_dual_era_loop(
            server.sdk, receive, answers, lifespan_state=None, init_options=server.initialization
        )
        tasks.cancel_scope.cancel()

    async with receive, anyio.create_task_group() as tasks:
        tasks.start_soon(drive, tasks)
        async with send:
            yield Session(server, caller or Caller(), bounds, _Inward(send, tasks), answers, opened=handshake)


@dataclass(frozen=True, slots=True)
class _Inward:
    """Where messages go: to the SDK's loop, or into a task beside it."""

    loop: MemoryObjectSendStream[SessionMessage | Exception]
    tasks: TaskGroup


class Session:
    """Takes the messages of one client."""

    def __init__(
        self,
        server: ReadyServer,
        caller: Caller,
        bounds: Bounds | None,
        inward: _Inward,
        answers: _Answers,
        *,
        opened: bool,
    ) -> None:
        """`opened`: the first request needs nothing before it."""
        self._server = server
        self._caller = caller
        self._bounds = bounds
        self._inward = inward
        self._answers = answers
        self._opened = opened

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
        await self._answers.settled(seconds)

    async def _request(self, request: jsonrpc.Request, size: int) -> None:
        if self._answers.owes(request.id):
            words = "Invalid request: a request with this `id` is still in flight"
            await self.refuse(request.id, jsonrpc.INVALID_REQUEST, words)
        elif self._bounds is not None and self._answers.would_exceed(self._bounds, size):
            await self._refuse_for_now(request.id, self._bounds)
        else:
            if not self._opened and _opens_without(request):
                await self._pass(JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized"))
            self._opened = True
            self._answers.expect(request.id, size)
            await self._pass(
                JSONRPCRequest(jsonrpc="2.0", id=request.id, method=request.method, params=request.params),
                partial(self._answers.settle, request.id),
            )

    async def _refuse_for_now(self, request_id: jsonrpc.RequestId, bounds: Bounds) -> None:
        words = (
            f"Too much is in flight on this connection, where {bounds.calls} calls may be, with messages of "
            f"{bounds.bytes} bytes together. Read answers before you send more."
        )
        details = {"limit_calls": bounds.calls, "limit_bytes": bounds.bytes}
        data = {"error_type": "too_many_calls", "details": details}
        await self.refuse(request_id, TOO_MANY_CALLS, words, data)

    async def _notification(self, notification: jsonrpc.Notification, size: int) -> None:
        if notification.method != cancelling.METHOD:
            message = JSONRPCNotification(
                jsonrpc="2.0", method=notification.method, params=notification.params
            )
            await self._pass(message)
        elif self._bounds is not None and self._answers.would_exceed(self._bounds, size):
            log.info("Passed over a notification: too much is in flight")
        else:
            # Not by the SDK, which would run any number of them at once and tells nobody when they end.
            mark = object()
            self._answers.expect(mark, size)
            self._inward.tasks.start_soon(self._note, notification, mark)

    async def _note(self, notification: jsonrpc.Notification, mark: object) -> None:
        await self._server.note(notification, self._caller)
        self._answers.settle(mark)

    async def _pass(
        self,
        message: JSONRPCRequest | JSONRPCNotification,
        unanswered: Callable[[], None] | None = None,
    ) -> None:
        """Hand `message` to the SDK; `unanswered` is called where it ends a request without an answer."""

        async def settle() -> None:
            if unanswered is not None:
                unanswered()

        metadata = ServerMessageMetadata(
            request_context=self._caller, on_request_unanswered=settle, can_send_request=False
        )
        await self._inward.loop.send(SessionMessage(message, metadata))


def _opens_without(request: jsonrpc.Request) -> bool:
    """Whether the client means to do without a handshake, in an era that has one."""
    meta = request.params.get("_meta") if request.params else None
    return request.method != "initialize" and not (
        isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta
    )


class _Answers:
    """The SDK's write stream, with a count of what is in flight."""

    def __init__(self, stream: WriteStream[SessionMessage]) -> None:
        self._stream = stream
        self._sizes: dict[Hashable, int] = {}
        """The bytes of each message that is in flight, by its id, or by a mark where it has none."""
        self._bytes = 0
        self._settled = asyncio.Event()

    def owes(self, request_id: jsonrpc.RequestId) -> bool:
        """Whether a request of this id is in flight."""
        return request_id in self._sizes

    def would_exceed(self, bounds: Bounds, size: int) -> bool:
        """Whether a message of `size` bytes is too much beside what is in flight."""
        return len(self._sizes) >= bounds.calls or self._bytes + size > bounds.bytes

    def expect(self, key: Hashable, size: int) -> None:
        """Note that a message of `size` bytes is in flight."""
        self._sizes[key] = size
        self._bytes += size

    def settle(self, key: Hashable) -> None:
        """Note that it has ended, answered or not."""
        self._bytes -= self._sizes.pop(key, 0)
        self._settled.set()

    async def settled(self, seconds: float) -> None:
        """Wait until nothing is in flight, at most `seconds`."""
        with anyio.move_on_after(seconds):
            while self._sizes:
                self._settled.clear()
                await self._settled.wait()

    async def write(self, message: JSONRPCError) -> None:
        """Write an error that answers no request in flight."""
        message.error.data = jsonrpc.error_data(message.error.code, message.error.data)
        await self._stream.send(SessionMessage(message))

    async def send(self, item: SessionMessage, /) -> None:
        """Write what the SDK answers or tells."""
        message = item.message
        try:
            if isinstance(message, JSONRPCError):
                await self.write(message)
            else:
                await self._stream.send(item)
        finally:
            if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
                self.settle(message.id)

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
