"""One whole conversation of the official client over a connection that carries many calls, in each era."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client._transport import TransportStreams
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import jsonrpc_message_adapter

from tests.protocol.conftest import BOUND, ServeToolset
from tests.protocol.test_official_client import MODES, Mode
from tests.support.fake_toolset import Fake


@asynccontextmanager
async def over_websocket(url: str) -> AsyncIterator[TransportStreams]:
    """A transport of the SDK's: a message a frame."""
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


@pytest.mark.requirement("N3", "N80")
@pytest.mark.parametrize("mode", MODES)
async def test_over_websocket(serve_toolset: ServeToolset, fake: Fake, mode: Mode) -> None:
    """The call that is given up is cancelled in the tool."""
    served = await serve_toolset(fake.toolset)

    async def until_cancelled() -> None:
        await asyncio.wait_for(fake.slow.cancelled.wait(), BOUND)

    await _converse(over_websocket(served.mcp), mode, until_cancelled)
    assert fake.slow.cancelled.is_set()


@pytest.mark.process
@pytest.mark.requirement("F25", "F28")
@pytest.mark.parametrize("mode", MODES)
async def test_over_stdio(stdio_command: StdioServerParameters, mode: Mode) -> None:
    await _converse(stdio_command, mode)


async def _converse(
    transport: Any, mode: Mode, after_cancel: Callable[[], Awaitable[None]] | None = None
) -> None:
    """List, call, progress, a refusal, a fault, an unknown tool, and calls side by side with one given up."""
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with Client(transport, mode=mode, read_timeout_seconds=4 * BOUND) as session:
        assert "echo" in [tool.name for tool in (await session.list_tools()).tools]
        echoed = await session.call_tool("echo", {"text": "hi"})
        assert echoed.structured_content == {"said": "hi", "note": None}
        await session.call_tool("steps", {}, progress_callback=note)
        assert seen == [0.5, 1.0]
        refused = await session.call_tool("echo", {})
        assert json.loads(refused.content[0].text)["error"] == "missing_required_parameter"  # type: ignore[union-attr]
        for tool, code in (("broken", -32603), ("nothing", -32602)):
            with pytest.raises(MCPError) as caught:
                await session.call_tool(tool, {})
            assert caught.value.code == code
        slow = asyncio.ensure_future(session.call_tool("slow", {}))
        answers = await asyncio.gather(*(session.call_tool("echo", {"text": str(n)}) for n in range(4)))
        assert [answer.is_error for answer in answers] == [False] * 4
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        if after_cancel is not None:
            await after_cancel()
        assert (await session.call_tool("echo", {"text": "on"})).is_error is False
