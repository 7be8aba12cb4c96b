"""The toolset `knowledge` as a whole: its seven tools, what they are called and what they publish."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_server.hosting.calls import PublishedTool
from kb_server.schema import check_portable
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Toolset
from kb_server.toolsets import build_toolset
from kb_simulator import ControlClient
from tests.support.knowledge import SEVEN, Knowledge, knowledge_before

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


@pytest.mark.requirement("N5", "N19", "N30", "N37")
def test_descriptions_begin_as_agreed(toolset: Toolset) -> None:
    for tool in toolset.tools:
        assert tool.description.startswith(DESCRIPTIONS[tool.name])
        assert len(tool.description) > len(DESCRIPTIONS[tool.name]) + 40


@pytest.mark.requirement("N46", "N52", "N60")
def test_the_other_descriptions_begin_as_agreed(toolset: Toolset) -> None:
    told = toolset.by_name()
    for name in ("knowledge-clear", "knowledge-status", "knowledge-task-status"):
        assert told[name].description.startswith(DESCRIPTIONS[name])


@pytest.mark.requirement("N3")
@pytest.mark.parametrize("name", SEVEN)
def test_schemas_are_portable_and_say_what_each_parameter_is(toolset: Toolset, name: str) -> None:
    published = PublishedTool.of(toolset.by_name()[name])
    check_portable(published.input)
    check_portable(published.output)
    assert published.input["type"] == "object"
    assert published.input["additionalProperties"] is False
    assert published.input.get("required", []) == REQUIRED.get(name, [])
    properties = published.input["properties"]
    assert all(described["description"] for described in properties.values())
    defaults = {each: said["default"] for each, said in properties.items() if "default" in said}
    assert defaults == DEFAULTS.get(name, {})


def test_the_class_of_a_tool_is_its_name(toolset: Toolset) -> None:
    for tool in toolset.tools:
        assert type(tool).__name__ == tool.name.title().replace("-", "") + "Tool"


def test_annotations_say_what_a_call_does(toolset: Toolset) -> None:
    hints = {tool.name: tool.annotations for tool in toolset.tools}
    assert {name for name in hints if hints[name].read_only} == {
        "knowledge-search",
        "knowledge-show",
        "knowledge-status",
        "knowledge-task-status",
    }
    assert {name for name in hints if hints[name].destructive} == {"knowledge-remove", "knowledge-clear"}


def test_ocr_is_not_forced_unless_asked_for(toolset: Toolset) -> None:
    schema = PublishedTool.of(toolset.by_name()["knowledge-add"]).input["properties"]["force_ocr"]
    assert (schema["type"], schema["default"]) == ("boolean", False)


@pytest.mark.requirement("N4", "N85")
@pytest.mark.parametrize("name", SEVEN)
async def test_a_result_is_one_text_of_json_with_success(knowledge: Knowledge, name: str) -> None:
    document = await knowledge.added("bees.html")
    task = (await knowledge.ok("knowledge-add", file_path=knowledge.file("ants.html")))["task_id"]
    arguments = {
        "knowledge-add": {"file_path": knowledge.file("wasps.html")},
        "knowledge-search": {"query": "bees"},
        "knowledge-remove": {"document_id": document, "confirm": True},
        "knowledge-clear": {"confirm": True, "confirmation_phrase": "DELETE ALL"},
        "knowledge-task-status": {"task_id": task},
    }.get(name, {})
    assert (await knowledge.ok(name, **arguments))["success"] is True
    assert (await knowledge.refused(name, nothing=1))["success"] is False


@pytest.mark.requirement("N86")
@pytest.mark.parametrize("name", [name for name in SEVEN if name != "knowledge-status"])
async def test_without_an_engine_every_call_says_so(name: str, tmp_path: Path) -> None:
    with ControlClient("http://127.0.0.1:1") as nobody:
        async with knowledge_before("http://127.0.0.1:1", "", nobody, tmp_path) as knowledge:
            arguments = {
                "knowledge-add": {"file_path": knowledge.file("wasps.html")},
                "knowledge-search": {"query": "bees"},
                "knowledge-remove": {"document_id": "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"},
                "knowledge-clear": {"confirm": True, "confirmation_phrase": "DELETE ALL"},
                "knowledge-task-status": {"task_id": "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"},
            }.get(name, {})
            assert (await knowledge.refused(name, **arguments))["error"] == "engine_unreachable"
