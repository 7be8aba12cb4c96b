"""`kb_get`, `kb_status` and `kb_jobs`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kb_contracts.http.mount import Incoming
from tests.support.server_fixtures import FakeEngine, ToolCaller, calling


@pytest.fixture
def engine() -> FakeEngine:
    """An engine that remembers."""
    return FakeEngine()


@pytest.fixture
async def tools(engine: FakeEngine, tmp_path: Path) -> AsyncIterator[ToolCaller]:
    """The tools in front of it."""
    async with calling(engine, tmp_path) as tools:
        yield tools


class TestGet:
    """`kb_get`."""

    @pytest.mark.requirement("K47", "K48", "E8")
    async def test_by_id_it_answers_with_details_and_chunks(
        self, engine: FakeEngine, tools: ToolCaller
    ) -> None:
        """`GET /api/v1/documents/42`."""
        engine.documents[42] = msgspec.structs.replace(engine.add("collection:memory"), id=42, chunk_count=2)
        answer = await tools.ok("kb_get", document_id=42)
        (asked,) = engine.of("getDocument")
        assert (asked.method, asked.path, asked.query) == ("GET", "/api/v1/documents/42", {})
        assert answer["id"] == 42
        assert [chunk["text"] for chunk in answer["chunks"]] == ["text 0", "text 1"]
        assert "next_chunk_offset" not in answer

    @pytest.mark.requirement("K49", "E8")
    async def test_by_source_path_it_lists_the_documents(self, engine: FakeEngine, tools: ToolCaller) -> None:
        path = "memory/feedback_testing.md"
        engine.add("collection:memory", source_path=path)
        engine.add(source_path="other.md")
        answer = await tools.ok("kb_get", source_path=path)
        (asked,) = engine.of("listDocuments")
        assert (asked.path, asked.query) == ("/api/v1/documents", {"source_path": path})
        assert [document["source_path"] for document in answer["documents"]] == [path]
        assert answer["total"] == 1
        assert "chunks" not in answer

    async def test_by_source_path_it_pages_and_stays_within_its_bound(
        self, engine: FakeEngine, tools: ToolCaller
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
        assert [document["id"] for document in second["documents"]] == [shown + 1]
        last = await tools.ok("kb_get", source_path="p", offset=149)
        assert len(last["documents"]) == 1
        assert "next_offset" not in last

    @pytest.mark.requirement("K50")
    @pytest.mark.parametrize("by", [{"document_id": 1}, {"source_path": "p"}])
    async def test_the_collection_stands_beside_the_tags(
        self, engine: FakeEngine, tools: ToolCaller, by: dict[str, Any]
    ) -> None:
        engine.add("collection:memory", "feedback", source_path="p")
        answer = await tools.ok("kb_get", **by)
        shown = answer["documents"][0] if "documents" in answer else answer
        assert (shown["collection"], shown["tags"]) == ("memory", ["feedback"])

    async def test_without_a_collection_it_is_null(self, engine: FakeEngine, tools: ToolCaller) -> None:
        engine.add("a")
        answer = await tools.ok("kb_get", document_id=1)
        assert answer["collection"] is None

    @pytest.mark.parametrize("arguments", [{}, {"document_id": 1, "source_path": "p"}])
    async def test_both_or_neither_is_refused(
        self, engine: FakeEngine, tools: ToolCaller, arguments: dict[str, Any]
    ) -> None:
        """One of the two says which document."""
        refused = await tools.refused("kb_get", **arguments)
        assert "either document_id or source_path" in refused["message"]
        assert engine.asked == []

    async def test_a_missing_document_is_not_found(self, tools: ToolCaller) -> None:
        refused = await tools.refused("kb_get", document_id=42)
        assert (refused["error"], refused["document_id"]) == ("document_not_found", 42)
        assert "Document 42 was not found" in refused["message"]

    async def test_a_source_path_of_nothing_is_an_empty_list(self, tools: ToolCaller) -> None:
        """With a hint, not an error: asking whether there is one is what it is for."""
        answer = await tools.ok("kb_get", source_path="none.md")
        assert (answer["documents"], answer["total"]) == ([], 0)
        assert "kb_search" in answer["hint"]

    async def test_a_long_document_comes_in_parts(self, engine: FakeEngine, tools: ToolCaller) -> None:
        """Followed by next_chunk_offset, every chunk is read once and in order."""
        engine.add(chunk_count=25)
        texts: list[str] = []
        arguments: dict[str, Any] = {}
        while True:
            answer = await tools.ok("kb_get", document_id=1, max_chars=100, chunk_limit=20, **arguments)
            texts += [chunk["text"] for chunk in answer["chunks"]]
            if "next_chunk_offset" not in answer:
                break
            assert f"chunk_offset={answer['next_chunk_offset']}" in answer["hint"]
            arguments = {"chunk_offset": answer["next_chunk_offset"]}
        assert texts == [f"text {index}" for index in range(25)]

    async def test_a_chunk_over_the_bound_is_cut_and_says_so(
        self, engine: FakeEngine, tools: ToolCaller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rather than an answer without text that would be asked for again and again."""
        engine.add(chunk_count=1)
        get_document = engine._get_document

        async def long(incoming: Incoming) -> Any:
            detail = await get_document(incoming)
            chunks = [msgspec.structs.replace(chunk, text="x" * 500) for chunk in detail.chunks]
            return msgspec.structs.replace(detail, chunks=chunks)

        monkeypatch.setattr(engine, "_get_document", long)
        async with calling(engine, Path("unused")) as patched:
            answer = await patched.ok("kb_get", document_id=1, max_chars=100)
        (chunk,) = answer["chunks"]
        assert (len(chunk["text"]), chunk["truncated"]) == (100, True)
        assert "raise max_chars" in answer["hint"]

    async def test_a_document_without_text_says_why(self, engine: FakeEngine, tools: ToolCaller) -> None:
        """A scan without recognised text never reads as a success."""
        engine.add(status="empty", status_reason="a scan without text", chunk_count=0)
        answer = await tools.ok("kb_get", document_id=1)
        assert "a scan without text" in answer["hint"]

    async def test_a_document_in_several_collections_is_repaired_on_sight(
        self, engine: FakeEngine, tools: ToolCaller
    ) -> None:
        """What is shown is what is now, its version included."""
        engine.add("collection:a", "x", "collection:b")
        answer = await tools.ok("kb_get", document_id=1)
        assert (answer["collection"], answer["tags"], answer["version"]) == ("b", ["x"], 2)
        assert engine.documents[1].tags == ["x", "collection:b"]


