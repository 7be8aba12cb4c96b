"""`kb_get`, `kb_status` and `kb_jobs`."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest

from kb_simulator.engine.documents import NO_TEXT
from tests.support.server_fixtures import ToolCaller
from tests.support.simulated_engine import SimulatedEngine

LONG = "\n\n".join(f"# Part {part}\n\n" + f"word{part} " * 200 for part in range(25))


def texts(engine: SimulatedEngine) -> list[str]:
    """The chunks of the one document."""
    return [chunk.text for chunk in engine.state.documents.by_id[1].chunks]


class TestGet:
    """`kb_get`."""

    @pytest.mark.requirement("K47", "K48", "E8")
    async def test_by_id_it_answers_with_details_and_chunks(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        engine.add("collection:memory", text="# One\n\ntext\n\n# Two\n\ntext")
        answer = await tools.ok("kb_get", document_id=1)
        (request,) = engine.journal.requests("getDocument")
        assert (request.method, request.target) == ("GET", "/api/v1/documents/1")
        assert answer["id"] == 1
        assert [chunk["text"] for chunk in answer["chunks"]] == texts(engine)
        assert len(answer["chunks"]) == 2
        assert "next_chunk_offset" not in answer

    @pytest.mark.requirement("K49", "E8")
    async def test_by_source_path_it_lists_the_documents(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        path = "memory/feedback_testing.md"
        engine.add("collection:memory", source_path=path)
        engine.add(source_path="other.md")
        answer = await tools.ok("kb_get", source_path=path)
        (request,) = engine.journal.requests("listDocuments")
        assert (request.path, parse_qs(request.query)) == ("/api/v1/documents", {"source_path": [path]})
        assert [document["source_path"] for document in answer["documents"]] == [path]
        assert answer["total"] == 1
        assert "chunks" not in answer

    async def test_by_source_path_it_pages_and_stays_within_its_bound(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        """Nothing is left out in silence, and every page has one at least."""
        for _ in range(150):
            engine.add("collection:memory", source_path="p", title="x" * 200)
        first = await tools.ok("kb_get", source_path="p", max_chars=2_000)
        shown = len(first["documents"])
        assert 1 <= shown < 10
        assert (first["total"], first["next_offset"]) == (150, shown)
        assert f"offset={shown}" in first["hint"]
        second = await tools.ok("kb_get", source_path="p", offset=shown, max_chars=100)
        assert [document["id"] for document in second["documents"]] == [150 - shown]
        last = await tools.ok("kb_get", source_path="p", offset=149)
        assert len(last["documents"]) == 1
        assert "next_offset" not in last

    @pytest.mark.requirement("K50")
    @pytest.mark.parametrize("by", [{"document_id": 1}, {"source_path": "p"}])
    async def test_the_collection_stands_beside_the_tags(
        self, engine: SimulatedEngine, tools: ToolCaller, by: dict[str, Any]
    ) -> None:
        engine.add("collection:memory", "feedback", source_path="p")
        answer = await tools.ok("kb_get", **by)
        shown = answer["documents"][0] if "documents" in answer else answer
        assert (shown["collection"], shown["tags"]) == ("memory", ["feedback"])

    async def test_without_a_collection_it_is_null(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        engine.add("a")
        answer = await tools.ok("kb_get", document_id=1)
        assert answer["collection"] is None

    @pytest.mark.parametrize("arguments", [{}, {"document_id": 1, "source_path": "p"}])
    async def test_both_or_neither_is_refused(
        self, engine: SimulatedEngine, tools: ToolCaller, arguments: dict[str, Any]
    ) -> None:
        """One of the two says which document."""
        refused = await tools.refused("kb_get", **arguments)
        assert "either document_id or source_path" in refused["message"]
        assert engine.journal.requests() == []

    async def test_a_missing_document_is_not_found(self, tools: ToolCaller) -> None:
        refused = await tools.refused("kb_get", document_id=42)
        assert (refused["error"], refused["document_id"]) == ("document_not_found", 42)
        assert "Document 42 was not found" in refused["message"]

    async def test_a_source_path_of_nothing_is_an_empty_list(self, tools: ToolCaller) -> None:
        """With a hint, not an error: asking whether there is one is what it is for."""
        answer = await tools.ok("kb_get", source_path="none.md")
        assert (answer["documents"], answer["total"]) == ([], 0)
        assert "kb_search" in answer["hint"]

    async def test_a_long_document_comes_in_parts(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        """Followed by next_chunk_offset, every chunk is read once and in order."""
        engine.add(text=LONG)
        read: list[str] = []
        arguments: dict[str, Any] = {}
        while True:
            answer = await tools.ok("kb_get", document_id=1, max_chars=5_000, chunk_limit=20, **arguments)
            read += [chunk["text"] for chunk in answer["chunks"]]
            if "next_chunk_offset" not in answer:
                break
            assert f"chunk_offset={answer['next_chunk_offset']}" in answer["hint"]
            arguments = {"chunk_offset": answer["next_chunk_offset"]}
        assert len(read) > 20
        assert read == texts(engine)

    async def test_a_chunk_over_the_bound_is_cut_and_says_so(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        """Rather than an answer without text that would be asked for again and again."""
        engine.add(text="x" * 500)
        answer = await tools.ok("kb_get", document_id=1, max_chars=100)
        (chunk,) = answer["chunks"]
        assert (len(chunk["text"]), chunk["truncated"]) == (100, True)
        assert "raise max_chars" in answer["hint"]

    async def test_a_document_without_text_says_why(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        """A scan without recognised text never reads as a success."""
        engine.add(text=" ", doc_type="pdf")
        answer = await tools.ok("kb_get", document_id=1)
        assert NO_TEXT in answer["hint"]

    async def test_a_document_in_several_collections_is_repaired_on_sight(
        self, engine: SimulatedEngine, tools: ToolCaller
    ) -> None:
        """What is shown is what is now, its version included."""
        engine.add("collection:a", "x", "collection:b")
        answer = await tools.ok("kb_get", document_id=1)
        assert (answer["collection"], answer["tags"], answer["version"]) == ("b", ["x"], 2)
        assert engine.document().tags == ["x", "collection:b"]


class TestStatus:
    """`kb_status`."""

    @pytest.mark.requirement("K51", "K52", "E9")
    async def test_it_tells_how_the_engine_is(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        engine.add()
        answer = await tools.ok("kb_status")
        assert [each.target for each in engine.journal.requests()] == ["/api/v1/status"]
        status = msgspec.to_builtins(engine.state.status())
        assert answer["version"] == answer["server_version"] == "v3.0.0"
        for member in ("model", "device"):
            assert answer[member].items() <= status[member].items()
        assert answer["documents"]["total"] == 1
        assert answer["queue"]["failed"] == 0
        assert answer["storage"]["originals_bytes"] == status["storage"]["originals_bytes"] > 0
        assert answer["issues"] == []

    @pytest.mark.requirement("E35")
    async def test_an_engine_that_is_too_old_is_an_issue_here_and_an_error_elsewhere(
        self, tools: ToolCaller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So that the agent can find out what is wrong; both versions are named."""
        monkeypatch.setattr("kb_simulator.engine.state.API_VERSION", "v2.9.0")
        issue = (await tools.ok("kb_status"))["issues"][0]
        refused = await tools.refused("kb_jobs")
        assert refused["error"] == "engine_too_old"
        for words in (issue, refused["message"]):
            assert "v2.9.0" in words
            assert "v3.0.0" in words


