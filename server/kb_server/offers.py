"""The offers of a toolset beside its tools: resources, prompts, completion, and long work as tasks.

The model calls tools, the client attaches resources, the person chooses prompts. As with tools, hosting knows
only these types, and failures are a `ToolError` or a fault of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from mcp_aiohttp.fastpath import ToolOutcome
    from mcp_aiohttp.protocol.tasks import TaskState


class Resource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A resource that can be attached; its JSON is that of the protocol. `size` is in bytes."""

    uri: str
    name: str
    title: str
    mime_type: str = msgspec.field(name="mimeType")
    size: int | None = None
    annotations: Mapping[str, str] | None = None
    """`lastModified`, as ISO 8601."""


class ResourceTemplate(msgspec.Struct, frozen=True):
    """Resources by a URI template (RFC 6570); its JSON is that of the protocol."""

    uri: str = msgspec.field(name="uriTemplate")
    name: str
    title: str
    description: str


@dataclass(frozen=True, slots=True)
class ResourceText:
    """The text of a resource. `following` is the URI of the remainder, or None if the text is complete."""

    uri: str
    mime_type: str
    text: str
    following: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """Possible values of an argument, at most 100; `more` is true if there may be further values."""

    values: Sequence[str] = ()
    more: bool = False


class Resources(Protocol):
    """The resources of a toolset. Raises (all methods): `ToolError`, `EngineFault`."""

    @property
    def templates(self) -> Sequence[ResourceTemplate]:
        """The templates that lead to all resources."""

    async def page(self, cursor: str | None) -> tuple[Sequence[Resource], str | None]:
        """Return some of the resources, and the cursor of the next page, or None after the last one."""

    async def read(self, uri: str) -> ResourceText:
        """Return the text of a resource. Raises `ToolError`: `resource_not_found`."""

    async def complete(
        self, template: str, argument: str, value: str, given: Mapping[str, str]
    ) -> Completion:
        """Return values of a template's argument that begin with `value`; `given` has the other arguments."""

    async def state(self, uris: Collection[str]) -> Hashable:
        """Return a value that differs whenever any of the resources may have been changed, or removed."""

    async def version(self, uri: str) -> Hashable | None:
        """Return a value that differs whenever this resource changed, or None if it does not exist."""


class PromptArgument(msgspec.Struct, frozen=True):
    """An argument of a prompt, a text; its JSON is that of the protocol."""

    name: str
    description: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request that a person can choose. `render` makes its text from the given arguments."""

    name: str
    title: str
    description: str
    arguments: tuple[PromptArgument, ...]
    render: Callable[[Mapping[str, str]], str]


class Completer(Protocol):
    """Completes the arguments of prompts."""

    async def complete(self, argument: str, value: str, given: Mapping[str, str]) -> Completion:
        """Return values of an argument that begin with `value`; `given` holds the other arguments."""


class Tasks(Protocol):
    """The tasks of a toolset. Raises (all methods): `ToolError`, `EngineFault`."""

    @property
    def tools(self) -> Collection[str]:
        """The tools whose calls may continue as tasks."""

    async def get(self, task_id: str, wait: float = 0.0) -> TaskState:
        """Return the task when it has ended, or its state after `wait` seconds."""

    async def result(self, task_id: str) -> ToolOutcome:
        """Return the result that the call would have returned, for a task that has ended."""

    async def page(self, cursor: str | None) -> tuple[Sequence[TaskState], str | None]:
        """Return some of the tasks, the newest first, and the cursor of the next page, or None at the end."""

    async def cancel(self, task_id: str) -> TaskState:
        """Cancel the task."""
