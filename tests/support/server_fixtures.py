"""What the tests of the server share: clocks that are set by hand, search results, and calls of the tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import jsonschema
import msgspec
import pytest

from kb_contracts.api import models as m
from kb_server.clock import Clock
from kb_server.schema import output_schema
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Call, ToolError, Toolset
from kb_server.toolsets import build_toolset
from tests.support.simulated_engine import InterruptedEngine, SimulatedEngine

MOMENT = "2026-01-02T03:04:05Z"


def chunk(index: int, **members: Any) -> m.Chunk:
    return m.Chunk(
        **{
            "id": index + 1,
            "uid": str(uuid4()),
            "index": index,
            "text": "some text",
            "page": None,
            "heading": None,
            "start": 0,
            "end": 9,
            **members,
        }
    )


def hit(
    document: m.Document, index: int = 0, *, tags: Sequence[str] | None = None, **members: Any
) -> m.SearchResult:
    """A search result that shows `document`; `members` are its chunk's."""
    summary = {name: getattr(document, name) for name in m.DocumentSummary.__struct_fields__}
    return m.SearchResult(
        chunk=chunk(index, **members),
        score=0.75,
        document=m.DocumentSummary(**summary),
        tags=list(document.tags if tags is None else tags),
    )


class ManualClock:
    """A clock that stands until a test moves it; who sleeps is woken when the moment comes."""

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.asleep: list[tuple[float, asyncio.Event]] = []
        self.slept = asyncio.Event()

    def clock(self) -> Clock:
        return Clock(now=self.now, monotonic=lambda: self.seconds, sleep=self._sleep)

    def now(self) -> datetime:
        """1 January 2026 and the seconds since."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds - 1_000.0)

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
        for wakes_at, event in self.asleep:
            if wakes_at <= self.seconds:
                event.set()

    async def _sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        self.asleep.append((self.seconds + seconds, event))
        self.slept.set()
        await event.wait()


class JumpingClock:
    """A clock on which every sleep is over at once, and counted."""

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.sleeps: list[float] = []

    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.seconds, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.seconds += seconds


class ToolCaller:
    """Calls tools as hosting does: arguments through the model, results against the published schema.

    `around` is that of the engine's client.
    """

    def __init__(self, *toolsets: Toolset, client: InterruptedEngine | None = None) -> None:
        self.around = {} if client is None else client.around
        self.tools = {tool.name: tool for toolset in toolsets for tool in toolset.tools}
        self.last = Call()

    async def ok(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The structured content of a call that must succeed."""
        tool = self.tools[name]
        self.last = Call(correlation_id="call-1", credential="me")
        result = await tool.run(msgspec.convert(arguments, tool.arguments), self.last)
        content: dict[str, Any] = msgspec.to_builtins(result)
        jsonschema.validate(content, output_schema(tool.result))
        return content

    async def refused(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The error object of a call that must be refused."""
        tool = self.tools[name]
        with pytest.raises(ToolError) as refused:
            await tool.run(msgspec.convert(arguments, tool.arguments), Call(credential="me"))
        return refused.value.payload()


@asynccontextmanager
async def calling(
    engine: SimulatedEngine, home: Path, *, http_base: str | None = None, **settings: Any
) -> AsyncIterator[ToolCaller]:
    """The tools of `kb` and `kb-extra` in front of `engine`; no wait takes time."""
    configured = ServerSettings(**{"engine_url": engine.url, "home": home, **settings})
    client = InterruptedEngine(configured.engine_url, clock=JumpingClock().clock())
    async with Services(configured, http_base=http_base, engine=client) as services:
        toolsets = build_toolset("kb", services), build_toolset("kb-extra", services)
        yield ToolCaller(*toolsets, client=client)
    await client.close()
