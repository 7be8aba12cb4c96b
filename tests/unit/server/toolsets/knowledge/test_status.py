"""`knowledge-status`: figures that agree, and health that is true."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kb_contracts.api import models as m
from kb_server.hosting.calls import Calls
from kb_server.observability.metrics import Metrics
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Call
from kb_server.toolsets import build_toolset
from tests.support.knowledge import Knowledge
from tests.support.simulated_engine import InterruptedEngine, MakeCall, simulated_engine

MIB = 1024 * 1024


@pytest.mark.requirement("N53", "N54", "N56")
async def test_the_status_tells_what_the_base_holds_and_how_it_works(knowledge: Knowledge) -> None:
    await knowledge.added("bees.html", b"<p>bees</p>" + b" " * (MIB - 11))
    told = await knowledge.ok("knowledge-status")
    assert told["success"] is True
    assert told["knowledge_base"] == {
        "name": "default",
        "document_count": 1,
        "total_chunks": 1,
        "total_size_bytes": MIB,
        "total_size_mb": 1.0,
        "average_chunks_per_document": 1.0,
        "storage_path": "memory",
        "vector_db_path": "memory",
    }
    status = knowledge.engine.state().status
    assert told["configuration"] == {
        "embedding_model": status.model.name,
        "chunk_size": status.model.max_tokens,
        "max_file_size_mb": 100,
    }


@pytest.mark.requirement("N55", "N57")
async def test_a_base_that_works_is_healthy(knowledge: Knowledge) -> None:
    empty = await knowledge.ok("knowledge-status")
    assert empty["last_updated"] == knowledge.engine.state().status.started_at
    knowledge.engine.clock.advance(60)
    await knowledge.added("bees.html")
    told = await knowledge.ok("knowledge-status")
    assert told["health"] == {
        "status": "healthy",
        "vector_db_connected": True,
        "storage_accessible": True,
        "embedding_model_loaded": True,
    }
    assert told["last_updated"].endswith("Z")
    assert datetime.fromisoformat(told["last_updated"]) > datetime.fromisoformat(empty["last_updated"])


@pytest.mark.requirement("N52")
async def test_it_takes_no_parameters(knowledge: Knowledge) -> None:
    refused = await knowledge.refused("knowledge-status", verbose=True)
    assert (refused["error"], refused["parameter"]) == ("invalid_parameter", "verbose")


async def told_of(folder: Path, **members: Any) -> dict[str, Any]:
    """What is told of an engine whose status has these members."""

    async def changed(status: MakeCall) -> m.Status:
        return msgspec.structs.replace(await status(), **members)

    async with simulated_engine() as engine:
        client = InterruptedEngine(engine.url)
        client.around["getStatus"] = changed
        settings = ServerSettings(engine_url=engine.url, home=folder)
        async with Services(settings, engine=client) as services:
            calls = Calls(build_toolset("knowledge", services), Metrics())
            outcome = await calls.outcome("knowledge-status", {}, Call())
        await client.close()
    told: dict[str, Any] = outcome.as_result()["structuredContent"]
    return told


@pytest.mark.requirement("N58")
async def test_a_model_that_cannot_be_used_is_an_issue(tmp_path: Path) -> None:
    model = m.ModelInfo(name="all-MiniLM-L6-v2", dimensions=384, max_tokens=256, loaded=False)
    issue = "The embedding model cannot be used: no such file"
    told = await told_of(tmp_path, model=model, issues=[issue])
    assert told["success"] is True
    assert told["health"] == {
        "status": "degraded",
        "vector_db_connected": True,
        "storage_accessible": True,
        "embedding_model_loaded": False,
        "issues": [issue],
    }


@pytest.mark.requirement("N55", "N58")
async def test_whether_the_storage_is_accessible_is_what_the_engine_says(tmp_path: Path) -> None:
    """An engine that answers may have lost its base; documents and vectors lie together."""
    lost = m.StorageInfo(path="/data", bytes=5, free_bytes=5, originals_bytes=1, accessible=False)
    issue = "The base /data cannot be read: it is damaged."
    told = await told_of(tmp_path, storage=lost, issues=[issue])
    assert told["health"] == {
        "status": "degraded",
        "vector_db_connected": False,
        "storage_accessible": False,
        "embedding_model_loaded": True,
        "issues": [issue],
    }


async def test_a_model_that_is_not_loaded_yet_is_told_in_words(tmp_path: Path) -> None:
    """A false flag never stands alone."""
    model = m.ModelInfo(name="all-MiniLM-L6-v2", dimensions=384, max_tokens=256, loaded=False)
    health = (await told_of(tmp_path, model=model))["health"]
    assert health["status"] == "degraded"
    assert health["issues"] == ["The embedding model is not loaded yet"]


@pytest.mark.requirement("N58")
async def test_an_engine_out_of_reach_is_a_base_that_is_degraded(tmp_path: Path) -> None:
    """Nothing is known of it, and nothing is made up; the call itself succeeds."""
    async with Services(ServerSettings(engine_url="http://127.0.0.1:1", home=tmp_path)) as services:
        calls = Calls(build_toolset("knowledge", services), Metrics())
        told = (await calls.outcome("knowledge-status", {}, Call())).as_result()["structuredContent"]
    assert told["success"] is True
    assert set(told["knowledge_base"].values()) == {"default", None}
    health = told["health"]
    assert health["status"] == "degraded"
    assert [health[flag] for flag in health if isinstance(health[flag], bool)] == [False] * 3
    assert "unreachable" in health["issues"][0]


@pytest.mark.requirement("N59")
async def test_the_figures_agree_with_one_another(tmp_path: Path) -> None:
    """131072000 bytes are 125.0 MB; 1850 passages in 42 documents are 44.0 each."""
    told = await told_of(
        tmp_path,
        documents=m.DocumentCounts(total=42, searchable=42, empty=0, by_type={}),
        chunks=1850,
        storage=m.StorageInfo(path="/data", bytes=5, free_bytes=5, originals_bytes=131072000),
    )
    base = told["knowledge_base"]
    assert (base["total_size_bytes"], base["total_size_mb"]) == (131072000, 125.0)
    assert (base["document_count"], base["total_chunks"]) == (42, 1850)
    assert base["average_chunks_per_document"] == 44.0
