"""The same messages over WebSocket: eras, concurrent calls, progress, cancellation, logs and metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kb_config.logs import fields_of
from kb_server.observability.metrics import Metrics
from kb_server.tool import Call, NoArguments
from mcp_aiohttp.fastpath import FastPath, FastRequest
from mcp_aiohttp.protocol.caller import Caller
from tests.protocol.conftest import Serve, Served
from tests.protocol.sockets import ERAS, WAYS, Bare, Connect, given_up, opened, text_frame
from tests.protocol.sockets import connect as connect
from tests.protocol.test_knowledge import states, stuck
from tests.support.eventually import eventually_async
from tests.support.fake_toolset import Empty, Fake
from tests.support.knowledge import Knowledge
from tests.support.mcp_messages import call, for_the_kernel, initialize, modern, request
from tests.support.patience import ANSWER_SECONDS

KEY = "a-secret-key"


# --- messages --------------------------------------------------------------------------------------


@pytest.mark.requirement("N75", "N80")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("form", ["request", "notification"])
async def test_a_task_is_cancelled_by_its_id(
    serve: Serve, knowledge: Knowledge, connect: Connect, era: str, form: str
) -> None:
    wire = await connect(await serve(knowledge.toolset))
    shape = await opened(wire, era)
    message = shape(request("tools/cancel", {"taskId": await stuck(knowledge)}, 5))
    if form == "request":
        assert (await wire.ask(message))["id"] == 5
        assert states(knowledge) == ["cancelled"]
    else:
        del message["id"]
        await wire.send(message)
        await eventually_async(lambda: states(knowledge), lambda seen: seen == ["cancelled"], what="it")


async def test_messages_of_2026_07_28_need_no_handshake(served: Served, connect: Connect) -> None:
    wire = await connect(served)
    discovered = (await wire.ask(modern(request("server/discover"))))["result"]
    assert "2026-07-28" in discovered["supportedVersions"]
    assert (await wire.ask(modern(request("tools/list"))))["result"]["tools"][0]["name"] == "echo"
    answer = await wire.ask(modern(call("echo", text="on")))
    assert answer["result"]["structuredContent"]["said"] == "on"
    assert (await wire.ask(initialize("2025-06-18")))["error"]["code"] == -32022


@pytest.mark.requirement("N80")
async def test_a_bare_call_is_answered_without_a_handshake(served: Served, connect: Connect) -> None:
    """HTTP behaves the same; a handshake may follow, but this connection accepts no envelope."""
    wire = await connect(served)
    answer = await wire.ask(call("echo", "1", text="bare"))
    assert (answer["id"], answer["result"]["structuredContent"]["said"]) == ("1", "bare")
    assert (await wire.greet("2025-03-26"))["protocolVersion"] == "2025-03-26"
    assert (await wire.ask(modern(call("echo", text="x"))))["error"]["code"] == -32600


@pytest.mark.parametrize(("offered", "agreed"), [((), None), (("mcp",), "mcp"), (("x", "mcp"), "mcp")])
async def test_the_subprotocol_is_agreed_where_it_is_offered(
    served: Served, connect: Connect, offered: tuple[str, ...], agreed: str | None
) -> None:
    wire = await connect(served, protocols=offered)
    assert wire.socket.protocol == agreed
    assert (await wire.ask(request("ping")))["id"] == "1"


# --- concurrent calls ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("era", ERAS)
async def test_a_hundred_calls_run_at_once_on_one_connection(
    served: Served, fake: Fake, connect: Connect, era: str, way: str
) -> None:
    running, all_running = 0, asyncio.Event()

    async def meeting(arguments: NoArguments, call: Call) -> Empty:
        nonlocal running
        running += 1
        if running == 100:
            all_running.set()
        await all_running.wait()
        return Empty()

    fake.slow.run = meeting  # type: ignore[method-assign]
    wire = await connect(served)
    shape = await opened(wire, era, way)
    await wire.send(*(shape(call("slow", number)) for number in range(100)))
    answers = [await wire.receive() for _ in range(100)]
    assert sorted(answer["id"] for answer in answers) == list(range(100))
    assert not any(answer["result"]["isError"] for answer in answers)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("era", ERAS)
async def test_a_cancel_ends_the_call_that_it_names(
    served: Served, fake: Fake, connect: Connect, era: str, way: str
) -> None:
    wire = await connect(served)
    shape = await opened(wire, era, way)
    await wire.send(shape(call("slow", 7)))
    await asyncio.wait_for(fake.slow.started.wait(), ANSWER_SECONDS)
    await wire.send(given_up(7))
    await asyncio.wait_for(fake.slow.cancelled.wait(), ANSWER_SECONDS)
    assert (await wire.ask(shape(call("echo", 8, text="on"))))["id"] == 8


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_given_up_before_it_began_is_not_answered(served: Served, fake: Fake, era: str) -> None:
    """Both messages arrive in one piece; the string "7" and the number 7 are the same id to a cancel."""
    bare = await Bare.open(served)
    shape = modern if era == "modern" else dict
    bare.writer.write(text_frame(shape(request("tools/list", request_id=0))))
    await bare.message()
    pieces = [shape(call("slow", 7)), given_up("7"), shape(call("slow", "8")), given_up(8)]
    bare.writer.write(b"".join(text_frame(piece) for piece in [*pieces, shape(call("echo", 9, text="x"))]))
    assert (await bare.message())["id"] == 9
    fake.slow.release.set()
    bare.writer.write(text_frame(shape(call("echo", 10, text="x"))))
    assert (await bare.message())["id"] == 10
    bare.writer.close()


@pytest.mark.parametrize("era", ERAS)
async def test_a_plain_call_takes_the_fast_path_once_the_era_is_settled(
    served: Served, connect: Connect, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not earlier: a message sent together with the handshake waits for its version."""
    taken: list[Any] = []
    answer = FastPath.answer

    async def noted(fast_path: FastPath, request: FastRequest, caller: Caller) -> bytes:
        taken.append(request.id)
        return await answer(fast_path, request, caller)

    monkeypatch.setattr(FastPath, "answer", noted)
    wire = await connect(served)
    first = modern(call("echo", 1, text="x")) if era == "modern" else initialize("2025-06-18")
    shape = modern if era == "modern" else dict
    await wire.send(first, shape(call("echo", 2, text="x")))
    assert {(await wire.receive())["id"] for _ in range(2)} == {first["id"], 2}
    assert taken == ([2] if era == "modern" else [])
    for number in (3, 4):
        assert (await wire.ask(shape(call("echo", number, text="x"))))["id"] == number
    assert taken[-2:] == [3, 4]
    await wire.ask(shape(call("echo", 5, text="x", meta={"progressToken": 1})))
    assert taken[-1] == 5
    await wire.ask(for_the_kernel(shape(call("echo", 6, text="x"))))
    assert 6 not in taken


