"""Long work as tasks of the protocol, in the form of each era, based on the engine's jobs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import build_toolset
from kb_simulator import AfterTime, FailAt, Stuck
from tests.protocol.conftest import Serve, Served, Start, stdio_environment
from tests.protocol.sockets import INITIALIZED, Connect
from tests.protocol.sockets import connect as connect
from tests.protocol.test_subscriptions import listening
from tests.support.eventually import eventually_async
from tests.support.mcp_messages import (
    BOTH,
    LATEST_HANDSHAKE,
    MODERN,
    PLAIN,
    call,
    events,
    initialize,
    modern,
    modern_headers,
    request,
)
from tests.support.patience import JOB_SECONDS, SILENCE
from tests.support.simulated_engine import SimulatedEngine

EXTENSION = "io.modelcontextprotocol/tasks"
WITH_TASKS: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}}}
OF_2025 = {**PLAIN, "MCP-Protocol-Version": LATEST_HANDSHAKE}
NOBODY = "8f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"
PATH = "/mcp/kb"
STATUS, PROGRESS = "notifications/tasks/status", "notifications/progress"
METHODS = ["tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "tasks/update"]
FAILS = FailAt(code="ocr_failed", message="OCR failed.")


async def started(stack: AsyncExitStack, serve: Serve, engine: SimulatedEngine, home: Path) -> Served:
    settings = ServerSettings(engine_url=engine.url, home=home, file_roots=[str(home)])
    services = await stack.enter_async_context(Services(settings))
    return await serve(*(build_toolset(name, services) for name in ("kb", "knowledge", "textfile")))


@pytest.fixture
async def served(serve: Serve, engine: SimulatedEngine, tmp_path: Path) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        yield await started(stack, serve, engine, tmp_path)


async def asked(served: Served, message: dict[str, Any], path: str = PATH) -> dict[str, Any]:
    """Return the answer to a message of 2025-11-25."""
    answer: dict[str, Any] = (await served.post(message, OF_2025, path)).json()
    return answer


async def asked_now(served: Served, message: dict[str, Any], path: str = PATH) -> dict[str, Any]:
    """Return the answer to a message of 2026-07-28 from a client with the extension."""
    answer: dict[str, Any] = (await served.post(modern(message, **WITH_TASKS), path=path)).json()
    return answer


def note(text: str = "Bees keep warm.", **arguments: Any) -> dict[str, Any]:
    return call("kb_addnote", text=text, collection="memory", **arguments)


def as_task(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "params": {**message["params"], "task": {"ttl": 60_000}}}


def of(method: str, task_id: str) -> dict[str, Any]:
    return request(method, {"taskId": task_id})


def error(answer: dict[str, Any]) -> tuple[int, str]:
    found = answer["error"]
    return found["code"], found["data"]["error_type"]


# --- 2025-11-25 --------------------------------------------------------------------------------------


async def test_tasks_are_announced_in_the_handshake_and_with_the_tools(served: Served) -> None:
    announced = (await served.post(initialize(LATEST_HANDSHAKE), path=PATH)).json()["result"]["capabilities"]
    assert announced["tasks"] == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    assert "extensions" not in announced
    tools = (await asked(served, request("tools/list")))["result"]["tools"]
    optional = {tool["name"] for tool in tools if tool.get("execution") == {"taskSupport": "optional"}}
    assert optional == {"kb_addnote", "kb_upload_finish"}
    other = (await served.post(initialize(LATEST_HANDSHAKE), path="/mcp/textfile")).json()["result"]
    assert "tasks" not in other["capabilities"]


async def test_a_call_becomes_a_task_whose_result_is_that_of_the_call(
    served: Served, engine: SimulatedEngine
) -> None:
    engine.state.policy = Stuck()
    created = (await asked(served, as_task(note())))["result"]
    task = created["task"]
    assert created.keys() == {"task"}
    assert (task["status"], task["ttl"], task["pollInterval"]) == ("working", None, 2_000)
    assert engine.state.job(task["taskId"]).status != "completed"
    assert (await asked(served, of("tasks/get", task["taskId"])))["result"]["status"] == "working"
    listed = (await asked(served, request("tasks/list")))["result"]
    assert [each["taskId"] for each in listed["tasks"]] == [task["taskId"]]
    ended = (await asked(served, of("tasks/cancel", task["taskId"])))["result"]
    assert (ended["taskId"], ended["status"]) == (task["taskId"], "cancelled")
    assert error(await asked(served, of("tasks/cancel", task["taskId"]))) == (-32602, "job_finished")
    result = (await asked(served, of("tasks/result", task["taskId"])))["result"]
    assert result["structuredContent"]["status"] == "cancelled"
    assert result["_meta"] == {"io.modelcontextprotocol/related-task": {"taskId": task["taskId"]}}


async def test_a_task_that_has_ended_tells_what_the_call_would_have(
    served: Served, engine: SimulatedEngine
) -> None:
    task = (await asked(served, as_task(note())))["result"]["task"]
    assert task["status"] == "working"  # the initial status of every task
    result = (await asked(served, of("tasks/result", task["taskId"])))["result"]
    content = result["structuredContent"]
    assert json.loads(result["content"][0]["text"]) == content
    assert (content["job_id"], content["status"], content["collection"]) == (
        task["taskId"],
        "completed",
        "memory",
    )
    waited = (await asked(served, note(wait_seconds=JOB_SECONDS)))["result"]["structuredContent"]
    assert waited.keys() == content.keys()


async def test_the_connection_of_a_call_is_notified_of_its_task_until_the_end(
    served: Served, engine: SimulatedEngine, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_aiohttp.protocol.tasks._REPORT_SECONDS", SILENCE)
    engine.state.policy = AfterTime(seconds=1_000)
    wire, other = await connect(served, path=PATH), await connect(served, path=PATH)
    for each in (wire, other):
        await each.greet(LATEST_HANDSHAKE)
    message = as_task(note())
    message["params"]["_meta"] = {"progressToken": "p1"}
    task_id = (await wire.ask(message))["result"]["task"]["taskId"]
    sent: dict[str, list[dict[str, Any]]] = {STATUS: [], PROGRESS: []}
    engine.namespace.clock.advance(600)
    while not sent[STATUS] or sent[STATUS][-1]["status"] == "working":
        received = await wire.receive()
        sent[received["method"]].append(received["params"])
        engine.namespace.clock.advance(300)
    assert {each["taskId"] for each in sent[STATUS]} == {task_id}
    assert {each["status"] for each in sent[STATUS]} == {"working", "completed"}
    assert all(each["ttl"] is None and each["lastUpdatedAt"] for each in sent[STATUS])
    reached = [each["progress"] for each in sent[PROGRESS]]
    assert reached == sorted(set(reached))
    assert reached[-1] == 1.0
    assert {each["progressToken"] for each in sent[PROGRESS]} == {"p1"}
    assert (await wire.ask(request("ping")))["id"] == "1", "nothing comes after the end"
    assert (await other.ask(request("ping")))["id"] == "1"


async def test_the_tasks_of_a_closed_connection_are_no_longer_polled(
    served: Served, engine: SimulatedEngine, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_aiohttp.protocol.tasks._FOLLOW_SECONDS", SILENCE)
    monkeypatch.setattr("mcp_aiohttp.protocol.tasks.MOST_FOLLOWED", 1)
    engine.state.policy = Stuck()
    wire = await connect(served, path=PATH)
    await wire.greet(LATEST_HANDSHAKE)
    await wire.send(as_task(note()), {**as_task(note("Wasps do not.")), "id": 2})
    started = [await wire.receive() for _ in range(3)]
    followed = {each["params"]["taskId"] for each in started if each.get("method") == STATUS}
    assert len(followed) == 1
    await wire.socket.close()
    seen: list[int] = []

    def at_rest() -> bool:
        seen.append(len(engine.journal.requests("getJob")))
        return seen[-1:] * 12 == seen[-12:]

    await eventually_async(at_rest, bool, what="no further look at the jobs")


async def test_a_fault_of_the_engine_does_not_end_the_notifications_of_a_task(
    served: Served, engine: SimulatedEngine, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_aiohttp.protocol.tasks._FOLLOW_SECONDS", SILENCE)
    engine.state.policy = AfterTime(seconds=1_000)
    wire = await connect(served, path=PATH)
    await wire.greet(LATEST_HANDSHAKE)
    engine.arm("internal_error", "getJob", times=4)  # more than the number of attempts of the client
    await wire.ask(as_task(note()))
    engine.namespace.clock.advance(2_000)
    while (await wire.receive())["params"]["status"] != "completed":
        pass


@pytest.mark.parametrize("as_result", [True, False])
async def test_progress_is_reported_until_the_job_ends(
    served: Served, engine: SimulatedEngine, as_result: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the request that waits: `tasks/result` of a task, or a call with `wait_seconds`."""
    monkeypatch.setattr("kb_server.following.LOOK_SECONDS", SILENCE)
    monkeypatch.setattr("mcp_aiohttp.protocol.tasks._REPORT_SECONDS", SILENCE)
    engine.state.policy = AfterTime(seconds=0.6)
    token = {"progressToken": "p1"}
    if as_result:
        task = (await asked(served, as_task(note())))["result"]["task"]
        message = request("tasks/result", {"taskId": task["taskId"], "_meta": token})
    else:
        message = note(wait_seconds=JOB_SECONDS)
        message["params"]["_meta"] = token
    response = await served.post(message, {**OF_2025, **BOTH}, PATH)
    *told, answer = events(response.text)
    assert answer["result"]["structuredContent"]["status"] == "completed"
    reached = [each["params"]["progress"] for each in told]
    assert len(reached) > 2
    assert reached == sorted(set(reached))
    assert reached[-1] == 1.0
    assert {each["params"]["progressToken"] for each in told} == {"p1"}


