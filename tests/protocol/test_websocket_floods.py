"""Too much over one WebSocket: calls past the bounds, and connections that are not read."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from kb_server.tool import Call, NoArguments
from mcp_aiohttp.options import Bounds, SocketLimits
from tests.protocol.conftest import BOUND, Served, ServeToolset
from tests.protocol.sockets import (
    PING,
    TEXT,
    Bare,
    Connect,
    frame,
    upgrade,
)
from tests.protocol.sockets import connect as connect
from tests.support.eventually import eventually_async
from tests.support.fake_toolset import EchoArguments, EchoResult, Empty, Fake
from tests.support.mcp_messages import call, request

PING_REQUEST = json.dumps(request("ping", request_id=3)).encode()


async def test_calls_past_the_bound_are_refused_and_none_is_lost(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect
) -> None:
    """An error that says what to do; cancels are still heard, and a place that is free is taken."""
    served = await serve_toolset(fake.toolset, sockets=SocketLimits(bounds=Bounds(calls=3, bytes=10_000)))
    wire = await connect(served)
    await wire.send(*(call("slow", number) for number in range(5)))
    refused = [await wire.receive(), await wire.receive()]
    assert [(answer["id"], answer["error"]["code"]) for answer in refused] == [(3, -32017), (4, -32017)]
    error = refused[0]["error"]
    assert error["data"] == {
        "error_type": "too_many_calls",
        "details": {"limit_calls": 3, "limit_bytes": 10_000},
    }
    assert "Read answers" in error["message"]
    await wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}})
    await asyncio.wait_for(fake.slow.cancelled.wait(), BOUND)
    assert (await wire.ask(call("echo", 5, text="x")))["id"] == 5
    fake.slow.release.set()
    assert sorted([(await wire.receive())["id"], (await wire.receive())["id"]]) == [1, 2]


async def test_messages_past_the_bound_of_bytes_are_refused(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect
) -> None:
    """However few the calls; once they have ended there is room again."""
    served = await serve_toolset(fake.toolset, sockets=SocketLimits(bounds=Bounds(calls=100, bytes=3000)))
    wire = await connect(served)
    large = json.dumps(call("slow", 1)) + " " * 2000
    await wire.send(large)
    assert (await wire.ask(large.replace('"id": 1', '"id": 2')))["error"]["code"] == -32017
    assert (await wire.ask(call("echo", 3, text="x")))["result"]["isError"] is False
    fake.slow.release.set()
    assert (await wire.receive())["id"] == 1
    assert (await wire.ask(large.replace('"id": 1', '"id": 4')))["result"]["isError"] is False


async def test_notifications_past_the_bound_do_no_work(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect
) -> None:
    """Those that cancel a task ask the engine: any number of them would run at once."""
    running, most, release = 0, 0, asyncio.Event()

    async def cancel(_task_id: str, _call: Call) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    toolset = replace(fake.toolset, cancel=cancel)
    served = await serve_toolset(toolset, sockets=SocketLimits(bounds=Bounds(calls=4, bytes=10_000)))
    wire = await connect(served)
    told = {"jsonrpc": "2.0", "method": "tools/cancel", "params": {"taskId": "x"}}
    await wire.send(*[told] * 50)
    assert (await wire.ask(request("ping")))["error"]["code"] == -32017
    release.set()
    async with asyncio.timeout(BOUND):
        while "error" in await wire.ask(request("ping")):
            pass
    assert most == 4


class Counting:
    """An `echo` that counts, and answers at length."""

    def __init__(self, fake: Fake) -> None:
        self.begun = 0
        fake.echo.run = self.run  # type: ignore[method-assign]

    async def run(self, arguments: EchoArguments, call: Call) -> EchoResult:
        self.begun += 1
        return EchoResult("x" * 100_000)


@asynccontextmanager
async def _unread(served: Served) -> AsyncIterator[socket.socket]:
    """A connection, upgraded, that nobody reads."""
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", served.port))
        await loop.sock_sendall(connection, upgrade())
        assert (await loop.sock_recv(connection, 12)).startswith(b"HTTP/1.1 101")
        yield connection


async def _flooded(connection: socket.socket, message: Any) -> None:
    """Send `message` again and again, under new ids, until the server takes no more for a while."""
    loop = asyncio.get_running_loop()
    for number in range(1_000_000):
        sent = loop.sock_sendall(connection, frame(TEXT, json.dumps({**message, "id": number}).encode()))
        try:
            await asyncio.wait_for(sent, 0.5)
        except TimeoutError:
            return
    raise AssertionError("the server took a million messages without being read")


async def _poured(connection: socket.socket, data: bytes, times: int) -> None:
    for _ in range(times):
        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(connection, data), BOUND)


async def test_a_client_that_asks_and_does_not_read_is_not_read_either(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect
) -> None:
    """What is begun for it is bounded; others are answered meanwhile."""
    counting = Counting(fake)
    limits = SocketLimits(bounds=Bounds(calls=8, bytes=1 << 20))
    served = await serve_toolset(fake.toolset, sockets=limits)
    other = await connect(served)
    async with _unread(served) as connection:
        await _flooded(connection, call("echo", text="x" * 400))
        assert (await other.ask(request("ping")))["id"] == "1"
        assert (
            8 <= counting.begun < 1000
        )  # those whose answers the buffers of the two sockets hold, and eight


@pytest.mark.parametrize("sent", [b"garbage", b""], ids=["garbage", "pings"])
async def test_a_flood_that_needs_no_call_is_not_read_either(
    serve_toolset: ServeToolset,
    fake: Fake,
    sent: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Refusals and pongs stand in the same line; after a while it is given up, which is no fault of ours."""
    monkeypatch.setattr("mcp_aiohttp.transport.websocket.STALLED_SECONDS", 2.0)
    caplog.set_level("INFO")
    served = await serve_toolset(fake.toolset)
    flood = frame(TEXT, sent) * 1000 if sent else frame(PING, b"x" * 125) * 1000
    async with _unread(served) as connection:
        with pytest.raises((TimeoutError, ConnectionError)):
            await _poured(connection, flood, 10_000)
        await eventually_async(
            lambda: [record.message for record in caplog.records],
            lambda told: "A WebSocket ended" in told,
            what="the end",
        )
    assert "A WebSocket broke" not in caplog.text


