"""The official client of both eras against the server over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.protocol.conftest import BOUND, ServeToolset
from tests.support.fake_toolset import Fake

Mode = Literal["legacy", "auto", "2026-07-28"]
MODES: tuple[Mode, ...] = ("legacy", "auto", "2026-07-28")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    """How the client negotiates."""
    chosen: Mode = request.param
    return chosen


@pytest.fixture
async def client(serve_toolset: ServeToolset, fake: Fake, mode: Mode) -> Callable[[], Client]:
    """A maker of clients, to be entered in the test's own task."""
    served = await serve_toolset(fake.toolset)
    return lambda: Client(served.mcp, mode=mode, read_timeout_seconds=2 * BOUND)


@pytest.mark.requirement("K1", "E32")
async def test_a_client_of_either_era_sees_the_tools_in_full(client: Callable[[], Client]) -> None:
    """Title, annotations, both schemas and the result size of each tool arrive."""
    async with client() as session:
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
    echo = tools["echo"]
    assert set(tools) == {"echo", "slow", "steps", "refusing", "broken"}
    assert echo.title == "Echo"
    assert echo.annotations is not None
    assert echo.annotations.read_only_hint is True
    assert echo.input_schema["required"] == ["text"]
    assert echo.output_schema is not None
    assert "type" not in echo.output_schema["properties"]["note"]
    assert echo.meta == {"anthropic/maxResultSizeChars": 100_000}


async def test_a_result_carries_the_same_json_structured_and_as_text(client: Callable[[], Client]) -> None:
    """`structuredContent` validates against the output schema in the client, null included."""
    async with client() as session:
        result = await session.call_tool("echo", {"text": "hi", "times": 2})
    assert result.is_error is False
    assert result.structured_content == {"said": "hi hi", "note": None}
    assert json.loads(result.content[0].text) == result.structured_content  # type: ignore[union-attr]


async def test_a_tool_error_is_a_result_that_says_what_to_do(client: Callable[[], Client]) -> None:
    """The payload is JSON text, with the members that the tool adds, and no structured content."""
    async with client() as session:
        result = await session.call_tool("refusing", {})
    assert result.is_error is True
    assert result.structured_content is None
    assert json.loads(result.content[0].text) == {  # type: ignore[union-attr]
        "success": False,
        "error": "document_not_found",
        "message": "There is no document 42.",
        "document_id": 42,
    }


async def test_refused_arguments_name_the_parameter_and_what_it_takes(client: Callable[[], Client]) -> None:
    """Validation failures are results with `isError`, for the agent to mend."""
    async with client() as session:
        missing = await session.call_tool("echo", {})
        wrong = await session.call_tool("echo", {"text": "x", "times": 11})
    assert json.loads(missing.content[0].text)["error"] == "missing_required_parameter"  # type: ignore[union-attr]
    told = json.loads(wrong.content[0].text)  # type: ignore[union-attr]
    assert told["error"] == "invalid_parameter"
    assert told["message"] == "The parameter `times` takes an integer from 1 to 10; got 11."


async def test_an_unknown_tool_is_an_invalid_parameter_of_the_protocol(client: Callable[[], Client]) -> None:
    """JSON-RPC -32602, with the tools there are."""
    async with client() as session:
        with pytest.raises(MCPError) as caught:
            await session.call_tool("nothing", {})
    assert caught.value.code == -32602
    assert "echo" in caught.value.message


async def test_a_fault_of_ours_is_an_internal_error_without_its_words(client: Callable[[], Client]) -> None:
    """JSON-RPC -32603 in both eras and on every transport."""
    async with client() as session:
        with pytest.raises(MCPError) as caught:
            await session.call_tool("broken", {})
        assert (await session.call_tool("echo", {"text": "still here"})).is_error is False
    assert caught.value.code == -32603
    assert caught.value.message == "Internal error"
    assert "ours alone" not in str(caught.value.data)


async def test_progress_reaches_the_caller_who_asked_for_it(client: Callable[[], Client]) -> None:
    """Each report arrives, in order, before the result."""
    seen: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with client() as session:
        await session.call_tool("steps", {}, progress_callback=note)
    assert seen == [(0.5, 1.0, "half way"), (1.0, 1.0, "there")]


async def test_progress_nobody_asked_for_is_not_sent(client: Callable[[], Client]) -> None:
    async with client() as session:
        assert (await session.call_tool("steps", {})).is_error is False


async def test_calls_run_side_by_side(client: Callable[[], Client]) -> None:
    """A call in flight holds up no other."""
    async with client() as session:
        slow = asyncio.ensure_future(session.call_tool("slow", {}))
        answers = await asyncio.gather(*(session.call_tool("echo", {"text": str(n)}) for n in range(8)))
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
    assert [answer.structured_content for answer in answers] == [
        {"said": str(n), "note": None} for n in range(8)
    ]


async def test_the_server_tells_who_it_is(client: Callable[[], Client], mode: Mode) -> None:
    """Name, version and instructions are the toolset's own; a pinned version learns them with a result."""
    async with client() as session:
        await session.list_tools()
        assert session.server_info is None or session.server_info.name == "fake-server"
        if mode != "2026-07-28":
            assert session.server_info is not None
            assert session.server_info.version == "1.2.3"
            assert session.instructions == "Do not use this."


async def _give_up(call: Awaitable[Any], started: asyncio.Event) -> None:
    task = asyncio.ensure_future(call)
    await asyncio.wait_for(started.wait(), BOUND)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("modern", ["auto", "2026-07-28"])
async def test_giving_up_a_modern_call_over_http_stops_the_work(
    serve_toolset: ServeToolset, fake: Fake, modern: Mode
) -> None:
    """The client closes the response stream; the tool's coroutine is cancelled."""
    served = await serve_toolset(fake.toolset)
    async with Client(served.mcp, mode=modern) as session:
        await _give_up(session.call_tool("slow", {}), fake.slow.started)
        await asyncio.wait_for(fake.slow.cancelled.wait(), BOUND)


async def test_giving_up_a_handshake_call_over_http_does_not(serve_toolset: ServeToolset, fake: Fake) -> None:
    """A disconnect is no cancel in that era, and `notifications/cancelled` names a stranger's id."""
    served = await serve_toolset(fake.toolset)
    async with Client(served.mcp, mode="legacy") as session:
        await _give_up(session.call_tool("slow", {}), fake.slow.started)
        assert (await session.call_tool("echo", {"text": "on"})).is_error is False
    fake.slow.release.set()
    await asyncio.wait_for(fake.slow.finished.wait(), BOUND)
    assert not fake.slow.cancelled.is_set()
