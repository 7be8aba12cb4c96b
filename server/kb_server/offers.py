"""What a toolset offers beside its tools: resources, prompts, what completes both, and long work as tasks.

Tools are the model's to call, resources the client's to attach, prompts the person's to choose. As with
tools, hosting knows these types alone, and what fails is a `ToolError` or a fault of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from mcp_aiohttp.fastpath import ToolOutcome


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that can be attached. `size` is in bytes, `changed_at` an ISO 8601 time."""

    uri: str
    name: str
    title: str
    mime_type: str
    size: int | None = None
    changed_at: str | None = None


class ResourceLink(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="resource_link"):
    """A resource that belongs to the result of a tool; its JSON is that of the protocol."""

    uri: str
    name: str
    title: str | None = None
    mime_type: str | None = msgspec.field(name="mimeType", default=None)


@dataclass(frozen=True, slots=True)
class ResourceTemplate:
    """Resources by a URI template (RFC 6570)."""

    uri: str
    name: str
    title: str
    description: str


@dataclass(frozen=True, slots=True)
class ResourceText:
    """What a resource says. `following` is the URI of what did not fit, None where all did."""

    uri: str
    mime_type: str
    text: str
    following: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """What an argument may be, at the most 100 values, and whether there may be others than these."""

    values: Sequence[str] = ()
    more: bool = False


class Resources(Protocol):
    """The resources of a toolset.

    Raises (all methods): `ToolError`, `EngineFault`.
    """

    @property
    def templates(self) -> Sequence[ResourceTemplate]:
        """Those that lead to all resources."""

    async def page(self, cursor: str | None) -> tuple[Sequence[Resource], str | None]:
        """Some of the resources, and the cursor of more; None where there are none."""

    async def read(self, uri: str) -> ResourceText:
        """What a resource says. Raises `ToolError` `resource_not_found` where there is none."""

    async def complete(
        self, template: str, argument: str, value: str, given: Mapping[str, str]
    ) -> Completion:
        """What an argument of a template may be that begins with `value`, beside the others in `given`."""

    async def state(self) -> Hashable:
        """Another value whenever any resource may have changed, come or gone."""

    async def version(self, uri: str) -> Hashable | None:
        """Another value whenever this resource changed; None where there is none."""


@dataclass(frozen=True, slots=True)
class PromptArgument:
    """An argument of a prompt, a text."""

    name: str
    description: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request that a person can choose. `render` makes its text from the arguments that were given."""

    name: str
    title: str
    description: str
    arguments: tuple[PromptArgument, ...]
    render: Callable[[Mapping[str, str]], str]


class Completer(Protocol):
    """Completes the arguments of prompts."""

    async def complete(self, argument: str, value: str, given: Mapping[str, str]) -> Completion:
        """What an argument of this name may be that begins with `value`, beside the others in `given`."""


TaskStatus = Literal["working", "completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Task:
    """Work that outlives the call that began it. Times are ISO 8601; `message` says where it is."""

    id: str
    status: TaskStatus
    created_at: str
    changed_at: str
    message: str
    progress: float = 0.0
    """From 0 to 1."""


class Tasks(Protocol):
    """The tasks of a toolset.

    Raises (all methods): `ToolError`, `EngineFault`.
    """

    @property
    def tools(self) -> Collection[str]:
        """Those whose calls may go on as tasks."""

    async def get(self, task_id: str, wait: float = 0.0) -> Task:
        """The task when it has ended, or as it is when `wait` seconds are over."""

    async def result(self, task_id: str) -> ToolOutcome:
        """What the call would have answered, of a task that has ended."""

    async def page(self, cursor: str | None) -> tuple[Sequence[Task], str | None]:
        """Some of the tasks, the newest first, and the cursor of more; None where there are none."""

    async def cancel(self, task_id: str) -> Task:
        """End the task."""