async def test_a_refused_call_becomes_no_task(served: Served) -> None:
    assert error(await asked(served, as_task(call("kb_addnote")))) == (-32602, "missing_required_parameter")
    assert error(await asked(served, as_task(call("kb_search", query="bees")))) == (-32601, "no_task")
    assert error(await asked(served, as_task(call("nothing")))) == (-32602, "unknown_tool")


async def test_a_failed_file_is_a_failed_task(
    served: Served, engine: SimulatedEngine, tmp_path: Path
) -> None:
    engine.state.policy = FAILS
    (tmp_path / "bees.html").write_text("<p>Bees</p>")
    add = call("knowledge-add", file_path=str(tmp_path / "bees.html"))
    task_id = (await asked(served, as_task(add), "/mcp/knowledge"))["result"]["task"]["taskId"]
    state = (await asked(served, of("tasks/get", task_id), "/mcp/knowledge"))["result"]
    assert (state["status"], state["statusMessage"]) == ("failed", "OCR failed.")
    result = (await asked(served, of("tasks/result", task_id), "/mcp/knowledge"))["result"]
    assert result["isError"]
    assert json.loads(result["content"][0]["text"])["success"] is False


@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26", "2024-11-05"])
@pytest.mark.parametrize("method", METHODS)
async def test_earlier_versions_have_no_tasks(served: Served, version: str, method: str) -> None:
    headers = {**PLAIN, "MCP-Protocol-Version": version}
    answer = (await served.post(of(method, NOBODY), headers, PATH)).json()
    assert answer["error"]["code"] == -32601
    plain = (await served.post(as_task(note()), headers, PATH)).json()
    assert "structuredContent" in plain["result"]


