"""One call of one tool: arguments in, a tool result out, one log line and one count at its end."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from time import perf_counter
from typing import Any

import msgspec
from mcp.shared.exceptions import MCPError

from kb_config import logs, tracing
from kb_contracts.access.reach import Access, Reach, Right
from kb_server.access.grants import GRANT, Grant, grant_of
from kb_server.document_marks import MEMBER, meta_of, opening
from kb_server.engine_client.errors import EngineFault, Refused
from kb_server.engine_client.port import REQUEST_ID, TRACE, USER
from kb_server.engine_faults import subject_of, tool_error
from kb_server.hosting.arguments import read_arguments
from kb_server.observability import auditing
from kb_server.observability.metrics import Metrics
from kb_server.schema import Schema, SchemaError, input_schema, output_schema, types_alone
from kb_server.tool import (
    Call,
    DeferredCall,
    Progress,
    Tool,
    ToolError,
    Toolset,
    no_progress,
)
from mcp_aiohttp.fastpath import ToolOutcome
from mcp_aiohttp.protocol.caller import NOBODY, Caller, digest
from mcp_aiohttp.protocol.elicitation import InputRequired
from mcp_aiohttp.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS

log = logging.getLogger("kb_server.calls")

MAX_RESULT_KEY = "anthropic/maxResultSizeChars"
INTERNAL = "internal_error"
CANCELLED = "cancelled"
UNKNOWN = "unknown_tool"

_MAX_CORRELATION = 128
MAX_AGENT = 200
"""Characters of a `User-Agent` that are logged."""
_UNPRINTABLE = re.compile(r"[^\x21-\x7e]+")
_TRACEPARENT = re.compile(r"^[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_TRACE = "0" * 32
_TOOL_ERROR = "tool_error"
"""The conventional `error.type` of an answer with `isError`; its own code is in `kb.error`."""
_SPAN_ERRORS = {INTERNAL: str(INTERNAL_ERROR)}


def correlation_id(meta: Mapping[str, Any] | None, caller: Caller) -> str:
    """Return the correlation id of a call: the caller's own if it sent a usable one, otherwise a new one.

    First `_meta.correlation_id`, then the trace id of a W3C `traceparent` (in `_meta` or a header), then the
    headers `X-Correlation-ID` and `X-Request-ID`. At most 128 printable ASCII characters.
    """
    meta = meta or {}
    headers = caller.headers
    candidates = (
        meta.get("correlation_id"),
        _trace(meta.get("traceparent")),
        _trace(headers.get("traceparent")),
        headers.get("X-Correlation-ID"),
        headers.get("X-Request-ID"),
    )
    for candidate in candidates:
        if isinstance(candidate, str) and (usable := _UNPRINTABLE.sub("", candidate)[:_MAX_CORRELATION]):
            return usable
    return f"{random.getrandbits(128):032x}"  # it distinguishes calls, and is no secret


def new_call(meta: Mapping[str, Any] | None, caller: Caller, progress: Progress = no_progress) -> Call:
    """Return the context of a call."""
    call = Call(correlation_id(meta, caller), caller.credential, caller.address, progress)
    if caller.identity is not NOBODY:
        call.grant = grant_of(caller.identity)
    call.user = digest(f"{caller.credential} {caller.address}")
    if agent := caller.headers.get("User-Agent"):
        call.log["user_agent"] = agent[:MAX_AGENT]
    if tracing.ACTIVE is not None:
        source = meta if meta is not None and isinstance(meta.get("traceparent"), str) else caller.headers
        call.trace = tracing.sendable(source.get("traceparent"), source.get("tracestate"))
    return call


class on_behalf_of:  # noqa: N801 - read as a word of `with`; a generator would cost twice as much
    """Set the id, trace and caller of `call` for the requests to the engine within the block."""

    __slots__ = ("_call", "_grant", "_request_id", "_trace", "_user")

    def __init__(self, call: Call) -> None:
        self._call = call

    def __enter__(self) -> None:
        self._request_id = REQUEST_ID.set(self._call.correlation_id)
        self._trace = TRACE.set(self._call.trace)
        self._user = USER.set(self._call.user)
        self._grant = GRANT.set(self._call.grant)

    def __exit__(self, *_failed: object) -> None:
        REQUEST_ID.reset(self._request_id)
        TRACE.reset(self._trace)
        USER.reset(self._user)
        GRANT.reset(self._grant)


def admit(grant: Grant, right: Right, toolset: str) -> None:
    """Check that the caller has this right for this toolset, and count the call.
    Raises ToolError: `forbidden`, or `rate_limited`.
    """
    if words := grant.refusal(right, toolset):
        raise ToolError("forbidden", words)
    grant.count_call()


def _trace(traceparent: object) -> str | None:
    match = _TRACEPARENT.match(traceparent) if isinstance(traceparent, str) else None
    return match["trace"] if match and match["trace"] != _NO_TRACE else None


class UnknownToolError(MCPError):
    """No tool has this name; the message lists the caller's tools, and adds a hint."""

    def __init__(self, name: str, names: Iterable[str], hint: str = "") -> None:
        listed = ", ".join(names)
        known = f"The tools are {listed}." if listed else "This key may use no tool here."
        words = f"Unknown tool: {name[:64]}. {known} {hint}".rstrip()
        super().__init__(INVALID_PARAMS, words, {"error_type": UNKNOWN})


