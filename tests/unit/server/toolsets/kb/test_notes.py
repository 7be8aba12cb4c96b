"""`kb_addnote` and `kb_update_note`, and what `kb-extra` does to documents."""

from __future__ import annotations

import msgspec
import pytest

from kb_contracts.api import models as m
from kb_simulator import AtOnce, FailAt, Stuck
from kb_simulator.engine.jobs import QUEUED
from tests.support.server_fixtures import ToolCaller
from tests.support.simulated_engine import MakeCall, SimulatedEngine


class TestAdd:
    """`kb_addnote`."""

    @pytest.mark.requirement("K24", "K25", "K26", "K57", "E3")
    async def test_a_note_goes_to_documents_by_default(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        """`POST /api/v1/jobs` with its tag; the job's id comes back."""
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
    async def test_the_collections_tag_comes_before_the_others(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        await tools.ok(
            "kb_addnote", text="User prefers concise responses", collection="memory", tags=["feedback"]
        )
        assert engine.journal.bodies("createJob")[0]["tags"] == ["collection:memory", "feedback"]

    @pytest.mark.requirement("K28", "K56")
    async def test_the_document_has_exactly_one_collection(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        """The one that was asked for."""
        answer = await tools.ok("kb_addnote", text="some note", collection="memory", wait_seconds=5)
        tags = engine.document(answer["document_id"]).tags
        assert [tag for tag in tags if tag.startswith("collection:")] == ["collection:memory"]

    async def test_everything_given_is_passed_on(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        await tools.ok(
            "kb_addnote", text="x", title="T", source_path="p", metadata={"a": [1]}, collection="workspace"
        )
        assert engine.journal.bodies("createJob")[0] == {
            "text": "x",
            "title": "T",
            "tags": ["collection:workspace"],
            "metadata": {"a": [1]},
            "source_path": "p",
            "dedup_scope": "collection:workspace",
        }

    async def test_it_answers_at_once_by_default(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        """The job is not followed, and the hint says how to."""
        answer = await tools.ok("kb_addnote", text="x")
        assert (answer["status"], answer["document_id"]) == ("queued", None)
        assert "kb_jobs" in answer["hint"]
        engine.journal.expect(operation="getJob", exactly=0)

    async def test_with_wait_seconds_it_answers_with_the_document(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        answer = await tools.ok("kb_addnote", text="x", wait_seconds=30)
        assert answer["status"] == "completed"
        assert answer["document_id"] in engine.state.documents.by_id
        assert answer["deduplicated"] is False

    async def test_a_failed_job_says_why(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        """The submission was accepted; what became of it stands in the answer."""

        engine.state.policy = FailAt(code="extraction_failed", message="No text.")
        answer = await tools.ok("kb_addnote", text="x", wait_seconds=5)
        assert answer["status"] == "failed"
        assert answer["error"] == {"code": "extraction_failed", "message": "No text."}

    async def test_a_job_that_cannot_be_followed_is_not_lost(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        """The engine went away after it had accepted: the id comes back all the same."""
        engine.arm("internal_error", "getJob")
        answer = await tools.ok("kb_addnote", text="x", wait_seconds=5)
        assert answer["job_id"] in engine.state.jobs
        assert "not followed" in answer["hint"]

    @pytest.mark.parametrize("wait", [-1, 51])
    async def test_the_wait_is_bounded(self, tools: ToolCaller, wait: int) -> None:
        assert "parameter" in await tools.refused("kb_addnote", text="x", wait_seconds=wait)

    async def test_a_wrong_collection_sends_nothing(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        """It is refused by its name."""
        refused = await tools.refused("kb_addnote", text="x", collection="My Notes")
        assert refused["error"] == "invalid_collection"
        assert engine.journal.requests() == []


class TestUpdate:
    """`kb_update_note`."""

    @pytest.mark.requirement("K43", "K44", "E7")
    async def test_the_text_is_replaced_in_place(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        """`PATCH /api/v1/notes/1`; the updated document comes back, its collection beside its tags."""
        engine.add("collection:memory", "feedback")
        text = "Updated preference: user prefers bullet points"
        answer = await tools.ok("kb_update_note", document_id=1, text=text)
        (request,) = engine.journal.requests("patchNote")
        assert (request.method, request.path) == ("PATCH", "/api/v1/notes/1")
        assert msgspec.json.decode(request.body) == {"text": text}
        assert (answer["id"], answer["version"]) == (1, 2)
        assert (answer["collection"], answer["tags"]) == ("memory", ["feedback"])
        assert (answer["job_id"], answer["hint"]) == (None, "")

    async def test_what_takes_longer_is_told_with_its_job(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        """The note as it is until then, and what to do: kb_jobs follows it, as an update."""
        engine.state.policy = Stuck(step=QUEUED)
        engine.add("collection:memory", "feedback")
        answer = await tools.ok("kb_update_note", document_id=1, text="x")
        assert (answer["id"], answer["version"], answer["collection"]) == (1, 1, "memory")
        assert answer["job_id"] in engine.state.jobs
        assert "kb_jobs" in answer["hint"]
        (job,) = (await tools.ok("kb_jobs", job_id=answer["job_id"]))["jobs"]
        assert (job["kind"], job["status"], job["document_id"]) == ("update", "queued", 1)

    async def test_a_job_that_goes_on_moves_nothing_and_says_so(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        """A move in between could be the change that makes the update a conflict."""
        engine.state.policy = Stuck(step=QUEUED)
        engine.add("collection:documents")
        answer = await tools.ok("kb_update_note", document_id=1, text="x", collection="memory")
        assert (answer["collection"], engine.journal.changes()) == (
            "documents",
            [("PATCH", "/api/v1/notes/1")],
        )
        assert "not been moved to 'memory'" in answer["hint"]

    async def test_the_job_is_told_although_the_note_cannot_be_read(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        """The engine went away after it had accepted."""
        engine.state.policy = Stuck(step=QUEUED)
        engine.add("collection:memory")
        engine.arm("internal_error", "getDocument")
        refused = await tools.refused("kb_update_note", document_id=1, text="x")
        assert refused["job_id"] in engine.state.jobs
        assert "kb_jobs" in refused["message"]

    async def test_a_cancelled_update_is_no_success(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        """Somebody else cancelled it while the call waited."""
        engine.state.policy = Stuck()
        engine.add("collection:memory")

        async def is_cancelled(update: MakeCall) -> m.Job:
            return engine.state.cancel((await update()).id)

        tools.around["patchNote"] = is_cancelled
        refused = await tools.refused("kb_update_note", document_id=1, text="x")
        assert (refused["error"], refused["job_id"]) == ("task_cancelled", [*engine.state.jobs][-1])

    @pytest.mark.requirement("K45")
    async def test_a_missing_document_is_not_found(self, tools: ToolCaller) -> None:
        refused = await tools.refused("kb_update_note", document_id=42, text="x")
        assert refused["error"] == "document_not_found"
        assert "Document 42 was not found" in refused["message"]

    @pytest.mark.requirement("K46")
    async def test_a_pdf_is_refused(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        """Only notes can be updated."""
        engine.add("collection:documents", doc_type="pdf")
        refused = await tools.refused("kb_update_note", document_id=1, text="x")
        assert refused["error"] == "not_a_note"
        assert "only notes can be updated" in refused["message"]

    async def test_another_version_than_expected_is_refused(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        engine.add("collection:memory")
        engine.edit()
        engine.edit()
        refused = await tools.refused("kb_update_note", document_id=1, text="x", expected_version=2)
        assert refused["error"] == "version_conflict"
        assert refused["current_version"] == 3
        assert "kb_get" in refused["message"]

    async def test_a_collection_moves_it_too(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        engine.add("collection:documents")
        answer = await tools.ok("kb_update_note", document_id=1, text="x", title="T", collection="memory")
        assert (answer["collection"], answer["title"]) == ("memory", "T")
        assert [method for method, _ in engine.journal.changes()] == ["PATCH", "DELETE", "POST"]

    async def test_a_wrong_collection_changes_nothing(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        engine.add("collection:documents")
        refused = await tools.refused("kb_update_note", document_id=1, text="x", collection="No Name")
        assert refused["error"] == "invalid_collection"
        assert engine.journal.requests() == []

    async def test_a_failed_move_says_that_the_text_is_updated(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        """Half of the request was done, and the agent must know which."""
        engine.add("collection:documents")
        engine.arm("storage_full", "removeTag")
        refused = await tools.refused("kb_update_note", document_id=1, text="x", collection="memory")
        assert refused["message"].startswith("The text was updated.")
        assert refused["text_updated"] is True

    async def test_a_note_in_several_collections_is_repaired_on_sight(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        """The one added last stays."""
        engine.add("collection:a", "collection:b")
        answer = await tools.ok("kb_update_note", document_id=1, text="x")
        assert answer["collection"] == "b"
        assert engine.document().tags == ["collection:b"]


class TestExtra:
    """`kb_move`, `kb_delete`, `kb_tags`, `kb_cancel_job`."""

    @pytest.mark.requirement("K59")
    async def test_any_document_can_be_moved(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        engine.add("collection:documents", "insurance", doc_type="pdf")
        answer = await tools.ok("kb_move", document_id=1, collection="memory")
        assert (answer["collection"], answer["tags"]) == ("memory", ["insurance"])
        assert [method for method, _ in engine.journal.changes()] == ["DELETE", "POST"]

    async def test_a_move_of_what_is_not_there_is_refused(self, tools: ToolCaller) -> None:
        refused = await tools.refused("kb_move", document_id=7, collection="memory")
        assert "Document 7 was not found" in refused["message"]

    async def test_a_document_can_be_deleted(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        """What is gone is counted."""
        engine.add(text="hello")
        answer = await tools.ok("kb_delete", document_id=1)
        assert answer == {"document_id": 1, "documents": 1, "chunks": 1, "bytes": 5}
        assert (await tools.refused("kb_delete", document_id=1))["error"] == "document_not_found"

    async def test_collections_are_listed_apart_from_tags(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        """Each with its counts."""
        engine.add("collection:memory", "feedback")
        engine.add("collection:memory")
        answer = await tools.ok("kb_tags")
        assert answer["collections"] == [{"collection": "memory", "documents": 2, "chunks": 2}]
        assert answer["tags"] == [{"tag": "feedback", "documents": 1, "chunks": 1}]

    async def test_a_job_can_be_cancelled(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        """One that has ended cannot."""
        engine.state.policy = Stuck(step=QUEUED)
        waiting = await tools.ok("kb_addnote", text="x")
        assert (await tools.ok("kb_cancel_job", job_id=waiting["job_id"]))["status"] == "cancelled"
        engine.state.policy = AtOnce()
        ended = await tools.ok("kb_addnote", text="y")
        refused = await tools.refused("kb_cancel_job", job_id=ended["job_id"])
        assert refused["error"] == "job_finished"

    async def test_a_failed_job_can_be_tried_again(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        """kb_jobs says so and by which tool; one that has not failed says that it has not."""
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
        assert (await tools.ok("kb_retry_job", job_id=job_id))["status"] == "queued"