class TestJobs:
    """`kb_jobs`."""

    @pytest.mark.requirement("K53", "E10")
    async def test_it_lists_recent_jobs(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        """`GET /api/v1/jobs`, and nothing else."""
        added = await tools.ok("kb_addnote", text="x", collection="memory", tags=["a"])
        answer = await tools.ok("kb_jobs")
        (request,) = engine.journal.requests("listJobs")
        assert (request.method, request.target) == ("GET", "/api/v1/jobs")
        (job,) = answer["jobs"]
        assert (job["id"], job["status"]) == (added["job_id"], "completed")
        assert (job["collection"], job["tags"]) == ("memory", ["a"])
        assert answer["total"] == 1

    @pytest.mark.requirement("K54")
    async def test_it_filters_by_status(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        """`GET /api/v1/jobs?status=failed`."""
        await tools.ok("kb_addnote", text="x")
        answer = await tools.ok("kb_jobs", status="failed")
        assert engine.journal.requests("listJobs")[0].target == "/api/v1/jobs?status=failed"
        assert answer["jobs"] == []

    async def test_a_page_says_how_to_go_on(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        """Nothing is left out in silence."""
        for number in range(3):
            await tools.ok("kb_addnote", text=f"note {number}")
        answer = await tools.ok("kb_jobs", limit=2)
        assert len(answer["jobs"]) == 2
        assert "offset=2" in answer["hint"]

    async def test_one_job_can_be_followed(self, engine: SimulatedEngine, tools: ToolCaller) -> None:
        added = await tools.ok("kb_addnote", text="x")
        answer = await tools.ok("kb_jobs", job_id=added["job_id"], wait_seconds=30)
        assert answer["jobs"][0]["document_id"] == 1

    async def test_an_unknown_job_is_not_found(self, tools: ToolCaller) -> None:
        job_id = "8b4e8f0e-9d1c-4c53-9c1a-5f2f6f0c9d11"
        refused = await tools.refused("kb_jobs", job_id=job_id)
        assert refused["error"] == "job_not_found"
        assert job_id in refused["message"]

    @pytest.mark.parametrize(
        "arguments", [{"job_id": "x", "status": "failed"}, {"job_id": "x", "offset": 1}, {"wait_seconds": 1}]
    )
    async def test_what_does_not_go_together_is_refused(
        self, engine: SimulatedEngine, tools: ToolCaller, arguments: dict[str, Any]
    ) -> None:
        refused = await tools.refused("kb_jobs", **arguments)
        assert "job_id" in refused["message"]
        assert engine.journal.requests() == []

    async def test_an_unknown_status_does_not_fit(self, tools: ToolCaller) -> None:
        """The states are an enumeration."""
        assert "parameter" in await tools.refused("kb_jobs", status="broken")
