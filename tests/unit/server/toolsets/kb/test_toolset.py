"""The toolset `kb` as a whole: its nine tools, their schemas, and what they say without an engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kb_server.schema import check_portable, input_schema, output_schema
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import build_toolset
from tests.support.server_fixtures import ToolCaller

NINE = [
    "kb_search",
    "kb_addnote",
    "kb_upload_start",
    "kb_upload_chunk",
    "kb_upload_finish",
    "kb_update_note",
    "kb_get",
    "kb_status",
    "kb_jobs",
]
CALLS: dict[str, dict[str, Any]] = {
    "kb_search": {"query": "x"},
    "kb_addnote": {"text": "x"},
    "kb_update_note": {"document_id": 1, "text": "x"},
    "kb_get": {"document_id": 1},
    "kb_status": {},
    "kb_jobs": {},
    "kb_move": {"document_id": 1, "collection": "memory"},
    "kb_delete": {"document_id": 1},
    "kb_tags": {},
    "kb_cancel_job": {"job_id": "x"},
    "kb_retry_job": {"job_id": "x"},
}


def services(home: Path = Path("unused"), **settings: Any) -> Services:
    """Services in front of nobody."""
    return Services(ServerSettings(**{"engine_url": "http://127.0.0.1:1", "home": home, **settings}))


@pytest.mark.requirement("E11", "E1", "E36")
def test_the_toolset_has_exactly_nine_tools() -> None:
    """Under the server's name `kb`, at the release's version."""
    toolset = build_toolset("kb", services())
    assert [tool.name for tool in toolset.tools] == NINE
    assert (toolset.server_name, toolset.version) == ("kb", "3.0.0")


def test_what_is_ours_alone_is_in_a_toolset_of_its_own() -> None:
    """The nine stay nine."""
    extra = {tool.name for tool in build_toolset("kb-extra", services()).tools}
    assert extra >= CALLS.keys() - set(NINE)
    assert extra.isdisjoint(NINE)


@pytest.mark.parametrize("name", ["kb", "kb-extra"])
def test_every_tool_has_portable_schemas_and_says_what_each_parameter_is(name: str) -> None:
    for tool in build_toolset(name, services()).tools:
        schema = input_schema(tool.arguments)
        check_portable(schema)
        check_portable(output_schema(tool.result), result=True)
        assert schema["additionalProperties"] is False
        for parameter, described in schema["properties"].items():
            assert described.get("description"), f"{tool.name}.{parameter}"
        assert tool.title
        assert len(tool.description) > 80


@pytest.mark.parametrize("name", ["kb", "kb-extra"])
def test_the_class_of_a_tool_is_its_name(name: str) -> None:
    """`kb_search` is `KbSearchTool`."""
    for tool in build_toolset(name, services()).tools:
        assert type(tool).__name__ == tool.name.title().replace("_", "") + "Tool"


def test_reading_tools_say_so() -> None:
    """Clients let them through without asking; what replaces or removes is marked."""
    tools = {
        tool.name: tool.annotations
        for name in ("kb", "kb-extra")
        for tool in build_toolset(name, services()).tools
    }
    reading = {"kb_search", "kb_get", "kb_status", "kb_jobs", "kb_tags"}
    destroying = {"kb_update_note", "kb_delete", "kb_cancel_job", "kb_upload_abort"}
    assert all(tools[name].read_only and not tools[name].destructive for name in reading)
    assert all(tools[name].destructive and not tools[name].read_only for name in destroying)
    assert [name for name, hints in tools.items() if hints.read_only and hints.destructive] == []


@pytest.mark.requirement("K3", "K6", "K7")
@pytest.mark.parametrize("name", sorted(CALLS))
async def test_without_an_engine_every_call_says_that_it_is_unreachable(name: str, tmp_path: Path) -> None:
    """The tools are there; each names the URL of `KB_ENGINE_URL`, without its credentials."""
    url = "http://user:secret@127.0.0.1:1"
    async with services(tmp_path, engine_url=url) as standing:
        tools = ToolCaller(build_toolset("kb", standing), build_toolset("kb-extra", standing))
        refused = await tools.refused(name, **CALLS[name])
    assert refused["error"] == "engine_unreachable"
    assert "engine is unreachable at http://127.0.0.1:1" in refused["message"]
    assert "secret" not in str(refused)


@pytest.mark.requirement("K6")
async def test_an_upload_can_be_staged_without_an_engine(tmp_path: Path) -> None:
    """Only its finish needs one."""
    async with services(tmp_path) as standing:
        tools = ToolCaller(build_toolset("kb", standing))
        start = await tools.ok("kb_upload_start", filename="a.txt", total_size=3)
        await tools.ok("kb_upload_chunk", upload_id=start["upload_id"], data="YWJj", chunk_index=0)
        refused = await tools.refused("kb_upload_finish", upload_id=start["upload_id"])
    assert refused["error"] == "engine_unreachable"


def test_importing_the_toolset_imports_no_aiohttp() -> None:
    """A stdio server starts for every conversation, and most of them never search."""
    program = (
        "import sys, kb_server.toolsets.kb as kb; print([m for m in sys.modules if m.startswith('aiohttp')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


SKILL = Path(__file__).parents[5] / "skills" / "kb" / "SKILL.md"


@pytest.mark.requirement("E24", "E36")
@pytest.mark.parametrize(
    "words",
    [
        "2-3 variant",
        "merge",
        "deduplicate",
        "rerank",
        "own judgement",
        "kb_update_note",
        "curl -g -t",
        "memory",
    ],
)
def test_the_skill_teaches_the_same_patterns(words: str) -> None:
    assert words in SKILL.read_text("utf-8").lower()


def test_the_skill_names_only_tools_that_exist() -> None:
    """Its front matter has a name and a description."""
    text = SKILL.read_text("utf-8")
    assert text.startswith("---\nname: kb\ndescription: ")
    words = {word.strip("`.,;:()\"'") for word in text.replace("(", " ").split()}
    named = {word for word in words if word.startswith("kb_")}
    known = {tool.name for name in ("kb", "kb-extra") for tool in build_toolset(name, services()).tools}
    assert named <= known
    assert set(NINE) <= named
