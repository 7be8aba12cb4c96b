"""`kb_status` and `kb_jobs`, and the job tools of `kb-extra`."""

from __future__ import annotations

import msgspec
import pytest

from kb_server.access.grants import EVERYBODY, Grant
from kb_simulator import AtOnce, FailAt, Stuck
from kb_simulator.engine.jobs import QUEUED
from kb_simulator.harness.faults import Status
from tests.support.patience import JOB_SECONDS
from tests.support.server_fixtures import ToolCaller
from tests.support.simulated_engine import SimulatedEngine


@pytest.mark.requirement("K51", "K52", "E9")
async def test_kb_status_has_the_state_of_the_engine(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.add("collection:memory")
    engine.add("collection:workspace", "a tag")
    answer = await tools.ok("kb_status")
    assert (answer["collections"], answer["collection_count"]) == (["memory", "workspace"], 2)
    status = msgspec.to_builtins(engine.state.status())
    assert answer["version"] == answer["server_version"] == "v3.0.0"
    for member in ("model", "device"):
        assert answer[member].items() <= status[member].items()
    assert answer["documents"]["total"] == 2
    assert answer["queue"]["failed"] == 0
    assert answer["storage"]["originals_bytes"] == status["storage"]["originals_bytes"] > 0
    assert answer["issues"] == []


async def test_kb_status_lists_fifty_collections_and_counts_all(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    for number in range(60):
        engine.add(f"collection:c{number:02}")
    answer = await tools.ok("kb_status")
    assert (len(answer["collections"]), answer["collection_count"]) == (50, 60)


async def test_it_answers_where_the_engine_cannot_list_tags(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    engine.arm("no tags", "listTags", Status("forbidden"))
    answer = await tools.ok("kb_status")
    assert answer["issues"] == []
    assert "collections" not in answer


@pytest.mark.requirement("E35")
async def test_an_engine_that_is_too_old_is_an_issue_here_and_an_error_elsewhere(
    tools: ToolCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent can then find the problem; both versions are named."""
    monkeypatch.setattr("kb_simulator.engine.state.API_VERSION", "v2.9.0")
    issue = (await tools.ok("kb_status"))["issues"][0]
    refused = await tools.refused("kb_jobs")
    assert refused["error"] == "engine_too_old"
    for words in (issue, refused["message"]):
        assert "v2.9.0" in words
        assert "v3.0.0" in words


@pytest.mark.requirement("K53", "E10")
async def test_it_lists_recent_jobs(engine: SimulatedEngine, tools: ToolCaller) -> None:
    added = await tools.ok("kb_addnote", text="x", collection="memory", tags=["a"])
    answer = await tools.ok("kb_jobs")
    (request,) = engine.journal.requests("listJobs")
    assert (request.method, request.target) == ("GET", "/api/v1/jobs")
    (job,) = answer["jobs"]
    assert (job["id"], job["status"]) == (added["job_id"], "completed")
    assert (job["collection"], job["tags"]) == ("memory", ["a"])
    assert answer["total"] == 1


@pytest.mark.requirement("K54")
async def test_it_filters_by_status(engine: SimulatedEngine, tools: ToolCaller) -> None:
    await tools.ok("kb_addnote", text="x")
    answer = await tools.ok("kb_jobs", status="failed")
    assert engine.journal.requests("listJobs")[0].target == "/api/v1/jobs?status=failed"
    assert answer["jobs"] == []


async def test_a_page_says_how_to_go_on(engine: SimulatedEngine, tools: ToolCaller) -> None:
    for number in range(3):
        await tools.ok("kb_addnote", text=f"note {number}")
    answer = await tools.ok("kb_jobs", limit=2)
    assert len(answer["jobs"]) == 2
    assert "offset=2" in answer["hint"]


async def test_one_job_can_be_followed(engine: SimulatedEngine, tools: ToolCaller) -> None:
    added = await tools.ok("kb_addnote", text="x")
    answer = await tools.ok("kb_jobs", job_id=added["job_id"], wait_seconds=JOB_SECONDS)
    assert answer["jobs"][0]["document_id"] == 1


async def test_a_job_can_be_cancelled(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.state.policy = Stuck(step=QUEUED)
    waiting = await tools.ok("kb_addnote", text="x")
    assert (await tools.ok("kb_cancel_job", job_id=waiting["job_id"]))["status"] == "cancelled"
    engine.state.policy = AtOnce()
    ended = await tools.ok("kb_addnote", text="y")
    refused = await tools.refused("kb_cancel_job", job_id=ended["job_id"])
    assert refused["error"] == "job_finished"


async def test_a_failed_job_can_be_tried_again(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.state.policy = Stuck(step=QUEUED)
    job_id = (await tools.ok("kb_addnote", text="a"))["job_id"]
    assert (await tools.ok("kb_jobs", job_id=job_id))["hint"] == ""
    refused = await tools.refused("kb_retry_job", job_id=job_id)
    assert (refused["error"], refused["job_id"]) == ("job_not_retryable", job_id)
    engine.state.policy = FailAt()
    job_id = (await tools.ok("kb_addnote", text="b"))["job_id"]
    for answer in (await tools.ok("kb_jobs", job_id=job_id), await tools.ok("kb_jobs", status="failed")):
        assert answer["jobs"][0]["retryable"] is True
        assert "kb_retry_job" in answer["hint"]
    tools.grant = Grant(toolsets=frozenset({"kb"}))
    assert "kept: `kb jobs ID --retry`" in (await tools.ok("kb_jobs", job_id=job_id))["hint"]
    tools.grant = EVERYBODY
    assert (await tools.ok("kb_retry_job", job_id=job_id))["status"] == "queued"
