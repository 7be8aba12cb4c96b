"""WebSocket upgrades that are accepted or refused, limits on their number, and their end."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType, web

from kb_simulator import Stuck
from mcp_aiohttp.options import SocketLimits
from mcp_aiohttp.transport.websocket import _GRACE, WebSockets
from tests.protocol.conftest import Serve, Served
from tests.protocol.sockets import ERAS, WAYS, Bare, Connect, frame, opened, text_frame, upgrade
from tests.protocol.sockets import connect as connect
from tests.protocol.test_http_refusals import raw
from tests.protocol.test_knowledge import states
from tests.support.eventually import eventually_async
from tests.support.fake_toolset import Fake
from tests.support.knowledge import Knowledge
from tests.support.loop_clock import advance_loop
from tests.support.mcp_messages import call, request
from tests.support.patience import ANSWER_SECONDS

KEY = "a-secret-key"


@pytest.fixture
def frozen() -> Iterator[None]:
    """Exclude existing objects from collection, because other tests leave many, some for good."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _count(kind: type) -> int:
    """Number of objects of a type, without garbage and frozen objects."""
    gc.collect()
    return sum(isinstance(each, kind) for each in gc.get_objects())


async def _until_none_is_left(kind: type) -> None:
    await eventually_async(lambda: _count(kind), lambda left: left == 0, what="it")


# --- limits ----------------------------------------------------------------------------------------


async def test_websockets_past_the_bound_are_refused_on_all_endpoints(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """At most half of the connections: they stay in use while open, and requests need the others."""
    caplog.set_level("INFO")
    served = await serve(settings={"max_connections": 4})
    first, _ = [await connect(served, path) for path in ("/mcp", "/mcp/fake")]
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await connect(served)
    assert caught.value.status == 503
    assert caught.value.headers is not None
    assert caught.value.headers["Retry-After"]
    refused = await raw(served.port, upgrade())
    assert refused.startswith(b"HTTP/1.1 503 ")
    await first.socket.close()
    await eventually_async(lambda: "A WebSocket ended" in caplog.messages, what="the end at the server")
    await (await connect(served)).ask(call("echo", text="x"))


async def test_a_proxys_clients_have_a_bound_each(serve: Serve, connect: Connect) -> None:
    settings = {"max_connections_per_address": 2, "trusted_proxies": ["127.0.0.1"]}
    served = await serve(settings=settings)
    for client in ("192.0.2.1", "192.0.2.2"):
        await connect(served, headers={"X-Forwarded-For": client})
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            await connect(served, headers={"X-Forwarded-For": client})
    for _ in range(2):
        await connect(served)


@pytest.mark.process
@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("greeted", [False, True])
async def test_a_websocket_that_is_dropped_leaves_nothing(served: Served, greeted: bool) -> None:
    for _ in range(10):
        bare = await Bare.open(served)
        if greeted:
            bare.writer.write(text_frame(request("tools/list")))
            await bare.message()
        bare.writer.transport.abort()
    del bare
    await _until_none_is_left(web.WebSocketResponse)


# --- the upgrade -----------------------------------------------------------------------------------


@pytest.mark.requirement("K9", "K11")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/fake"])
async def test_without_the_key_no_websocket_is_opened(
    serve: Serve, fake: Fake, connect: Connect, path: str
) -> None:
    served = await serve(settings={"api_key": KEY})
    wrong: list[dict[str, str]] = [{}, {"Authorization": "Bearer wrong"}, {"Origin": "http://evil.example"}]
    for headers in wrong:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await connect(served, path, headers=headers)
        assert caught.value.status == 401
        assert caught.value.headers is not None
        assert caught.value.headers["WWW-Authenticate"] == "Bearer"
    broken = await raw(served.port, upgrade(path, sec_websocket_version="1", host="evil.example"))
    assert broken.startswith(b"HTTP/1.1 401 ")
    wire = await connect(served, path, headers={"Authorization": f"Bearer {KEY}"})
    await wire.ask(call("echo", text="x"))
    assert fake.echo.calls[0].credential not in ("anonymous", KEY)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost", "Origin": "http://evil.example"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
        ({"Host": "localhost", "Origin": "http://localhost.evil.example"}, 403),
    ],
)
async def test_a_page_of_a_stranger_opens_no_websocket(
    served: Served, connect: Connect, headers: dict[str, str], status: int
) -> None:
    """Browsers send no preflight before they connect across sites: the Origin decides."""
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await connect(served, headers=headers)
    assert caught.value.status == status


