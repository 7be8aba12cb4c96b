"""Serves one server over stdin and stdout, in the era that the client opens with.

The SDK writes the answers. Reading is done here: lines are bounded, and no thread is left blocked on stdin
when the server stops.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from io import StringIO

import anyio
from mcp.server.stdio import stdio_server

from mcp_aiohttp.options import MAX_MESSAGE_BYTES
from mcp_aiohttp.protocol import jsonrpc
from mcp_aiohttp.protocol.kernel import HostedServer
from mcp_aiohttp.protocol.session import session
from mcp_aiohttp.transport.signals import on_stop_signal

log = logging.getLogger(__name__)

LAST_ANSWERS_SECONDS = 5.0
"""Maximum time that calls may take once stdin has ended, in seconds: a shell pipe expects its answers."""

_PIECE_BYTES = 1 << 18


async def serve_stdio(server: HostedServer, *, max_line_bytes: int = MAX_MESSAGE_BYTES) -> None:
    """Serve `server` on this process's stdin and stdout until stdin ends.

    SIGTERM and SIGINT end it too, and so does a client that closes its end of stdout. The server's lifespan
    is left in every case. Accidental prints go to stderr, never to the client.
    """
    async with server.lifespan():
        log.info("Serving on stdio", extra={"server": server.sdk.name})
        try:
            with anyio.CancelScope() as scope, on_stop_signal(scope.cancel):
                await _serve(server, max_line_bytes)
        except* (BrokenPipeError, ConnectionResetError):
            log.info("The client closed its end of stdout")
    log.info("Stopped serving on stdio")


async def _serve(server: HostedServer, max_line_bytes: int) -> None:
    # The SDK's own reader gets no input: it drops messages that it cannot parse, of any length.
    with _private_stdin() as stdin:
        async with stdio_server(stdin=anyio.wrap_file(StringIO())) as (unread, write):
            await unread.aclose()
            async with session(server, write) as client:
                async for line in _lines(_pieces(stdin), max_line_bytes):
                    if line is None:
                        words = f"the message is longer than {max_line_bytes} bytes, the limit on one message"
                        await client.refuse(None, jsonrpc.PARSE_ERROR, f"Parse error: {words}")
                    else:
                        await client.take(line)
                server.stop()
                await client.settled(LAST_ANSWERS_SECONDS)


async def _lines(pieces: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes | None]:
    """Yield lines without their ends, without blank ones; None for one longer than `limit`."""
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
    """Yield the data of `descriptor` until its end, without a thread and without making it non-blocking."""
    loop = asyncio.get_running_loop()

    def read(piece: asyncio.Future[bytes]) -> None:
        if piece.done():
            return  # reported readable a second time before the first was handled
        try:
            piece.set_result(os.read(descriptor, _PIECE_BYTES))
        except OSError:
            piece.set_result(b"")  # a vanished terminal reads as the end

    while True:
        piece: asyncio.Future[bytes] = loop.create_future()
        try:
            loop.add_reader(descriptor, read, piece)
        except PermissionError:
            read(piece)  # a regular file: it cannot be waited for, and never blocks
        try:
            data = await piece
        finally:
            loop.remove_reader(descriptor)
        if not data:
            return
        yield data


@contextmanager
def _private_stdin() -> Iterator[int]:
    """Yield a private descriptor for stdin, and open the null device as stdin: a child must not read it."""
    own = os.dup(0)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nowhere, 0)
        yield own
    finally:
        os.dup2(own, 0)
        os.close(nowhere)
        os.close(own)