@pytest.mark.parametrize("task_id", [NOBODY, "x", "", "../jobs", "9" * 5_000])
async def test_an_unknown_task_id_is_invalid_parameters(served: Served, task_id: str) -> None:
    for method in ("tasks/get", "tasks/result", "tasks/cancel"):
        assert (await asked(served, of(method, task_id)))["error"]["code"] == -32602
    assert (await asked_now(served, of("tasks/get", task_id)))["error"]["code"] == -32602
    assert (await asked_now(served, of("tasks/cancel", task_id)))["result"]["resultType"] == "complete"
    assert (await asked(served, request("tasks/list", {"cursor": "x"})))["error"]["code"] == -32602
    assert (await asked(served, request("tasks/get", {})))["error"]["code"] == -32602


async def test_many_tasks_come_in_pages(served: Served, engine: SimulatedEngine) -> None:
    for number in range(101):
        engine.add("collection:memory", text=f"note {number}")
    first = (await asked(served, request("tasks/list")))["result"]
    rest = (await asked(served, request("tasks/list", {"cursor": first["nextCursor"]})))["result"]
    assert len({each["taskId"] for page in (first, rest) for each in page["tasks"]}) == 101
    assert "nextCursor" not in rest


# --- 2026-07-28 --------------------------------------------------------------------------------------


async def test_the_extension_is_announced(served: Served) -> None:
    found = (await served.post(modern(request("server/discover")), path=PATH)).json()["result"][
        "capabilities"
    ]
    assert found["extensions"] == {EXTENSION: {}}
    assert "tasks" not in found


