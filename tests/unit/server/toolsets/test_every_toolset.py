"""Rules for the tools of every toolset: schemas, names, and hints for calls without confirmation."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_server.schema import check_portable, input_schema, output_schema
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Toolset
from kb_server.toolsets import TOOLSETS, build_toolset
from tests.support.tool_table import TOOLS


@pytest.fixture(params=TOOLSETS)
def toolset(request: pytest.FixtureRequest) -> Toolset:
    return build_toolset(request.param, Services(ServerSettings(home=Path("unused"))))


@pytest.mark.requirement("N3")
def test_schemas_are_portable_closed_and_describe_each_parameter(toolset: Toolset) -> None:
    """An object at the root, no references, no unions."""
    for tool in toolset.tools:
        schema = input_schema(tool.arguments)
        check_portable(schema)
        check_portable(output_schema(tool.result), result=True)
        assert (schema["type"], schema["additionalProperties"]) == ("object", False)
        for parameter, described in schema["properties"].items():
            assert described.get("description"), f"{tool.name}.{parameter}"
            if described["type"] == "object":  # some clients refuse an object without properties
                assert described["properties"], f"{tool.name}.{parameter}"
        assert tool.title
        assert len(tool.description) > 80 or toolset.name == "ragler", "RAGler's document has the words"


@pytest.mark.requirement("F36", "F37")
def test_the_class_of_a_tool_is_its_name(toolset: Toolset) -> None:
    """`kb_search` is `KbSearchTool`, `knowledge-task-status` is `KnowledgeTaskStatusTool`."""
    for tool in toolset.tools:
        words = tool.name.title().replace("_", "").replace("-", "")
        assert type(tool).__name__ == words + "Tool"


def test_the_tools_of_a_toolset_are_as_listed_and_those_that_read_or_remove_say_so(toolset: Toolset) -> None:
    """Clients call read-only tools without asking; tools that replace or remove are marked."""
    assert {
        tool.name: (tool.needed_right(), tool.annotations.read_only, tool.annotations.destructive)
        for tool in toolset.tools
    } == {
        name: (row.right, row.right == "read", row.destructive) for name, row in TOOLS[toolset.name].items()
    }
    assert [tool.name for tool in toolset.tools] == list(TOOLS[toolset.name])
