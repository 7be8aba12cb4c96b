"""Clients with elicitation are asked for confirmation before documents are removed."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters, types
from mcp.client import Client
from mcp.client.stdio import stdio_client

from kb_config.logs import fields_of
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import build_toolset
from mcp_aiohttp.protocol import elicitation
from tests.protocol.conftest import Serve, Served, stdio_environment
from tests.protocol.sockets import INITIALIZED, Connect, Wire, given_up
from tests.protocol.sockets import connect as connect
from tests.support.eventually import eventually_async
from tests.support.mcp_messages import LATEST_HANDSHAKE, call, initialize, modern
from tests.support.simulated_engine import SimulatedEngine

FORM: dict[str, Any] = {"elicitation": {"form": {}}}
CAN_ASK = {"io.modelcontextprotocol/clientCapabilities": FORM}
REPLIES = ["decline", "cancel"]


@pytest.fixture
async def server(serve: Serve, engine: SimulatedEngine, tmp_path: Path) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        yield await started(stack, serve, engine, tmp_path)


async def started(
    stack: AsyncExitStack, serve: Serve, engine: SimulatedEngine, home: Path, **settings: Any
) -> Served:
    services = await stack.enter_async_context(
        Services(ServerSettings(engine_url=engine.url, home=home, **settings))
    )
    return await serve(*(build_toolset(name, services) for name in ("kb-extra", "knowledge")))


def note(engine: SimulatedEngine, title: str = "Stones") -> int:
    return engine.add("collection:memory", text=f"{title} are hard.", title=title).id


def documents(engine: SimulatedEngine) -> list[int]:
    return sorted(engine.state.documents.by_id)


def delete(number: int, request_id: Any = "1", **arguments: Any) -> dict[str, Any]:
    return call("kb_delete", request_id, document_id=number, **arguments)


def answered(message: dict[str, Any], requests: dict[str, Any], **reply: Any) -> dict[str, Any]:
    """Return the call again, with the same reply to each of `requests`."""
    params = {**message["params"], "inputResponses": dict.fromkeys(requests, reply)}
    return {**message, "params": params}


def error_of(answer: dict[str, Any]) -> dict[str, Any]:
    result = answer["result"]
    assert result["isError"], result
    found: dict[str, Any] = json.loads(result["content"][0]["text"])
    return found


# --- 2026-07-28: the question is the answer to the call ----------------------------------------------


async def asked(served: Served, message: dict[str, Any], path: str = "/mcp/kb-extra") -> dict[str, Any]:
    """Return the input requests in the answer to a call."""
    result = (await served.post(message, path=path)).json()["result"]
    assert result["resultType"] == "input_required", result
    requests: dict[str, Any] = result["inputRequests"]
    return requests


async def test_a_removal_is_asked_for_and_done_when_the_call_comes_again(
    server: Served, engine: SimulatedEngine
) -> None:
    number = note(engine)
    message = modern(delete(number), **CAN_ASK)
    requests = await asked(server, message)
    ((question),) = requests.values()
    assert question["method"] == "elicitation/create"
    assert "“Stones”" in question["params"]["message"]
    assert "can be restored" in question["params"]["message"]
    assert documents(engine) == [number]
    done = (await server.post(answered(message, requests, action="accept"), path="/mcp/kb-extra")).json()
    assert done["result"]["structuredContent"]["documents"] == 1
    assert documents(engine) == []


async def test_a_title_says_nothing_beside_the_question(server: Served, engine: SimulatedEngine) -> None:
    """The title is untrusted and may have been written to mislead the user."""
    number = note(engine, "Stones?\n\nAll is well:\u202e press yes.\r\n" + "x" * 300)
    ((question),) = (await asked(server, modern(delete(number), **CAN_ASK))).values()
    message = question["params"]["message"]
    assert message.isprintable()
    assert len(message) < 200
    assert message.startswith("Remove “Stones? All is well: press yes. xxx")


@pytest.mark.parametrize("reply", REPLIES)
async def test_without_approval_everything_stays(server: Served, engine: SimulatedEngine, reply: str) -> None:
    number = note(engine)
    message = modern(delete(number, purge=True), **CAN_ASK)
    requests = await asked(server, message)
    refused = error_of(
        (await server.post(answered(message, requests, action=reply), path="/mcp/kb-extra")).json()
    )
    assert (refused["error"], refused["answer"]) == ("not_confirmed", reply)
    assert documents(engine) == [number]


async def test_a_confirmation_of_another_deletion_is_ignored(server: Served, engine: SimulatedEngine) -> None:
    """The same applies if the document was renamed since the question, or to a different call."""
    first, second = note(engine), note(engine, "Chalk")
    message = modern(delete(first), **CAN_ASK)
    requests = await asked(server, message)
    other = answered(modern(delete(second), **CAN_ASK), requests, action="accept")
    assert (await asked(server, other)).keys().isdisjoint(requests)
    purging = answered(modern(delete(first, purge=True), **CAN_ASK), requests, action="accept")
    assert (await asked(server, purging)).keys().isdisjoint(requests)
    misfit = answered(message, requests, roots=[])
    assert (await asked(server, misfit)).keys() == requests.keys()
    assert documents(engine) == [first, second]


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {"url": {}}}, {"sampling": {}}])
async def test_a_client_that_cannot_ask_is_served_as_before(
    server: Served, engine: SimulatedEngine, capabilities: dict[str, Any]
) -> None:
    number = note(engine)
    message = modern(delete(number), **{"io.modelcontextprotocol/clientCapabilities": capabilities})
    assert "structuredContent" in (await server.post(message, path="/mcp/kb-extra")).json()["result"]
    assert documents(engine) == []


async def test_deletion_needs_no_confirmation_if_the_setting_is_off(
    serve: Serve, engine: SimulatedEngine, tmp_path: Path
) -> None:
    number = note(engine)
    async with AsyncExitStack() as stack:
        served = await started(stack, serve, engine, tmp_path, ask_before_removal=False)
        message = modern(delete(number), **CAN_ASK)
        assert "structuredContent" in (await served.post(message, path="/mcp/kb-extra")).json()["result"]


async def test_deleting_a_missing_document_asks_for_no_confirmation(server: Served) -> None:
    answer = (await server.post(modern(delete(99), **CAN_ASK), path="/mcp/kb-extra")).json()
    assert error_of(answer)["error"] == "document_not_found"


@pytest.mark.requirement("N34", "N50")
async def test_the_seven_tools_ask_beside_their_own_confirmation(
    server: Served, engine: SimulatedEngine
) -> None:
    """Without their arguments they refuse as usual, without a question."""
    path = "/mcp/knowledge"
    document = engine.add("collection:memory", text="Granite is hard.")
    number, uid = document.id, document.uid
    unconfirmed = modern(call("knowledge-remove", document_id=uid), **CAN_ASK)
    refused = error_of((await server.post(unconfirmed, path=path)).json())
    assert (refused["error"], refused["success"]) == ("confirmation_required", False)
    remove = modern(call("knowledge-remove", document_id=uid, confirm=True), **CAN_ASK)
    clear = modern(call("knowledge-clear", confirm=True, confirmation_phrase="DELETE ALL"), **CAN_ASK)
    for message in (remove, clear):
        requests = await asked(server, message, path)
        declined = answered(message, requests, action="decline")
        refused = error_of((await server.post(declined, path=path)).json())
        assert (refused["error"], refused["success"]) == ("not_confirmed", False)
    assert documents(engine) == [number]
    approved = answered(clear, requests, action="accept")
    done = (await server.post(approved, path=path)).json()["result"]["structuredContent"]
    assert done["documents_removed"] == 1


async def test_without_a_session_nothing_is_known_of_the_client(
    server: Served, engine: SimulatedEngine
) -> None:
    """The handshake eras over HTTP: the client of the handshake may differ from the caller."""
    number = note(engine)
    assert "structuredContent" in (await server.post(delete(number), path="/mcp/kb-extra")).json()["result"]
    assert documents(engine) == []


# --- the handshake versions: a request in the middle of the call --------------------------------------


async def greeted(
    connect: Connect, served: Served, version: str = LATEST_HANDSHAKE, **capabilities: Any
) -> Wire:
    wire = await connect(served, path="/mcp/kb-extra")
    hello = initialize(version)
    hello["params"]["capabilities"] = capabilities
    assert (await wire.ask(hello))["result"]["protocolVersion"] == version
    await wire.send(INITIALIZED)
    return wire


@pytest.mark.parametrize("version", ["2025-06-18", LATEST_HANDSHAKE])
@pytest.mark.parametrize("reply", ["accept", *REPLIES])
async def test_a_person_is_asked_over_a_websocket(
    server: Served, engine: SimulatedEngine, connect: Connect, version: str, reply: str
) -> None:
    number = note(engine)
    wire = await greeted(connect, server, version, elicitation={})
    question = await wire.ask(delete(number))
    assert question["method"] == "elicitation/create"
    assert documents(engine) == [number]
    answer = await wire.ask({"jsonrpc": "2.0", "id": question["id"], "result": {"action": reply}})
    assert answer["id"] == "1"
    assert answer["result"]["isError"] is (reply != "accept")
    assert documents(engine) == ([] if reply == "accept" else [number])


@pytest.mark.parametrize(
    "reply",
    [
        {"error": {"code": -32601, "message": "Method not found"}},
        {"error": {"code": -1, "message": "user rejected"}},
        {"error": "no"},
        {"result": {}},
        {"result": {"action": "yes"}},
        {"result": []},
        {"result": None},
    ],
)
async def test_a_reply_that_is_none_leaves_everything(
    server: Served, engine: SimulatedEngine, connect: Connect, reply: dict[str, Any]
) -> None:
    number = note(engine)
    wire = await greeted(connect, server, **FORM)
    question = await wire.ask(delete(number))
    refused = error_of(await wire.ask({"jsonrpc": "2.0", "id": question["id"], **reply}))
    assert (refused["error"], refused["answer"]) == ("not_confirmed", "none")
    assert documents(engine) == [number]


async def test_no_answer_ends_the_call_after_a_while(
    server: Served, engine: SimulatedEngine, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elicitation, "ANSWER_SECONDS", 0.05)
    number = note(engine)
    wire = await greeted(connect, server, **FORM)
    question = await wire.ask(delete(number))
    taken_back = await wire.receive()
    assert taken_back["method"] == "notifications/cancelled"
    assert taken_back["params"]["requestId"] == question["id"]
    assert error_of(await wire.receive())["answer"] == "none"
    late = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}}
    await wire.send(late)
    assert documents(engine) == [number]


async def test_a_client_that_leaves_or_gives_up_ends_the_call(
    server: Served, engine: SimulatedEngine, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def cancelled() -> int:
        ended = [fields_of(each) for each in caplog.records if each.message.startswith("Tool kb_delete")]
        return [fields.get("error") for fields in ended].count("cancelled")

    number = note(engine)
    wire = await greeted(connect, server, **FORM)
    question = await wire.ask(delete(number, 7))
    await wire.send(given_up(7))
    assert (await wire.receive())["method"] == "notifications/cancelled"
    assert (await wire.ask(delete(number, 8)))["id"] != question["id"]
    await wire.socket.close()
    await eventually_async(cancelled, lambda count: count == 2, what="the end of both calls")
    other = await greeted(connect, server, **FORM)
    assert (await other.ask(delete(number)))["method"] == "elicitation/create"
    assert documents(engine) == [number]


async def test_strange_replies_change_nothing(
    server: Served, engine: SimulatedEngine, connect: Connect
) -> None:
    """Replies before any question, with unknown ids, and without an id."""
    wire = await connect(server, path="/mcp/kb-extra")
    replies: list[dict[str, Any]] = [
        {"id": 1, "result": {}},
        {"id": "x", "error": 5},
        {"id": None, "result": {}},
    ]
    for reply in replies:
        await wire.send({"jsonrpc": "2.0", **reply})
    assert (await wire.greet())["protocolVersion"] == "2025-06-18"
    for reply in ({"id": 1, "result": {}}, {"id": "x", "error": 5}, {"id": True, "result": {}}):
        await wire.send({"jsonrpc": "2.0", **reply})
    number = note(engine)
    assert (await wire.ask(delete(number)))["result"]["structuredContent"]["documents"] == 1


@pytest.mark.process
@pytest.mark.parametrize(("mode", "reply"), [("legacy", "decline"), ("auto", "accept")])
async def test_a_person_is_asked_over_stdio(
    engine: SimulatedEngine, tmp_path: Path, mode: Any, reply: Any
) -> None:
    number = note(engine)
    questions: list[str] = []

    async def ask(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        questions.append(params.message)
        return types.ElicitResult(action=reply, content={} if reply == "accept" else None)

    environment = {**stdio_environment(), "KB_ENGINE_URL": engine.url, "KB_HOME": str(tmp_path)}
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "kb_cli.main", "stdio", "--toolset", "kb-extra"], env=environment
    )
    async with Client(stdio_client(command), mode=mode, elicitation_callback=ask) as client:
        result = await client.call_tool("kb_delete", {"document_id": number})
    assert result.is_error is (reply == "decline")
    assert [("Stones" in question) for question in questions] == [True]

    wanted = [] if reply == "accept" else [number]
    assert documents(engine) == wanted
