"""The endpoint of the toolset `knowledge`, for clients of both eras and for plain HTTP callers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from mcp import Client

from kb_server.settings import ServerSettings
from kb_server.tool import Call, ToolError
from kb_simulator import AfterTime, Stuck
from tests.protocol.conftest import Serve, Served
from tests.protocol.test_official_client import MODES, Mode
from tests.support.fake_toolset import Fake
from tests.support.knowledge import SEVEN, Knowledge
from tests.support.mcp_messages import BOTH, PLAIN, call, events, initialize, modern, modern_headers, request
from tests.support.patience import ANSWER_SECONDS

NOBODY = "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"

Post = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
async def served(serve: Serve, knowledge: Knowledge) -> Served:
    """The toolset alone, at `/mcp` and at `/mcp/knowledge`."""
    return await serve(knowledge.toolset)


@pytest.fixture
def post(served: Served) -> Post:
    """Return a function that sends a message of either era and returns the JSON answer."""

    async def send(message: dict[str, Any], *, status: int = 200) -> dict[str, Any]:
        response = await served.post(message)
        assert response.status_code == status, response.text
        answer: dict[str, Any] = response.json() if status != 202 else {}
        return answer

    return send


def text_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON in the single text block of a result."""
    (block,) = answer["result"]["content"]
    told: dict[str, Any] = json.loads(block["text"])
    return told


# --- identity -------------------------------------------------------------------------------------


@pytest.mark.requirement("N2", "N66", "N76", "N81", "N82")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/knowledge"])
async def test_the_handshake_tells_name_version_and_capabilities(served: Served, path: str) -> None:
    assert ServerSettings().port == 3000
    response = await served.post(initialize("2025-06-18"), path=path)
    result = response.json()["result"]
    assert result["protocolVersion"] == "2025-06-18"
    assert result["capabilities"]["tools"] == {"listChanged": True}
    assert result["capabilities"]["prompts"] == {"listChanged": False}
    info = result["serverInfo"]
    assert (info["name"], info["version"]) == ("knowledge-server", "1.0.0")


@pytest.mark.requirement("N1", "N3")
@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_adds_finds_and_removes(
    served: Served, knowledge: Knowledge, mode: Mode
) -> None:
    """The client validates every result against the published schema."""
    path = knowledge.file("bees.html")
    async with Client(served.mcp, mode=mode, read_timeout_seconds=ANSWER_SECONDS) as session:
        assert tuple(tool.name for tool in (await session.list_tools()).tools) == SEVEN
        added = (
            await session.call_tool("knowledge-add", {"file_path": path, "async": False})
        ).structured_content
        found = (await session.call_tool("knowledge-search", {"query": "cluster"})).structured_content
        assert added is not None
        assert found is not None
        assert found["results"][0]["document_id"] == added["document_id"]
        for name in ("knowledge-show", "knowledge-status"):
            assert (await session.call_tool(name, {})).is_error is False
        gone = {"document_id": added["document_id"], "confirm": True}
        assert (await session.call_tool("knowledge-remove", gone)).is_error is False


# --- a plain HTTP caller --------------------------------------------------------------------------


@pytest.mark.requirement("N18", "N88", "N89", "N90")
async def test_the_three_calls_of_the_example(post: Post, knowledge: Knowledge) -> None:
    in_background: dict[str, Any] = {"async": True}
    valid = text_of(await post(call("knowledge-add", file_path=knowledge.file("doc.pdf"), **in_background)))
    assert valid["success"] is True
    assert "task_id" in valid
    missing = await post(call("knowledge-add"))
    assert missing["result"]["isError"] is True
    assert text_of(missing)["success"] is False
    assert text_of(missing)["error"] == "missing_required_parameter"
    assert text_of(await post(call("knowledge-add", file_path="/test/doc.xyz")))["error"] == (
        "unsupported_format"
    )