class BrokenToolError(MCPError):
    """A tool raised an unexpected exception: logged under the correlation id, hidden from the caller.

    An MCPError, because the SDK's handshake loop sends the message of any other exception to the client.
    """

    def __init__(self, correlation_id: str) -> None:
        data = {"error_type": INTERNAL, "correlation_id": correlation_id}
        super().__init__(INTERNAL_ERROR, "Internal error", data)


@dataclass(frozen=True, slots=True)
class PublishedTool:
    """A tool with its schemas, made once."""

    tool: Tool[Any, Any]
    input: Schema
    output: Schema
    label: str
    """Both forms of the name, for logs: `kb_search (KbSearchTool)`."""
    right: Right
    toolset: str
    opening: bytes
    """The beginning of the JSON of its results, in place of a brace."""
    meta: Mapping[str, str] | None
    """`_meta` of its results."""

    @classmethod
    def of(cls, tool: Tool[Any, Any], toolset: str = "") -> PublishedTool:
        """Publish `tool`, which belongs to `toolset`.
        Raises SchemaError: its models cannot be published to every client.
        """
        label = f"{tool.name} ({type(tool).__name__})"
        output = output_schema(tool.result)
        published = types_alone(tool.result) if tool.lean_result else output
        if tool.document_mark == "member" and not output["properties"]:
            raise SchemaError(f'{label}: has no members, so document_mark has to be "none"')
        if tool.document_mark == "member":
            published = {**published, "properties": {MEMBER: {"type": "string"}, **published["properties"]}}
        return cls(
            tool,
            input_schema(tool.arguments),
            published,
            label=label,
            right=tool.needed_right(),
            toolset=toolset,
            opening=opening(tool.document_mark),
            meta=meta_of(tool.document_mark),
        )

    def listing(self, *, may_be_task: bool = False) -> dict[str, Any]:
        """The tool as `tools/list` shows it."""
        tool, hints = self.tool, self.tool.annotations
        listed: dict[str, Any] = {
            "name": tool.name,
            "title": tool.title,
            "description": tool.description,
            "inputSchema": self.input,
            "outputSchema": self.output,
            "annotations": hints.published(),
        }
        if may_be_task:
            listed["execution"] = {"taskSupport": "optional"}
        if tool.max_result_chars is not None:
            listed["_meta"] = {MAX_RESULT_KEY: tool.max_result_chars}
        return listed