async def test_a_second_handshake_settles_the_version_anew(served: Served, connect: Connect) -> None:
    wire = await connect(served)
    for version in ("2025-11-25", "2024-11-05", "2025-06-18"):
        assert (await wire.greet(version))["protocolVersion"] == version
        said = (await wire.ask(call("echo", text="x")))["result"]
        assert said["isError"] is False
    assert (await wire.ask(request("initialize", {"protocolVersion": 5})))["error"]["code"] == -32602
    assert (await wire.ask(call("echo", text="x")))["result"] == said


async def test_a_cancel_of_nothing_is_passed_over(served: Served, fake: Fake, connect: Connect) -> None:
    busy, other = await connect(served), await connect(served)
    await busy.send(call("slow", 1))
    await asyncio.wait_for(fake.slow.started.wait(), ANSWER_SECONDS)
    for message in (given_up(1), given_up(2), given_up(None), given_up([]), {**given_up(1), "params": {}}):
        await other.send(message)
    assert (await other.ask(request("ping", request_id=9)))["id"] == 9
    assert not fake.slow.cancelled.is_set()
    fake.slow.release.set()
    assert (await busy.receive())["id"] == 1


# --- logs and metrics ------------------------------------------------------------------------------


async def test_a_call_is_logged_and_counted_as_any(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    metrics = Metrics()
    served = await serve(settings={"api_key": KEY}, metrics=metrics)
    headers = {"Authorization": f"Bearer {KEY}", "User-Agent": "agent/1"}
    wire = await connect(served, headers=headers, protocols=("token-of-a-client",))
    await wire.ask(call("echo", text="words of a document", meta={"correlation_id": "abc"}))
    await wire.ask(call("refusing", 2))
    await wire.socket.close()
    ended = [fields_of(r) for r in caplog.records if r.message == "Tool echo (EchoTool) ended"]
    assert len(ended) == 1
    assert (ended[0]["correlation_id"], ended[0]["user_agent"]) == ("abc", "agent/1")
    text = metrics.render()
    assert 'mcp_requests_total{tool="echo",status="success"} 1' in text
    assert 'mcp_requests_total{tool="refusing",status="error"} 1' in text
    await eventually_async(
        lambda: [record.message for record in caplog.records],
        lambda told: "A WebSocket ended" in told,
        what="the last line",
    )
    said = caplog.text + "".join(str(fields_of(record)) for record in caplog.records)
    for secret in (KEY, "words of a document", "token-of-a-client"):
        assert secret not in said
