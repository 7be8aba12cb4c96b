"""The types of tools and toolsets, which toolsets fill in and hosting serves.

A toolset is one module that builds one `Toolset`. Hosting knows only these types, and a tool is independent
of HTTP, stdio and protocol eras.

Every failure that a caller can cause or fix is a `ToolError`; hosting turns it into a tool result with
`isError: true` whose text is the JSON of `ToolError.payload()`. Any other exception of a tool is an internal
fault and becomes a JSON-RPC internal error without its message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, get_args

import msgspec

from kb_contracts.access.reach import Right
from kb_server.access.grants import EVERYBODY, Grant
from kb_server.document_marks import DocumentMark
from kb_server.offers import Completer, Prompt, Resources, Tasks

if TYPE_CHECKING:
    from mcp_aiohttp.protocol.tasks import TaskState

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

MISSING, INVALID = "missing_required_parameter", "invalid_parameter"
"""The codes of `ToolError` for missing arguments, and for invalid ones."""

Ask = Callable[[str], Awaitable[str]]
"""Puts a question to the person at the client; the answer is "accept" to agree, "none" if there is no answer.

Its exceptions are for hosting: let them out.
"""

Progress = Callable[[float, float | None, str | None], Awaitable[None]]
"""Reports `(progress, total, message)` to the caller; does nothing if the caller did not request progress."""


async def no_progress(_progress: float, _total: float | None = None, _message: str | None = None) -> None:
    """Report nothing: the caller gave no progress token."""


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of a tool without parameters."""


class ToolError(Exception):
    """A failure that the calling agent can understand and act on.

    `code` is stable and machine-readable, `message` describes the failure and the next step, `details` are
    further JSON members. `quotes` marks an error that quotes a document as data.
    """

    def __init__(self, code: str, message: str, *, quotes: bool = False, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.quotes = quotes
        self.details = details

    def payload(self) -> dict[str, Any]:
        """Return the JSON object that the caller sees."""
        return {"error": self.code, "message": self.message, **self.details}


WORDS = {"words": True}
"""`Meta(extra=WORDS)` of a parameter that must not be blank, which a schema cannot express."""

EXACT = {"exact": True}
"""`Meta(extra=EXACT)` of a parameter that confirms or destroys: only its own type is accepted."""

EMPTY_COUNTS = {"empty counts": True}
"""`Meta(extra=EMPTY_COUNTS)` of an optional parameter whose empty text differs from leaving it out."""


@dataclass(frozen=True, slots=True)
class EngineWords:
    """A toolset's messages for faults of the engine, in place of those of `engine_faults`, and its own codes.

    Both are by the fault's code or the reason of a refusal.
    """

    messages: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, str] = field(default_factory=dict)
    flattened: str = "filters."
    """A prefix of the engine's parameters that the tools' do not have, such as of those in an object."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """Hints to the client, as the protocol names them."""

    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False

    def published(self) -> dict[str, bool]:
        """Return the hints that differ from the protocol's defaults.

        For a read-only tool, the protocol defines only `openWorldHint`.
        """
        if self.read_only:
            return {"readOnlyHint": True, "openWorldHint": self.open_world}
        hints = {"destructiveHint": self.destructive, "openWorldHint": self.open_world}
        return {**hints, "idempotentHint": True} if self.idempotent else hints


class DeferredCall(Exception):
    """The call continues as this task: raised by a tool instead of waiting (`Call.defer`)."""

    def __init__(self, task: TaskState) -> None:
        super().__init__(f"it goes on as task {task.id}")
        self.task = task


@dataclass(slots=True)
class Call:
    """The context of a call."""

    correlation_id: str = ""
    """Follows the call into the logs and to the engine (`X-Request-ID`)."""
    credential: str = "anonymous"
    """A short digest that tells callers apart; never the secret itself."""
    address: str = ""
    """The address that the call came from; empty on stdio."""
    progress: Progress = no_progress
    grant: Grant = EVERYBODY
    """The caller's permissions."""
    ask: Ask | None = None
    """None if the client cannot ask, and for tools that do not declare that they ask."""
    deferral: Literal["never", "waiting", "always"] = "never"
    """When the client accepts a task: never, in place of a result to wait for, or always."""
    user: str = ""
    """A short digest of credential and address, by which the engine lets callers take turns."""
    trace: Mapping[str, str] | None = None
    """W3C trace context; None if tracing is off."""
    log: dict[str, Any] = field(default_factory=dict)
    """Fields a tool adds to the one log line of its call. No secret, no document text."""

    def defer(self, task: TaskState, *, waits: bool) -> None:
        """Continue the call as a task if the client accepts that; `waits`: the result is not ready yet.
        Raises DeferredCall: let it out.
        """
        if self.deferral == "always" or (self.deferral == "waiting" and waits):
            raise DeferredCall(task)


