"""`knowledge-status`, `knowledge-task-status`, and `tools/cancel`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from kb_contracts.api import models as m
from kb_server.hosting.calls import Calls
from kb_server.observability.metrics import Metrics
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Call, ToolError
from kb_server.toolsets import build_toolset
from kb_server.waiting import SYSTEM_CLOCK
from kb_simulator import AfterPolls, AfterTime, ControlClient, FailAt, Simulator, Stuck
from tests.support.knowledge import Knowledge, knowledge_before
from tests.support.simulated_engine import InterruptedEngine, MakeCall, simulated_engine

MIB = 1024 * 1024
ALWAYS = {
    "success", "task_id", "status", "progress", "current_step", "completed_steps", "total_steps",
    "elapsed_time_seconds", "estimated_remaining_seconds", "error",
}  # fmt: skip
"""Members that a polling client reads in every state."""


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


async def told_of(folder: Path, **members: Any) -> dict[str, Any]:
    """Return the result of `knowledge-status` for an engine whose status has these members."""

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


MODEL = m.ModelInfo(name="all-MiniLM-L6-v2", dimensions=384, max_tokens=256, loaded=False)
LOST = m.StorageInfo(path="/data", bytes=5, free_bytes=5, originals_bytes=1, accessible=False)


@pytest.mark.requirement("N55", "N58")
@pytest.mark.parametrize(
    ("members", "accessible", "loaded", "issue"),
    [
        ({"model": MODEL, "issues": ["No such file."]}, True, False, "No such file."),
        ({"model": MODEL}, True, False, "The embedding model is not loaded yet"),
        ({"storage": LOST, "issues": ["It is damaged."]}, False, True, "It is damaged."),
    ],
)
async def test_issues_of_the_engine_set_the_health_flags(
    tmp_path: Path, members: dict[str, Any], accessible: bool, loaded: bool, issue: str
) -> None:
    """An engine that responds may have lost its base, with both documents and vectors.

    A false flag always comes with an issue, and the call itself succeeds.
    """
    told = await told_of(tmp_path, **members)
    assert told["success"] is True
    assert told["health"] == {
        "status": "degraded",
        "vector_db_connected": accessible,
        "storage_accessible": accessible,
        "embedding_model_loaded": loaded,
        "issues": [issue],
    }


@pytest.mark.requirement("N58")
async def test_an_engine_out_of_reach_is_a_base_that_is_degraded(tmp_path: Path) -> None:
    """Unknown values are null, and the call itself succeeds."""
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
    """131072000 bytes are 125.0 MB; 1850 chunks in 42 documents are 44.0 each."""
    told = await told_of(
        tmp_path,
        documents=m.DocumentCounts(total=42, searchable=42, empty=0, by_type={}),
        chunks=1850,
        storage=msgspec.structs.replace(LOST, accessible=True, originals_bytes=131072000),
    )
    base = told["knowledge_base"]
    assert (base["total_size_bytes"], base["total_size_mb"]) == (131072000, 125.0)
    assert (base["document_count"], base["total_chunks"]) == (42, 1850)
    assert base["average_chunks_per_document"] == 44.0


# --- tasks ----------------------------------------------------------------------------------------


async def task(knowledge: Knowledge) -> str:
    return str((await knowledge.ok("knowledge-add", file_path=knowledge.file("bees.html")))["task_id"])


@pytest.mark.requirement("N62", "N63")
async def test_a_running_task_tells_how_far_it_is(knowledge: Knowledge) -> None:
    knowledge.engine.set_policy(AfterTime(seconds=20.0))
    task_id = await task(knowledge)
    knowledge.engine.clock.advance(10)
    told = await knowledge.ok("knowledge-task-status", task_id=task_id)
    assert set(told) == ALWAYS
    assert (told["success"], told["task_id"], told["status"]) == (True, task_id, "running")
    assert told["progress"] == pytest.approx(0.5, abs=0.05)
    assert told["current_step"] == "Generating embeddings"
    assert (told["completed_steps"], told["total_steps"]) == (2, 4)
    assert told["elapsed_time_seconds"] == pytest.approx(10, abs=1)
    assert told["estimated_remaining_seconds"] == pytest.approx(10, abs=1)


async def test_a_task_that_has_not_begun_is_queued(knowledge: Knowledge) -> None:
    knowledge.engine.set_policy(Stuck(step="queued"))
    told = await knowledge.ok("knowledge-task-status", task_id=await task(knowledge))
    assert set(told) == ALWAYS
    assert (told["success"], told["status"], told["progress"]) == (True, "queued", 0.0)
    assert told["estimated_remaining_seconds"] is None


@pytest.mark.requirement("N64")
async def test_a_completed_task_tells_of_its_document(knowledge: Knowledge) -> None:
    knowledge.engine.set_policy(AfterTime(seconds=20.0))
    task_id = await task(knowledge)
    knowledge.engine.clock.advance(30)
    told = await knowledge.ok("knowledge-task-status", task_id=task_id)
    (document,) = knowledge.engine.state().documents
    assert told == {
        "success": True,
        "task_id": task_id,
        "status": "completed",
        "progress": 1.0,
        "current_step": "completed",
        "completed_steps": 4,
        "total_steps": 4,
        "elapsed_time_seconds": pytest.approx(20, abs=1),
        "estimated_remaining_seconds": 0.0,
        "error": None,
        "result": {"document_id": document.uid, "filename": "bees.html", "chunks_created": 1},
        "total_time_seconds": pytest.approx(20, abs=1),
    }


async def test_a_completed_task_of_a_file_without_text_says_so(knowledge: Knowledge) -> None:
    path = knowledge.file("blank.html", b"<p> \n </p>")
    waited = await knowledge.ok("knowledge-add", file_path=path, async_=False)
    assert waited["chunks_created"] == 0
    task = (await knowledge.ok("knowledge-add", file_path=path))["task_id"]
    told = await knowledge.ok("knowledge-task-status", task_id=task)
    assert told["result"]["chunks_created"] == 0
    assert told["message"] == waited["message"]


async def test_a_completed_task_whose_document_is_gone_is_still_completed(knowledge: Knowledge) -> None:
    """The number of its chunks is no longer known."""
    task_id = await task(knowledge)
    made = (await knowledge.ok("knowledge-task-status", task_id=task_id))["result"]
    await knowledge.ok("knowledge-remove", document_id=made["document_id"], confirm=True)
    told = await knowledge.ok("knowledge-task-status", task_id=task_id)
    assert told["result"] == {**made, "chunks_created": None}


@pytest.mark.requirement("N65")
async def test_a_failed_task_is_an_ordinary_result_without_success(knowledge: Knowledge) -> None:
    words = "OCR processing failed: Tesseract not found"
    knowledge.engine.set_policy(FailAt(code="ocr_failed", message=words))
    task_id = await task(knowledge)
    told = await knowledge.ok("knowledge-task-status", task_id=task_id)
    assert set(told) == ALWAYS | {"message"}
    assert told["elapsed_time_seconds"] >= 0
    assert (told["success"], told["status"], told["current_step"]) == (
        False,
        "failed",
        "Generating embeddings",
    )
    assert (told["error"], told["message"]) == ("ocr_failed", words)


async def test_the_time_of_a_task_is_told_by_the_engines_clock(
    simulator: Simulator, simulated: tuple[str, ControlClient], tmp_path: Path
) -> None:
    """The engine sets the times: a simulator's clock is virtual, and another machine's may be wrong."""
    async with knowledge_before(simulator.url, *simulated, tmp_path, clock=SYSTEM_CLOCK) as knowledge:
        knowledge.engine.set_policy(AfterTime(seconds=20.0))
        task_id = await task(knowledge)
        knowledge.engine.clock.advance(10)
        told = await knowledge.ok("knowledge-task-status", task_id=task_id)
    assert told["elapsed_time_seconds"] == pytest.approx(10, abs=1)
    assert told["estimated_remaining_seconds"] == pytest.approx(10, abs=1)


async def test_a_cancelled_task_has_the_members_of_any_other(knowledge: Knowledge) -> None:
    knowledge.engine.set_policy(Stuck())
    task_id = await task(knowledge)
    await cancelled(knowledge, task_id)
    told = await knowledge.ok("knowledge-task-status", task_id=task_id)
    assert set(told) == ALWAYS | {"message"}
    assert (told["success"], told["error"], told["estimated_remaining_seconds"]) == (True, None, 0.0)


@pytest.mark.requirement("N86")
async def test_a_task_that_is_not_there_is_not_found(knowledge: Knowledge) -> None:
    task_id = str(uuid4())
    assert await knowledge.refused("knowledge-task-status", task_id=task_id.upper()) == {
        "success": False,
        "error": "task_not_found",
        "message": f"Task with ID '{task_id}' not found",
        "task_id": task_id,
    }


async def cancelled(knowledge: Knowledge, task_id: str) -> str:
    """Return the error code of the cancellation, or an empty string if it succeeded."""
    cancel = knowledge.toolset.cancel
    assert cancel is not None
    try:
        await cancel(task_id, Call())
    except ToolError as error:
        return error.code
    return ""


@pytest.mark.requirement("N75")
async def test_a_task_is_cancelled(knowledge: Knowledge) -> None:
    knowledge.engine.set_policy(AfterPolls(polls=100))
    task_id = await task(knowledge)
    assert await cancelled(knowledge, task_id.upper()) == ""
    told = await knowledge.ok("knowledge-task-status", task_id=task_id)
    assert (told["success"], told["status"]) == (True, "cancelled")
    assert told["message"] == "The task was cancelled; nothing was added"
    assert knowledge.engine.state().documents == []


async def test_a_finished_or_unknown_task_cannot_be_cancelled(knowledge: Knowledge) -> None:
    task_id = await task(knowledge)
    await knowledge.ok("knowledge-task-status", task_id=task_id)
    assert await cancelled(knowledge, task_id) == "task_finished"
    assert await cancelled(knowledge, str(uuid4())) == "task_not_found"
    assert await cancelled(knowledge, "task-uuid") == "invalid_parameter"
