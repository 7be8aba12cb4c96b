"""The era in which a request is answered, and the guarantees of each era over HTTP."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kb_server.hosting.toolset_server import mount
from tests.protocol.conftest import Serve, Served
from tests.support.fake_toolset import Fake
from tests.support.mcp_messages import (
    BOTH,
    LATEST_HANDSHAKE,
    MODERN,
    PLAIN,
    call,
    initialize,
    modern,
    modern_headers,
    request,
)

HANDSHAKES = ("2025-03-26", "2025-06-18", "2025-11-25")

Post = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture
def post(served: Served) -> Post:
    """Return a function that sends a message and returns the status and the JSON body, if there is one."""

    async def send(message: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        response = await served.post(message, headers)
        return response.status_code, response.json() if response.content else None

    return send


@pytest.mark.requirement("N78", "N79")
async def test_a_call_with_nothing_but_a_content_type_works(served: Served) -> None:
    response = await served.post(call("echo", text="hi"), PLAIN)
    body = response.json()
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "application/json"
    assert "Mcp-Session-Id" not in response.headers
    assert (body["jsonrpc"], body["id"]) == ("2.0", "1")
    assert json.loads(body["result"]["content"][0]["text"]) == {"said": "hi", "note": None}


@pytest.mark.requirement("F26")
@pytest.mark.parametrize("version", [*HANDSHAKES, "2024-11-05"])
async def test_a_handshake_settles_on_the_version_offered(served: Served, version: str) -> None:
    """There is no session id, because the next request may reach another replica."""
    response = await served.post(initialize(version), BOTH)
    result = response.json()["result"]
    assert result["protocolVersion"] == version
    assert result["serverInfo"]["name"] == "fake-server"
    assert result["instructions"] == "Do not use this."
    assert "Mcp-Session-Id" not in response.headers


async def test_a_handshake_with_an_unknown_version_is_offered_the_latest(post: Post) -> None:
    _, answer = await post(initialize("1999-01-01"))
    assert answer["result"]["protocolVersion"] == LATEST_HANDSHAKE


@pytest.mark.parametrize("version", HANDSHAKES)
async def test_a_call_of_each_handshake_version_is_answered(post: Post, version: str) -> None:
    headers = {**BOTH, "MCP-Protocol-Version": version}
    status, answer = await post(call("echo", text="hi"), headers)
    assert status == 200
    assert answer["result"]["structuredContent"] == {"said": "hi", "note": None}
    assert "resultType" not in answer["result"]


async def test_a_modern_call_is_answered_without_a_handshake(post: Post) -> None:
    message = modern(call("echo", text="hi"))
    status, answer = await post(message)
    assert status == 200
    assert answer["result"]["resultType"] == "complete"
    assert answer["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "fake-server"


async def test_discovery_names_the_modern_version_and_what_the_server_can(post: Post) -> None:
    message = modern(request("server/discover"))
    _, answer = await post(message)
    assert answer["result"]["supportedVersions"] == [MODERN]
    assert "tools" in answer["result"]["capabilities"]


async def test_the_pair_that_connectors_send_is_answered_as_modern(post: Post) -> None:
    """Header 2025-11-25 with a 2026-07-28 body; routing headers may be missing but must not disagree."""
    message = modern(call("echo", text="hi"))
    headers = {**BOTH, "MCP-Protocol-Version": LATEST_HANDSHAKE}
    status, answer = await post(message, headers)
    assert status == 200
    assert answer["result"]["resultType"] == "complete"
    status, answer = await post(message, {**headers, "Mcp-Name": "slow"})
    assert (status, answer["error"]["code"]) == (400, -32020)


@pytest.mark.parametrize("header", [None, "2025-03-26", "2025-06-18"])
async def test_any_other_disagreement_of_header_and_body_is_a_mismatch(
    post: Post, header: str | None
) -> None:
    headers = {**BOTH, **({"MCP-Protocol-Version": header} if header else {})}
    status, answer = await post(modern(call("echo", text="hi")), headers)
    assert (status, answer["error"]["code"]) == (400, -32020)
    assert answer["id"] == "1"


@pytest.mark.parametrize(
    "change", [{"Mcp-Method": "tools/list"}, {"Mcp-Name": "slow"}, {"Mcp-Name": "=?base64?!!?="}]
)
async def test_routing_headers_must_repeat_the_body(post: Post, change: dict[str, str]) -> None:
    """Otherwise a gateway could route a request by other values than the server uses."""
    message = modern(call("echo", text="hi"))
    status, answer = await post(message, modern_headers(message, **change))
    assert (status, answer["error"]["code"]) == (400, -32020)


async def test_routing_headers_must_not_come_twice(served: Served) -> None:
    """Two readers could choose different values."""
    message = modern(call("echo", text="hi"))
    headers = [*modern_headers(message).items(), ("Mcp-Name", "echo")]
    response = await served.http.post("/mcp", json=message, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32020)


async def test_an_unknown_protocol_version_is_refused_with_the_supported_versions(post: Post) -> None:
    """400 with the list of versions, so that the client can choose one, under the request's id."""
    for message in (request("tools/list"), {"jsonrpc": "2.0", "method": "n"}):
        status, answer = await post(message, {**BOTH, "MCP-Protocol-Version": "2030-01-01"})
        assert (status, answer["error"]["code"]) == (400, -32022)
        assert answer["id"] == message.get("id")
        assert answer["error"]["data"]["requested"] == "2030-01-01"
        assert {MODERN, *HANDSHAKES} <= set(answer["error"]["data"]["supported"])


