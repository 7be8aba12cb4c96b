"""One call of one tool: arguments in, a tool result out, one log line and one count at its end."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import msgspec
from mcp.shared.exceptions import MCPError

from kb_config import logs
from kb_server.hosting.arguments import read_arguments
from kb_server.observability import tracing
from kb_server.observability.metrics import Metrics
from kb_server.schema import Schema, input_schema, output_schema, types_alone
from kb_server.tool import Call, Progress, Tool, ToolError, Toolset, no_progress
from mcp_aiohttp.fastpath import ToolOutcome
from mcp_aiohttp.protocol.caller import Caller, digest
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


def correlation_id(meta: Mapping[str, Any] | None, caller: Caller) -> str:
    """The id that follows a call: the caller's own where it sent a usable one, else a new one.

    First `_meta.correlation_id`, then the trace id of a W3C `traceparent` (in `_meta` or a header),
    then the headers `X-Correlation-ID` and `X-Request-ID`. At most 128 printable ASCII characters.
    """
    meta = meta or {}
    headers = caller.headers
    trace = _trace(meta.get("traceparent")) or _trace(headers.get("traceparent"))
    candidates = (
        meta.get("correlation_id"),
        trace,
        headers.get("X-Correlation-ID"),
        headers.get("X-Request-ID"),
    )
    for candidate in candidates:
        if isinstance(candidate, str) and (usable := _UNPRINTABLE.sub("", candidate)[:_MAX_CORRELATION]):
            return usable
    return f"{random.getrandbits(128):032x}"  # it tells calls apart, and guards nothing


def new_call(meta: Mapping[str, Any] | None, caller: Caller, progress: Progress = no_progress) -> Call:
    """What comes with a call beside its arguments."""
    call = Call(correlation_id(meta, caller), caller.credential, caller.address, progress)
    call.user = digest(f"{caller.credential} {caller.address}")
    if agent := caller.headers.get("User-Agent"):
        call.log["user_agent"] = agent[:MAX_AGENT]
    if tracing.ACTIVE is not None:
        call.trace = tracing.trace_of(
            meta, caller.headers.get("traceparent"), caller.headers.get("tracestate")
        )
    return call


def _trace(traceparent: object) -> str | None:
    match = _TRACEPARENT.match(traceparent) if isinstance(traceparent, str) else None
    return match["trace"] if match and match["trace"] != _NO_TRACE else None


class UnknownToolError(MCPError):
    """No tool has this name; the message lists those there are."""

    def __init__(self, name: str, names: Iterable[str]) -> None:
        words = f"Unknown tool: {name[:64]}. The tools are {', '.join(names)}."
        super().__init__(INVALID_PARAMS, words, {"error_type": UNKNOWN})


class BrokenToolError(MCPError):
    """A tool broke. What happened is in the log, under the correlation id; the caller learns only that.

    An MCPError: the words of any other exception are put on the wire by the SDK's handshake loop.
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

    @classmethod
    def of(cls, tool: Tool[Any, Any]) -> PublishedTool:
        """Publish `tool`.

        Raises:
            SchemaError: its models cannot be published to every client.
        """
        label = f"{tool.name} ({type(tool).__name__})"
        output = output_schema(tool.result)
        published = types_alone(output) if tool.lean_result else output
        return cls(tool, input_schema(tool.arguments), published, label)

    def listing(self) -> dict[str, Any]:
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
        if tool.max_result_chars is not None:
            listed["_meta"] = {MAX_RESULT_KEY: tool.max_result_chars}
        return listed


