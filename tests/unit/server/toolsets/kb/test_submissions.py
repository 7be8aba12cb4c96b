"""Tools that add content: notes, updates and uploads, as an agent calls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from kb_contracts.api import models as m
from kb_server.toolsets.kb.submissions import SHORT_NOTE_CHARS
from kb_simulator import FailAt, Stuck
from kb_simulator.engine.commits import NO_TEXT
from kb_simulator.engine.jobs import QUEUED
from kb_simulator.harness.faults import Status
from tests.support.patience import JOB_SECONDS
from tests.support.server_fixtures import ToolCaller, calling
from tests.support.simulated_engine import MakeCall, SimulatedEngine
from tests.support.uploads import encoded, sha256

# --- kb_addnote -------------------------------------------------------------------------------------


@pytest.mark.requirement("K24", "K25", "K26", "K57", "E3")
async def test_a_note_goes_to_documents_by_default(engine: SimulatedEngine, tools: ToolCaller) -> None:
    answer = await tools.ok("kb_addnote", text="User prefers concise responses")
    (request,) = engine.journal.requests("createJob")
    assert (request.method, request.path) == ("POST", "/api/v1/jobs")
    assert request.headers["Content-Type"] == "application/json"
    assert msgspec.json.decode(request.body) == {
        "text": "User prefers concise responses",
        "tags": ["collection:documents"],
        "dedup_scope": "collection:documents",
    }
    assert answer["job_id"] in engine.state.jobs
    assert answer["collection"] == "documents"


@pytest.mark.requirement("K27", "K58", "E3")
async def test_everything_given_is_passed_on(engine: SimulatedEngine, tools: ToolCaller) -> None:
    """The collection's tag comes first."""
    given = {"text": "x", "title": "T", "source_path": "p", "metadata": {"a": [1]}}
    await tools.ok("kb_addnote", **given, collection="workspace", tags=["feedback"])
    (body,) = engine.journal.bodies("createJob")
    tags = ["collection:workspace", "feedback"]
    assert body == {**given, "tags": tags, "dedup_scope": "collection:workspace"}


