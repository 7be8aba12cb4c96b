"""A server with many connections held open answers all callers, and recovers afterwards.

Each caller opens a connection of its own for a tool call or a probe, and does not retry. All connections are
from loopback, to which the limit per address does not apply.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import psutil
import pytest

from bench.runner import ARGUMENTS, KEY, kb_serve, stub_engine
from kb_http.limits import connections_within_descriptors
from kb_load.messages import MODERN, tool_call
from kb_load.processes import LOOPBACK
from tests.support.eventually import eventually
from tests.support.patience import ANSWER_SECONDS, UNTIL_SECONDS

pytestmark = pytest.mark.process

DESCRIPTORS = 384
HALF_OPEN = 400
SOCKETS = 200
DROPS = 2_000
AT_ONCE = 50
LEAST_CALLS = 50
ALLOWED_MIB = 16
"""Maximum growth in MiB after 2,000 dropped WebSockets; a leak of 15 KB each would be 30."""
LIMITED = (
    "-c",
    "import resource, runpy, sys; limit = int(sys.argv[1]); "
    "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)); "
    "sys.argv = ['kb', *sys.argv[2:]]; runpy.run_module('kb_cli.main', run_name='__main__')",
    str(DESCRIPTORS),
)
HALF = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Half: "
UPGRADE = (
    "GET /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\nAuthorization: Bearer {KEY}\r\n\r\n"
).encode()
Holding = Callable[[int], AbstractAsyncContextManager[asyncio.Event]]
"""Holds connections to a port; the event is set once all are open."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[str]:
    connections_within_descriptors(HALF_OPEN + SOCKETS)
    with stub_engine(tmp_path) as (_, url):
        yield url


def test_everybody_is_answered_while_half_open_connections_take_all_descriptors(
    engine: str, tmp_path: Path
) -> None:
    with kb_serve("kb", engine, tmp_path / "kb", program=LIMITED, LOG_LEVEL="warn") as server:
        assert failed_calls(server.port, half_open) == 0


def test_everybody_is_answered_while_websockets_are_open_and_dropped(engine: str, tmp_path: Path) -> None:
    """Memory is compared after two equal halves: a process keeps memory that it once needed."""
    with kb_serve("kb", engine, tmp_path / "kb", LOG_LEVEL="warn") as server, releasing(server.process.pid):
        assert failed_calls(server.port, open_sockets) == 0
        resident = []
        for _ in range(2):
            with releasing(server.process.pid):
                assert failed_calls(server.port, dropped_sockets) == 0
            resident.append(psutil.Process(server.process.pid).memory_info().rss / 2**20)
    assert resident[1] - resident[0] < ALLOWED_MIB


@contextmanager
def releasing(pid: int) -> Iterator[None]:
    """Wait after the block until the process has no more descriptors than before."""
    process = psutil.Process(pid)
    before = process.num_fds()
    yield
    eventually(lambda: process.num_fds() <= before + 8, what="the descriptors are released")


def failed_calls(port: int, holding: Holding) -> int:
    """Return the number of unanswered calls and probes while connections are opened and held."""

    async def count() -> int:
        failed = made = 0
        async with asyncio.timeout(UNTIL_SECONDS), holding(port) as complete:
            while made < LEAST_CALLS or not complete.is_set():
                failed += await asyncio.to_thread(unanswered, port)
                made += 1
        return failed

    return asyncio.run(count())


def unanswered(port: int) -> int:
    """Call a tool and probe; return the number of requests without a valid response."""
    message, failed = tool_call(MODERN, "kb_search", ARGUMENTS, key=KEY), 0
    for method, path, body, headers, wanted in (
        ("POST", "/mcp", message.body, message.headers, b'"isError":false'),
        ("GET", "/healthz", None, {}, b""),
    ):
        with closing(HTTPConnection(LOOPBACK, port, timeout=ANSWER_SECONDS)) as connection:
            try:
                connection.request(method, path, body, {**headers, "Connection": "close"})
                response = connection.getresponse()
                failed += response.status != 200 or wanted not in response.read()
            except (OSError, HTTPException):
                failed += 1
    return failed


@asynccontextmanager
async def half_open(port: int) -> AsyncIterator[asyncio.Event]:
    """Send half a header on each connection and wait; open it again when the server closes it."""
    complete, waiting = asyncio.Event(), {*range(HALF_OPEN)}

    async def hold(number: int) -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(LOOPBACK, port)
                with closing(writer):
                    writer.write(HALF)
                    waiting.discard(number)
                    if not waiting:
                        complete.set()
                    await reader.read()
            await asyncio.sleep(random.uniform(0.5, 2.0))  # not all in one moment

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(hold(number)) for number in range(HALF_OPEN)]
        yield complete
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def open_sockets(port: int) -> AsyncIterator[asyncio.Event]:
    complete = asyncio.Event()
    connections = await asyncio.gather(*(upgraded(port) for _ in range(SOCKETS)))
    complete.set()
    yield complete
    for connection in connections:
        connection.close()


@asynccontextmanager
async def dropped_sockets(port: int) -> AsyncIterator[asyncio.Event]:
    complete, left = asyncio.Event(), iter(range(DROPS))

    async def drop() -> None:
        for _ in left:
            connection = await upgraded(port)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            connection.close()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(drop()) for _ in range(AT_ONCE)]
        waiting = group.create_task(asyncio.wait(tasks))
        waiting.add_done_callback(lambda _: complete.set())
        yield complete


async def upgraded(port: int) -> socket.socket:
    """Return the connection of a WebSocket."""
    loop, connection = asyncio.get_running_loop(), socket.socket()
    connection.setblocking(False)
    await loop.sock_connect(connection, (LOOPBACK, port))
    await loop.sock_sendall(connection, UPGRADE)
    answer = await loop.sock_recv(connection, 4096)
    assert answer.startswith(b"HTTP/1.1 101"), answer
    return connection
