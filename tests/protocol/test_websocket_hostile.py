"""Invalid use of WebSocket: garbage, broken frames, oversized messages, floods, and stalled clients."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kb_server.tool import Call, NoArguments
from mcp_aiohttp.options import MAX_MESSAGE_BYTES, BodyLimits, Bounds, SocketLimits
from tests.protocol.conftest import Serve, Served
from tests.protocol.sockets import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    Bare,
    Connect,
    frame,
    upgrade,
)
from tests.protocol.sockets import connect as connect
from tests.protocol.test_stdio import GARBAGE
from tests.support.eventually import eventually_async
from tests.support.fake_toolset import EchoArguments, EchoResult, Empty, Fake
from tests.support.loop_clock import advance_loop, turns
from tests.support.mcp_messages import call, modern, request
from tests.support.patience import ANSWER_SECONDS, SILENCE

PING_REQUEST = json.dumps(request("ping", request_id=3)).encode()


# --- texts -----------------------------------------------------------------------------------------

TEXTS = {text.decode(): code for text, code in GARBAGE.items() if text != b"\xff\xfe"} | {
    "": -32700,
    "\ufeff{}": -32700,
    json.dumps([request("ping")]): -32600,
    json.dumps([request("ping"), call("echo", 2, text="x")]): -32600,
    '{"jsonrpc":"1.0","id":1,"method":"ping"}': -32600,
    '{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}': -32600,
    '{"jsonrpc":"2.0","id":1.5,"method":"ping"}': -32600,
    '{"jsonrpc":"2.0","id":null,"method":"ping"}': -32600,
}


@pytest.mark.requirement("N68", "N69", "N80")
async def test_a_text_that_is_no_message_is_answered_and_survived(served: Served, connect: Connect) -> None:
    greeted, modern_one = await connect(served), await connect(served)
    for again in range(2):
        for text, code in TEXTS.items():
            for wire in (greeted, modern_one):
                error = (await wire.ask(text))["error"]
                assert error["code"] == code, text[:50]
                assert error["data"]["error_type"] in ("parse_error", "invalid_request")
        if not again:
            await greeted.greet()
            await modern_one.ask(modern(request("tools/list")))
    assert (await greeted.ask(request("ping", request_id=3)))["id"] == 3
    assert (await modern_one.ask(modern(call("echo", 3, text="x"))))["id"] == 3


async def test_an_invalid_message_with_the_id_of_a_running_call_leaves_the_call(
    served: Served, fake: Fake, connect: Connect
) -> None:
    wire = await connect(served)
    await wire.send(call("slow", 1))
    await asyncio.wait_for(fake.slow.started.wait(), ANSWER_SECONDS)
    assert (await wire.ask('{"jsonrpc":"2.0","id":1,"method":5}'))["id"] == 1
    assert (await wire.ask(request("ping", request_id=1)))["error"]["code"] == -32600
    fake.slow.release.set()
    assert (await wire.receive())["result"]["isError"] is False


async def test_responses_and_notifications_nobody_waits_for_are_passed_over(
    served: Served, connect: Connect
) -> None:
    wire = await connect(served)
    noise = [{"jsonrpc": "2.0", "id": 9, "result": {}}, {"jsonrpc": "2.0", "id": 9, "error": {}}]
    for method in ("notifications/progress", "notifications/initialized", "notifications/nothing", "x", ""):
        noise.append({"jsonrpc": "2.0", "method": method})
        noise.append({"jsonrpc": "2.0", "method": method, "params": {"progressToken": 1, "progress": "x"}})
    for _ in range(2):
        await wire.send(*noise * 20)
        assert (await wire.ask(request("ping", request_id=3)))["id"] == 3


# --- frames ----------------------------------------------------------------------------------------

HUGE = bytes([0x81, 0xFF]) + (1 << 62).to_bytes(8) + bytes(4)
FRAMES: dict[str, tuple[bytes, int]] = {
    "a binary message": (frame(BINARY, PING_REQUEST), 1003),
    "a binary message in pieces": (frame(BINARY, b"{", final=False) + frame(CONTINUATION, b"}"), 1003),
    "a text that is not UTF-8": (frame(TEXT, b'{"jsonrpc":"\xff"}'), 1007),
    "half a surrogate pair in UTF-8": (frame(TEXT, b"\xed\xa0\x80"), 1007),
    "a continuation of nothing": (frame(CONTINUATION, b"{}"), 1002),
    "a text within a text": (frame(TEXT, b"{", final=False) + frame(TEXT, b"}"), 1002),
    "an unknown kind of frame": (frame(3, b"x"), 1002),
    "a compressed frame": (frame(TEXT, b"x", reserved=4), 1002),
    "reserved bits": (frame(TEXT, b"x", reserved=3), 1002),
    "a ping in pieces": (frame(PING, b"x", final=False), 1002),
    "a ping too long": (frame(PING, b"x" * 126), 1002),
    "a closing frame of one byte": (frame(CLOSE, b"x"), 1002),
    "a closing code that there is not": (frame(CLOSE, (1005).to_bytes(2)), 1002),
    "a length of exbibytes": (HUGE, 1009),
}


@pytest.mark.parametrize("name", FRAMES)
async def test_an_invalid_frame_closes_the_connection_and_cancels_its_calls(
    served: Served, fake: Fake, name: str
) -> None:
    """With the code of the reason, after earlier messages were started; its calls are cancelled."""
    sent, code = FRAMES[name]
    bare = await Bare.open(served)
    bare.writer.write(frame(TEXT, json.dumps(call("slow", 1)).encode()))
    await asyncio.wait_for(fake.slow.started.wait(), ANSWER_SECONDS)
    bare.writer.write(sent)
    kind, payload = await bare.receive()
    if kind == TEXT:  # the answer of the cancelled call, if the server can still parse frames
        assert json.loads(payload)["error"]["code"] == -32000
        kind, payload = await bare.receive()
    assert (kind, int.from_bytes(payload[:2])) == (CLOSE, code)
    await asyncio.wait_for(fake.slow.cancelled.wait(), ANSWER_SECONDS)
    bare.writer.close()


async def test_a_peer_that_is_told_why_and_stays_is_hung_up_on(served: Served) -> None:
    """Not before it had time to read the reason; data that it still sends are dropped."""
    bare = await Bare.open(served)
    bare.writer.write(HUGE + bytes(1 << 20))
    assert await bare.closed() == 1009
    bare.writer.write(bytes(1 << 20))
    assert await asyncio.wait_for(bare.reader.read(), ANSWER_SECONDS) == b""
    bare.writer.close()


async def test_compression_is_not_agreed_to(served: Served, connect: Connect) -> None:
    """Otherwise a small frame could become a large message."""
    wire = await connect(served, compress=15)
    assert wire.socket.compress == 0
    assert (await wire.ask(request("ping")))["id"] == "1"


@pytest.mark.parametrize("pieces", [1, 7])
async def test_a_message_at_the_limit_is_read_and_a_longer_one_refused(serve: Serve, pieces: int) -> None:
    """In one or more frames; the limit is the same as for a body over HTTP."""
    served = await serve(body=BodyLimits(max_bytes=2000))
    bare = await Bare.open(served)
    for size, code in ((2000, None), (2001, 1009)):
        text = PING_REQUEST + b" " * (size - len(PING_REQUEST))
        step = -(-size // pieces)
        parts = [text[at : at + step] for at in range(0, size, step)]
        for number, part in enumerate(parts):
            kind = CONTINUATION if number else TEXT
            bare.writer.write(frame(kind, part, final=number == len(parts) - 1))
        if code is None:
            assert (await bare.message())["id"] == 3
        else:
            assert await bare.closed() == code
    bare.writer.close()


@pytest.mark.requirement("N80")
async def test_a_chunk_of_eight_mebibytes_passes_and_a_giant_learns_why_it_does_not(
    served: Served, connect: Connect
) -> None:
    wire = await connect(served)
    ping = json.dumps(request("ping"))
    assert (await wire.ask(ping + " " * (MAX_MESSAGE_BYTES - len(ping))))["id"] == "1"
    await asyncio.wait_for(wire.socket.send_str("x" * (3 * MAX_MESSAGE_BYTES)), ANSWER_SECONDS)
    assert await wire.closed() == 1009


async def test_frames_that_come_with_the_upgrade_are_read(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(upgrade() + frame(TEXT, PING_REQUEST))
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), ANSWER_SECONDS)
    assert (await Bare(reader, writer).message())["id"] == 3
    writer.close()


async def test_pongs_that_nobody_asked_for_are_passed_over(served: Served) -> None:
    """RFC 6455 allows them as a one-way heartbeat."""
    bare = await Bare.open(served)
    bare.writer.write(frame(PONG, b"x") * 1000 + frame(TEXT, PING_REQUEST))
    assert (await bare.message())["id"] == 3
    bare.writer.close()


@pytest.mark.parametrize("code", [1000, 1001, 3000, 4999])
async def test_a_client_that_closes_is_answered_in_kind(served: Served, code: int) -> None:
    bare = await Bare.open(served)
    bare.writer.write(frame(CLOSE, code.to_bytes(2) + "bye ä".encode()))
    assert await bare.closed() == 1000
    assert await asyncio.wait_for(bare.reader.read(), ANSWER_SECONDS) == b""
    bare.writer.close()


# --- floods, and clients that do not read -----------------------------------------------------------


async def test_calls_past_the_bound_are_refused_and_none_is_lost(
    serve: Serve, fake: Fake, connect: Connect
) -> None:
    served = await serve(sockets=SocketLimits(bounds=Bounds(calls=3, bytes=10_000)))
    wire = await connect(served)
    await wire.send(*(call("slow", number) for number in range(5)))
    refused = [await wire.receive(), await wire.receive()]
    assert [(answer["id"], answer["error"]["code"]) for answer in refused] == [(3, -32017), (4, -32017)]
    error = refused[0]["error"]
    assert error["data"] == {
        "error_type": "too_many_calls",
        "details": {"limit_calls": 3, "limit_bytes": 10_000},
    }
    assert "Read responses" in error["message"]
    await wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}})
    await asyncio.wait_for(fake.slow.cancelled.wait(), ANSWER_SECONDS)
    assert (await wire.ask(call("echo", 5, text="x")))["id"] == 5
    fake.slow.release.set()
    assert sorted([(await wire.receive())["id"], (await wire.receive())["id"]]) == [1, 2]


async def test_messages_past_the_bound_of_bytes_are_refused(
    serve: Serve, fake: Fake, connect: Connect
) -> None:
    served = await serve(sockets=SocketLimits(bounds=Bounds(calls=100, bytes=3000)))
    wire = await connect(served)
    large = json.dumps(call("slow", 1)) + " " * 2000
    await wire.send(large)
    assert (await wire.ask(large.replace('"id": 1', '"id": 2')))["error"]["code"] == -32017
    assert (await wire.ask(call("echo", 3, text="x")))["result"]["isError"] is False
    fake.slow.release.set()
    assert (await wire.receive())["id"] == 1
    assert (await wire.ask(large.replace('"id": 1', '"id": 4')))["result"]["isError"] is False


async def test_notifications_past_the_bound_do_no_work(serve: Serve, fake: Fake, connect: Connect) -> None:
    """Cancelling a task makes a request to the engine, so that an unlimited number would run at once."""
    running, most, release = 0, 0, asyncio.Event()

    async def cancel(_task_id: str, _call: Call) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    toolset = replace(fake.toolset, cancel=cancel)
    served = await serve(toolset, sockets=SocketLimits(bounds=Bounds(calls=4, bytes=10_000)))
    wire = await connect(served)
    told = {"jsonrpc": "2.0", "method": "tools/cancel", "params": {"taskId": "x"}}
    await wire.send(*[told] * 50)
    assert (await wire.ask(request("ping")))["error"]["code"] == -32017
    release.set()
    async with asyncio.timeout(ANSWER_SECONDS):
        while "error" in await wire.ask(request("ping")):
            pass
    assert most == 4


class Counting:
    """An `echo` that counts its calls and returns long answers."""

    def __init__(self, fake: Fake, answer: str = "x" * 100_000) -> None:
        self.begun = 0
        self.answer = answer
        fake.echo.run = self.run  # type: ignore[method-assign]

    async def run(self, arguments: EchoArguments, call: Call) -> EchoResult:
        self.begun += 1
        return EchoResult(self.answer)


def _hold_back_little(port: int) -> None:
    """Reduce the kernel's send buffer for the clients of this port, which by default holds megabytes."""
    for number in [int(each.name) for each in Path("/dev/fd").iterdir()]:
        with suppress(OSError):  # the descriptor of the directory listing is closed
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as one:
                    listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    if listens and one.getsockname()[1] == port:
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)