async def test_a_short_note_is_waited_for_by_default(tools: ToolCaller) -> None:
    answer = await tools.ok("kb_addnote", text="granite " * (SHORT_NOTE_CHARS // 8))
    assert (answer["status"], answer["document_id"]) == ("completed", 1)
    assert answer["job_id"]
    assert (await tools.ok("kb_search", query="granite"))["results"][0]["document_id"] == 1


async def test_notes_on_the_same_subject_are_named(tools: ToolCaller) -> None:
    """Up to three of any collection, so that the agent can update one of them."""
    text = "Deploys happen on {} at noon"
    days = ("Tuesdays", "Wednesdays", "Thursdays", "Fridays")
    ids = [
        (await tools.ok("kb_addnote", text=text.format(day), collection="workspace"))["document_id"]
        for day in days
    ]
    await tools.ok("kb_addnote", text="The canteen serves soup")
    answer = await tools.ok("kb_addnote", text=text.format("Mondays"), collection="memory")
    assert len(answer["similar"]) == 3
    assert {each["document_id"] for each in answer["similar"]} < {*ids}
    first = answer["similar"][0]
    assert first["first_line"] == text.format(days[ids.index(first["document_id"])])
    assert 0.5 < first["score"] <= 1
    assert "kb_update_note" in answer["hint"]


async def test_an_engine_without_similar_notes_still_gives_the_document(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    engine.arm("older", "getDocument", Status(code="unknown_parameter"), times=1)
    answer = await tools.ok("kb_addnote", text="Deploys happen on Tuesdays")
    assert (answer["status"], answer["document_status"]) == ("completed", "searchable")
    assert "similar" not in answer


async def test_a_note_on_a_new_subject_names_no_other(tools: ToolCaller) -> None:
    await tools.ok("kb_addnote", text="Deploys happen on Tuesdays")
    answer = await tools.ok("kb_addnote", text="The canteen serves soup")
    assert "similar" not in answer
    assert "similar" not in answer["hint"]


@pytest.mark.parametrize("arguments", [{"text": "x", "wait_seconds": 0}, {"text": "x " * SHORT_NOTE_CHARS}])
async def test_it_answers_at_once_if_asked_and_where_the_note_is_long(
    engine: SimulatedEngine, tools: ToolCaller, arguments: dict[str, Any]
) -> None:
    answer = await tools.ok("kb_addnote", **arguments)
    assert (answer["status"], answer["document_id"]) == ("queued", None)
    assert "kb_jobs" in answer["hint"]
    engine.journal.expect(operation="getJob", exactly=0)


@pytest.mark.requirement("K28", "K56")
async def test_with_wait_seconds_it_answers_with_the_document(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    answer = await tools.ok("kb_addnote", text="some note", collection="memory", wait_seconds=JOB_SECONDS)
    assert (answer["status"], answer["deduplicated"]) == ("completed", False)
    tags = engine.document(answer["document_id"]).tags
    assert [tag for tag in tags if tag.startswith("collection:")] == ["collection:memory"]


async def test_a_note_sent_again_under_its_source_path_replaces(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    given = {"source_path": "p", "collection": "memory", "wait_seconds": 30}
    first = await tools.ok("kb_addnote", text="old", **given)
    second = await tools.ok("kb_addnote", text="new", **given)
    third = await tools.ok("kb_addnote", text="new", title="Other", **given)
    assert [each["outcome"] for each in (first, second, third)] == ["created", "replaced", "unchanged"]
    assert {each["document_id"] for each in (first, second, third)} == {first["document_id"]}
    assert "source_path" in second["hint"]
    assert "title" in third["hint"]
    job = (await tools.ok("kb_jobs", job_id=third["job_id"]))["jobs"][0]
    assert (job["outcome"], job["left_out"]) == ("unchanged", ["title"])


async def test_a_note_without_a_source_path_is_taken_over_by_one(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    given = {"collection": "memory", "wait_seconds": JOB_SECONDS}
    plain = await tools.ok("kb_addnote", text="Deploys on Tuesdays", **given)
    named = await tools.ok("kb_addnote", text="Deploys on Tuesdays", source_path="deploys", **given)
    newer = await tools.ok("kb_addnote", text="Deploys on Thursdays", source_path="deploys", **given)
    assert plain["document_id"] == named["document_id"] == newer["document_id"]
    assert newer["hint"].endswith("The earlier document of its source_path is replaced.")
    assert len(engine.state.documents.by_id) == 1


async def test_a_replaced_note_that_stays_is_told(engine: SimulatedEngine, tools: ToolCaller) -> None:
    """It was also added without a path, or the new text already had a document."""
    given = {"collection": "memory", "wait_seconds": JOB_SECONDS}
    first = await tools.ok("kb_addnote", text="Deploys on Tuesdays", source_path="deploys", **given)
    await tools.ok("kb_addnote", text="Deploys on Tuesdays", **given)
    newer = await tools.ok("kb_addnote", text="Deploys on Thursdays", source_path="deploys", **given)
    assert newer["document_id"] != first["document_id"]
    assert "What its source_path led to before stays as a document" in newer["hint"]
    back = await tools.ok("kb_addnote", text="Deploys on Tuesdays", source_path="deploys", **given)
    assert "is removed, unless it was also added in another way" in back["hint"]


async def test_a_failed_job_says_why(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.state.policy = FailAt(code="extraction_failed", message="No text.")
    answer = await tools.ok("kb_addnote", text="x", wait_seconds=JOB_SECONDS)
    assert answer["status"] == "failed"
    assert answer["error"] == {"code": "extraction_failed", "message": "No text."}


async def test_a_job_that_cannot_be_followed_is_not_lost(engine: SimulatedEngine, tools: ToolCaller) -> None:
    """The engine failed after it had accepted the job: its id is returned anyway."""
    engine.arm("internal_error", "getJob")
    answer = await tools.ok("kb_addnote", text="x", wait_seconds=JOB_SECONDS)
    assert answer["job_id"] in engine.state.jobs
    assert "not followed" in answer["hint"]


# --- kb_update_note ---------------------------------------------------------------------------------


@pytest.mark.requirement("K43", "K44", "E7")
async def test_the_text_is_replaced_in_place(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.add("collection:memory", "feedback")
    text = "Updated preference: user prefers bullet points"
    answer = await tools.ok("kb_update_note", document_id=1, text=text)
    (request,) = engine.journal.requests("patchNote")
    assert (request.method, request.path) == ("PATCH", "/api/v1/notes/1")
    assert msgspec.json.decode(request.body) == {"text": text}
    assert (answer["id"], answer["version"]) == (1, 2)
    assert (answer["collection"], answer["tags"]) == ("memory", ["feedback"])
    assert (answer["job_id"], answer["hint"]) == (None, "")


async def test_an_update_that_takes_longer_returns_its_job(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    engine.state.policy = Stuck(step=QUEUED)
    engine.add("collection:memory", "feedback")
    answer = await tools.ok("kb_update_note", document_id=1, text="x")
    assert (answer["id"], answer["version"], answer["collection"]) == (1, 1, "memory")
    assert answer["job_id"] in engine.state.jobs
    assert "kb_jobs" in answer["hint"]
    (job,) = (await tools.ok("kb_jobs", job_id=answer["job_id"]))["jobs"]
    assert (job["kind"], job["status"], job["document_id"]) == ("update", "queued", 1)


async def test_a_job_that_goes_on_moves_nothing_and_says_so(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    """A move in between could be the very change that makes the update conflict."""
    engine.state.policy = Stuck(step=QUEUED)
    engine.add("collection:documents")
    answer = await tools.ok("kb_update_note", document_id=1, text="x", collection="memory")
    assert (answer["collection"], engine.journal.changes()) == ("documents", [("PATCH", "/api/v1/notes/1")])
    assert "not been moved to 'memory'" in answer["hint"]


async def test_the_job_is_told_although_the_note_cannot_be_read(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    engine.state.policy = Stuck(step=QUEUED)
    engine.add("collection:memory")
    engine.arm("internal_error", "getDocument")
    refused = await tools.refused("kb_update_note", document_id=1, text="x")
    assert refused["job_id"] in engine.state.jobs
    assert "kb_jobs" in refused["message"]


async def test_a_cancelled_update_is_no_success(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.state.policy = Stuck()
    engine.add("collection:memory")

    async def is_cancelled(update: MakeCall) -> m.Job:
        return engine.state.cancel((await update()).id)

    tools.around["patchNote"] = is_cancelled
    refused = await tools.refused("kb_update_note", document_id=1, text="x")
    assert (refused["error"], refused["job_id"]) == ("task_cancelled", [*engine.state.jobs][-1])


@pytest.mark.requirement("K46")
async def test_a_pdf_is_refused(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.add("collection:documents", doc_type="pdf")
    refused = await tools.refused("kb_update_note", document_id=1, text="x")
    assert refused["error"] == "not_a_note"
    assert "only notes can be updated" in refused["message"]


async def test_an_update_of_an_unexpected_version_is_refused(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    engine.add("collection:memory")
    engine.edit()
    engine.edit(title="Edited twice")
    refused = await tools.refused("kb_update_note", document_id=1, text="x", expected_version=2)
    assert refused["error"] == "version_conflict"
    assert refused["current_version"] == 3
    assert "kb_get" in refused["message"]


async def test_a_collection_moves_it_too(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.add("collection:documents")
    answer = await tools.ok("kb_update_note", document_id=1, text="x", title="T", collection="memory")
    assert (answer["collection"], answer["title"]) == ("memory", "T")
    assert [method for method, _ in engine.journal.changes()] == ["PATCH", "DELETE", "POST"]


async def test_a_failed_move_says_that_the_text_is_updated(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    """Half of the request was done, and the agent must know which half."""
    engine.add("collection:documents")
    engine.arm("storage_full", "removeTag")
    refused = await tools.refused("kb_update_note", document_id=1, text="x", collection="memory")
    assert refused["message"].startswith("The text was updated.")
    assert refused["text_updated"] is True


# --- uploads ----------------------------------------------------------------------------------------


async def sent(tools: ToolCaller, data: bytes = b"abc", **start: str) -> str:
    """Upload a file up to the finish; return the upload's id."""
    begun = await tools.ok("kb_upload_start", filename="a.txt", total_size=len(data), **start)
    upload_id: str = begun["upload_id"]
    await tools.ok("kb_upload_chunk", upload_id=upload_id, data=encoded(data), chunk_index=0)
    return upload_id


@pytest.mark.requirement("K29", "K32", "K34", "K37", "E26")
async def test_a_file_goes_up_in_three_steps(engine: SimulatedEngine, tools: ToolCaller) -> None:
    start = await tools.ok("kb_upload_start", filename="report.pdf", total_size=6, tags=["insurance"])
    for index, data in enumerate((b"abc", b"def")):
        answer = await tools.ok(
            "kb_upload_chunk", upload_id=start["upload_id"], data=encoded(data), chunk_index=index
        )
    assert answer == {
        "upload_id": start["upload_id"],
        "chunk_index": 1,
        "chunks_received": 2,
        "received_bytes": 6,
        "total_size": 6,
        "complete": True,
        "next": "Call kb_upload_finish.",
    }
    finish = await tools.ok("kb_upload_finish", upload_id=start["upload_id"])
    assert finish["job_id"] in engine.state.jobs
    (request,) = engine.journal.requests("createJob")
    assert msgspec.json.decode(request.body)["tags"] == ["collection:documents", "insurance"]
    assert engine.journal.files() == [sha256(b"abcdef")]


@pytest.mark.requirement("K30", "K31", "E4")
async def test_a_start_answers_with_an_upload_id(engine: SimulatedEngine, tools: ToolCaller) -> None:
    start = await tools.ok(
        "kb_upload_start",
        filename="report.pdf",
        total_size=5_242_880,
        tags=["insurance"],
        collection="documents",
    )
    assert UUID(start["upload_id"]).version == 4
    assert start["chunk_bytes"] == 8_388_608
    assert engine.journal.requests() == []


async def test_over_http_it_answers_with_an_upload_url(tools: ToolCaller) -> None:
    start = await tools.ok("kb_upload_start", filename="my report.pdf", total_size=3)
    assert start["upload_url"].startswith("https://kb.example/uploads/")
    assert f"curl -g -T 'my report.pdf' '{start['upload_url']}'" in start["next"]
    assert start["upload_url"].rpartition("/")[2] not in str(tools.last.log)


async def test_on_bare_stdio_there_is_no_upload_url(engine: SimulatedEngine, tmp_path: Path) -> None:
    """No server would answer there, so the result names chunks instead."""
    async with calling(engine, tmp_path) as tools:
        start = await tools.ok("kb_upload_start", filename="a.txt", total_size=3)
    assert "upload_url" not in start
    assert "curl" not in start["next"]


async def test_a_file_of_unknown_size_has_no_url_and_is_ended_by_the_finish(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    start = await tools.ok("kb_upload_start", filename="a.txt")
    assert "upload_url" not in start
    assert "curl" not in start["next"]
    upload_id = start["upload_id"]
    chunk = await tools.ok("kb_upload_chunk", upload_id=upload_id, data=encoded(b"abc"), chunk_index=0)
    assert (chunk["received_bytes"], chunk["total_size"], chunk["complete"]) == (3, None, False)
    refused = await tools.refused("kb_upload_finish", upload_id=upload_id)
    assert (refused["error"], refused["parameter"]) == ("missing_required_parameter", "total_size")
    for wrong in ({"total_size": 4}, {"chunks": 2}, {"sha256": sha256(b"abd")}):
        await tools.refused("kb_upload_finish", upload_id=upload_id, **wrong)
    await tools.ok("kb_upload_finish", upload_id=upload_id, chunks=1)
    assert engine.journal.files() == [sha256(b"abc")]


@pytest.mark.requirement("K38", "E6")
async def test_a_finish_that_waits_answers_with_the_document(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    upload_id = await sent(tools, collection="workspace")
    finish = await tools.ok("kb_upload_finish", upload_id=upload_id, wait_seconds=JOB_SECONDS)
    assert (finish["status"], finish["collection"]) == ("completed", "workspace")
    assert engine.document(finish["document_id"]).tags == ["collection:workspace"]


async def test_a_file_without_text_is_empty_in_every_answer(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    """It is never reported as searchable: not at the end of its job, nor later."""
    upload_id = await sent(tools, b" \n ")
    finish = await tools.ok("kb_upload_finish", upload_id=upload_id, wait_seconds=JOB_SECONDS)
    assert (finish["status"], finish["document_status"]) == ("completed", "empty")
    assert finish["hint"] == f"Searches cannot find document {finish['document_id']}: {NO_TEXT}"
    later = await tools.ok("kb_jobs", job_id=finish["job_id"])
    assert later["hint"] == finish["hint"]


async def test_a_document_that_cannot_be_asked_for_is_not_called_searchable(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    """The amount of text in it is unknown."""
    engine.arm("internal_error", "getDocument")
    upload_id = await sent(tools)
    finish = await tools.ok("kb_upload_finish", upload_id=upload_id, wait_seconds=JOB_SECONDS)
    assert (finish["status"], finish["document_status"]) == ("completed", None)
    assert "searched now" not in finish["hint"]


async def test_a_repeated_finish_gives_the_same_job_as_it_is_now(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    upload_id = await sent(tools)
    first = await tools.ok("kb_upload_finish", upload_id=upload_id)
    again = await tools.ok("kb_upload_finish", upload_id=upload_id)
    assert first["job_id"] == again["job_id"]
    assert (first["status"], again["status"]) == ("queued", "completed")


async def test_an_engine_that_fails_at_the_finish_is_told_and_the_file_kept(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    upload_id = await sent(tools)
    engine.arm("refusal", "createJob", Status(code="unsupported_format"))
    refused = await tools.refused("kb_upload_finish", upload_id=upload_id)
    assert refused["error"] == "unsupported_format"
    assert "told to fail" in refused["message"]
    await tools.ok("kb_upload_finish", upload_id=upload_id)


@pytest.mark.parametrize(
    ("filename", "code"), [("setup.exe", "unsupported_format"), ('a";b.pdf', "invalid_parameter")]
)
async def test_an_upload_of_an_unsupported_file_is_refused_at_its_start(
    tools: ToolCaller, tmp_path: Path, filename: str, code: str
) -> None:
    refused = await tools.refused("kb_upload_start", filename=filename, total_size=100_000_000)
    assert (refused["error"], refused["parameter"]) == (code, "filename")


async def test_an_upload_can_be_aborted(tools: ToolCaller) -> None:
    upload_id = (await tools.ok("kb_upload_start", filename="a.txt", total_size=3))["upload_id"]
    aborted = await tools.ok("kb_upload_abort", upload_id=upload_id)
    assert aborted == {"upload_id": upload_id, "filename": "a.txt"}
    chunk = {"chunk_index": 0, "data": encoded(b"abc")}
    for tool, more in (("kb_upload_abort", {}), ("kb_upload_chunk", chunk), ("kb_upload_finish", {})):
        refused = await tools.refused(tool, upload_id=upload_id, **more)
        assert refused["error"] == "upload_not_found"
