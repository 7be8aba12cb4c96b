"""The three upload tools, as an agent calls them one after the other."""

from __future__ import annotations

import base64
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from kb_simulator.engine.documents import NO_TEXT
from kb_simulator.harness.faults import Status
from tests.support.server_fixtures import ToolCaller, calling
from tests.support.simulated_engine import SimulatedEngine
from tests.support.uploads import encoded, sha256

UNKNOWN = "8b4e8f0e-9d1c-4c53-9c1a-5f2f6f0c9d11"


@pytest.mark.requirement("K29", "K32", "K34", "K37", "E26")
async def test_a_file_goes_up_in_three_steps(engine: SimulatedEngine, tools: ToolCaller) -> None:
    """Start, chunk by chunk, finish; what the engine gets is the file with the start's tags."""
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
    """A UUID; nothing is asked of the engine."""
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
    """Nothing would answer there; chunks are named as the way."""
    async with calling(engine, tmp_path) as tools:
        start = await tools.ok("kb_upload_start", filename="a.txt", total_size=3)
    assert "upload_url" not in start
    assert "curl" not in start["next"]


@pytest.mark.requirement("K38", "E6")
async def test_with_wait_seconds_it_answers_with_the_document(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    start = await tools.ok("kb_upload_start", filename="a.txt", total_size=3, collection="workspace")
    await tools.ok("kb_upload_chunk", upload_id=start["upload_id"], data=encoded(b"abc"), chunk_index=0)
    finish = await tools.ok("kb_upload_finish", upload_id=start["upload_id"], wait_seconds=30)
    assert (finish["status"], finish["collection"]) == ("completed", "workspace")
    assert engine.document(finish["document_id"]).tags == ["collection:workspace"]


async def test_a_file_without_text_is_empty_in_every_answer(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    """Never as one that can be searched: not when its job has ended, nor when it is asked for later."""
    start = await tools.ok("kb_upload_start", filename="a.txt", total_size=3)
    await tools.ok("kb_upload_chunk", upload_id=start["upload_id"], data=encoded(b" \n "), chunk_index=0)
    finish = await tools.ok("kb_upload_finish", upload_id=start["upload_id"], wait_seconds=30)
    assert (finish["status"], finish["document_status"]) == ("completed", "empty")
    assert finish["hint"] == f"No search finds document {finish['document_id']}: {NO_TEXT}"
    later = await tools.ok("kb_jobs", job_id=finish["job_id"])
    assert later["hint"] == finish["hint"]


async def test_a_document_that_cannot_be_asked_for_is_not_called_searchable(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    """Nobody knows what was found in it."""
    engine.arm("internal_error", "getDocument")
    start = await tools.ok("kb_upload_start", filename="a.txt", total_size=3)
    await tools.ok("kb_upload_chunk", upload_id=start["upload_id"], data=encoded(b"abc"), chunk_index=0)
    finish = await tools.ok("kb_upload_finish", upload_id=start["upload_id"], wait_seconds=30)
    assert (finish["status"], finish["document_status"]) == ("completed", None)
    assert "searched now" not in finish["hint"]


async def test_a_repeated_finish_gives_the_same_job_as_it_is_now(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    start = await tools.ok("kb_upload_start", filename="a.txt", total_size=3)
    await tools.ok("kb_upload_chunk", upload_id=start["upload_id"], data=encoded(b"abc"), chunk_index=0)
    first = await tools.ok("kb_upload_finish", upload_id=start["upload_id"])
    again = await tools.ok("kb_upload_finish", upload_id=start["upload_id"])
    assert first["job_id"] == again["job_id"]
    assert (first["status"], again["status"]) == ("queued", "completed")


@pytest.mark.requirement("K39", "K40")
async def test_an_unknown_upload_id_is_not_found(tools: ToolCaller) -> None:
    chunk = await tools.refused("kb_upload_chunk", upload_id=UNKNOWN, data="YWJj", chunk_index=0)
    finish = await tools.refused("kb_upload_finish", upload_id=UNKNOWN)
    for refused in (chunk, finish):
        assert refused["error"] == "upload_not_found"
        assert "not found" in refused["message"]
        assert "kb_upload_start" in refused["message"]


async def test_an_engine_that_fails_at_the_finish_is_told_and_the_file_kept(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    start = await tools.ok("kb_upload_start", filename="a.txt", total_size=3)
    await tools.ok("kb_upload_chunk", upload_id=start["upload_id"], data=encoded(b"abc"), chunk_index=0)
    engine.arm("refusal", "createJob", Status(code="unsupported_format"))
    refused = await tools.refused("kb_upload_finish", upload_id=start["upload_id"])
    assert refused["error"] == "unsupported_format"
    assert "told to fail" in refused["message"]
    await tools.ok("kb_upload_finish", upload_id=start["upload_id"])


@pytest.mark.parametrize("index", [-1, 10_000])
async def test_a_chunk_index_out_of_range_does_not_fit(tools: ToolCaller, index: int) -> None:
    assert "parameter" in await tools.refused(
        "kb_upload_chunk", upload_id=UNKNOWN, data="YWJj", chunk_index=index
    )


async def test_a_wrong_collection_starts_nothing(tools: ToolCaller, tmp_path: Path) -> None:
    """It is refused at the start, not at the finish."""
    refused = await tools.refused("kb_upload_start", filename="a", total_size=1, collection="No")
    assert refused["error"] == "invalid_collection"
    assert not (tmp_path / "staging").exists()


@pytest.mark.parametrize(
    ("filename", "code"), [("setup.exe", "unsupported_format"), ('a";b.pdf', "invalid_parameter")]
)
async def test_what_the_engine_would_refuse_is_refused_before_it_is_sent(
    tools: ToolCaller, tmp_path: Path, filename: str, code: str
) -> None:
    refused = await tools.refused("kb_upload_start", filename=filename, total_size=100_000_000)
    assert (refused["error"], refused["parameter"]) == (code, "filename")


async def test_an_upload_can_be_aborted(tools: ToolCaller) -> None:
    """By a tool beyond the nine; what is unknown cannot."""
    start = await tools.ok("kb_upload_start", filename="a.txt", total_size=3)
    aborted = await tools.ok("kb_upload_abort", upload_id=start["upload_id"])
    assert aborted == {"upload_id": start["upload_id"], "filename": "a.txt"}
    refused = await tools.refused("kb_upload_abort", upload_id=start["upload_id"])
    assert refused["error"] == "upload_not_found"
    data = base64.b64encode(b"abc").decode()
    for tool, more in (("kb_upload_chunk", {"chunk_index": 0, "data": data}), ("kb_upload_finish", {})):
        refused = await tools.refused(tool, upload_id=start["upload_id"], **more)
        assert refused["error"] == "upload_not_found"