@asynccontextmanager
async def _unread(served: Served) -> AsyncIterator[socket.socket]:
    """Yield an upgraded connection from which the test does not read."""
    _hold_back_little(served.port)
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", served.port))
        await loop.sock_sendall(connection, upgrade())
        assert (await loop.sock_recv(connection, 12)).startswith(b"HTTP/1.1 101")
        yield connection


async def _flooded(connection: socket.socket, message: Any) -> None:
    """Send `message` repeatedly, with new ids, until the server stops reading."""
    loop = asyncio.get_running_loop()
    for number in range(1_000_000):
        data = frame(TEXT, json.dumps({**message, "id": number}).encode())
        sent = asyncio.ensure_future(loop.sock_sendall(connection, data))
        await asyncio.wait({sent}, timeout=SILENCE)
        await turns()  # the server is in this loop: it had these turns to read
        if not sent.done():
            sent.cancel()
            return
    raise AssertionError("the server took a million messages without being read")


async def _poured(connection: socket.socket, data: bytes, times: int) -> None:
    for _ in range(times):
        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(connection, data), ANSWER_SECONDS)


@pytest.mark.process
async def test_a_client_that_asks_and_does_not_read_is_not_read_either(
    serve: Serve, fake: Fake, connect: Connect
) -> None:
    counting = Counting(fake)
    limits = SocketLimits(bounds=Bounds(calls=8, bytes=1 << 20))
    served = await serve(sockets=limits)
    other = await connect(served)
    async with _unread(served) as connection:
        await _flooded(connection, call("echo", text="x" * 400))
        assert (await other.ask(request("ping")))["id"] == "1"
        assert 8 <= counting.begun < 1000  # the answers in the buffers of the two sockets, and eight more


