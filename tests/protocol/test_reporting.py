"""A tool that reports progress is marked as such, for the fast path drops the reports of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kb_server.hosting.calls import Calls
from kb_server.tool import Call
from mcp_aiohttp.fastpath import ToolOutcome
from tests.protocol.every_tool import Base
from tests.protocol.every_tool import base as base
from tests.support.tool_table import TOOLS


async def test_the_tools_that_report_progress_are_marked(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: set[str] = set()
    outcome = Calls.outcome

    async def noted(self: Calls, name: str, arguments: Mapping[str, Any], call: Call) -> ToolOutcome:
        async def progress(_progress: float, _total: float | None, _message: str | None) -> None:
            reported.add(name)

        call.progress = progress
        return await outcome(self, name, arguments, call)

    monkeypatch.setattr(Calls, "outcome", noted)
    for name, toolset in base.toolsets.items():
        for tool in toolset.tools:
            await base.ok(name, tool.name, **await TOOLS[name][tool.name].arguments(base))
    assert reported == {
        tool.name for toolset in base.toolsets.values() for tool in toolset.tools if tool.reports
    }
