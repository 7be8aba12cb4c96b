"""What no proper client sends over WebSocket: garbage, broken frames, giants."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from mcp_aiohttp.options import MAX_MESSAGE_BYTES, BodyLimits
from tests.protocol.conftest import BOUND, Served, ServeToolset
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
from tests.support.fake_toolset import Fake
from tests.support.mcp_messages import call, modern, request

PING_REQUEST = json.dumps(request("ping", request_id=3)).encode()


@pytest.fixture
async def served(serve_toolset: ServeToolset, fake: Fake) -> Served:
    """The fake toolset."""
    return await serve_toolset(fake.toolset)


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
    """Before the handshake and after it, in either era; a batch is none, whatever is in it."""
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


async def test_a_message_that_is_none_does_not_touch_the_call_whose_id_it_has(
    served: Served, fake: Fake, connect: Connect
) -> None:
    wire = await connect(served)
    await wire.send(call("slow", 1))
    await asyncio.wait_for(fake.slow.started.wait(), BOUND)
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
async def test_what_is_no_proper_frame_closes_the_connection(served: Served, fake: Fake, name: str) -> None:
    """With the code that says why, after what came before it was begun; its calls are cancelled."""
    sent, code = FRAMES[name]
    bare = await Bare.open(served)
    bare.writer.write(frame(TEXT, json.dumps(call("slow", 1)).encode()))
    await asyncio.wait_for(fake.slow.started.wait(), BOUND)
    bare.writer.write(sent)
    kind, payload = await bare.receive()
    if kind == TEXT:  # the call that was cancelled, where frames can still be told apart
        assert json.loads(payload)["error"]["code"] == -32000
        kind, payload = await bare.receive()
    assert (kind, int.from_bytes(payload[:2])) == (CLOSE, code)
    await asyncio.wait_for(fake.slow.cancelled.wait(), BOUND)
    bare.writer.close()


async def test_a_peer_that_is_told_why_and_stays_is_hung_up_on(served: Served) -> None:
    """Not before it had time to read it: what it still sends is dropped meanwhile."""
    bare = await Bare.open(served)
    bare.writer.write(HUGE + bytes(1 << 20))
    assert await bare.closed() == 1009
    bare.writer.write(bytes(1 << 20))
    assert await asyncio.wait_for(bare.reader.read(), 2 * BOUND) == b""
    bare.writer.close()


async def test_compression_is_not_agreed_to(served: Served, connect: Connect) -> None:
    """So a small frame cannot become a large message."""
    wire = await connect(served, compress=15)
    assert wire.socket.compress == 0
    assert (await wire.ask(request("ping")))["id"] == "1"


@pytest.mark.parametrize("pieces", [1, 7])
async def test_a_message_at_the_limit_is_read_and_a_longer_one_refused(
    serve_toolset: ServeToolset, fake: Fake, pieces: int
) -> None:
    """Whole or in pieces; the limit is that of a body over HTTP."""
    served = await serve_toolset(fake.toolset, body=BodyLimits(max_bytes=2000))
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
    await asyncio.wait_for(wire.socket.send_str("x" * (3 * MAX_MESSAGE_BYTES)), 2 * BOUND)
    assert await wire.closed() == 1009


async def test_a_thousand_pieces_are_one_message(served: Served) -> None:
    bare = await Bare.open(served)
    text = PING_REQUEST
    bare.writer.write(frame(TEXT, text[:1], final=False))
    for number in range(1000):
        bare.writer.write(frame(CONTINUATION, b" " if number % 2 else b"", final=False))
    bare.writer.write(frame(CONTINUATION, text[1:]))
    assert (await bare.message())["id"] == 3
    bare.writer.close()


async def test_frames_that_come_with_the_upgrade_are_read(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(upgrade() + frame(TEXT, PING_REQUEST))
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), BOUND)
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
    assert await asyncio.wait_for(bare.reader.read(), BOUND) == b""
    bare.writer.close()


async def test_a_client_of_aiohttps_may_send_close_in_the_middle_of_calls(
    served: Served, fake: Fake, connect: Connect
) -> None:
    """Nothing is answered after the closing frame."""
    wire = await connect(served)
    await wire.send(*(call("slow", number) for number in range(20)))
    await asyncio.wait_for(fake.slow.started.wait(), BOUND)
    await wire.socket.close()
    await asyncio.wait_for(fake.slow.cancelled.wait(), BOUND)
    assert wire.socket.close_code == aiohttp.WSCloseCode.OK