async def test_a_client_with_the_extension_gets_a_task_in_place_of_waiting(
    served: Served, engine: SimulatedEngine
) -> None:
    engine.state.policy = Stuck()
    created = (await asked_now(served, note(wait_seconds=JOB_SECONDS)))["result"]
    assert (created["resultType"], created["status"], created["ttlMs"]) == ("task", "working", None)
    state = (await asked_now(served, of("tasks/get", created["taskId"])))["result"]
    assert (state["resultType"], state["status"]) == ("complete", "working")
    assert "result" not in state
    for method in ("tasks/update", "tasks/cancel", "tasks/cancel"):
        answer = (await asked_now(served, of(method, created["taskId"])))["result"]
        assert answer.keys() == {"resultType", "_meta"}
    assert (await asked_now(served, of("tasks/get", created["taskId"])))["result"]["status"] == "cancelled"
    for method in ("tasks/result", "tasks/list"):
        assert (await asked_now(served, of(method, created["taskId"])))["error"]["code"] == -32601


async def test_calls_that_need_no_waiting_complete_without_a_task(
    served: Served, engine: SimulatedEngine
) -> None:
    start = call("kb_upload_start", filename="bees.txt", total_size=4)
    upload = (await asked_now(served, start))["result"]["structuredContent"]["upload_id"]
    await asked_now(served, call("kb_upload_chunk", upload_id=upload, chunk_index=0, data="QmVlcw=="))
    finish = call("kb_upload_finish", upload_id=upload, wait_seconds=JOB_SECONDS)
    job_id = (await asked_now(served, finish))["result"]["taskId"]
    assert engine.state.job(job_id).status == "completed"
    assert (await asked_now(served, finish))["result"]["structuredContent"]["job_id"] == job_id
    engine.state.policy = Stuck()
    at_once = (await asked_now(served, note("Wasps do not.")))["result"]
    assert at_once["structuredContent"]["status"] in ("queued", "running")
    without = (await served.post(modern(note("Ants neither.", wait_seconds=SILENCE)), path=PATH)).json()[
        "result"
    ]
    assert without["resultType"] == "complete"


async def test_a_task_that_has_ended_has_its_result_with_it(served: Served) -> None:
    job_id = (await asked_now(served, note()))["result"]["structuredContent"]["job_id"]
    state = (await asked_now(served, of("tasks/get", job_id)))["result"]
    assert (state["status"], state["result"]["structuredContent"]["job_id"]) == ("completed", job_id)
    assert "related-task" not in json.dumps(state["result"])


async def test_a_failure_of_the_work_is_a_result(
    served: Served, engine: SimulatedEngine, tmp_path: Path
) -> None:
    """`failed` is only for errors of the protocol."""
    engine.state.policy = FAILS
    (tmp_path / "bees.html").write_text("<p>Bees</p>")
    in_background: dict[str, Any] = {"async": True}
    add = call("knowledge-add", file_path=str(tmp_path / "bees.html"), **in_background)
    task_id = (await asked_now(served, add, "/mcp/knowledge"))["result"]["structuredContent"]["task_id"]
    state = (await asked_now(served, of("tasks/get", task_id), "/mcp/knowledge"))["result"]
    assert (state["status"], state["result"]["isError"]) == ("completed", True)


def listen(*task_ids: Any) -> dict[str, Any]:
    return request("subscriptions/listen", {"notifications": {"taskIds": list(task_ids)}}, "l")