@pytest.mark.parametrize("origin", ["http://localhost:6274", "https://app.example"])
async def test_an_admitted_page_opens_one(serve: Serve, connect: Connect, origin: str) -> None:
    served = await serve(settings={"allowed_origins": ["https://app.example"]})
    wire = await connect(served, headers={"Origin": origin})
    assert (await wire.ask(request("ping")))["id"] == "1"


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"sec_websocket_version": "8"}, b"426"),
        ({"sec_websocket_version": None}, b"426"),
        ({"sec_websocket_key": None}, b"400"),
        ({"sec_websocket_key": "c2hvcnQ="}, b"400"),
        ({"sec_websocket_key": "no base64!"}, b"400"),
        ({"sec_websocket_key": "\u00e4" * 24}, b"400"),
        ({"connection": "keep-alive"}, b"400"),
        ({"upgrade": "h2c"}, b"405"),
        ({"upgrade": None}, b"405"),
    ],
)
async def test_a_request_that_is_no_websocket_handshake_is_refused(
    served: Served, changed: dict[str, Any], status: bytes
) -> None:
    answer = await raw(served.port, upgrade(**changed))
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert status != b"426" or b"Sec-WebSocket-Version: 13" in answer


@pytest.mark.parametrize(("path", "status"), [("/mcp", b"401"), ("/elsewhere", b"404")])
async def test_a_refused_upgrade_ends_its_connection(serve: Serve, path: str, status: bytes) -> None:
    """Later bytes would be HTTP for one side and frames for the other."""
    served = await serve(settings={"api_key": KEY})
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(upgrade(path))
    answer = await asyncio.wait_for(reader.read(), ANSWER_SECONDS)
    assert answer.startswith(b"HTTP/1.1 " + status)
    writer.close()


