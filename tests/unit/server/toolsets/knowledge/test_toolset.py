"""The toolset `knowledge` as a whole: its seven tools, their names and their schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kb_server.hosting.calls import PublishedTool
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Toolset
from kb_server.toolsets import build_toolset
from kb_simulator import ControlClient
from tests.support.knowledge import SEVEN, Knowledge, knowledge_before

NOBODY = "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"
BACKWARDS = {"filters": {"date_range": {"start": "2025-02-01", "end": "2025-01-31"}}}
DESCRIPTIONS = {
    "knowledge-add": "Add a document or image to the knowledge base for semantic search",
    "knowledge-search": "Search the knowledge base using natural language query",
    "knowledge-remove": "Remove a specific document from the knowledge base",
    "knowledge-show": "List all documents in the knowledge base with metadata",
    "knowledge-clear": "Remove all documents from the knowledge base",
    "knowledge-status": "Get knowledge base statistics and health status",
    "knowledge-task-status": "Get status of an async processing task",
}
REQUIRED = {
    "knowledge-add": ["file_path"],
    "knowledge-search": ["query"],
    "knowledge-remove": ["document_id"],
    "knowledge-clear": ["confirm", "confirmation_phrase"],
    "knowledge-task-status": ["task_id"],
}
DEFAULTS = {
    "knowledge-add": {"force_ocr": False, "async": True},
    "knowledge-search": {"top_k": 10, "min_relevance": 0.0},
    "knowledge-remove": {"confirm": False},
    "knowledge-show": {"limit": 100, "offset": 0, "sort_by": "date_added", "sort_order": "desc"},
}


@pytest.fixture
def toolset() -> Toolset:
    return build_toolset("knowledge", Services(ServerSettings(home=Path("unused"))))


@pytest.mark.requirement("N1", "N66", "N82")
def test_there_are_exactly_seven_tools(toolset: Toolset) -> None:
    assert tuple(tool.name for tool in toolset.tools) == SEVEN
    assert (toolset.server_name, toolset.version) == ("knowledge-server", "1.0.0")


@pytest.mark.parametrize("name", SEVEN)
def test_schemas_have_the_documented_required_parameters_and_defaults(toolset: Toolset, name: str) -> None:
    published = PublishedTool.of(toolset.by_name()[name])
    assert published.input.get("required", []) == REQUIRED.get(name, [])
    properties = published.input["properties"]
    defaults = {each: schema["default"] for each, schema in properties.items() if "default" in schema}
    assert defaults == DEFAULTS.get(name, {})


@pytest.mark.requirement("N5", "N19", "N30", "N37")
def test_descriptions_begin_as_agreed(toolset: Toolset) -> None:
    for tool in toolset.tools:
        assert tool.description.startswith(DESCRIPTIONS[tool.name])
        assert len(tool.description) > len(DESCRIPTIONS[tool.name]) + 40


@pytest.mark.requirement("N46", "N52", "N60")
@pytest.mark.parametrize("name", ["knowledge-clear", "knowledge-status", "knowledge-task-status"])
def test_the_other_descriptions_begin_as_agreed(toolset: Toolset, name: str) -> None:
    assert toolset.by_name()[name].description.startswith(DESCRIPTIONS[name])


def arguments_of(knowledge: Knowledge, tool: str, document_id: str = NOBODY) -> dict[str, Any]:
    arguments: dict[str, dict[str, Any]] = {
        "knowledge-add": {"file_path": knowledge.file("wasps.html")},
        "knowledge-search": {"query": "bees"},
        "knowledge-remove": {"document_id": document_id, "confirm": True},
        "knowledge-clear": {"confirm": True, "confirmation_phrase": "DELETE ALL"},
        "knowledge-task-status": {"task_id": NOBODY},
    }
    return arguments.get(tool, {})


@pytest.mark.requirement("N4", "N85")
@pytest.mark.parametrize("name", SEVEN)
async def test_a_result_is_one_text_of_json_with_success(knowledge: Knowledge, name: str) -> None:
    """It equals the structured content, which fits the published schema; errors have `success` too."""
    document = await knowledge.note("bees")
    arguments = arguments_of(knowledge, name, document)
    if name == "knowledge-task-status":
        arguments = {
            "task_id": (await knowledge.ok("knowledge-add", file_path=knowledge.file("a.html")))["task_id"]
        }
    assert (await knowledge.ok(name, **arguments))["success"] is True
    assert (await knowledge.refused(name, nothing=1))["success"] is False


@pytest.mark.requirement("N86")
@pytest.mark.parametrize("name", [name for name in SEVEN if name != "knowledge-status"])
async def test_without_an_engine_every_call_says_so(name: str, tmp_path: Path) -> None:
    with ControlClient("http://127.0.0.1:1") as nobody:
        async with knowledge_before("http://127.0.0.1:1", "", nobody, tmp_path) as knowledge:
            refused = await knowledge.refused(name, **arguments_of(knowledge, name))
            assert refused["error"] == "engine_unreachable"


@pytest.mark.requirement("N18", "N31", "N61", "N89")
@pytest.mark.parametrize("tool", [tool for tool in REQUIRED if tool != "knowledge-clear"])
async def test_a_missing_required_parameter_is_named(knowledge: Knowledge, tool: str) -> None:
    """Clearing without confirmations has an error of its own."""
    refused = await knowledge.refused(tool)
    assert (refused["error"], refused["parameter"]) == ("missing_required_parameter", REQUIRED[tool][0])


async def check_refusal(knowledge: Knowledge, tool: str, arguments: dict[str, Any], parameter: str) -> None:
    """A value out of range is refused by the parameter's name, and never clamped or guessed."""
    refused = await knowledge.refused(tool, **{**arguments_of(knowledge, tool), **arguments})
    assert (refused["error"], refused["parameter"]) == ("invalid_parameter", parameter)
    assert knowledge.engine.state().jobs == []


