"""What a tool and a toolset are: the types that toolsets fill and hosting serves.

A toolset is a room: one module that builds one `Toolset`. Hosting knows nothing else of it, and a
tool knows nothing of HTTP, stdio or protocol eras.

Every failure that a caller can cause or mend is a `ToolError`; hosting turns it into a tool result
with `isError: true` whose text is the JSON of `ToolError.payload()`. Anything else that escapes a
tool is a fault of ours and becomes a JSON-RPC internal error without its words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

import msgspec

from kb_contracts.access.reach import Right
from kb_server.access.grants import EVERYBODY, Grant
from kb_server.document_marks import DocumentMark
from kb_server.offers import Completer, Prompt, ResourceLink, Resources, Task, Tasks

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

MISSING, INVALID = "missing_required_parameter", "invalid_parameter"
"""The codes of `ToolError` for arguments that are left out, and for those that do not fit."""

Ask = Callable[[str], Awaitable[str]]
"""Puts a question to the person at the client, who agrees with "accept"; "none": there was no answer.

What it raises is for hosting: let it out.
"""

Progress = Callable[[float, float | None, str | None], Awaitable[None]]
"""Reports `(progress, total, message)` to the caller; does nothing where the caller asked for none."""


async def no_progress(_progress: float, _total: float | None = None, _message: str | None = None) -> None:
    """The `Progress` of a call whose caller gave no progress token."""


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of a tool that takes none."""


