"""The same messages over WebSocket: eras, calls side by side, progress, cancels, and how it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from kb_server.hosting.websocket import SocketLimits
from kb_server.observability import Metrics
from kb_server.tool import Call, NoArguments
from kb_simulator import AfterTime, Stuck
from tests.knowledge import SEVEN, Knowledge
from tests.protocol.conftest import BOUND, ServeToolset
from tests.protocol.fake_toolset import Empty, Fake
from tests.protocol.messages import PLAIN, call, initialize, modern, request
from tests.protocol.sockets import Bare, Connect, Wire, frame, upgrade
from tests.protocol.sockets import connect as connect
from tests.protocol.test_http_refusals import raw
from tests.protocol.test_knowledge import NOBODY, states, stuck, text_of
from tests.waiting import until

KEY = "a-secret-key"
ERAS = ["handshake", "modern"]


async def opened(wire: Wire, era: str) -> Any:
    """Shake hands where the era does; what puts a message into its shape."""
    if era == "modern":
        return modern
    await wire.greet()
    return dict


def cancelled(request_id: Any) -> dict[str, Any]:
    """The notification that gives a request up."""
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}


# --- what it carries ------------------------------------------------------------------------------


@pytest.mark.requirement("N80")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/knowledge"])
async def test_the_knowledge_server_speaks_over_websocket(
    serve_toolset: ServeToolset, knowledge: Knowledge, connect: Connect, path: str
) -> None:
    """The first page of its document, message by message: who it is, its tools, and a call of each kind."""
    wire = await connect(await serve_toolset(knowledge.toolset), path)
    result = await wire.greet("2025-06-18")
    assert result["protocolVersion"] == "2025-06-18"
    assert result["capabilities"]["tools"] == {"listChanged": True}
    assert result["capabilities"]["prompts"] == {"listChanged": False}
    assert (result["serverInfo"]["name"], result["serverInfo"]["version"]) == ("knowledge-server", "1.0.0")
    tools = (await wire.ask(request("tools/list")))["result"]["tools"]
    assert tuple(tool["name"] for tool in tools) == SEVEN
    assert (await wire.ask(request("prompts/list")))["result"]["prompts"] == []

    path_of_file = knowledge.file("bees.html", "<p>Bees keep warm in a cluster.</p>")
    added = text_of(await wire.ask(call("knowledge-add", file_path=path_of_file, **{"async": False})))
    assert added["success"] is True
    found = await wire.ask(call("knowledge-search", "1", query="cluster", top_k=5))
    assert (found["jsonrpc"], found["id"]) == ("2.0", "1")
    assert text_of(found)["results"][0]["document_id"] == added["document_id"]
    for name in ("knowledge-show", "knowledge-status"):
        assert text_of(await wire.ask(call(name)))["success"] is True
    assert text_of(await wire.ask(call("knowledge-task-status", task_id=NOBODY)))["error"] == "task_not_found"
    assert text_of(await wire.ask(call("knowledge-add")))["error"] == "missing_required_parameter"
    gone = {"document_id": added["document_id"], "confirm": True}
    assert text_of(await wire.ask(call("knowledge-remove", **gone)))["success"] is True
    assert (
        text_of(await wire.ask(call("knowledge-clear", confirm=True, confirmation_phrase="DELETE ALL")))[
            "success"
        ]
        is True
    )
    assert (await wire.ask(request("tools/forget")))["error"]["code"] == -32601


@pytest.mark.requirement("N74", "N80", "N87")
@pytest.mark.parametrize("era", ERAS)
async def test_progress_comes_before_the_answer(
    serve_toolset: ServeToolset, knowledge: Knowledge, connect: Connect, era: str
) -> None:
    """Under the caller's token."""
    wire = await connect(await serve_toolset(knowledge.toolset))
    shape = await opened(wire, era)
    knowledge.engine.set_policy(AfterTime(seconds=3.0))
    arguments = {"file_path": knowledge.file("bees.html"), "async": False}
    await wire.send(shape(call("knowledge-add", 7, meta={"progressToken": "task-uuid"}, **arguments)))
    seen = [await wire.receive()]
    while "id" not in seen[-1]:
        seen.append(await wire.receive())
    *told, answer = seen
    assert (answer["id"], text_of(answer)["success"]) == (7, True)
    assert {each["method"] for each in told} == {"notifications/progress"}
    assert {each["params"]["progressToken"] for each in told} == {"task-uuid"}
    assert told[-1]["params"]["progress"] == 1.0
    assert "Generating embeddings" in [each["params"]["message"] for each in told]


