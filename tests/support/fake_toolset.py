"""A toolset that does nothing useful, and shows each outcome that a call can have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from kb_server.tool import Annotations, Call, NoArguments, Tool, ToolError, Toolset


class EchoArguments(msgspec.Struct, forbid_unknown_fields=True):
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=500, description="what to say")]
    times: Annotated[int, msgspec.Meta(ge=1, le=10, description="how often")] = 1
    tone: Annotated[Literal["low", "high"], msgspec.Meta(description="how")] = "low"
    tags: Annotated[list[str], msgspec.Meta(description="marks")] | None = None


class EchoResult(msgspec.Struct):
    said: str
    note: Annotated[str, msgspec.Meta(description="a remark")] | None = None


class Empty(msgspec.Struct):
    """A result without members."""


class EchoTool(Tool[EchoArguments, EchoResult]):
    name = "echo"
    title = "Echo"
    description = "Says what it is told, as often as it is told to."
    annotations = Annotations(read_only=True, idempotent=True)
    document_mark = "none"
    arguments = EchoArguments
    result = EchoResult
    max_result_chars = 100_000

    def __init__(self) -> None:
        self.calls: list[Call] = []

    async def run(self, arguments: EchoArguments, call: Call) -> EchoResult:
        self.calls.append(call)
        call.log["length"] = len(arguments.text)
        return EchoResult(" ".join([arguments.text] * arguments.times))


class SlowTool(Tool[NoArguments, Empty]):
    name = "slow"
    title = "Slow"
    description = "Waits until it is let go."
    annotations = Annotations()
    reports = True  # in tests that replace `run`
    document_mark = "none"
    arguments = NoArguments
    result = Empty

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.finished = asyncio.Event()

    async def run(self, arguments: NoArguments, call: Call) -> Empty:
        self.started.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        self.finished.set()
        return Empty()


class StepsTool(Tool[NoArguments, Empty]):
    name = "steps"
    title = "Steps"
    description = "Reports two steps of progress."
    annotations = Annotations()
    reports = True
    document_mark = "none"
    arguments = NoArguments
    result = Empty

    async def run(self, arguments: NoArguments, call: Call) -> Empty:
        await call.progress(0.5, 1.0, "half way")
        await call.progress(1.0, 1.0, "there")
        return Empty()


class RefusingTool(Tool[NoArguments, Empty]):
    name = "refusing"
    title = "Refusing"
    description = "Always refuses."
    annotations = Annotations(destructive=True)
    document_mark = "none"
    arguments = NoArguments
    result = Empty
    error_members: ClassVar[Mapping[str, Any]] = {"success": False}

    async def run(self, arguments: NoArguments, call: Call) -> Empty:
        raise ToolError("document_not_found", "There is no document 42.", document_id=42)


class BrokenTool(Tool[NoArguments, Empty]):
    name = "broken"
    title = "Broken"
    description = "Breaks."
    annotations = Annotations()
    document_mark = "none"
    arguments = NoArguments
    result = Empty

    async def run(self, arguments: NoArguments, call: Call) -> Empty:
        raise RuntimeError("the words of a fault are ours alone")


@dataclass
class Fake:
    """The toolset, access to its tools, and counts of how often its lifespan was entered and left."""

    name: str = "fake"
    tools_list_changed: bool = False
    prompts_list_changed: bool | None = None
    echo: EchoTool = field(default_factory=EchoTool)
    slow: SlowTool = field(default_factory=SlowTool)
    entered: int = 0
    left: int = 0

    @property
    def toolset(self) -> Toolset:
        """The toolset, created once."""
        if self._toolset is None:
            tools: tuple[Tool[Any, Any], ...] = (
                self.echo,
                self.slow,
                StepsTool(),
                RefusingTool(),
                BrokenTool(),
            )
            self._toolset = Toolset(
                name=self.name,
                server_name=f"{self.name}-server",
                version="1.2.3",
                title="A fake",
                instructions="Do not use this.",
                tools=tools,
                tools_list_changed=self.tools_list_changed,
                prompts_list_changed=self.prompts_list_changed,
                lifespan=self._lifespan,
            )
        return self._toolset

    _toolset: Toolset | None = None

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        self.entered += 1
        try:
            yield
        finally:
            self.left += 1
