"""One call of one tool: arguments in, a tool result out, one log line and one count at its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import msgspec

from kb_server.hosting.arguments import read_arguments
from kb_server.observability.metrics import Metrics
from kb_server.schema import Schema, input_schema, output_schema
from kb_server.tool import Call, Tool, ToolError, Toolset

log = logging.getLogger("kb_server.calls")

MAX_RESULT_KEY = "anthropic/maxResultSizeChars"
INTERNAL = "internal_error"
CANCELLED = "cancelled"
UNKNOWN = "unknown_tool"


class UnknownToolError(LookupError):
    """No tool has this name; the message lists those there are."""


class BrokenToolError(Exception):
    """A tool broke. What happened is in the log, under the correlation id; the caller learns only that."""

    def __init__(self, correlation_id: str) -> None:
        super().__init__("Internal error")
        self.correlation_id = correlation_id


@dataclass(frozen=True, slots=True)
class PublishedTool:
    """A tool with its schemas, made once."""

    tool: Tool[Any, Any]
    input: Schema
    output: Schema

    @property
    def label(self) -> str:
        """Both forms of the name, for logs: `kb_search (KbSearchTool)`."""
        return f"{self.tool.name} ({type(self.tool).__name__})"

    def listing(self) -> dict[str, Any]:
        """The tool as `tools/list` shows it."""
        tool, hints = self.tool, self.tool.annotations
        listed: dict[str, Any] = {
            "name": tool.name,
            "title": tool.title,
            "description": tool.description,
            "inputSchema": self.input,
            "outputSchema": self.output,
            "annotations": {
                "title": tool.title,
                "readOnlyHint": hints.read_only,
                "destructiveHint": hints.destructive,
                "idempotentHint": hints.idempotent,
                "openWorldHint": hints.open_world,
            },
        }
        if tool.max_result_chars is not None:
            listed["_meta"] = {MAX_RESULT_KEY: tool.max_result_chars}
        return listed


class Calls:
    """Runs the tools of one toolset and keeps count of them."""

    def __init__(self, toolset: Toolset, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tools = {
            tool.name: PublishedTool(tool, input_schema(tool.arguments), output_schema(tool.result))
            for tool in toolset.tools
        }

    def listing(self) -> list[dict[str, Any]]:
        """The tools as `tools/list` shows them."""
        return [published.listing() for published in self._tools.values()]

    async def run(self, name: str, arguments: Mapping[str, Any], call: Call) -> dict[str, Any]:
        """Call the tool `name`; its result as `tools/call` answers it, `isError` where it is a `ToolError`.

        Raises:
            UnknownToolError: there is no such tool.
            BrokenToolError: the tool broke; logged with its traceback.
        """
        published = self._tools.get(name)
        if published is None:
            self._metrics.count_call(UNKNOWN, 0.0, UNKNOWN)
            raise UnknownToolError(f"Unknown tool: {name[:64]}. The tools are {', '.join(self._tools)}.")
        log.info("Executing tool %s", published.label, extra=_fields(published, call))
        ending = _Ending(published, call)
        try:
            return _success(await published.tool.run(self._read(published, arguments), call))
        except ToolError as error:
            ending.error_type = error.code
            return _failure(published.tool, error)
        except asyncio.CancelledError:
            ending.error_type = CANCELLED
            raise
        except Exception as fault:  # noqa: BLE001 - the boundary: what breaks in a tool stays out of the answer
            ending.error_type, ending.fault = INTERNAL, fault
            raise BrokenToolError(call.correlation_id) from None
        finally:
            self._count(ending)
            ending.write()

    def _read(self, published: PublishedTool, arguments: Mapping[str, Any]) -> msgspec.Struct:
        return read_arguments(arguments, published.tool.arguments, published.input)

    def _count(self, ending: _Ending) -> None:
        call, name = ending.call, ending.published.tool.name
        self._metrics.count_call(name, ending.seconds, ending.error_type)
        results = call.log.get("result_count")
        if ending.error_type is None and isinstance(results, int):
            # A tool that logs how much it found is a search (R66).
            self._metrics.count_results(call.log.get("collection_id"), results)


@dataclass(slots=True)
class _Ending:
    """How a call ended, for its one log line."""

    published: PublishedTool
    call: Call
    error_type: str | None = None
    fault: Exception | None = None
    started: float = field(default_factory=perf_counter)

    @property
    def seconds(self) -> float:
        return perf_counter() - self.started

    def write(self) -> None:
        outcome = {"status": "error", "error": self.error_type} if self.error_type else {"status": "success"}
        took = {"response_time": round(self.seconds * 1000, 3)}
        log.log(
            logging.ERROR if self.fault else logging.INFO,
            "Tool %s ended",
            self.published.label,
            exc_info=self.fault,
            extra=_fields(self.published, self.call, outcome, took, self.call.log),
        )


def _fields(published: PublishedTool, call: Call, *more: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"tool": published.tool.name, "correlation_id": call.correlation_id}
    for each in more:
        fields |= each
    return {"fields": fields}


def _success(result: msgspec.Struct) -> dict[str, Any]:
    text = msgspec.json.encode(result).decode()
    return _answer(text, {"structuredContent": msgspec.to_builtins(result), "isError": False})


def _failure(tool: Tool[Any, Any], error: ToolError) -> dict[str, Any]:
    payload = {**tool.error_members, **error.payload()}
    return _answer(msgspec.json.encode(payload).decode(), {"isError": True})


def _answer(text: str, members: Mapping[str, Any]) -> dict[str, Any]:
    # `resultType` belongs to 2026-07-28; the SDK leaves it out where it is not known.
    return {"content": [{"type": "text", "text": text}], **members, "resultType": "complete"}