@pytest.mark.requirement("N20", "N21", "N22", "N23", "N84")
@pytest.mark.parametrize(
    ("tool", "arguments", "parameter"),
    [
        ("knowledge-add", {"file_path": 5}, "file_path"),
        ("knowledge-add", {"file_path": ""}, "file_path"),
        ("knowledge-add", {"file_path": "x" * 4097}, "file_path"),
        ("knowledge-add", {"metadata": "author"}, "metadata"),
        ("knowledge-add", {"metadata": ["author"]}, "metadata"),
        ("knowledge-add", {"metadata": {"tags": "technical"}}, "metadata.tags"),
        ("knowledge-add", {"metadata": {"tags": 0}}, "metadata.tags"),
        ("knowledge-add", {"metadata": {"tags": [1]}}, "metadata.tags"),
        ("knowledge-add", {"metadata": {"tags": ["a,b"]}}, "metadata.tags"),
        ("knowledge-add", {"metadata": {"tags": ["collection:memory"]}}, "metadata.tags"),
        ("knowledge-add", {"metadata": {"tags": [str(number) for number in range(64)]}}, "metadata.tags"),
        ("knowledge-add", {"metadata": {"title": 5}}, "metadata.title"),
        ("knowledge-add", {"metadata": {"title": "x" * 501}}, "metadata.title"),
        ("knowledge-add", {"force_ocr": "yes"}, "force_ocr"),
        ("knowledge-add", {"async": 1}, "async"),
        ("knowledge-add", {"collection": "memory"}, "collection"),
        ("knowledge-search", {"query": ""}, "query"),
        ("knowledge-search", {"query": "  \t"}, "query"),
        ("knowledge-search", {"query": "x" * 501}, "query"),
        ("knowledge-search", {"query": 5}, "query"),
        ("knowledge-search", {"top_k": -1}, "top_k"),
        ("knowledge-search", {"top_k": 51}, "top_k"),
        ("knowledge-search", {"top_k": "ten"}, "top_k"),
        ("knowledge-search", {"min_relevance": -0.1}, "min_relevance"),
        ("knowledge-search", {"min_relevance": 1.1}, "min_relevance"),
        ("knowledge-search", {"min_relevance": "high"}, "min_relevance"),
        ("knowledge-search", {"filters": "pdf"}, "filters"),
        ("knowledge-search", {"filters": {"author": "x"}}, "filters.author"),
        ("knowledge-search", {"filters": {"format": ["pdf"]}}, "filters.format"),
        ("knowledge-search", {"filters": {"format": "x" * 21}}, "filters.format"),
        ("knowledge-search", {"filters": {"date_range": "2025"}}, "filters.date_range"),
        ("knowledge-search", {"filters": {"date_range": {"from": "2025-01-01"}}}, "filters.date_range.from"),
        ("knowledge-search", {"filters": {"date_range": {"start": "yesterday"}}}, "filters.date_range.start"),
        ("knowledge-search", {"filters": {"date_range": {"end": "2025-02-30"}}}, "filters.date_range.end"),
        ("knowledge-search", BACKWARDS, "filters.date_range.end"),
        ("knowledge-search", {"limit": 5}, "limit"),
    ],
)
async def test_invalid_arguments_of_searches_and_submissions_are_refused(
    knowledge: Knowledge, tool: str, arguments: dict[str, Any], parameter: str
) -> None:
    await check_refusal(knowledge, tool, arguments, parameter)


