"""The official client of both eras against a server process on stdio."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from tests.protocol.conftest import BOUND

pytestmark = pytest.mark.process


@pytest.mark.requirement("F25", "F28")
@pytest.mark.parametrize("mode", ["legacy", "auto", "2026-07-28"])
async def test_a_whole_conversation_over_one_pipe(
    stdio_command: StdioServerParameters, mode: Literal["legacy", "auto", "2026-07-28"]
) -> None:
    """List, call, progress, a refusal, a fault, an unknown tool, and calls side by side with one given up."""
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with Client(stdio_command, mode=mode, read_timeout_seconds=4 * BOUND) as session:
        assert "echo" in [tool.name for tool in (await session.list_tools()).tools]
        said = await session.call_tool("echo", {"text": "hi"})
        assert said.structured_content == {"said": "hi", "note": None}
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
        assert (await session.call_tool("echo", {"text": "on"})).is_error is False