class Calls:
    """Runs the tools of one toolset and keeps count of them."""

    def __init__(self, toolset: Toolset, metrics: Metrics) -> None:
        self._metrics = metrics
        self._answer: _Proceed = _carried_out
        # In the order in which a call meets them; each calls the rest.
        for step in reversed((_traced, partial(_recorded, metrics), _contained, _explained)):
            self._answer = partial(step, self._answer)
        self._unknown_tool = toolset.unknown_tool
        self._tools = {
            tool.name: PublishedTool.of(tool, toolset.part_of(tool.name)) for tool in toolset.tools
        }
        self._deferring = frozenset(toolset.tasks.tools) if toolset.tasks is not None else frozenset()
        self._views = lru_cache(maxsize=1024)(self._visible)

    @property
    def names(self) -> Collection[str]:
        """The tools that the fast path may call."""
        return [name for name, published in self._tools.items() if not published.tool.asks]

    @property
    def reporting(self) -> Collection[str]:
        """The tools that report progress."""
        return [name for name, published in self._tools.items() if published.tool.reports]

    def knows(self, name: str) -> bool:
        """True if there is a tool of this name."""
        return name in self._tools

    def may_be_task(self, name: str) -> bool:
        """True if a call of the tool `name` may continue as a task."""
        return name in self._deferring

    def asks(self, name: str) -> bool:
        """True if the tool `name` may ask the person at the client."""
        return name in self._tools and self._tools[name].tool.asks

    def listing(self) -> list[dict[str, Any]]:
        """Return the tools in the form of `tools/list`, for a caller with all rights."""
        return [
            published.listing(may_be_task=name in self._deferring) for name, published in self._tools.items()
        ]

    def view(self, caller: Caller) -> frozenset[str]:
        """Return the tools on a caller's list: usable now, or with a token of more scopes."""
        grant = grant_of(caller.identity)
        rights = grant.access.rights
        if grant.scopes is not None and caller.connection is None:
            rights = rights.union(grant.scopes.by_right)
        return self._views(rights, grant.access.reach, grant.toolsets)

    def missing_scope(self, name: str, caller: Caller) -> str:
        """The scopes that the caller's access token needs to use a tool, or "" if more scopes do not help."""
        published = self._tools.get(name)
        if published is None:
            return ""
        return grant_of(caller.identity).missing_scope(published.right, published.toolset)

    def _visible(
        self, rights: frozenset[Right], reach: Reach | None, toolsets: frozenset[str] | None
    ) -> frozenset[str]:
        grant = Grant(Access(rights=rights, reach=reach), toolsets)
        return frozenset(
            name for name, each in self._tools.items() if not grant.refusal(each.right, each.toolset)
        )

    async def call(
        self, name: str, arguments: Mapping[str, Any], meta: Mapping[str, Any] | None, caller: Caller
    ) -> ToolOutcome:
        """Call a tool on the fast path; see `outcome`."""
        return await self.outcome(name, arguments, new_call(meta, caller))

    async def outcome(self, name: str, arguments: Mapping[str, Any], call: Call) -> ToolOutcome:
        """Call the tool `name`.

        Raises:
            UnknownToolError: there is no such tool.
            BrokenToolError: the tool broke; logged with its traceback.
            InputRequired: the client has to ask first.
            DeferredCall: the call continues as a task, as `call` requests.
        """
        published = self._tools.get(name)
        if published is None:
            self._metrics.count_call(UNKNOWN, 0.0, UNKNOWN)
            unknown = {"tool": name[:64], "correlation_id": call.correlation_id, "error": UNKNOWN}
            log.warning("Unknown tool", extra=unknown)
            grant = call.grant
            visible = self._views(grant.access.rights, grant.access.reach, grant.toolsets)
            names = (each for each in self._tools if each in visible)
            raise UnknownToolError(name, names, self._unknown_tool(name, grant))
        return await self._answer(_Run(published, arguments, call))


@dataclass(slots=True)
class _Run:
    """A call while it passes through the steps; `read` are its arguments as the tool's model.

    `error_type` is None for success; `answered` is true if the error is the result, `fault` the exception of
    a tool that broke.
    """

    published: PublishedTool
    arguments: Mapping[str, Any]
    call: Call
    read: Any = None
    error_type: str | None = None
    answered: bool = False
    fault: Exception | None = None


