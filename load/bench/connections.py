"""Responses of a server while clients hold its connections: `bench connections`.

Against `kb serve` over a stub engine:

half-open   connections send half a header and wait; each is reopened when the server closes it.
            The server runs under a limit on descriptors that is lower than their number.
sockets     WebSockets are opened and stay open.
drops       WebSockets are opened and reset, `_AT_ONCE` at a time. In two halves, since a process keeps memory
            that it once needed: growth in the second half is a leak.

Meanwhile a client in a process of its own calls a tool, on a new connection each time, and asks for
`/healthz`, without retries. All connections are from loopback, to which the bound per address does not apply.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import socket
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import psutil

from bench import Option
from bench.runner import ARGUMENTS, KEY, Report, RunningServer, kb_serve, stub_engine
from kb_http.connections import connections_within_descriptors
from kb_load.messages import MODERN, tool_call
from kb_load.processes import LOOPBACK
from kb_load.report import percentile

_CALL_SECONDS = 20.0
_LOOK_SECONDS = 1.0
"""Seconds of calls between two checks for the end of the stage."""
_SETTLE_SECONDS = 30.0
_AT_ONCE = 50
_ENDING = 1000
"""Further WebSockets allowed, for dropped ones that have not yet ended."""
_LIMITED = (
    "import resource, runpy, sys; limit = int(sys.argv[1]); "
    "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)); "
    "sys.argv = ['kb', *sys.argv[2:]]; runpy.run_module('kb_cli.main', run_name='__main__')"
)
_HALF = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Half: "
_RESET = struct.pack("ii", 1, 0)


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Calls during one stage; milliseconds. `failed` counts calls and probes without a valid response."""

    name: str
    held: int
    refused: int
    calls: int
    failed: int
    p50: float
    p99: float
    worst: float
    resident_mib: float
    descriptors: int


class ConnectionsReport(Report, frozen=True, kw_only=True):
    columns: ClassVar = {
        "stage": "{0.name}",
        "held": "{0.held}",
        "refused": "{0.refused}",
        "calls": "{0.calls}",
        "failed": "{0.failed}",
        "p50 ms": "{0.p50:.1f}",
        "p99 ms": "{0.p99:.1f}",
        "worst": "{0.worst:.1f}",
        "MiB": "{0.resident_mib:.0f}",
        "open files": "{0.descriptors}",
    }
    descriptors: int
    stages: list[Stage]

    def rows(self) -> list[Stage]:
        return self.stages

    def footer(self) -> list[str]:
        return [f"few descriptors: {self.descriptors}"]


