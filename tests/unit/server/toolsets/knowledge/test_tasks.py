"""`knowledge-task-status`, and what `tools/cancel` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kb_server.tool import Call, ToolError
from kb_server.waiting import SYSTEM_CLOCK
from kb_simulator import AfterPolls, AfterTime, ControlClient, FailAt, Simulator, Stuck
from tests.support.knowledge import Knowledge, knowledge_before

ALWAYS = {
    "success",
    "task_id",
    "status",
    "progress",
    "current_step",
    "completed_steps",
    "total_steps",
    "elapsed_time_seconds",
    "estimated_remaining_seconds",
    "error",
}
"""What a client that polls reads, whatever state it meets."""


async def task(knowledge: Knowledge) -> str:
    """The id of a new task."""
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
    """How many passages it had nobody knows any more."""
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
    """Whose times it is of: that of a simulator is virtual, and that of another machine may be wrong."""
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


@pytest.mark.requirement("N61", "N84")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "missing_required_parameter"),
        ({"task_id": ""}, "invalid_parameter"),
        ({"task_id": "task-uuid"}, "invalid_parameter"),
        ({"task_id": 5}, "invalid_parameter"),
        ({"task_id": None}, "invalid_parameter"),
    ],
)
async def test_a_task_is_named_by_a_uuid(knowledge: Knowledge, arguments: dict[str, Any], error: str) -> None:
    refused = await knowledge.refused("knowledge-task-status", **arguments)
    assert (refused["error"], refused["parameter"]) == (error, "task_id")


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
    """The code of the refusal to cancel; empty where it was done."""
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


async def test_what_has_ended_or_is_not_there_cannot_be_cancelled(knowledge: Knowledge) -> None:
    task_id = await task(knowledge)
    await knowledge.ok("knowledge-task-status", task_id=task_id)
    assert await cancelled(knowledge, task_id) == "task_finished"
    assert await cancelled(knowledge, str(uuid4())) == "task_not_found"
    assert await cancelled(knowledge, "task-uuid") == "invalid_parameter"