async def test_a_client_that_stops_reading_is_given_up(
    serve_toolset: ServeToolset, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while in which nothing left; its calls are cancelled."""
    monkeypatch.setattr("mcp_aiohttp.transport.websocket.STALLED_SECONDS", 0.3)
    served = await serve_toolset(fake.toolset)

    async def chatting(arguments: NoArguments, call: Call) -> Empty:
        fake.slow.started.set()
        try:
            for step in range(10_000):
                await call.progress(step, None, "x" * 100_000)
        except asyncio.CancelledError:
            fake.slow.cancelled.set()
            raise
        return Empty()

    fake.slow.run = chatting  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()
    asked = json.dumps(call("slow", meta={"progressToken": "p"})).encode()
    async with _unread(served) as connection:
        await loop.sock_sendall(connection, frame(TEXT, asked))
        await asyncio.wait_for(fake.slow.cancelled.wait(), BOUND)
        async with asyncio.timeout(BOUND):
            while await loop.sock_recv(connection, 1 << 16):
                pass


async def test_a_slow_reader_gets_every_answer(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it reads at all: a wait that is too long for one is none while something leaves."""
    monkeypatch.setattr("mcp_aiohttp.transport.websocket.STALLED_SECONDS", 1.0)
    Counting(fake)
    served = await serve_toolset(fake.toolset)
    loop = asyncio.get_running_loop()
    asked = [frame(TEXT, json.dumps(call("echo", number, text="x")).encode()) for number in range(100)]
    answered = 0
    async with _unread(served) as connection, asyncio.timeout(4 * BOUND):
        await loop.sock_sendall(connection, b"".join(asked))
        while answered < 100:
            got = await loop.sock_recv(connection, 1 << 16)
            assert got, f"closed after {answered} answers"
            answered += got.count(b'"jsonrpc":"2.0"')
            await asyncio.sleep(0.001)


async def test_a_peer_that_does_not_read_holds_up_no_stop(serve_toolset: ServeToolset, fake: Fake) -> None:
    Counting(fake)
    served = await serve_toolset(fake.toolset, serve_options={"drain_seconds": 1.0})
    silent = await Bare.open(served)
    async with _unread(served) as connection:
        await _flooded(connection, call("echo", text="x" * 400))
        served.stop.set()
        assert await silent.closed() == 1001
        await asyncio.wait_for(asyncio.shield(served.task), 2 * BOUND)
    assert fake.left == 1
    silent.writer.close()