class ToolError(Exception):
    """A failure the calling agent can understand and act on.

    `code` is stable and machine-readable, `message` says what happened and what to do next, `details`
    are further JSON members that stand beside them. What `quotes` a document is marked as data.
    """

    def __init__(self, code: str, message: str, *, quotes: bool = False, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.quotes = quotes
        self.details = details

    def payload(self) -> dict[str, Any]:
        """The JSON object that the caller sees."""
        return {"error": self.code, "message": self.message, **self.details}


WORDS = {"words": True}
"""`Meta(extra=WORDS)` of a parameter that no text of blanks alone fits, which no schema forbids."""

EXACT = {"exact": True}
"""`Meta(extra=EXACT)` of a parameter that confirms or destroys: nothing but its own type is taken for it."""

EMPTY_COUNTS = {"empty counts": True}
"""`Meta(extra=EMPTY_COUNTS)` of an optional parameter whose empty text is not the same as leaving it out."""


@dataclass(frozen=True, slots=True)
class EngineWords:
    """How a toolset speaks of the engine's faults: messages over those of `engine_faults`, by the fault's
    code or the reason of a refusal, and codes of its own."""

    messages: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, str] = field(default_factory=dict)
    flattened: str = "filters."
    """Stands before parameters that the engine takes in an object and the tools take flat."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """Hints to the client, as the protocol names them."""

    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False

    def published(self) -> dict[str, bool]:
        """The hints that say more than the protocol assumes without them.

        Of a tool that only reads, the protocol gives no other a meaning but `openWorldHint`.
        """
        if self.read_only:
            return {"readOnlyHint": True, "openWorldHint": self.open_world}
        hints = {"destructiveHint": self.destructive, "openWorldHint": self.open_world}
        return {**hints, "idempotentHint": True} if self.idempotent else hints


class DeferredCall(Exception):
    """The call goes on as this task: raised by a tool in place of waiting (`Call.defer`)."""

    def __init__(self, task: Task) -> None:
        super().__init__(f"it goes on as task {task.id}")
        self.task = task


@dataclass(slots=True)
class Call:
    """What comes with a call beside its arguments."""

    correlation_id: str = ""
    """Follows the call into the logs and to the engine (`X-Request-ID`)."""
    credential: str = "anonymous"
    """A short digest that tells callers apart; never the secret itself."""
    address: str = ""
    """The address that the call came from; empty on stdio."""
    progress: Progress = no_progress
    grant: Grant = EVERYBODY
    """What the caller may do."""
    ask: Ask | None = None
    """None where the client cannot ask anybody, and for tools that do not say that they ask."""
    deferral: Literal["never", "waiting", "always"] = "never"
    """Whether the client takes a task in place of what has to be waited for, or in place of any answer."""
    user: str = ""
    """A short digest of credential and address, by which the engine lets callers take turns."""
    trace: Mapping[str, str] | None = None
    """Where the call stands in a W3C trace; None where nobody collects spans."""
    log: dict[str, Any] = field(default_factory=dict)
    """Fields a tool adds to the one log line of its call. No secret, no document text."""

    def defer(self, task: Task, *, waits: bool) -> None:
        """Let the call go on as a task where the client wants that; `waits`: it would have to be waited for.

        Raises:
            DeferredCall: let it out.
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
    """What a caller needs for it; None: to read where the tool reads alone, else to write."""
    arguments: ClassVar[type[msgspec.Struct]]
    """`A`; unknown fields are forbidden. Its portable schema is `inputSchema`."""
    result: ClassVar[type[msgspec.Struct]]
    """`R`. Its portable schema is `outputSchema`."""
    max_result_chars: ClassVar[int | None] = None
    """Published as `_meta["anthropic/maxResultSizeChars"]` where a result may be large."""
    asks: ClassVar[bool] = False
    """It may put a question to the person at the client before it goes on."""
    lean_result: ClassVar[bool] = False
    """Publish of the result its types alone, without descriptions and bounds: for a long list of tools."""
    engine_words: ClassVar[EngineWords] = EngineWords()
    """How faults of the engine that leave `run` are reported."""
    document_mark: ClassVar[DocumentMark] = "member"
    """How its results are marked, which may hold what documents say or are called."""
    error_members: ClassVar[Mapping[str, Any]] = {}
    """JSON members that open every error of this tool, refused arguments included (`success: false`)."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in cls.__dict__.get("__orig_bases__", ()):
            match get_args(base):
                case type() as arguments, type() as result:
                    cls.arguments, cls.result = arguments, result

    @property
    def needed_right(self) -> Right:
        """What a caller needs to use the tool."""
        return self.right or ("read" if self.annotations.read_only else "write")

    @abstractmethod
    async def run(self, arguments: A, call: Call) -> R:
        """Do the work; raise `ToolError` for what the caller can act on, or let a fault of the engine out."""

    def links(self, _result: R) -> Sequence[ResourceLink]:
        """The resources that belong to a result; few, for they come beside it."""
        return ()

    async def refusal(self, error: ToolError, _call: Call) -> ToolError:
        """What is told of arguments that do not fit the model: `error`, or words of the tool's own."""
        return error


CANCEL, OFFERS, TASKS = "tools/cancel", "resources", "tasks"
"""The method that ends a task; resources, prompts and what completes them; the tasks of the protocol."""

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
    """None: the server declares no prompts capability, unless it has prompts."""
    prompts: tuple[Prompt, ...] = ()
    resources: Resources | None = None
    completer: Completer | None = None
    """Of the prompts' arguments."""
    tasks: Tasks | None = None
    cancel: CancelTask | None = None
    """Serves the method `tools/cancel`. None: there is no such method."""
    unknown_tool: Callable[[str], str] = lambda _name: ""
    """What to say to an agent that calls a tool of this name, which the toolset does not have."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Of several toolsets in one, whose each tool is, and what `CANCEL`, `OFFERS` and `TASKS` stand for."""
    lifespan: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Entered before the first call and left after the last."""

    def part_of(self, what: str) -> str:
        """The toolset of a tool, or of what `CANCEL`, `OFFERS` and `TASKS` stand for."""
        return self.parts.get(what, self.name)

    def by_name(self) -> Mapping[str, Tool[Any, Any]]:
        """The tools by protocol id."""
        return {tool.name: tool for tool in self.tools}