class Calls:
    """Runs the tools of one toolset and keeps count of them."""

    def __init__(self, toolset: Toolset, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tools = {tool.name: PublishedTool.of(tool) for tool in toolset.tools}

    @property
    def names(self) -> Collection[str]:
        """The tools there are."""
        return self._tools.keys()

    def listing(self) -> list[dict[str, Any]]:
        """The tools as `tools/list` shows them."""
        return [published.listing() for published in self._tools.values()]

    async def call(
        self, name: str, arguments: Mapping[str, Any], meta: Mapping[str, Any] | None, caller: Caller
    ) -> ToolOutcome:
        """As `outcome`, of a call on the fast path."""
        return await self.outcome(name, arguments, new_call(meta, caller))

    async def outcome(self, name: str, arguments: Mapping[str, Any], call: Call) -> ToolOutcome:
        """Call the tool `name`.

        Raises:
            UnknownToolError: there is no such tool.
            BrokenToolError: the tool broke; logged with its traceback.
        """
        published = self._tools.get(name)
        if published is None:
            self._metrics.count_call(UNKNOWN, 0.0, UNKNOWN)
            fields = {"tool": name[:64], "correlation_id": call.correlation_id, "error": UNKNOWN}
            log.warning("There is no such tool", extra=fields)
            raise UnknownToolError(name, self._tools)
        logs.info(log, "Executing tool %s", published.label, _fields(published, call))
        ending = _Ending(published, call)
        if tracing.ACTIVE is not None:
            ending.span = tracing.ACTIVE.begin(published.tool.name, call)
        try:
            try:
                read = read_arguments(arguments, published.tool.arguments, published.input)
            except ToolError as error:
                raise await published.tool.refusal(error, call) from None
            return ToolOutcome(msgspec.json.encode(await published.tool.run(read, call)))
        except ToolError as error:
            ending.error_type, ending.answered = error.code, True
            if _is_declared(parameter := error.details.get("parameter"), published):
                call.log["parameter"] = parameter
            return _failure(published.tool, error)
        except asyncio.CancelledError:
            ending.error_type = CANCELLED
            raise
        except Exception as fault:  # noqa: BLE001 - the boundary: what breaks in a tool stays out of the answer
            ending.error_type, ending.fault = INTERNAL, fault
            raise BrokenToolError(call.correlation_id) from None
        finally:
            seconds = perf_counter() - ending.started
            self._metrics.count_call(published.tool.name, seconds, ending.error_type)
            results = call.log.get("result_count")
            if ending.error_type is None and isinstance(results, int):
                # A tool that logs how much it found is a search (R66).
                self._metrics.count_results(call.log.get("collection_id"), results)
            ending.write(seconds)
            if ending.span is not None:
                ending.span.end(ending.error_type, answered=ending.answered)


@dataclass(slots=True)
class _Ending:
    """How a call ended, for its one log line."""

    published: PublishedTool
    call: Call
    error_type: str | None = None
    fault: Exception | None = None
    answered: bool = False
    span: tracing.ToolSpan | None = None
    started: float = field(default_factory=perf_counter)

    def write(self, seconds: float) -> None:
        outcome = {"status": "error", "error": self.error_type} if self.error_type else {"status": "success"}
        took = {"response_time": round(seconds * 1000, 3)}
        fields = {**_fields(self.published, self.call), **outcome, **took, **self.call.log}
        if self.fault is not None:
            log.error("Tool %s ended", self.published.label, exc_info=self.fault, extra=fields)
        elif self.answered:
            log.warning("Tool %s ended", self.published.label, extra=fields)
        else:
            logs.info(log, "Tool %s ended", self.published.label, fields)


def _fields(published: PublishedTool, call: Call) -> dict[str, Any]:
    return {"tool": published.tool.name, "correlation_id": call.correlation_id}


def _is_declared(parameter: object, published: PublishedTool) -> bool:
    """Whether it is a parameter of the tool, and not a name that the caller made up."""
    return isinstance(parameter, str) and parameter.partition(".")[0] in published.input.get("properties", ())


def _failure(tool: Tool[Any, Any], error: ToolError) -> ToolOutcome:
    return ToolOutcome(msgspec.json.encode({**tool.error_members, **error.payload()}), is_error=True)