@pytest.mark.requirement("N74", "N77", "N87")
@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_progress_is_streamed_under_the_callers_token(
    served: Served, knowledge: Knowledge, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kb_server.following.LOOK_SECONDS", 0.1)
    knowledge.engine.set_policy(AfterTime(seconds=0.6))
    arguments = {"file_path": knowledge.file("bees.html"), "async": False}
    message = call("knowledge-add", meta={"progressToken": "task-uuid"}, **arguments)
    message = modern(message) if era == "modern" else message
    headers = modern_headers(message) if era == "modern" else BOTH
    response = await served.post(message, headers)
    assert response.headers["Content-Type"] == "text/event-stream"
    *told, answer = events(response.text)
    assert text_of(answer)["success"] is True
    assert {each["method"] for each in told} == {"notifications/progress"}
    assert {each["params"]["progressToken"] for each in told} == {"task-uuid"}
    assert {each["params"]["total"] for each in told} == {1.0}
    assert told[-1]["params"]["progress"] == 1.0
    assert "Generating embeddings" in [each["params"]["message"] for each in told]


# --- errors of the protocol -----------------------------------------------------------------------


@pytest.mark.requirement("N68", "N69", "N70", "N71")
async def test_errors_of_the_protocol_have_their_codes(served: Served, subtests: pytest.Subtests) -> None:
    for body, code, error_type in (
        (b'{"jsonrpc": "2.0", "id": "1", "method"', -32700, "parse_error"),
        (b'{"jsonrpc": "1.0", "id": "1", "method": "ping"}', -32600, "invalid_request"),
        (b'{"jsonrpc": "2.0", "id": "1", "method": 5}', -32600, "invalid_request"),
        (b'{"jsonrpc": "2.0", "id": "1", "method": "tools/forget"}', -32601, "method_not_found"),
        (b'{"jsonrpc": "2.0", "id": "1", "method": "tools/call", "params": {}}', -32602, "invalid_params"),
        (b'{"jsonrpc": "2.0", "id": "1", "method": "tools/cancel"}', -32602, "invalid_params"),
    ):
        with subtests.test(body=body.decode()):
            answer = (await served.http.post("/mcp", content=body, headers=PLAIN)).json()
            assert answer["jsonrpc"] == "2.0"
            assert answer["error"]["code"] == code
            assert answer["error"]["message"]
            assert answer["error"]["data"]["error_type"] == error_type


# --- tools/cancel ---------------------------------------------------------------------------------


async def stuck(knowledge: Knowledge) -> str:
    """Return the id of a task that never ends by itself."""
    knowledge.engine.set_policy(Stuck())
    return str((await knowledge.ok("knowledge-add", file_path=knowledge.file("bees.html")))["task_id"])


def states(knowledge: Knowledge) -> list[str]:
    return [job.status for job in knowledge.engine.state().jobs]


@pytest.mark.requirement("N75")
@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_a_task_is_cancelled_by_a_request(post: Post, knowledge: Knowledge, era: str) -> None:
    message = request("tools/cancel", {"taskId": await stuck(knowledge)})
    answer = await post(modern(message) if era == "modern" else message)
    assert answer["id"] == "1"
    assert answer["result"].keys() <= {"resultType", "_meta"}
    assert states(knowledge) == ["cancelled"]


@pytest.mark.requirement("N75")
@pytest.mark.parametrize("version", [None, "2025-06-18", "2026-07-28"])
async def test_a_task_is_cancelled_by_a_notification(
    served: Served, knowledge: Knowledge, version: str | None
) -> None:
    """The specification's example, without an id: accepted when done, and not answered."""
    message = {"jsonrpc": "2.0", "method": "tools/cancel", "params": {"taskId": await stuck(knowledge)}}
    headers = {**PLAIN, **({"MCP-Protocol-Version": version} if version else {})}
    response = await served.post(message, headers)
    assert (response.status_code, response.content) == (202, b"")
    assert states(knowledge) == ["cancelled"]


@pytest.mark.requirement("N67", "N73")
@pytest.mark.parametrize("era", ["handshake", "modern"])
@pytest.mark.parametrize(
    ("task_id", "code", "error_type", "details"),
    [
        (NOBODY, -32000, "task_not_found", {"task_id": NOBODY}),
        ("task-uuid", -32602, "invalid_parameter", {"parameter": "taskId"}),
    ],
)
async def test_cancelling_an_unknown_or_finished_task_is_a_protocol_error(
    post: Post, era: str, task_id: str, code: int, error_type: str, details: dict[str, str]
) -> None:
    message = request("tools/cancel", {"taskId": task_id})
    status = 400 if era == "modern" and code == -32602 else 200
    error = (await post(modern(message) if era == "modern" else message, status=status))["error"]
    assert error["code"] == code
    assert error["message"]
    assert error["data"] == {"error_type": error_type, "details": details}


async def test_a_notification_that_cancels_nothing_is_accepted_all_the_same(
    served: Served, subtests: pytest.Subtests
) -> None:
    """There is no answer to a notification; the failure is logged."""
    for params in ({"params": {"taskId": NOBODY}}, {"params": {"taskId": 5}}, {}):
        with subtests.test(params=params):
            response = await served.post({"jsonrpc": "2.0", "method": "tools/cancel", **params})
            assert response.status_code == 202


async def test_a_cancel_that_breaks_is_an_internal_error(serve: Serve, fake: Fake) -> None:
    async def broken(_task_id: str, _call: Call) -> None:
        raise RuntimeError("ours alone")

    served = await serve(replace(fake.toolset, cancel=broken))
    message = request("tools/cancel", {"taskId": NOBODY})
    response = await served.post(message)
    error = response.json()["error"]
    assert (error["code"], error["message"]) == (-32603, "Internal error")
    del message["id"]
    response = await served.post(message)
    assert response.status_code == 202


async def test_of_several_toolsets_the_one_with_tasks_cancels(serve: Serve, fake: Fake) -> None:
    asked: list[str] = []

    async def cancel(task_id: str, _call: Call) -> None:
        asked.append(task_id)
        raise ToolError("task_not_found", "There is none.")

    other = replace(fake.toolset, name="other", tools=(), cancel=cancel)
    served = await serve(fake.toolset, other)
    message = request("tools/cancel", {"taskId": NOBODY})
    for path, code in (("/mcp", -32000), ("/mcp/other", -32000), ("/mcp/fake", -32601)):
        response = await served.post(message, path=path)
        assert response.json()["error"]["code"] == code
    assert asked == [NOBODY] * 2
