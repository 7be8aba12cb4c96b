"""Shared parts of the server's tests: clocks that are set by hand, and calls of the tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from kb_server.access.grants import EVERYBODY
from kb_server.hosting.calls import Calls
from kb_server.hosting.toolset_server import combine
from kb_server.observability.metrics import Metrics
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Call, Progress, Toolset, no_progress
from kb_server.toolsets import build_toolset
from kb_server.waiting import SYSTEM_CLOCK, Clock
from tests.support.simulated_engine import InterruptedEngine, SimulatedEngine


class ManualClock:
    """A clock that stands still until a test advances it; a sleep ends when its moment comes."""

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.asleep: list[tuple[float, asyncio.Event]] = []
        self.slept = asyncio.Event()

    def clock(self) -> Clock:
        return Clock(now=self.now, monotonic=lambda: self.seconds, sleep=self._sleep)

    def now(self) -> datetime:
        """Return 1 January 2026 plus the seconds that have passed."""
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
    """A clock that ends every sleep at once and records it."""

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.sleeps: list[float] = []

    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.seconds, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.seconds += seconds


class ToolCaller:
    """Calls the tools of toolsets as hosting does.

    `last` is the context of the last call, with its log fields; `around` is that of the engine's client.
    `user` is the caller's name, `grant` its rights.
    """

    def __init__(
        self, *toolsets: Toolset, client: InterruptedEngine | None = None, progress: Progress = no_progress
    ) -> None:
        self.around = {} if client is None else client.around
        self.metrics = Metrics()
        self.last = Call()
        self.user = ""
        self.grant = EVERYBODY
        self._progress = progress
        self.toolset = combine(toolsets)
        self._calls = Calls(self.toolset, self.metrics)
        self._results = {tool["name"]: tool["outputSchema"] for tool in self._calls.listing()}

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.last = Call(correlation_id="call-1", credential="me", progress=self._progress, grant=self.grant)
        self.last.user = self.user
        return (await self._calls.outcome(name, arguments, self.last)).as_result()

    async def ok(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The JSON of a successful result, validated against the published schema."""
        result = await self.call(name, _named(arguments))
        assert result["isError"] is False, result
        answer = _json(result)
        assert result["structuredContent"] == answer
        _validator(json.dumps(self._results[name])).validate(answer)
        return answer

    async def refused(self, name: str, **arguments: Any) -> dict[str, Any]:
        result = await self.call(name, _named(arguments))
        assert result["isError"] is True, result
        assert "structuredContent" not in result
        answer = _json(result)
        assert isinstance(answer["message"], str)
        assert answer["message"]
        return answer


@cache
def _validator(schema: str) -> Draft202012Validator:
    Draft202012Validator.check_schema(json.loads(schema))
    return Draft202012Validator(json.loads(schema))


def _json(result: dict[str, Any]) -> dict[str, Any]:
    (block,) = result["content"]
    assert block["type"] == "text"
    answer: dict[str, Any] = json.loads(block["text"])
    return answer


def _named(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name.removesuffix("_"): value for name, value in arguments.items()}


@asynccontextmanager
async def calling(
    engine: SimulatedEngine,
    home: Path,
    *,
    names: Sequence[str] = ("kb", "kb-extra"),
    http_base: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
    **settings: Any,
) -> AsyncIterator[ToolCaller]:
    """Yield the tools of toolsets for `engine`; waits of the engine's client take no time."""
    configured = ServerSettings(**{"engine_url": engine.url, "home": home, **settings})
    client = InterruptedEngine(configured.engine_url, clock=JumpingClock().clock())
    async with Services(configured, http_base=http_base, engine=client, clock=clock) as services:
        yield ToolCaller(*(build_toolset(name, services) for name in names), client=client)
    await client.close()