@pytest.mark.requirement("N75", "N80")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("form", ["request", "notification"])
async def test_a_task_is_cancelled_by_its_id(
    serve_toolset: ServeToolset, knowledge: Knowledge, connect: Connect, era: str, form: str
) -> None:
    """In both forms of `tools/cancel`."""
    wire = await connect(await serve_toolset(knowledge.toolset))
    shape = await opened(wire, era)
    message = shape(request("tools/cancel", {"taskId": await stuck(knowledge)}, 5))
    if form == "request":
        assert (await wire.ask(message))["id"] == 5
        assert states(knowledge) == ["cancelled"]
    else:
        del message["id"]
        await wire.send(message)
        await asyncio.to_thread(
            until, lambda: states(knowledge), lambda seen: seen == ["cancelled"], seconds=BOUND, what="it"
        )


async def test_messages_of_2026_07_28_need_no_handshake(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect
) -> None:
    """Discovery, the list, a call; a handshake is refused afterwards with the versions there are."""
    wire = await connect(await serve_toolset(fake.toolset))
    discovered = (await wire.ask(modern(request("server/discover"))))["result"]
    assert "2026-07-28" in discovered["supportedVersions"]
    assert (await wire.ask(modern(request("tools/list"))))["result"]["tools"][0]["name"] == "echo"
    answer = await wire.ask(modern(call("echo", text="on")))
    assert answer["result"]["structuredContent"]["said"] == "on"
    assert (await wire.ask(initialize("2025-06-18")))["error"]["code"] == -32022


@pytest.mark.requirement("N80")
async def test_a_bare_call_is_answered_without_a_handshake(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect
) -> None:
    """As over HTTP; the handshake may come later, and an envelope belongs to a connection of its own."""
    wire = await connect(await serve_toolset(fake.toolset))
    answer = await wire.ask(call("echo", "1", text="bare"))
    assert (answer["id"], answer["result"]["structuredContent"]["said"]) == ("1", "bare")
    assert (await wire.greet("2025-03-26"))["protocolVersion"] == "2025-03-26"
    assert (await wire.ask(modern(call("echo", text="x"))))["error"]["code"] == -32600


@pytest.mark.parametrize(("offered", "agreed"), [((), None), (("mcp",), "mcp"), (("x", "mcp"), "mcp")])
async def test_the_subprotocol_is_agreed_where_it_is_offered(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect, offered: tuple[str, ...], agreed: str | None
) -> None:
    """Without one the messages are the same."""
    wire = await connect(await serve_toolset(fake.toolset), protocols=offered)
    assert wire.socket.protocol == agreed
    assert (await wire.ask(request("ping")))["id"] == "1"


# --- side by side ---------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_a_hundred_calls_run_at_once_on_one_connection(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect, era: str
) -> None:
    """All of them begin before one ends; each is answered once, under its id."""
    running, all_running = 0, asyncio.Event()

    async def meeting(arguments: NoArguments, call: Call) -> Empty:
        nonlocal running
        running += 1
        if running == 100:
            all_running.set()
        await all_running.wait()
        return Empty()

    fake.slow.run = meeting  # type: ignore[method-assign]
    wire = await connect(await serve_toolset(fake.toolset))
    shape = await opened(wire, era)
    await wire.send(*(shape(call("slow", number)) for number in range(100)))
    answers = [await wire.receive() for _ in range(100)]
    assert sorted(answer["id"] for answer in answers) == list(range(100))
    assert not any(answer["result"]["isError"] for answer in answers)


async def test_a_quick_call_does_not_wait_for_a_slow_one(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect
) -> None:
    """Answers come as they are ready, ids of both kinds apart."""
    wire = await connect(await serve_toolset(fake.toolset))
    await wire.send(call("slow", 1))
    assert (await wire.ask(call("echo", "1", text="x")))["id"] == "1"
    fake.slow.release.set()
    assert (await wire.receive())["id"] == 1