@pytest.mark.parametrize("sent", [b"garbage", b""], ids=["garbage", "pings"])
async def test_a_flood_that_needs_no_call_is_not_read_either(
    serve: Serve, sent: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Refusals and pongs share the send queue; after a time-out the connection ends without an error log.

    While both receive buffers are full, Linux on a busy machine sometimes drops every segment, with the
    acknowledgement that it carries, before the server waits for its output. Then the heartbeat ends the
    connection, and the client does not learn of it.
    """
    monkeypatch.setattr("mcp_aiohttp.transport.websocket.STALLED_SECONDS", 0.5)
    caplog.set_level("INFO")
    served = await serve(sockets=SocketLimits(heartbeat=1.0))
    flood = frame(TEXT, sent) * 1000 if sent else frame(PING, b"x" * 125) * 1000
    async with _unread(served) as connection:
        pouring = asyncio.ensure_future(_poured(connection, flood, 10_000))
        await eventually_async(
            lambda: [record.message for record in caplog.records],
            lambda told: "A WebSocket ended" in told,
            what="the end",
        )
        pouring.cancel()
        with pytest.raises((ConnectionError, asyncio.CancelledError)):
            await pouring
    assert "A WebSocket failed unexpectedly" not in caplog.text


async def test_a_client_that_stops_reading_is_given_up(
    served: Served, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_aiohttp.transport.websocket.STALLED_SECONDS", 0.3)

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
        await asyncio.wait_for(fake.slow.cancelled.wait(), ANSWER_SECONDS)
        with suppress(ConnectionError):  # data sent before the end may be lost after it
            async with asyncio.timeout(ANSWER_SECONDS):
                while await loop.sock_recv(connection, 1 << 16):
                    pass


async def test_a_slow_reader_gets_every_answer(
    served: Served, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stall time-out restarts whenever data leave the buffer."""
    monkeypatch.setattr("mcp_aiohttp.transport.websocket.STALLED_SECONDS", 1.0)
    Counting(fake, answer="x" * (12 << 20))
    loop, advance = asyncio.get_running_loop(), advance_loop(monkeypatch)
    async with _unread(served) as connection, asyncio.timeout(ANSWER_SECONDS):
        for number in range(2):  # the second answer waits until the first has left
            await loop.sock_sendall(
                connection, frame(TEXT, json.dumps(call("echo", number, text="x")).encode())
            )
        for _ in range(5):
            left = 8 << 20  # more than the buffers of the two sockets hold, so that some data have left
            while left:
                got = await loop.sock_recv(connection, left)
                assert got, "it was given up"
                left -= len(got)
            advance(1.1)


@pytest.mark.process
async def test_a_peer_that_does_not_read_holds_up_no_stop(serve: Serve, fake: Fake) -> None:
    Counting(fake)
    served = await serve(serve_options={"drain_seconds": 1.0})
    silent = await Bare.open(served)
    async with _unread(served) as connection:
        await _flooded(connection, call("echo", text="x" * 400))
        served.stop.set()
        assert await silent.closed() == 1001
        await asyncio.wait_for(asyncio.shield(served.task), ANSWER_SECONDS)
    assert fake.left == 1
    silent.writer.close()
