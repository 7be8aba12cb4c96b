"""A matrix of all optional parameters and the forms in which agents send them, over HTTP and stdio.

The forms are `null`, an empty text, the value as text or as JSON text, and a single text for a list of texts.
Each is understood, or refused for a reason in `REFUSED`. HTTP is tried in both eras.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kb_server.schema import input_schema
from kb_server.tool import Toolset
from tests.protocol.conftest import Process, Start, stdio_environment
from tests.protocol.every_tool import Base, EveryTool
from tests.protocol.every_tool import base as base
from tests.support.mcp_messages import LATEST_HANDSHAKE, MODERN, initialize, request
from tests.support.tool_table import TOOLS

REFUSED = {
    **{("kb_delete", "purge", kind): "what destroys takes its own type" for kind in ('""', "as text")},
    **{("knowledge-remove", "confirm", kind): "so does what confirms" for kind in ('""', "as text")},
    ("knowledge-remove", "confirm", "null"): "a confirmation that is left out is not given",
    **{("kb_get", "document_id", kind): "nothing else says which document" for kind in ("null", '""')},
    **{("kb_history", "document_id", kind): "a version is one of a document" for kind in ("null", '""')},
    **{("kb_edit_note", "append", kind): "there is no edit without it" for kind in ("null", '""')},
    ("kb_restore", "expected_version", "as text"): "the document has another version",
    ("kb_jobs", "wait_seconds", "as text"): "there is no job_id to wait for",
}
"""The refused cells, each with its reason."""


@dataclass(frozen=True)
class Cell:
    """A parameter with a value. `kind` is a column of the matrix."""

    toolset: str
    tool: str
    parameter: str
    kind: str
    value: Any


def cells(toolsets: Mapping[str, Toolset]) -> Iterator[Cell]:
    for name, toolset in toolsets.items():
        for tool in toolset.tools:
            schema = input_schema(tool.arguments)
            for parameter in schema["properties"].keys() - set(schema.get("required", ())):
                for kind, value in values(schema["properties"][parameter]):
                    yield Cell(name, tool.name, parameter, kind, value)


def values(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "null", None
    yield '""', ""
    match schema["type"]:
        case "integer" | "number":
            yield "as text", str(max(1, schema.get("minimum", 0)))
        case "boolean":
            yield "as text", "true"
        case "array":
            yield "JSON text", '["md"]'
            yield "one text", "md"
        case "object":
            yield "JSON text", "{}"


async def wrongly_answered(tools: EveryTool) -> list[tuple[str, str, str, Any]]:
    """Return the cells whose answers disagree with `REFUSED`."""
    wrong = []
    for cell in cells(tools.toolsets):
        given = await TOOLS[cell.toolset][cell.tool].arguments(tools)
        is_given_as_text = cell.kind == "as text" and cell.parameter in given
        value = json.dumps(given[cell.parameter]) if is_given_as_text else cell.value
        result = await tools.result(cell.toolset, cell.tool, {**given, cell.parameter: value})
        place = (cell.tool, cell.parameter, cell.kind)
        if result["isError"] != (place in REFUSED):
            wrong.append((*place, result["content"][0]["text"]))
    return wrong


@pytest.mark.process
async def test_optional_parameters_are_understood_over_http(base: Base) -> None:
    assert await wrongly_answered(base) == []


@dataclass
class OverStdio(EveryTool):
    process: Process
    _sent: int = 0

    async def result(
        self, _toolset: str, tool: str, arguments: Mapping[str, Any], _era: str = MODERN
    ) -> dict[str, Any]:
        self._sent += 1
        message = request("tools/call", {"name": tool, "arguments": arguments}, self._sent)
        result: dict[str, Any] = (await self.process.ask(message))["result"]
        return result


@pytest.fixture
async def over_stdio(base: Base, start: Start, tmp_path: Path) -> AsyncIterator[OverStdio]:
    environment = {
        **stdio_environment(),
        "KB_ENGINE_URL": base.engine.url,
        "RAGLER_API_URL": base.engine.url,
        "KB_TOOLSETS": ",".join(base.toolsets),
        "KB_FILE_ROOTS": str(base.folder),
        "KB_TEXT_FILE": str(tmp_path / "text.md"),
        "KB_HOME": str(tmp_path / "stdio"),
    }
    process = await start(command=("-m", "kb_cli.main", "stdio"), environment=environment)
    await process.ask(initialize(LATEST_HANDSHAKE))
    await process.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    yield OverStdio(base.engine, base.toolsets, base.folder, process)
    await process.end()


@pytest.mark.process
async def test_optional_parameters_are_understood_over_stdio(over_stdio: OverStdio) -> None:
    assert await wrongly_answered(over_stdio) == []


EMPTY: Mapping[str, Any] = {
    "string": "", "integer": 0, "number": 0, "boolean": False, "array": [], "object": {},
}  # fmt: skip


async def test_a_model_may_fill_in_every_parameter(base: Base) -> None:
    """Strict function calling makes all parameters required, so models send empty values for most."""
    for name, toolset in base.toolsets.items():
        for tool in toolset.tools:
            properties = input_schema(tool.arguments)["properties"]
            empty = {parameter: EMPTY[schema["type"]] for parameter, schema in properties.items()}
            arguments = await TOOLS[name][tool.name].arguments(base)
            result = await base.result(name, tool.name, {**empty, **arguments})
            assert not result["isError"], (tool.name, result)


@pytest.mark.parametrize("era", [LATEST_HANDSHAKE, MODERN])
async def test_arguments_may_be_json_text(base: Base, era: str) -> None:
    arguments: Any = json.dumps({"query": "granite", "top": "5"})
    result = await base.result("kb", "kb_search", arguments, era)
    assert not result["isError"]


async def test_required_parameters_that_are_null_are_missing(base: Base) -> None:
    for name, toolset in base.toolsets.items():
        for tool in toolset.tools:
            for parameter in input_schema(tool.arguments).get("required", ()):
                arguments = {**await TOOLS[name][tool.name].arguments(base), parameter: None}
                told = json.loads((await base.result(name, tool.name, arguments))["content"][0]["text"])
                wanted = "confirmation_required" if "clear" in tool.name else "missing_required_parameter"
                assert told["error"] == wanted, (tool.name, parameter, told)


async def test_arguments_that_hosts_add_to_calls_are_dropped(base: Base) -> None:
    added = {"toolCallId": "call_1", "sessionId": "s", "chatInput": "granite?", "action": "sendMessage"}
    for name, toolset in base.toolsets.items():
        for tool in toolset.tools:
            arguments = await TOOLS[name][tool.name].arguments(base)
            result = await base.result(name, tool.name, {**arguments, **added})
            assert not result["isError"], (tool.name, result)