async def test_an_id_that_is_in_flight_is_not_taken_again(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect
) -> None:
    """Its answer could not be told from the other; afterwards it may be."""
    wire = await connect(await serve_toolset(fake.toolset))
    await wire.send(call("slow", 1))
    refused = await wire.ask(call("echo", 1, text="x"))
    assert (refused["id"], refused["error"]["code"]) == (1, -32600)
    fake.slow.release.set()
    assert (await wire.receive())["result"]["isError"] is False
    assert (await wire.ask(call("echo", 1, text="x")))["result"]["isError"] is False


@pytest.mark.parametrize("era", ERAS)
async def test_a_cancel_ends_the_call_that_it_names(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect, era: str
) -> None:
    """The tool's coroutine is cancelled, nothing is answered for it, and others go on."""
    wire = await connect(await serve_toolset(fake.toolset))
    shape = await opened(wire, era)
    await wire.send(shape(call("slow", 7)))
    await asyncio.wait_for(fake.slow.started.wait(), BOUND)
    await wire.send(cancelled(7))
    await asyncio.wait_for(fake.slow.cancelled.wait(), BOUND)
    assert (await wire.ask(shape(call("echo", 8, text="on"))))["id"] == 8


async def test_a_cancel_of_nothing_is_passed_over(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect
) -> None:
    """Of an id that is not in flight, of another connection's, of none at all."""
    served = await serve_toolset(fake.toolset)
    busy, other = await connect(served), await connect(served)
    await busy.send(call("slow", 1))
    await asyncio.wait_for(fake.slow.started.wait(), BOUND)
    for message in (
        cancelled(1),
        cancelled(2),
        cancelled(None),
        cancelled([]),
        {**cancelled(1), "params": {}},
    ):
        await other.send(message)
    assert (await other.ask(request("ping", request_id=9)))["id"] == 9
    assert not fake.slow.cancelled.is_set()
    fake.slow.release.set()
    assert (await busy.receive())["id"] == 1


# --- the door -------------------------------------------------------------------------------------


@pytest.mark.requirement("K9", "K11")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/fake"])
async def test_without_the_key_no_websocket_is_opened(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect, path: str
) -> None:
    """401 with a challenge, before anything else is looked at; with it, it is."""
    served = await serve_toolset(fake.toolset, settings={"api_key": KEY})
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
    serve_toolset: ServeToolset, fake: Fake, connect: Connect, headers: dict[str, str], status: int
) -> None:
    """Browsers ask nobody before they connect across sites: the Origin decides."""
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await connect(await serve_toolset(fake.toolset), headers=headers)
    assert caught.value.status == status


@pytest.mark.parametrize("origin", ["http://localhost:6274", "https://app.example"])
async def test_an_admitted_page_opens_one(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect, origin: str
) -> None:
    """As it may post."""
    served = await serve_toolset(fake.toolset, settings={"allowed_origins": ["https://app.example"]})
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
        ({"connection": "keep-alive"}, b"400"),
        ({"upgrade": "h2c"}, b"405"),
        ({"upgrade": None}, b"405"),
    ],
)
async def test_what_is_no_handshake_is_refused(
    serve_toolset: ServeToolset, fake: Fake, changed: dict[str, str | None], status: bytes
) -> None:
    """With the version that is spoken; a plain GET as ever."""
    served = await serve_toolset(fake.toolset)
    answer = await raw(served.port, upgrade(**changed))
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert status != b"426" or b"Sec-WebSocket-Version: 13" in answer


async def test_a_refused_upgrade_ends_its_connection(serve_toolset: ServeToolset, fake: Fake) -> None:
    """What comes after it would be taken for frames by neither side."""
    served = await serve_toolset(fake.toolset, settings={"api_key": KEY})
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(upgrade())
    answer = await asyncio.wait_for(reader.read(), BOUND)
    assert answer.startswith(b"HTTP/1.1 401 ")
    writer.close()


