"""The toolset `ragler` as a whole: its three tools, what they are called and what they publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kb_server.hosting.calls import PublishedTool
from kb_server.schema import check_portable
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Toolset
from kb_server.toolsets import build_toolset
from tests.support.ragler import API_DOCS, DESCRIPTIONS, THREE, tools_before


@pytest.fixture
def toolset() -> Toolset:
    return build_toolset("ragler", Services(ServerSettings(home=Path("unused"))))


def published(toolset: Toolset, name: str) -> PublishedTool:
    """A tool as it is listed."""
    return PublishedTool.of(toolset.by_name()[name])


@pytest.mark.requirement("R3", "R16", "R19")
def test_there_are_exactly_three_tools_with_their_descriptions(toolset: Toolset) -> None:
    assert {tool.name: tool.description for tool in toolset.tools} == DESCRIPTIONS
    assert tuple(tool.name for tool in toolset.tools) == THREE
    assert (toolset.server_name, toolset.version) == ("ragler", "1.0.0")


@pytest.mark.parametrize("name", THREE)
def test_schemas_are_portable_and_closed(toolset: Toolset, name: str) -> None:
    tool = published(toolset, name)
    check_portable(tool.input)
    check_portable(tool.output)
    assert tool.input["additionalProperties"] is False
    assert all(described["description"] for described in tool.input["properties"].values())
    assert type(toolset.by_name()[name]).__name__ == name.title().replace("_", "") + "Tool"
    assert toolset.by_name()[name].annotations.read_only


@pytest.mark.requirement("R4", "R5", "R6")
def test_what_search_knowledge_takes(toolset: Toolset) -> None:
    schema = published(toolset, "search_knowledge").input
    assert schema["required"] == ["query"]
    assert list(schema["properties"]) == ["query", "collection_id", "limit", "filters"]
    taken = schema["properties"]
    assert taken["query"]["type"] == "string"
    assert (taken["collection_id"]["type"], taken["collection_id"]["format"]) == ("string", "uuid")
    limit = {key: taken["limit"][key] for key in ("type", "minimum", "maximum", "default")}
    assert limit == {"type": "integer", "minimum": 1, "maximum": 100, "default": 10}


@pytest.mark.requirement("R7", "R8", "R9", "R10")
def test_what_its_filters_take(toolset: Toolset) -> None:
    filters = published(toolset, "search_knowledge").input["properties"]["filters"]
    assert filters["type"] == "object"
    assert "required" not in filters or filters["required"] == []
    taken = filters["properties"]
    assert list(taken) == ["source_type", "date_from", "date_to", "tags"]
    assert set(taken["source_type"]["enum"]) == {"confluence", "web", "manual"}
    for date in ("date_from", "date_to"):
        assert taken[date]["type"] == "string"
        assert "ISO 8601" in taken[date]["description"]
    assert taken["tags"]["type"] == "array"
    assert taken["tags"]["items"]["type"] == "string"


@pytest.mark.requirement("R16", "R19")
def test_what_the_other_two_take(toolset: Toolset) -> None:
    assert published(toolset, "list_collections").input["properties"] == {}
    schema = published(toolset, "get_collection_info").input
    assert schema["required"] == ["collection_id"]
    assert schema["properties"]["collection_id"]["format"] == "uuid"


@pytest.mark.requirement("R12", "R13", "R14")
def test_what_a_search_promises_to_answer(toolset: Toolset) -> None:
    schema = published(toolset, "search_knowledge").output
    told = schema["properties"]
    assert [told[name]["type"] for name in ("results", "total", "query", "execution_time")] == [
        "array",
        "integer",
        "string",
        "number",
    ]
    assert set(schema["required"]) == {"results", "total", "query", "execution_time"}
    result = told["results"]["items"]["properties"]
    assert [result[name]["type"] for name in ("content", "source_url", "score", "metadata")] == [
        "string",
        "string",
        "number",
        "object",
    ]
    assert (result["score"]["minimum"], result["score"]["maximum"]) == (0, 1)
    metadata = result["metadata"]["properties"]
    texts = ("source_type", "context_breadcrumbs", "heading", "last_modified_by", "last_modified_at")
    assert {metadata[name]["type"] for name in texts} == {"string"}
    assert metadata["tags"]["items"]["type"] == "string"
    assert "type" not in metadata["collection_id"], "it may be null"


@pytest.mark.requirement("R36")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("search_knowledge", {"query": "x"}),
        ("list_collections", {}),
        ("get_collection_info", {"collection_id": API_DOCS}),
    ],
)
async def test_without_a_backend_every_tool_says_what_to_set(
    tmp_path: Path, name: str, arguments: dict[str, Any]
) -> None:
    async with tools_before("http://127.0.0.1:1", tmp_path, ragler_api_key="") as tools:
        told = await tools.refused(name, **arguments)
    assert told["error"] == "not_configured"
    assert told["missing"] == ["RAGLER_API_URL", "RAGLER_API_KEY"]
    assert "RAGLER_API_KEY" in told["message"]
    assert "RAGLER_API_URL" in told["message"]