async def test_a_modern_caller_is_told_the_versions_that_discovery_tells(post: Post) -> None:
    """It would retry the same message with its envelope, which no handshake version accepts."""
    message = modern(request("tools/list"))
    status, answer = await post(message, {**BOTH, "MCP-Protocol-Version": "2030-01-01"})
    assert (status, answer["error"]["code"], answer["id"]) == (400, -32022, "1")
    assert answer["error"]["data"]["supported"] == [MODERN]


async def test_a_modern_request_without_its_envelope_is_told_what_is_missing(post: Post) -> None:
    bare = call("echo", text="hi")
    status, answer = await post(bare, modern_headers(bare))
    assert (status, answer["error"]["code"]) == (400, -32602)
    half = modern(bare)
    del half["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    status, answer = await post(half, modern_headers(half))
    assert (status, answer["error"]["code"]) == (400, -32602)
    assert "clientCapabilities" in answer["error"]["message"]


async def test_errors_of_a_modern_request_carry_the_status_of_their_code(post: Post) -> None:
    expected = {"nothing/here": (404, -32601), "ping": (404, -32601), "initialize": (404, -32601)}
    for method, outcome in expected.items():
        message = modern(request(method))
        status, answer = await post(message)
        assert (status, answer["error"]["code"]) == outcome, method
    for tool, outcome in {"nothing": (400, -32602), "broken": (200, -32603)}.items():
        message = modern(call(tool))
        status, answer = await post(message)
        assert (status, answer["error"]["code"]) == outcome, tool


@pytest.mark.requirement("N72")
async def test_errors_of_a_handshake_request_come_with_status_200(post: Post) -> None:
    """After the request was parsed, errors are reported in JSON-RPC."""
    outcomes = {
        "nothing/here": (request("nothing/here"), -32601),
        "unknown tool": (call("nothing"), -32602),
        "no name": (request("tools/call", {}), -32602),
        "arguments": (request("tools/call", {"name": "echo", "arguments": [1]}), -32602),
        "fault": (call("broken"), -32603),
    }
    for name, (message, code) in outcomes.items():
        status, answer = await post(message)
        assert (status, answer["error"]["code"]) == (200, code), name
        assert answer["error"]["data"]["error_type"], name
        assert "ours alone" not in json.dumps(answer)


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "1"}},
        {"jsonrpc": "2.0", "method": "notifications/nobody/knows"},
        {"jsonrpc": "2.0", "id": 7, "result": {}},
    ],
)
async def test_notifications_and_responses_are_accepted_without_a_response(
    post: Post, message: dict[str, Any]
) -> None:
    assert await post(message) == (202, None)
    status, _ = await post(message, {**BOTH, "MCP-Protocol-Version": MODERN})
    assert status == (400 if "result" in message else 202)


async def test_a_batch_is_answered_in_the_one_version_that_has_them(post: Post) -> None:
    """2025-03-26, which is also the version of a request without one; in order, without notifications."""
    batch = [
        call("echo", 1, text="a"),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2},
        initialize("2025-03-26"),
        request("ping", request_id="p"),
    ]
    for headers in (PLAIN, {**BOTH, "MCP-Protocol-Version": "2025-03-26"}):
        status, answers = await post(batch, headers)
        assert status == 200
        assert [answer["id"] for answer in answers] == [1, 2, "1", "p"]
        assert [answer.get("error", {}).get("code") for answer in answers] == [None, -32600, -32600, None]
    assert await post(batch[1:2]) == (202, None)


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25", MODERN])
async def test_a_batch_is_an_invalid_request_in_every_other(post: Post, version: str) -> None:
    headers = {**BOTH, "MCP-Protocol-Version": version}
    status, answer = await post([request("ping")], headers)
    assert (status, answer["error"]["code"]) == (400, -32600)
    for batch in ([], [request("ping")] * 33):
        status, answer = await post(batch)
        assert (status, answer["error"]["code"]) == (400, -32600)


async def test_capabilities_are_those_of_the_toolset(serve: Serve) -> None:
    """`tools.listChanged` as declared; prompts only if declared, and then with an empty list (N81)."""
    plain, knowing = Fake("plain"), Fake("knowing", tools_list_changed=True, prompts_list_changed=False)
    served = await serve(endpoints=mount([plain.toolset, knowing.toolset], ["plain"]))
    first, second = [await _handshake(served, f"/mcp/{name}") for name in ("plain", "knowing")]
    assert first["capabilities"] == {"tools": {"listChanged": False}}
    assert second["capabilities"] == {"tools": {"listChanged": True}, "prompts": {"listChanged": False}}
    prompts = (await served.post(request("prompts/list"), path="/mcp/knowing")).json()
    assert prompts["result"]["prompts"] == []
    none = (await served.post(request("prompts/list"), path="/mcp/plain")).json()
    assert none["error"]["code"] == -32601


async def test_the_root_shows_the_chosen_toolset_as_itself(serve: Serve) -> None:
    served = await serve(endpoints=mount([Fake("one").toolset, Fake("two").toolset], ["two"]))
    names = [(await _handshake(served, f"/mcp{path}"))["serverInfo"]["name"] for path in ("", "/one", "/two")]
    assert names == ["two-server", "one-server", "two-server"]


async def _handshake(served: Served, path: str) -> dict[str, Any]:
    result: dict[str, Any] = (await served.post(initialize("2025-06-18"), path=path)).json()["result"]
    return result