def run(
    *,
    half_open: Annotated[int, Option("number of connections with half a header", 1, 100_000)] = 1100,
    sockets: Annotated[int, Option("number of WebSockets that stay open", 1, 100_000)] = 5000,
    drops: Annotated[int, Option("number of WebSockets that are reset", 2, 1_000_000)] = 20_000,
    descriptors: Annotated[int, Option("limit of the server's open files", 64, 1_000_000)] = 1024,
    seconds: Annotated[int, Option("minimum duration of each stage, in seconds")] = 10,
    note: Callable[[str], None] = print,
) -> ConnectionsReport:
    """Run all stages, each for `seconds` at least."""
    report = ConnectionsReport(descriptors=descriptors, stages=[])

    async def measure() -> None:
        async def stage(name: str, holding: Callable[[int], AsyncIterator[Held]]) -> None:
            done = await server.stage(name, holding, seconds)
            report.stages.append(done)
            note(
                f"{name}: {done.held} held, {done.refused} refused, {done.calls} calls, "
                f"{done.failed} failed, p99 {done.p99:.1f} ms, {done.resident_mib:.0f} MiB"
            )

        with (
            tempfile.TemporaryDirectory(prefix="kb-bench-") as folder,
            ProcessPoolExecutor(1, mp_context=get_context("spawn")) as client,
            stub_engine(Path(folder)) as (_, engine),
        ):
            program = ("-c", _LIMITED, str(descriptors))
            home = Path(folder, "limited")
            with kb_serve("kb", engine, home, program=program, LOG_LEVEL="warn") as standing:
                server = Server(standing, client)
                await stage("quiet, few descriptors", _nothing)
                await stage("half-open", partial(_half_open, count=half_open))
            most = sockets + _ENDING
            wide = {"KB_MAX_CONNECTIONS": str(2 * most), "KB_MAX_WEBSOCKETS": str(most)}
            with kb_serve("kb", engine, Path(folder, "wide"), LOG_LEVEL="warn", **wide) as standing:
                server = Server(standing, client)
                await stage("quiet", _nothing)
                await stage("sockets open", partial(_sockets, count=sockets, reset=False))
                await server.settled()
                await stage("sockets closed", _nothing)
                for name in ("drops", "as many drops again"):
                    await stage(name, partial(_sockets, count=drops // 2, reset=True))
                    await server.settled()
                await stage("after", _nothing)

    connections_within_descriptors(half_open + sockets)
    asyncio.run(measure())
    return report


class Held:
    """Connections of a stage: number held, number refused, and an event for completion."""

    def __init__(self) -> None:
        self.held = 0
        self.refused = 0
        self.complete = asyncio.Event()


class Server:
    """`kb serve` in a process of its own; `client` is the process that calls it."""

    def __init__(self, standing: RunningServer, client: Executor) -> None:
        self._port = standing.port
        self._client = client
        self._process = psutil.Process(standing.process.pid)
        self._quiet = 0

    async def stage(self, name: str, holding: Callable[[int], AsyncIterator[Held]], seconds: float) -> Stage:
        """Call during `holding`, for at least `seconds` and until it is complete."""
        loop = asyncio.get_running_loop()
        async with asynccontextmanager(holding)(self._port) as held:
            calls: list[float] = []
            failed = 0
            end = time.monotonic() + seconds
            while time.monotonic() < end or not held.complete.is_set():
                took, bad = await loop.run_in_executor(self._client, _calls, self._port, _LOOK_SECONDS)
                calls += took
                failed += bad
            self._quiet = self._quiet or self._process.num_fds()
            return Stage(
                name=name,
                held=held.held,
                refused=held.refused,
                calls=len(calls),
                failed=failed,
                p50=percentile(calls, 0.5),
                p99=percentile(calls, 0.99),
                worst=max(calls),
                resident_mib=self._process.memory_info().rss / 2**20,
                descriptors=self._process.num_fds(),
            )

    async def settled(self) -> None:
        """Wait until the server has released its descriptors."""
        async with asyncio.timeout(_SETTLE_SECONDS):
            while self._process.num_fds() > self._quiet + 8:  # noqa: ASYNC110  # of another process
                await asyncio.sleep(0.1)


def _calls(port: int, seconds: float) -> tuple[list[float], int]:
    """Call and probe for `seconds`; return the milliseconds of each, and the number of failures."""
    message = tool_call(MODERN, "kb_search", ARGUMENTS, key=KEY)
    requests = [
        ("POST", "/mcp", message.body, dict(message.headers), b'"isError":false'),
        ("GET", "/healthz", None, {}, b""),
    ]
    took, failed = [], 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for method, path, body, headers, wanted in requests:
            began = time.perf_counter()
            try:
                with closing(HTTPConnection(LOOPBACK, port, timeout=_CALL_SECONDS)) as connection:
                    connection.request(method, path, body, headers | {"Connection": "close"})
                    response = connection.getresponse()
                    good = response.status == 200 and wanted in response.read()
            except (OSError, HTTPException):
                good = False
            failed += not good
            took.append((time.perf_counter() - began) * 1000)
    return took, failed


async def _nothing(_port: int) -> AsyncIterator[Held]:
    held = Held()
    held.complete.set()
    yield held


async def _half_open(port: int, count: int) -> AsyncIterator[Held]:
    """Hold connections with half a header, reopened when closed; `refused` counts closed ones."""
    held = Held()

    async def hold() -> None:
        first = True
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(LOOPBACK, port)
                try:
                    writer.write(_HALF)
                    if first:
                        first = False
                        held.held += 1
                        if held.held == count:
                            held.complete.set()
                    await reader.read()
                    held.refused += 1
                finally:
                    writer.close()
            await asyncio.sleep(random.uniform(0.5, 2.0))  # not all in one moment

    async with _together([hold] * count):
        yield held


async def _sockets(port: int, count: int, *, reset: bool) -> AsyncIterator[Held]:
    """Open WebSockets, and reset them if `reset`; `refused` counts rejected upgrades."""
    held, left = Held(), iter(range(count))
    connections: list[socket.socket] = []

    async def open_() -> None:
        for _ in left:
            connection, taken = await _upgraded(port)
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                connection.close()
            else:
                connections.append(connection)
            held.held += taken
            held.refused += not taken
        if held.held + held.refused == count:
            held.complete.set()

    try:
        async with _together([open_] * _AT_ONCE):
            yield held
    finally:
        for connection in connections:
            connection.close()


async def _upgraded(port: int) -> tuple[socket.socket, bool]:
    """Request a WebSocket; return its connection, and True if the server upgraded it."""
    loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setblocking(False)
    lines = (
        "GET /mcp HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {KEY}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
    )
    try:
        await loop.sock_connect(connection, (LOOPBACK, port))
        await loop.sock_sendall(connection, "".join(f"{line}\r\n" for line in (*lines, "")).encode())
        answer = await loop.sock_recv(connection, 4096)
    except OSError:
        answer = b""
    return connection, answer.startswith(b"HTTP/1.1 101")


@asynccontextmanager
async def _together(work: list[Callable[[], Awaitable[None]]]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(each()) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