# --- its end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["close", "abort"])
@pytest.mark.parametrize("era", ERAS)
async def test_the_end_of_the_connection_cancels_its_calls(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect, way: str, era: str
) -> None:
    """The work, not only the waiting; other connections go on."""
    served = await serve_toolset(fake.toolset)
    wire, other = await connect(served), await connect(served)
    shape = await opened(wire, era)
    await wire.send(shape(call("slow", 1)))
    await asyncio.wait_for(fake.slow.started.wait(), BOUND)
    if way == "close":
        await wire.socket.close()
    else:
        connection = wire.socket._response.connection
        assert connection is not None
        assert connection.transport is not None
        connection.transport.abort()
    await asyncio.wait_for(fake.slow.cancelled.wait(), BOUND)
    assert (await other.ask(request("ping")))["id"] == "1"


async def test_what_a_lost_call_began_ends_with_it(
    serve_toolset: ServeToolset, knowledge: Knowledge, connect: Connect
) -> None:
    """A task that nobody could ask about any more."""
    wire = await connect(await serve_toolset(knowledge.toolset))
    knowledge.engine.set_policy(Stuck())
    arguments = {"file_path": knowledge.file("bees.html"), "async": False}
    await wire.send(call("knowledge-add", meta={"progressToken": "p"}, **arguments))
    await wire.receive()
    await wire.socket.close()
    await asyncio.to_thread(
        until, lambda: states(knowledge), lambda seen: seen == ["cancelled"], seconds=BOUND, what="the cancel"
    )


async def test_an_idle_connection_is_closed_when_the_server_stops(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect
) -> None:
    """With 1001, at once, and the lifespan is left after it."""
    served = await serve_toolset(fake.toolset, serve_options={"drain_seconds": 4 * BOUND})
    wires = [await connect(served) for _ in range(3)]
    await wires[0].greet()
    served.stop.set()
    assert [await wire.closed() for wire in wires] == [1001] * 3
    await asyncio.wait_for(asyncio.shield(served.task), BOUND)
    assert fake.left == 1


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_in_flight_is_answered_before_the_server_stops(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect, era: str
) -> None:
    """Then the connection is closed; what is sent meanwhile is not begun."""
    served = await serve_toolset(fake.toolset, serve_options={"drain_seconds": 2 * BOUND})
    wire = await connect(served)
    shape = await opened(wire, era)
    await wire.send(shape(call("slow", 1)))
    await asyncio.wait_for(fake.slow.started.wait(), BOUND)
    idle = await connect(served)
    served.stop.set()
    assert await idle.closed() == 1001
    await wire.send(shape(call("echo", 2, text="late")))
    fake.slow.release.set()
    assert (await wire.receive())["id"] == 1
    assert await wire.closed() == 1001
    assert fake.echo.calls == []
    await asyncio.wait_for(asyncio.shield(served.task), 2 * BOUND)
    assert not fake.slow.cancelled.is_set()


async def test_a_call_that_does_not_end_is_cancelled_and_told_so(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect
) -> None:
    """Stopping is bounded; the client learns that there is no result."""
    served = await serve_toolset(fake.toolset, serve_options={"drain_seconds": 0.5})
    wire = await connect(served)
    await wire.send(call("slow", 1))
    await asyncio.wait_for(fake.slow.started.wait(), BOUND)
    served.stop.set()
    assert (await wire.receive())["error"]["code"] == -32000
    assert await wire.closed() == 1001
    await asyncio.wait_for(asyncio.shield(served.task), BOUND)
    assert fake.slow.cancelled.is_set()


async def test_a_peer_that_answers_no_ping_is_given_up(serve_toolset: ServeToolset, fake: Fake) -> None:
    """Its calls with it; one that answers stays."""
    limits = SocketLimits(heartbeat=0.2)
    served = await serve_toolset(fake.toolset, sockets=limits)
    dead, alive = await Bare.open(served), await Bare.open(served)
    dead.writer.write(_text(call("slow", 1)))
    await asyncio.wait_for(fake.slow.started.wait(), BOUND)
    pings = 0
    while not fake.slow.cancelled.is_set():
        kind, payload = await alive.receive()
        assert kind == WSMsgType.PING
        alive.writer.write(frame(WSMsgType.PONG, payload))
        pings += 1
    alive.writer.write(_text(request("ping", request_id=2)))
    kind, payload = await alive.receive()
    while kind == WSMsgType.PING:
        alive.writer.write(frame(WSMsgType.PONG, payload))
        kind, payload = await alive.receive()
    assert json.loads(payload)["id"] == 2
    assert pings >= 1
    for each in (dead, alive):
        each.writer.close()