@pytest.mark.requirement("N38", "N39", "N40", "N41", "N84")
@pytest.mark.parametrize(
    ("tool", "arguments", "parameter"),
    [
        ("knowledge-show", {"limit": -1}, "limit"),
        ("knowledge-show", {"limit": 1001}, "limit"),
        ("knowledge-show", {"limit": "ten"}, "limit"),
        ("knowledge-show", {"offset": -1}, "offset"),
        ("knowledge-show", {"offset": 1.5}, "offset"),
        ("knowledge-show", {"sort_by": "title"}, "sort_by"),
        ("knowledge-show", {"sort_by": 1}, "sort_by"),
        ("knowledge-show", {"sort_order": "up"}, "sort_order"),
        ("knowledge-show", {"page": 1}, "page"),
    ],
)
async def test_invalid_arguments_of_lists_are_refused(
    knowledge: Knowledge, tool: str, arguments: dict[str, Any], parameter: str
) -> None:
    await check_refusal(knowledge, tool, arguments, parameter)


@pytest.mark.requirement("N31", "N32", "N47", "N48")
@pytest.mark.parametrize(
    ("tool", "arguments", "parameter"),
    [
        ("knowledge-remove", {"document_id": 5}, "document_id"),
        ("knowledge-remove", {"document_id": ""}, "document_id"),
        ("knowledge-remove", {"document_id": "x" * 101}, "document_id"),
        ("knowledge-remove", {"confirm": "yes"}, "confirm"),
        ("knowledge-remove", {"force": True}, "force"),
        ("knowledge-clear", {"confirm": "true"}, "confirm"),
        ("knowledge-clear", {"confirmation_phrase": True}, "confirmation_phrase"),
        (
            "knowledge-clear",
            {"confirm": True, "confirmation_phrase": "DELETE ALL", "collection": "memory"},
            "collection",
        ),
    ],
)
async def test_invalid_arguments_of_removals_are_refused(
    knowledge: Knowledge, tool: str, arguments: dict[str, Any], parameter: str
) -> None:
    await check_refusal(knowledge, tool, arguments, parameter)


@pytest.mark.requirement("N52", "N61")
@pytest.mark.parametrize(
    ("tool", "arguments", "parameter"),
    [
        ("knowledge-status", {"verbose": True}, "verbose"),
        ("knowledge-task-status", {"task_id": ""}, "task_id"),
        ("knowledge-task-status", {"task_id": "task-uuid"}, "task_id"),
        ("knowledge-task-status", {"task_id": 5}, "task_id"),
    ],
)
async def test_invalid_arguments_of_status_tools_are_refused(
    knowledge: Knowledge, tool: str, arguments: dict[str, Any], parameter: str
) -> None:
    await check_refusal(knowledge, tool, arguments, parameter)
