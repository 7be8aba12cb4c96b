"""The official client of both eras against the server, over every transport."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Literal

import aiohttp
import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client._transport import TransportStreams
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import jsonrpc_message_adapter

from tests.protocol.conftest import Served
from tests.support.fake_toolset import Fake
from tests.support.patience import ANSWER_SECONDS

Mode = Literal["legacy", "auto", "2026-07-28"]
MODES: tuple[Mode, ...] = ("legacy", "auto", "2026-07-28")


@asynccontextmanager
async def over_websocket(url: str) -> AsyncIterator[TransportStreams]:
    """A transport of the SDK's, with one message per frame."""
    into, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, out = anyio.create_memory_object_stream[SessionMessage](0)
    async with aiohttp.ClientSession() as http, http.ws_connect(url, protocols=("mcp",)) as socket:

        async def read() -> None:
            async with into:
                async for frame in socket:
                    await into.send(SessionMessage(jsonrpc_message_adapter.validate_json(frame.data)))

        async def write() -> None:
            async for item in out:
                await socket.send_str(item.message.model_dump_json(by_alias=True, exclude_unset=True))

        async with into, incoming, outgoing, out, anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(write)
            yield incoming, outgoing
            tasks.cancel_scope.cancel()


async def converse(transport: Any, mode: Mode) -> None:
    """Use all features of a client, and cancel one call; the server continues after each error."""
    seen: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with Client(transport, mode=mode, read_timeout_seconds=ANSWER_SECONDS) as session:
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        echo = tools["echo"]
        assert set(tools) == {"echo", "slow", "steps", "refusing", "broken"}
        assert (echo.title, echo.meta) == ("Echo", {"anthropic/maxResultSizeChars": 100_000})
        assert echo.annotations is not None
        assert echo.annotations.read_only_hint is True
        assert echo.input_schema["required"] == ["text"]
        assert echo.output_schema is not None
        assert "type" not in echo.output_schema["properties"]["note"]
        # A pinned version learns the server's identity with a result.
        assert session.server_info is None or session.server_info.name == "fake-server"
        if mode != "2026-07-28":
            assert session.server_info is not None
            assert session.server_info.version == "1.2.3"
            assert session.instructions == "Do not use this."

        echoed = await session.call_tool("echo", {"text": "hi", "times": 2})
        assert (echoed.is_error, echoed.structured_content) == (False, {"said": "hi hi", "note": None})
        assert _text(echoed) == echoed.structured_content
        assert (await session.call_tool("steps", {})).is_error is False
        await session.call_tool("steps", {}, progress_callback=note)
        assert seen == [(0.5, 1.0, "half way"), (1.0, 1.0, "there")]

        refused = await session.call_tool("refusing", {})
        assert (refused.is_error, refused.structured_content) == (True, None)
        assert _text(refused) == {
            "success": False,
            "error": "document_not_found",
            "message": "There is no document 42.",
            "document_id": 42,
        }
        assert _text(await session.call_tool("echo", {}))["error"] == "missing_required_parameter"
        wrong = _text(await session.call_tool("echo", {"text": "x", "times": 11}))
        assert wrong["error"] == "invalid_parameter"
        assert wrong["message"] == "The parameter `times` takes an integer from 1 to 10; got 11."
        for tool, code, words in (("broken", -32603, "Internal error"), ("nothing", -32602, "echo")):
            with pytest.raises(MCPError) as caught:
                await session.call_tool(tool, {})
            assert caught.value.code == code
            assert words in caught.value.message
            assert "ours alone" not in f"{caught.value.message} {caught.value.data}"

        slow = asyncio.ensure_future(session.call_tool("slow", {}))
        answers = await asyncio.gather(*(session.call_tool("echo", {"text": str(n)}) for n in range(8)))
        assert [answer.structured_content for answer in answers] == [
            {"said": str(n), "note": None} for n in range(8)
        ]
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        assert (await session.call_tool("echo", {"text": "on"})).is_error is False


def _text(result: Any) -> Any:
    return json.loads(result.content[0].text)


@pytest.mark.requirement("K1", "E32")
@pytest.mark.parametrize("mode", MODES)
async def test_over_http(served: Served, mode: Mode) -> None:
    await converse(served.mcp, mode)


@pytest.mark.requirement("N3", "N80")
@pytest.mark.parametrize("mode", MODES)
async def test_over_websocket(served: Served, fake: Fake, mode: Mode) -> None:
    await converse(over_websocket(served.mcp), mode)
    await asyncio.wait_for(fake.slow.cancelled.wait(), ANSWER_SECONDS)


@pytest.mark.process
@pytest.mark.requirement("F25", "F27", "F28")
@pytest.mark.parametrize("mode", MODES)
async def test_over_stdio(stdio_command: StdioServerParameters, mode: Mode) -> None:
    await converse(stdio_command, mode)


async def _give_up(call: Awaitable[Any], started: asyncio.Event) -> None:
    task = asyncio.ensure_future(call)
    await asyncio.wait_for(started.wait(), ANSWER_SECONDS)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("mode", ["auto", "2026-07-28"])
async def test_giving_up_a_modern_call_over_http_stops_it(served: Served, fake: Fake, mode: Mode) -> None:
    async with Client(served.mcp, mode=mode) as session:
        await _give_up(session.call_tool("slow", {}), fake.slow.started)
        await asyncio.wait_for(fake.slow.cancelled.wait(), ANSWER_SECONDS)


async def test_giving_up_a_handshake_call_over_http_does_not(served: Served, fake: Fake) -> None:
    """A disconnect is no cancel in that era, and `notifications/cancelled` could name another client's id."""
    async with Client(served.mcp, mode="legacy") as session:
        await _give_up(session.call_tool("slow", {}), fake.slow.started)
        assert (await session.call_tool("echo", {"text": "on"})).is_error is False
    fake.slow.release.set()
    await asyncio.wait_for(fake.slow.finished.wait(), ANSWER_SECONDS)
    assert not fake.slow.cancelled.is_set()