async def test_a_ping_of_the_clients_is_answered_with_its_words(
    serve_toolset: ServeToolset, fake: Fake
) -> None:
    """Between the pieces of a message too."""
    bare = await Bare.open(await serve_toolset(fake.toolset))
    text = json.dumps(request("ping", request_id=3)).encode()
    bare.writer.write(frame(WSMsgType.TEXT, text[:9], final=False) + frame(WSMsgType.PING, b"there?"))
    assert await bare.receive() == (WSMsgType.PONG, b"there?")
    bare.writer.write(frame(WSMsgType.CONTINUATION, text[9:]))
    assert (await bare.message())["id"] == 3
    bare.writer.close()


async def test_nothing_is_left_of_connections_that_have_ended(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect
) -> None:
    """No task that waits for anything."""
    served = await serve_toolset(fake.toolset)
    before = len(asyncio.all_tasks())
    for number in range(20):
        wire = await connect(served)
        await wire.send(call("slow", number))
        await asyncio.wait_for(fake.slow.started.wait(), BOUND)
        await wire.socket.close()
        await asyncio.wait_for(fake.slow.cancelled.wait(), BOUND)
        fake.slow.started.clear()
        fake.slow.cancelled.clear()
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(
        until,
        lambda: len(asyncio.all_tasks(loop)),
        lambda tasks: tasks <= before,
        seconds=BOUND,
        what="the end of their tasks",
    )


# --- what is seen of it ---------------------------------------------------------------------------


async def test_a_call_is_logged_and_counted_as_any(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """One line, its correlation id, one count; neither the key nor what was said."""
    caplog.set_level("INFO")
    metrics = Metrics()
    served = await serve_toolset(fake.toolset, settings={"api_key": KEY}, metrics=metrics)
    headers = {"Authorization": f"Bearer {KEY}", "User-Agent": "agent/1"}
    wire = await connect(served, headers=headers, protocols=("token-of-a-client",))
    await wire.ask(call("echo", text="words of a document", meta={"correlation_id": "abc"}))
    await wire.ask(call("refusing", 2))
    await wire.socket.close()
    ended = [r.__dict__["fields"] for r in caplog.records if r.message == "Tool echo (EchoTool) ended"]
    assert len(ended) == 1
    assert (ended[0]["correlation_id"], ended[0]["user_agent"]) == ("abc", "agent/1")
    text = metrics.render()
    assert 'mcp_requests_total{tool="echo",status="success"} 1' in text
    assert 'mcp_requests_total{tool="refusing",status="error"} 1' in text
    await asyncio.to_thread(
        until,
        lambda: [record.message for record in caplog.records],
        lambda told: "A WebSocket ended" in told,
        seconds=BOUND,
        what="the last line",
    )
    said = caplog.text + "".join(str(record.__dict__.get("fields")) for record in caplog.records)
    for secret in (KEY, "words of a document", "token-of-a-client"):
        assert secret not in said


async def test_a_fault_is_told_without_its_words(
    serve_toolset: ServeToolset, fake: Fake, connect: Connect
) -> None:
    """-32603, as over HTTP, and the connection goes on."""
    wire = await connect(await serve_toolset(fake.toolset))
    answer = await wire.ask(call("broken"))
    assert answer["error"]["code"] == -32603
    assert "ours alone" not in json.dumps(answer)
    assert (await wire.ask(request("ping")))["id"] == "1"


async def test_posts_are_answered_beside_it(
    http: aiohttp.ClientSession, serve_toolset: ServeToolset, fake: Fake, connect: Connect
) -> None:
    """On the same path."""
    served = await serve_toolset(fake.toolset)
    wire = await connect(served)
    async with http.post(served.mcp, json=call("echo", text="a"), headers=PLAIN) as response:
        assert response.status == 200
    assert (await wire.ask(request("ping")))["id"] == "1"


def _text(message: Any) -> bytes:
    return frame(WSMsgType.TEXT, json.dumps(message).encode())