_Proceed = Callable[[_Run], Awaitable[ToolOutcome]]


async def _traced(proceed: _Proceed, run: _Run) -> ToolOutcome:
    if tracing.ACTIVE is None:
        return await proceed(run)
    tool, call = run.published.tool.name, run.call
    attributes = {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "kb.correlation_id": call.correlation_id,
    }
    span = tracing.ACTIVE.begin(f"tools/call {tool}", "SERVER", attributes, call.trace)
    call.trace = span.onward()
    try:
        return await proceed(run)
    finally:
        if (error := run.error_type) is not None:
            span.set("kb.error", error)
            span.fail(_TOOL_ERROR if run.answered else _SPAN_ERRORS.get(error, error))
        span.end()


async def _recorded(metrics: Metrics, proceed: _Proceed, run: _Run) -> ToolOutcome:
    tool, label, call = run.published.tool, run.published.label, run.call
    fields: dict[str, Any] = {
        "tool": tool.name,
        "correlation_id": call.correlation_id,
        "caller": call.grant.access.name,
    }
    logs.info(log, "Executing tool %s", label, fields)
    started = perf_counter()
    try:
        return await proceed(run)
    finally:
        seconds, error_type = perf_counter() - started, run.error_type
        # A tool that logs how much it found is a search (R66).
        results = call.log.get("result_count") if error_type is None else None
        metrics.count_call(
            tool.name, seconds, error_type, results=results, collection_id=call.log.get("collection_id")
        )
        fields |= {"status": "error", "error": error_type} if error_type else {"status": "success"}
        fields |= {"response_time": round(seconds * 1000, 3), **call.log}
        if run.fault is not None:
            log.error("Tool %s ended", label, exc_info=run.fault, extra=fields)
        elif run.answered:
            log.warning("Tool %s ended", label, extra=fields)
        else:
            logs.info(log, "Tool %s ended", label, fields)
        if auditing.ACTIVE is not None:
            auditing.note_call(tool.name, error_type, call, subject_of(run.read).get("document_id"))


async def _contained(proceed: _Proceed, run: _Run) -> ToolOutcome:
    try:
        return await proceed(run)
    except InputRequired:
        run.call.log["asked"] = True
        raise
    except DeferredCall as deferred:
        run.call.log["task_id"] = deferred.task.id
        raise
    except asyncio.CancelledError:
        run.error_type = CANCELLED
        raise
    except Exception as broken:  # noqa: BLE001 - the boundary: what breaks in a tool stays out of the answer
        run.error_type, run.fault = INTERNAL, broken
        raise BrokenToolError(run.call.correlation_id) from None


async def _explained(proceed: _Proceed, run: _Run) -> ToolOutcome:
    published, tool, call = run.published, run.published.tool, run.call
    try:
        return await proceed(run)
    except ToolError as refused:
        error = refused
    except EngineFault as fault:
        error = tool_error(fault, tool.engine_words, **subject_of(run.read))
        if not isinstance(fault, Refused):  # the message of a refusal may quote the caller
            call.log["reason"] = error.message
    run.error_type, run.answered = error.code, True
    parameter = error.details.get("parameter")
    # Only declared names, not one invented by the caller.
    if isinstance(parameter, str) and parameter.partition(".")[0] in published.input["properties"]:
        call.log["parameter"] = parameter
    encoded = msgspec.json.encode({**tool.error_members, **error.payload()})
    if not error.quotes:
        return ToolOutcome(encoded, is_error=True)
    return ToolOutcome(published.opening + encoded[1:], is_error=True, meta=published.meta)


async def _carried_out(run: _Run) -> ToolOutcome:
    published, tool, call = run.published, run.published.tool, run.call
    with on_behalf_of(call):
        admit(call.grant, published.right, published.toolset)
        try:
            run.read = read_arguments(run.arguments, tool.arguments)
        except ToolError as misfit:
            raise await tool.refusal(misfit, call) from None
        result = await tool.run(run.read, call)
        encoded = published.opening + msgspec.json.encode(result)[1:]
        return ToolOutcome(encoded, meta=published.meta)