class TestStatus:
    """`kb_status`."""

    @pytest.mark.requirement("K51", "K52", "E9")
    async def test_it_tells_how_the_engine_is(self, engine: FakeEngine, tools: ToolCaller) -> None:
        engine.add()
        answer = await tools.ok("kb_status")
        assert [(asked.method, asked.path) for asked in engine.asked] == [("GET", "/api/v1/status")]
        assert answer["version"] == "v3.0.0"
        assert answer["server_version"] == "v3.0.0"
        assert answer["model"]["name"] == "all-MiniLM-L6-v2"
        assert answer["device"] == {"type": "cpu", "threads": 2}
        assert answer["documents"]["total"] == 1
        assert answer["queue"]["failed"] == 0
        assert answer["storage"]["originals_bytes"] == 3
        assert answer["issues"] == []

    @pytest.mark.requirement("E35")
    async def test_an_engine_that_is_too_old_is_an_issue_here_and_an_error_elsewhere(
        self, engine: FakeEngine, tools: ToolCaller
    ) -> None:
        """So that the agent can find out what is wrong; both versions are named."""
        engine.version = "v2.9.0"
        issue = (await tools.ok("kb_status"))["issues"][0]
        refused = await tools.refused("kb_jobs")
        assert refused["error"] == "engine_too_old"
        for words in (issue, refused["message"]):
            assert "v2.9.0" in words
            assert "v3.0.0" in words


class TestJobs:
    """`kb_jobs`."""

    @pytest.mark.requirement("K53", "E10")
    async def test_it_lists_recent_jobs(self, engine: FakeEngine, tools: ToolCaller) -> None:
        """`GET /api/v1/jobs`, and nothing else."""
        added = await tools.ok("kb_addnote", text="x", collection="memory", tags=["a"])
        answer = await tools.ok("kb_jobs")
        (asked,) = engine.of("listJobs")
        assert (asked.method, asked.path, asked.query) == ("GET", "/api/v1/jobs", {})
        (job,) = answer["jobs"]
        assert (job["id"], job["status"]) == (added["job_id"], "completed")
        assert (job["collection"], job["tags"]) == ("memory", ["a"])
        assert answer["total"] == 1

    @pytest.mark.requirement("K54")
    async def test_it_filters_by_status(self, engine: FakeEngine, tools: ToolCaller) -> None:
        """`GET /api/v1/jobs?status=failed`."""
        await tools.ok("kb_addnote", text="x")
        answer = await tools.ok("kb_jobs", status="failed")
        assert engine.of("listJobs")[0].query == {"status": "failed"}
        assert answer["jobs"] == []

    async def test_a_page_says_how_to_go_on(self, engine: FakeEngine, tools: ToolCaller) -> None:
        """Nothing is left out in silence."""
        for number in range(3):
            await tools.ok("kb_addnote", text=f"note {number}")
        answer = await tools.ok("kb_jobs", limit=2)
        assert len(answer["jobs"]) == 2
        assert "offset=2" in answer["hint"]

    async def test_one_job_can_be_followed(self, engine: FakeEngine, tools: ToolCaller) -> None:
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
        self, engine: FakeEngine, tools: ToolCaller, arguments: dict[str, Any]
    ) -> None:
        refused = await tools.refused("kb_jobs", **arguments)
        assert "job_id" in refused["message"]
        assert engine.asked == []

    async def test_an_unknown_status_does_not_fit(self, tools: ToolCaller) -> None:
        """The states are an enumeration."""
        with pytest.raises(msgspec.ValidationError):
            await tools.ok("kb_jobs", status="broken")
