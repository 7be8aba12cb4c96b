"""The toolset `kb` as a whole: its tools, their schemas, and results without an engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import build_toolset
from tests.support.server_fixtures import ToolCaller
from tests.support.simulated_engine import SimulatedEngine
from tests.support.tool_table import TOOLS

UNKNOWN = "8b4e8f0e-9d1c-4c53-9c1a-5f2f6f0c9d11"
CALLS: dict[str, dict[str, Any]] = {
    "kb_search": {"query": "x"},
    "kb_addnote": {"text": "x"},
    "kb_update_note": {"document_id": 1, "text": "x"},
    "kb_get": {"document_id": 1},
    "kb_status": {},
    "kb_jobs": {},
    "kb_move": {"document_id": 1, "collection": "memory"},
    "kb_delete": {"document_id": 1},
    "kb_history": {"document_id": 1},
    "kb_restore": {"document_id": 1, "version": 1},
    "kb_feedback": {"document_id": 1, "signal": "useful"},
    "kb_tags": {},
    "kb_cancel_job": {"job_id": "x"},
    "kb_retry_job": {"job_id": "x"},
}


def services(home: Path = Path("unused"), **settings: Any) -> Services:
    """Services for a closed engine port."""
    return Services(ServerSettings(**{"engine_url": "http://127.0.0.1:1", "home": home, **settings}))


@pytest.mark.requirement("E11", "E1", "E36")
def test_the_toolset_has_exactly_its_tools_and_names_its_version() -> None:
    toolset = build_toolset("kb", services())
    assert [tool.name for tool in toolset.tools] == list(TOOLS["kb"])
    assert (toolset.server_name, toolset.version) == ("kb", "3.0.0")


@pytest.mark.requirement("K3", "K6", "K7")
@pytest.mark.parametrize("name", sorted(CALLS))
async def test_without_an_engine_every_call_says_that_it_is_unreachable(name: str, tmp_path: Path) -> None:
    url = "http://user:secret@127.0.0.1:1"
    async with services(tmp_path, engine_url=url) as standing:
        tools = ToolCaller(build_toolset("kb", standing), build_toolset("kb-extra", standing))
        refused = await tools.refused(name, **CALLS[name])
    assert refused["error"] == "engine_unreachable"
    assert "engine is unreachable at http://127.0.0.1:1" in refused["message"]
    assert "secret" not in str(refused)


@pytest.mark.requirement("K6")
async def test_an_upload_can_be_staged_without_an_engine(tmp_path: Path) -> None:
    async with services(tmp_path) as standing:
        tools = ToolCaller(build_toolset("kb", standing))
        start = await tools.ok("kb_upload_start", filename="a.txt", total_size=3)
        await tools.ok("kb_upload_chunk", upload_id=start["upload_id"], data="YWJj", chunk_index=0)
        refused = await tools.refused("kb_upload_finish", upload_id=start["upload_id"])
    assert refused["error"] == "engine_unreachable"


@pytest.mark.parametrize(
    ("tool", "arguments", "parameter"),
    [
        ("kb_search", {}, "query"),
        ("kb_search", {"query": ""}, "query"),
        ("kb_search", {"query": " \n\u3000"}, "query"),
        ("kb_search", {"query": "x", "top": -1}, "top"),
        ("kb_search", {"query": "x", "top": 101}, "top"),
        ("kb_search", {"query": "x", "odd": 1}, "odd"),
        ("kb_addnote", {"text": "x", "wait_seconds": -1}, "wait_seconds"),
        ("kb_addnote", {"text": "x", "wait_seconds": 51}, "wait_seconds"),
        ("kb_upload_chunk", {"upload_id": UNKNOWN, "data": "YWJj", "chunk_index": -1}, "chunk_index"),
        ("kb_upload_chunk", {"upload_id": UNKNOWN, "data": "YWJj", "chunk_index": 10_000}, "chunk_index"),
        ("kb_jobs", {"status": "broken"}, "status"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_by_the_parameters_name(
    engine: SimulatedEngine, tools: ToolCaller, tool: str, arguments: dict[str, Any], parameter: str
) -> None:
    assert (await tools.refused(tool, **arguments))["parameter"] == parameter
    assert engine.journal.requests() == []


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "words"),
    [
        ("kb_search", {"query": "x", "top": 3, "top_n": 4}, "contradiction", "top is 3 and top_n is 4"),
        ("kb_search", {"query": "x", "tags": ["collection:memory"]}, "invalid_tag", "`collection`"),
        ("kb_get", {}, "missing_required_parameter", "exactly one of document_id, source_path"),
        (
            "kb_get",
            {"document_id": 1, "source_path": "p"},
            "contradiction",
            "exactly one of document_id, source_path",
        ),
        ("kb_jobs", {"job_id": "x", "status": "failed"}, "contradiction", "job_id"),
        ("kb_jobs", {"job_id": "x", "offset": 1}, "contradiction", "job_id"),
        ("kb_jobs", {"wait_seconds": 1}, "missing_required_parameter", "job_id"),
        ("kb_move", {"document_id": 1, "collection": "No Name"}, "invalid_collection", "`collection`"),
        ("kb_addnote", {"text": "x", "collection": "My Notes"}, "invalid_collection", "`collection`"),
        (
            "kb_update_note",
            {"document_id": 1, "text": "x", "collection": "No Name"},
            "invalid_collection",
            "`collection`",
        ),
        (
            "kb_upload_start",
            {"filename": "a", "total_size": 1, "collection": "No"},
            "invalid_collection",
            "`collection`",
        ),
    ],
)
async def test_invalid_arguments_are_refused_before_the_engine_is_called(
    engine: SimulatedEngine,
    tools: ToolCaller,
    tmp_path: Path,
    tool: str,
    arguments: dict[str, Any],
    code: str,
    words: str,
) -> None:
    refused = await tools.refused(tool, **arguments)
    assert refused["error"] == code
    assert words in refused["message"]
    assert engine.journal.requests() == []
    assert not (tmp_path / "staging").exists()


@pytest.mark.requirement("K39", "K40", "K45")
@pytest.mark.parametrize(
    ("tool", "arguments", "code", "words"),
    [
        ("kb_get", {"document_id": 42}, "document_not_found", "Document 42 was not found"),
        (
            "kb_update_note",
            {"document_id": 42, "text": "x"},
            "document_not_found",
            "Document 42 was not found",
        ),
        ("kb_move", {"document_id": 42, "collection": "memory"}, "document_not_found", "Document 42 was not"),
        ("kb_delete", {"document_id": 42}, "document_not_found", "Document 42 was not found"),
        ("kb_jobs", {"job_id": UNKNOWN}, "job_not_found", f"Job {UNKNOWN} was not found"),
        (
            "kb_upload_chunk",
            {"upload_id": UNKNOWN, "data": "YWJj", "chunk_index": 0},
            "upload_not_found",
            "kb_upload_start",
        ),
        ("kb_upload_finish", {"upload_id": UNKNOWN}, "upload_not_found", "kb_upload_start"),
    ],
)
async def test_an_unknown_id_is_not_found(
    tools: ToolCaller, tool: str, arguments: dict[str, Any], code: str, words: str
) -> None:
    refused = await tools.refused(tool, **arguments)
    assert refused["error"] == code
    assert "not found" in refused["message"]
    assert words in refused["message"]
    assert arguments.get("document_id") == refused.get("document_id")


@pytest.mark.process
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
    text = SKILL.read_text("utf-8")
    assert text.startswith("---\nname: kb\ndescription: ")
    words = {word.strip("`.,;:()\"'") for word in text.replace("(", " ").split()}
    named = {word for word in words if word.startswith("kb_")}
    known = {tool.name for name in ("kb", "kb-extra") for tool in build_toolset(name, services()).tools}
    assert {"kb_search", "kb_addnote"} < named <= known