class Tool(ABC, Generic[A, R]):
    """One tool of the arguments `A` and the result `R`. The class is its name in PascalCase, and `Tool`."""

    name: ClassVar[str]
    title: ClassVar[str]
    description: ClassVar[str]
    annotations: ClassVar[Annotations]
    right: ClassVar[Right | None] = None
    """The right that a caller needs; None: "read" for a read-only tool, otherwise "write"."""
    arguments: ClassVar[type[msgspec.Struct]]
    """`A`; unknown fields are forbidden. Its portable schema is `inputSchema`."""
    result: ClassVar[type[msgspec.Struct]]
    """`R`. Its portable schema is `outputSchema`."""
    max_result_chars: ClassVar[int | None] = None
    """Published as `_meta["anthropic/maxResultSizeChars"]` if a result may be large."""
    asks: ClassVar[bool] = False
    """True if it may ask the person at the client before it goes on."""
    reports: ClassVar[bool] = False
    """True if it may report progress. Calls of other tools take the fast path, which drops reports."""
    lean_result: ClassVar[bool] = False
    """Publish only the types of the result, without descriptions and bounds: for a long list of tools."""
    engine_words: ClassVar[EngineWords] = EngineWords()
    """The toolset's messages for faults of the engine."""
    document_mark: ClassVar[DocumentMark] = "member"
    """The mark of its results, which may contain texts and names of documents."""
    error_members: ClassVar[Mapping[str, Any]] = {}
    """JSON members that open every error of this tool, refused arguments included (`success: false`)."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in cls.__dict__.get("__orig_bases__", ()):
            match get_args(base):
                case type() as arguments, type() as result:
                    cls.arguments, cls.result = arguments, result

    @classmethod
    def needed_right(cls) -> Right:
        """Return the right that a caller needs for the tool."""
        return cls.right or ("read" if cls.annotations.read_only else "write")

    @abstractmethod
    async def run(self, arguments: A, call: Call) -> R:
        """Do the work; raise `ToolError` for errors that the caller can fix, and let engine faults out."""

    async def refusal(self, error: ToolError, _call: Call) -> ToolError:
        """Return the error for arguments that do not fit the model: `error`, or one of the tool's own."""
        return error


CANCEL, OFFERS, TASKS = "tools/cancel", "resources", "tasks"
"""Names for `Toolset.part_of`: the method that ends a task; resources, prompts and completion; tasks."""

CancelTask = Callable[[str, Call], Awaitable[None]]
"""Ends the task of this id; raises `ToolError`."""


@dataclass(frozen=True)
class Toolset:
    """A named set of tools with an identity of its own, served at `/mcp/<name>`."""

    name: str
    server_name: str
    version: str
    title: str
    instructions: str
    tools: tuple[Tool[Any, Any], ...]
    tools_list_changed: bool = False
    prompts_list_changed: bool | None = None
    """None: no prompts capability is declared, unless there are prompts."""
    prompts: tuple[Prompt, ...] = ()
    resources: Resources | None = None
    completer: Completer | None = None
    """Completes the prompts' arguments."""
    tasks: Tasks | None = None
    cancel: CancelTask | None = None
    """Serves the method `tools/cancel`. None: there is no such method."""
    unknown_tool: Callable[[str, Grant], str] = lambda _name, _grant: ""
    """Returns a hint for an agent with this grant that calls an unknown tool of this name."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """In a combination of toolsets, the toolset of each tool, and of `CANCEL`, `OFFERS` and `TASKS`."""
    lifespan: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Entered before the first call and left after the last."""

    def part_of(self, what: str) -> str:
        """Return the toolset of a tool, or of `CANCEL`, `OFFERS` or `TASKS`."""
        return self.parts.get(what, self.name)

    def by_name(self) -> Mapping[str, Tool[Any, Any]]:
        """Return the tools by protocol id."""
        return {tool.name: tool for tool in self.tools}
