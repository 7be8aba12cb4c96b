"""Serves a toolset over stdin and stdout, in the era that the client opens with.

The SDK drives the protocol and writes the answers. Reading is ours: lines are bounded and parsed as
strictly as over HTTP, a line that is no message is answered with an error instead of dropped, and no
thread is left blocked on stdin when the server is told to stop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, cast

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.runner import serve_dual_era_loop
from mcp.server.stdio import stdio_server
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from kb_server.hosting import jsonrpc, strict_json
from kb_server.hosting.protocol import ProtocolServer
from kb_server.hosting.signals import on_stop_signal
from kb_server.tool import Toolset

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 12 * 1024 * 1024
"""The limit on one message, as over HTTP."""
LAST_ANSWERS_SECONDS = 2.0
"""How long calls in flight may take to end once stdin has ended: a shell pipe wants its answers."""

_PIECE_BYTES = 1 << 18


async def serve_stdio(toolset: Toolset, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
    """Serve `toolset` on this process's stdin and stdout until stdin ends.

    SIGTERM and SIGINT end it too, and so does a client that closes its end of stdout. The toolset's
    lifespan is left in every case. What is printed by accident goes to stderr, never to the client.
    """
    server = ProtocolServer(toolset)
    async with toolset.lifespan():
        log.info("Serving on stdio", extra={"fields": {"server": toolset.server_name}})
        try:
            with anyio.CancelScope() as scope, on_stop_signal(scope.cancel):
                await _serve(server, max_line_bytes)
        except* (BrokenPipeError, ConnectionResetError):
            log.info("The client closed its end of stdout")
    log.info("Stopped serving on stdio")


async def _serve(server: ProtocolServer, max_line_bytes: int) -> None:
    # The SDK's own reader is handed nothing to read: it drops what it cannot parse, of any length.
    with _taken_stdin() as stdin:
        async with stdio_server(stdin=cast("anyio.AsyncFile[str]", _Nothing())) as (unread, write):
            await unread.aclose()
            answers = _Answers(write)
            send, receive = anyio.create_memory_object_stream[SessionMessage | Exception]()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_pump, stdin, max_line_bytes, send, answers)
                await serve_dual_era_loop(
                    server.sdk, receive, answers, lifespan_state=None, init_options=server.initialization
                )
                tasks.cancel_scope.cancel()


async def _pump(
    stdin: int,
    max_line_bytes: int,
    send: MemoryObjectSendStream[SessionMessage | Exception],
    answers: _Answers,
) -> None:
    """Move messages from `stdin` to the SDK's loop; answer what is no message."""
    async with send:
        async for line in _lines(_pieces(stdin), max_line_bytes):
            try:
                message = _message(line, max_line_bytes)
            except strict_json.ParseError as error:
                await answers.refuse(None, jsonrpc.PARSE_ERROR, f"Parse error: {error}")
            except jsonrpc.InvalidRequestError as error:
                await answers.refuse(error.id, jsonrpc.INVALID_REQUEST, f"Invalid request: {error}")
            else:
                if message is not None:
                    answers.expect(message)
                    await send.send(SessionMessage(message))
        await answers.settled(LAST_ANSWERS_SECONDS)


def _message(line: bytes | None, limit: int) -> JSONRPCRequest | JSONRPCNotification | None:
    """The message on `line` (None: it was too long); None for a response, which nobody asked for."""
    if line is None:
        raise strict_json.ParseError(f"the message is longer than {limit} bytes, the limit on one message")
    message = jsonrpc.as_message(strict_json.parse(line))
    if isinstance(message, jsonrpc.Request):
        return JSONRPCRequest(jsonrpc="2.0", id=message.id, method=message.method, params=message.params)
    if isinstance(message, jsonrpc.Notification):
        return JSONRPCNotification(jsonrpc="2.0", method=message.method, params=message.params)
    return None


class _Answers:
    """The SDK's write stream, with a count of the requests that are still owed an answer."""

    def __init__(self, stream: WriteStream[SessionMessage]) -> None:
        self._stream = stream
        self._owed: set[jsonrpc.RequestId] = set()
        self._settled = asyncio.Event()

    def expect(self, message: JSONRPCRequest | JSONRPCNotification) -> None:
        """Note what `message` is owed: an answer to a request, none to one that it cancels."""
        if isinstance(message, JSONRPCRequest):
            self._owed.add(message.id)
        elif message.method == "notifications/cancelled":
            self._forget((message.params or {}).get("requestId"))

    async def settled(self, seconds: float) -> None:
        """Wait until nothing is owed, at most `seconds`."""
        with anyio.move_on_after(seconds):
            while self._owed:
                self._settled.clear()
                await self._settled.wait()

    async def refuse(self, request_id: jsonrpc.RequestId | None, code: int, message: str) -> None:
        """Answer a line that never became a request."""
        error = JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message))
        await self.send(SessionMessage(error))

    async def send(self, item: SessionMessage, /) -> None:
        if isinstance(item.message, JSONRPCError):
            error = item.message.error
            error.data = jsonrpc.error_data(error.code, error.data)
        await self._stream.send(item)
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            self._forget(item.message.id)

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

    def _forget(self, request_id: Any) -> None:
        if isinstance(request_id, str | int):
            self._owed.discard(request_id)
        self._settled.set()


class _Nothing:
    """An input that has ended before it began."""

    def __aiter__(self) -> _Nothing:
        return self

    async def __anext__(self) -> str:
        raise StopAsyncIteration


async def _lines(pieces: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes | None]:
    """Lines without their ends, blank ones left out; None for one longer than `limit`, which is not kept."""
    kept: list[bytes] = []
    length = 0
    async for piece in pieces:
        *ends, rest = piece.split(b"\n")
        for end in ends:
            line = b"".join((*kept, end)) if length + len(end) <= limit else None
            if line is None or line.strip():
                yield line
            kept, length = [], 0
        length += len(rest)
        kept = [*kept, rest] if length <= limit else []
    if length:
        yield b"".join(kept) if length <= limit else None


async def _pieces(descriptor: int) -> AsyncIterator[bytes]:
    """What `descriptor` gives until it ends, without a thread and without making it non-blocking."""
    loop = asyncio.get_running_loop()
    while True:
        piece: asyncio.Future[bytes] = loop.create_future()
        try:
            loop.add_reader(descriptor, _read_into, descriptor, piece)
        except PermissionError:
            _read_into(descriptor, piece)  # a regular file: it cannot be waited for, and never blocks
        try:
            data = await piece
        finally:
            loop.remove_reader(descriptor)
        if not data:
            return
        yield data


def _read_into(descriptor: int, piece: asyncio.Future[bytes]) -> None:
    if piece.done():
        return  # reported readable a second time before the first was looked at
    try:
        piece.set_result(os.read(descriptor, _PIECE_BYTES))
    except OSError:
        piece.set_result(b"")  # a terminal that went away reads as the end


@contextmanager
def _taken_stdin() -> Iterator[int]:
    """A descriptor of our own for stdin, whose number leads nowhere meanwhile: a child must not read it."""
    own = os.dup(0)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nowhere, 0)
        yield own
    finally:
        os.dup2(own, 0)
        os.close(nowhere)
        os.close(own)