@pytest.mark.parametrize("way", ["http", "websocket"])
async def test_a_stream_reports_its_tasks_until_they_have_ended(
    served: Served, engine: SimulatedEngine, connect: Connect, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("mcp_aiohttp.protocol.tasks._FOLLOW_SECONDS", SILENCE)
    engine.state.policy = AfterTime(seconds=1_000)
    job_id = (await asked_now(served, note()))["result"]["structuredContent"]["job_id"]
    message = modern(listen(job_id, NOBODY, job_id), **WITH_TASKS)
    receive: Callable[[], Awaitable[dict[str, Any]]]
    async with AsyncExitStack() as stack:
        if way == "websocket":
            wire = await connect(served, path=PATH)
            await wire.send(message)
            receive = wire.receive
        else:
            frames = await stack.enter_async_context(listening(served, message, path=PATH))
            receive = partial(anext, frames)
        acknowledged = (await receive())["params"]
        assert acknowledged["notifications"] == {"taskIds": [job_id]}
        reported: list[dict[str, Any]] = []
        while not reported or reported[-1]["status"] == "working":
            frame = await receive()
            assert frame["method"] == "notifications/tasks"
            reported.append(frame["params"])
            engine.namespace.clock.advance(600)
        meta = [each.pop("_meta") for each in reported]
    assert meta == [{"io.modelcontextprotocol/subscriptionId": "l"}] * len(reported)
    assert [each["ttlMs"] for each in reported] == [None] * len(reported)
    state = (await asked_now(served, of("tasks/get", job_id)))["result"]
    assert {**reported[-1], "resultType": "complete"} == {
        name: state[name] for name in state if name != "_meta"
    }


async def test_the_tasks_of_a_stream_are_a_list_of_ids(served: Served) -> None:
    assert error(await asked_now(served, listen(7))) == (-32602, "invalid_task_ids")


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel", "tasks/update"])
async def test_a_client_that_did_not_declare_the_extension_is_refused(served: Served, method: str) -> None:
    answer = await served.post(modern(of(method, NOBODY)), path=PATH)
    failed = answer.json()["error"]
    assert (answer.status_code, failed["code"]) == (400, -32021)
    assert failed["data"]["requiredCapabilities"] == {"extensions": {EXTENSION: {}}}
    assert (await served.post(modern(listen(NOBODY)), path=PATH)).json()["error"]["code"] == -32021


async def test_a_header_that_names_another_task_is_refused(served: Served) -> None:
    job_id = (await asked_now(served, note()))["result"]["structuredContent"]["job_id"]
    message = modern(of("tasks/get", job_id), **WITH_TASKS)
    wrong = await served.post(message, modern_headers(message, **{"Mcp-Name": NOBODY}), PATH)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, -32020)
    right = await served.post(message, modern_headers(message, **{"Mcp-Name": job_id}), PATH)
    assert right.json()["result"]["taskId"] == job_id


# --- both --------------------------------------------------------------------------------------------


async def test_a_task_outlives_the_server_that_began_it(
    serve: Serve, engine: SimulatedEngine, tmp_path: Path
) -> None:
    engine.state.policy = Stuck()
    async with AsyncExitStack() as stack:
        first = await started(stack, serve, engine, tmp_path / "first")
        task_id = (await asked(first, as_task(note())))["result"]["task"]["taskId"]
        first.stop.set()
        await first.task
        second = await started(stack, serve, engine, tmp_path / "second")
        assert (await asked(second, of("tasks/get", task_id)))["result"]["status"] == "working"
        assert (await asked_now(second, of("tasks/get", task_id)))["result"]["status"] == "working"


@pytest.mark.parametrize("era", [LATEST_HANDSHAKE, MODERN])
async def test_tasks_are_served_over_a_websocket(
    served: Served, engine: SimulatedEngine, connect: Connect, era: str
) -> None:
    engine.state.policy = Stuck()
    wire = await connect(served, path=PATH)
    if era == MODERN:
        created = (await wire.ask(modern(note(wait_seconds=JOB_SECONDS), **WITH_TASKS)))["result"]
        state = (await wire.ask(modern(of("tasks/get", created["taskId"]), **WITH_TASKS)))["result"]
    else:
        await wire.greet(era)
        created = (await wire.ask(as_task(note())))["result"]["task"]
        state = (await wire.ask(of("tasks/get", created["taskId"])))["result"]
    assert (state["taskId"], state["status"]) == (created["taskId"], "working")


@pytest.mark.process
async def test_a_client_over_stdio_is_notified_of_its_tasks(
    engine: SimulatedEngine, start: Start, tmp_path: Path
) -> None:
    environment = {**stdio_environment(), "KB_ENGINE_URL": engine.url, "KB_HOME": str(tmp_path)}
    process = await start(command=("-m", "kb_cli.main", "stdio"), environment=environment)
    await process.ask(initialize(LATEST_HANDSHAKE))
    await process.send(INITIALIZED)
    engine.state.policy = Stuck()
    task_id = (await process.ask(as_task(note())))["result"]["task"]["taskId"]
    await process.ask(of("tasks/cancel", task_id))
    changes = [await process.receive()]
    while changes[-1]["params"]["status"] == "working":
        changes.append(await process.receive())
    assert {(each["method"], each["params"]["taskId"]) for each in changes} == {(STATUS, task_id)}
    assert changes[-1]["params"]["status"] == "cancelled"