async def test_an_upgrade_that_breaks_ends_its_connection(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaking(*_: object) -> None:
        raise RuntimeError("words of ours")

    monkeypatch.setattr(WebSockets, "serve", breaking)
    served = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(upgrade())
    answer = await asyncio.wait_for(reader.read(), ANSWER_SECONDS)
    assert answer.startswith(b"HTTP/1.1 500")
    assert b"words of ours" not in answer
    writer.close()


# --- the end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "abort"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("era", ERAS)
async def test_the_end_of_the_connection_cancels_its_calls(
    served: Served, fake: Fake, connect: Connect, end: str, way: str, era: str
) -> None:
    """The work itself is cancelled, not only the wait; other connections continue."""
    wire, other = await connect(served), await connect(served)
    shape = await opened(wire, era, way)
    await wire.send(shape(call("slow", 1)))
    await asyncio.wait_for(fake.slow.started.wait(), ANSWER_SECONDS)
    if end == "close":
        await wire.socket.close()
    else:
        connection = wire.socket._response.connection
        assert connection is not None
        assert connection.transport is not None
        connection.transport.abort()
    await asyncio.wait_for(fake.slow.cancelled.wait(), ANSWER_SECONDS)
    assert (await other.ask(request("ping")))["id"] == "1"


async def test_a_lost_connection_cancels_the_job_of_its_call(
    serve: Serve, knowledge: Knowledge, connect: Connect
) -> None:
    """The caller of the task can no longer ask for it."""
    wire = await connect(await serve(knowledge.toolset))
    knowledge.engine.set_policy(Stuck())
    arguments = {"file_path": knowledge.file("bees.html"), "async": False}
    await wire.send(call("knowledge-add", meta={"progressToken": "p"}, **arguments))
    await wire.receive()
    await wire.socket.close()
    await eventually_async(lambda: states(knowledge), lambda seen: seen == ["cancelled"], what="the cancel")


async def test_an_idle_connection_is_closed_when_the_server_stops(
    serve: Serve, fake: Fake, connect: Connect
) -> None:
    served = await serve(serve_options={"drain_seconds": 4 * ANSWER_SECONDS})
    wires = [await connect(served) for _ in range(3)]
    await wires[0].greet()
    served.stop.set()
    assert [await wire.closed() for wire in wires] == [1001] * 3
    await asyncio.wait_for(asyncio.shield(served.task), ANSWER_SECONDS)
    assert fake.left == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("era", ERAS)
async def test_a_call_in_flight_is_answered_before_the_server_stops(
    serve: Serve, fake: Fake, connect: Connect, era: str, way: str
) -> None:
    served = await serve(serve_options={"drain_seconds": 2 * ANSWER_SECONDS})
    wire = await connect(served)
    shape = await opened(wire, era, way)
    await wire.send(shape(call("slow", 1)))
    await asyncio.wait_for(fake.slow.started.wait(), ANSWER_SECONDS)
    idle = await connect(served)
    served.stop.set()
    assert await idle.closed() == 1001
    await wire.send(shape(call("echo", 2, text="late")))
    fake.slow.release.set()
    assert (await wire.receive())["id"] == 1
    assert await wire.closed() == 1001
    assert fake.echo.calls == []
    await asyncio.wait_for(asyncio.shield(served.task), ANSWER_SECONDS)
    assert not fake.slow.cancelled.is_set()


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_does_not_end_is_cancelled_and_told_so(
    serve: Serve, fake: Fake, connect: Connect, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain, advance = 10 * ANSWER_SECONDS, advance_loop(monkeypatch)
    served = await serve(serve_options={"drain_seconds": drain})
    idle, wire = await connect(served), await connect(served)
    shape = await opened(wire, "handshake", way)
    await wire.send(shape(call("slow", 1)))
    await asyncio.wait_for(fake.slow.started.wait(), ANSWER_SECONDS)
    served.stop.set()
    assert await idle.closed() == 1001
    advance(_GRACE * drain)
    assert (await wire.receive())["error"]["code"] == -32000
    assert await wire.closed() == 1001
    await asyncio.wait_for(asyncio.shield(served.task), ANSWER_SECONDS)
    assert fake.slow.cancelled.is_set()


async def test_a_peer_that_answers_no_ping_is_given_up(
    serve: Serve, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeat, advance = 10 * ANSWER_SECONDS, advance_loop(monkeypatch)
    served = await serve(sockets=SocketLimits(heartbeat=heartbeat))
    dead, alive = await Bare.open(served), await Bare.open(served)
    dead.writer.write(text_frame(call("slow", 1)))
    await asyncio.wait_for(fake.slow.started.wait(), ANSWER_SECONDS)
    advance(heartbeat + 1)
    for each in (dead, alive):
        assert await each.receive() == (WSMsgType.PING, b"")
    alive.writer.write(frame(WSMsgType.PONG) + text_frame(request("ping", request_id=2)))
    assert (await alive.message())["id"] == 2
    assert not fake.slow.cancelled.is_set()
    advance(heartbeat / 2 + 1)
    await asyncio.wait_for(fake.slow.cancelled.wait(), ANSWER_SECONDS)
    alive.writer.write(text_frame(request("ping", request_id=3)))
    assert (await alive.message())["id"] == 3
    for each in (dead, alive):
        each.writer.close()


async def test_a_ping_of_the_clients_is_answered_with_its_words(served: Served) -> None:
    bare = await Bare.open(served)
    text = json.dumps(request("ping", request_id=3)).encode()
    bare.writer.write(frame(WSMsgType.TEXT, text[:9], final=False) + frame(WSMsgType.PING, b"there?"))
    assert await bare.receive() == (WSMsgType.PONG, b"there?")
    bare.writer.write(frame(WSMsgType.CONTINUATION, text[9:]))
    assert (await bare.message())["id"] == 3
    bare.writer.close()


async def test_closed_connections_leave_no_tasks(served: Served, fake: Fake, connect: Connect) -> None:
    before = len(asyncio.all_tasks())
    for number in range(20):
        wire = await connect(served)
        await wire.send(call("slow", number))
        await asyncio.wait_for(fake.slow.started.wait(), ANSWER_SECONDS)
        await wire.socket.close()
        await asyncio.wait_for(fake.slow.cancelled.wait(), ANSWER_SECONDS)
        fake.slow.started.clear()
        fake.slow.cancelled.clear()
    loop = asyncio.get_running_loop()
    await eventually_async(
        lambda: len(asyncio.all_tasks(loop)), lambda tasks: tasks <= before, what="the end of their tasks"
    )
