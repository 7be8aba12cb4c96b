"""`knowledge-add`: checks before a file is queued, and the results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from kb_contracts.api.operations import CANCEL_JOB
from kb_server import following
from kb_server.toolsets.knowledge import add, files
from kb_simulator import AfterTime, FailAt, Stuck
from tests.support.documents import docx_of, large_pdf
from tests.support.eventually import eventually_async
from tests.support.knowledge import Knowledge

HTML = "<h1>Bees</h1><p>Bees keep warm in a cluster.</p>"
MIB = 1024 * 1024


@pytest.mark.requirement("N6", "N9", "N11", "N88")
async def test_a_file_is_queued_and_its_task_told(knowledge: Knowledge) -> None:
    told = await knowledge.ok("knowledge-add", file_path=knowledge.file("bees.pdf", large_pdf(2)))
    assert set(told) == {"success", "task_id", "message", "estimated_time_seconds"}
    assert told["success"] is True
    assert told["message"] == "Document queued for processing"
    assert told["estimated_time_seconds"] >= 1
    assert UUID(told["task_id"]).version == 4
    status = await knowledge.ok("knowledge-task-status", task_id=told["task_id"])
    assert status["result"]["filename"] == "bees.pdf"


@pytest.mark.requirement("N12", "N13")
async def test_a_call_that_waits_answers_with_the_document(knowledge: Knowledge) -> None:
    path = knowledge.file("bees.docx", docx_of([("Heading1", "Bees"), ("", "They keep warm.")]))
    told = await knowledge.ok("knowledge-add", file_path=path, async_=False)
    assert set(told) == {
        "success",
        "document_id",
        "filename",
        "chunks_created",
        "processing_method",
        "processing_time_seconds",
    }
    assert UUID(told["document_id"]).version == 4
    assert (told["filename"], told["chunks_created"]) == ("bees.docx", 1)
    assert told["processing_method"] == "text_extraction"
    assert told["processing_time_seconds"] >= 0


async def test_the_same_file_again_is_the_same_document(knowledge: Knowledge) -> None:
    path = knowledge.file("bees.html")
    first = await knowledge.ok("knowledge-add", file_path=path, async_=False)
    again = await knowledge.ok("knowledge-add", file_path=path, async_=False)
    assert again["document_id"] == first["document_id"]
    assert again["deduplicated"] is True
    assert "deduplicated" not in first


@pytest.mark.requirement("N7")
async def test_metadata_goes_with_the_document(knowledge: Knowledge) -> None:
    metadata = {"author": "John Doe", "title": "On bees", "tags": ["technical", "api-docs"], "year": 2025}
    await knowledge.added("bees.html", HTML, metadata=metadata)
    (document,) = knowledge.engine.state().documents
    assert document.metadata == metadata
    assert document.title == "On bees"
    assert document.tags == ["collection:documents", "technical", "api-docs"]
    assert document.source_path == str(knowledge.root / "bees.html")


@pytest.mark.requirement("N14", "N15", "N90")
async def test_an_unsupported_format_is_refused_by_the_file_name(knowledge: Knowledge) -> None:
    """By the name alone, with the accepted formats; the folder is not checked either."""
    refused = await knowledge.refused("knowledge-add", file_path="/test/doc.xyz")
    assert refused == {
        "success": False,
        "error": "unsupported_format",
        "message": "Unsupported file format: .xyz. Use PDF, DOCX, PPTX, XLSX, HTML, JPG, PNG, or SVG",
        "supported_formats": ["pdf", "docx", "pptx", "xlsx", "html", "jpg", "png", "svg"],
    }
    assert (await knowledge.refused("knowledge-add", file_path=knowledge.file("a.exe")))["error"] == (
        "unsupported_format"
    )


@pytest.mark.parametrize("name", ["bees", ".pdf", "bees.pdf.", "pdf", "bees.pdf/bees"])
async def test_a_name_without_a_format_is_refused(knowledge: Knowledge, name: str) -> None:
    refused = await knowledge.refused("knowledge-add", file_path=f"/test/{name}")
    assert refused["error"] == "unsupported_format"


@pytest.mark.parametrize(
    ("names", "force_ocr"),
    [
        ("a.pdf a.docx a.pptx a.xlsx a.html a.htm a.jpg a.jpeg a.png a.svg A.PDF", False),
        ("a.pdf a.jpg a.jpeg a.png", True),
    ],
)
async def test_every_format_that_is_named_is_looked_for(
    knowledge: Knowledge, names: str, force_ocr: bool
) -> None:
    """It passes the check of formats and fails at that of the file."""
    for name in names.split():
        path = str(knowledge.root / name)
        refused = await knowledge.refused("knowledge-add", file_path=path, force_ocr=force_ocr)
        assert refused["error"] == "file_not_found"


@pytest.mark.requirement("N16", "N17")
async def test_a_file_over_the_limit_is_refused_with_both_sizes(knowledge: Knowledge) -> None:
    """The file is sparse, because its content is not read."""
    path = knowledge.root / "large.pdf"
    with path.open("wb") as file:
        file.truncate(150 * MIB)
    refused = await knowledge.refused("knowledge-add", file_path=str(path))
    assert refused == {
        "success": False,
        "error": "file_too_large",
        "message": "File size (150 MB) exceeds maximum allowed size (100 MB)",
        "max_size_mb": 100,
    }


async def test_a_file_just_over_the_limit_does_not_look_like_the_limit(
    knowledge_with: Callable[..., Awaitable[Knowledge]],
) -> None:
    """Its size is rounded up; a file of exactly KB_MAX_UPLOAD_BYTES is accepted."""
    knowledge = await knowledge_with(max_upload_bytes=MIB)
    refused = await knowledge.refused("knowledge-add", file_path=knowledge.file("a.html", b"x" * (MIB + 1)))
    assert refused["message"] == "File size (1.1 MB) exceeds maximum allowed size (1 MB)"
    await knowledge.ok("knowledge-add", file_path=knowledge.file("b.html", b"x" * MIB))


@pytest.mark.requirement("N8")
async def test_forced_ocr_is_asked_of_the_engine(knowledge: Knowledge) -> None:
    path = knowledge.file("a.pdf", large_pdf(1))
    refused = await knowledge.refused("knowledge-add", file_path=path, force_ocr=True, async_=False)
    assert refused["error"] == "ocr_failed"
    assert (await knowledge.ok("knowledge-add", file_path=path, async_=False))["chunks_created"] >= 1


@pytest.mark.requirement("N8")
@pytest.mark.parametrize("name", ["a.html", "a.docx", "a.pptx", "a.xlsx", "a.svg"])
async def test_force_ocr_is_ignored_with_a_message_for_text_formats(knowledge: Knowledge, name: str) -> None:
    answer = await knowledge.ok("knowledge-add", file_path=knowledge.file(name, b"x"), force_ocr=True)
    label = name.partition(".")[2].upper()
    assert answer["message"] == (
        f"Document queued for processing. OCR does not apply to {label}: its text is read directly"
    )
    assert [job.id for job in knowledge.engine.state().jobs] == [answer["task_id"]]


@pytest.mark.requirement("N8")
async def test_a_call_that_waits_says_too_where_ocr_does_not_apply(knowledge: Knowledge) -> None:
    words, blank = knowledge.file("a.html", b"<p>Granite</p>"), knowledge.file("b.html", b"<p> </p>")
    answer = await knowledge.ok("knowledge-add", file_path=words, force_ocr=True, async_=False)
    assert (answer["chunks_created"], answer["processing_method"]) == (1, "text_extraction")
    assert answer["message"] == "OCR does not apply to HTML: its text is read directly"
    answer = await knowledge.ok("knowledge-add", file_path=blank, force_ocr=True, async_=False)
    assert answer["chunks_created"] == 0
    assert answer["message"].endswith(". OCR does not apply to HTML: its text is read directly")


async def test_a_job_that_fails_is_the_error_of_a_call_that_waits(knowledge: Knowledge) -> None:
    knowledge.engine.set_policy(FailAt(code="file_corrupt", message="The file is damaged."))
    refused = await knowledge.refused("knowledge-add", file_path=knowledge.file("a.html"), async_=False)
    (job,) = knowledge.engine.state().jobs
    assert refused == {
        "success": False,
        "error": "file_corrupt",
        "message": "The file is damaged.",
        "task_id": job.id,
    }


async def test_a_job_that_is_cancelled_is_the_error_of_a_call_that_waits(knowledge: Knowledge) -> None:
    knowledge.engine.set_policy(Stuck())
    knowledge.engine.clock.set_mode("manual")
    path = knowledge.file("a.html")
    waiting = asyncio.ensure_future(knowledge.refused("knowledge-add", file_path=path, async_=False))
    await knowledge.reported.wait()
    await knowledge.services.engine.call(CANCEL_JOB, path={"job_id": knowledge.engine.state().jobs[0].id})
    assert (await waiting)["error"] == "task_cancelled"


@pytest.mark.requirement("N74", "N87")
async def test_a_call_that_waits_reports_the_steps(
    knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LOOK_SECONDS", 0.1)
    knowledge.engine.set_policy(AfterTime(seconds=0.6))
    await knowledge.ok("knowledge-add", file_path=knowledge.file("a.html"), async_=False)
    progress = [told[0] for told in knowledge.told]
    assert progress == sorted(set(progress))
    assert (progress[0], progress[-1]) == (0.0, 1.0)
    assert {total for _, total, _ in knowledge.told} == {1.0}
    assert "Generating embeddings" in [message for _, _, message in knowledge.told]


@pytest.mark.requirement("N74", "N87")
async def test_a_call_that_does_not_wait_reports_that_its_job_is_queued(knowledge: Knowledge) -> None:
    knowledge.engine.set_policy(Stuck(step="queued"))
    await knowledge.ok("knowledge-add", file_path=knowledge.file("a.html"))
    assert knowledge.told == [(0.0, 1.0, "queued")]


async def test_a_new_step_is_reported_although_the_share_is_the_same(
    knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress strictly increases, as the protocol requires."""
    monkeypatch.setattr(following, "LOOK_SECONDS", 0.1)
    knowledge.engine.set_policy(Stuck(step="Extracting text"))
    path = knowledge.file("a.html")
    waiting = asyncio.ensure_future(knowledge.ok("knowledge-add", file_path=path, async_=False))
    await eventually_async(lambda: len(knowledge.told) > 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    shares = [share for share, _, _ in knowledge.told]
    assert shares == sorted(set(shares))
    assert [step for _, _, step in knowledge.told] == ["queued", "Extracting text"]


async def test_the_estimate_is_the_engines(knowledge: Knowledge) -> None:
    """It depends on the queue and on past files; without one, the tool estimates by size."""
    knowledge.engine.set_policy(AfterTime(seconds=47.5))
    path = knowledge.file("a.html")
    told = await knowledge.ok("knowledge-add", file_path=path)
    assert told["estimated_time_seconds"] == 48


async def test_a_call_that_is_given_up_cancels_its_job(knowledge: Knowledge) -> None:
    """Cancellation stops the job, not only the waiting."""
    knowledge.engine.set_policy(Stuck())
    knowledge.engine.clock.set_mode("manual")
    path = knowledge.file("a.html")
    waiting = asyncio.ensure_future(knowledge.ok("knowledge-add", file_path=path, async_=False))
    await knowledge.reported.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [job.status for job in knowledge.engine.state().jobs] == ["cancelled"]


async def test_a_call_waits_only_so_long(knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(add, "SYNC_SECONDS", 0.0)
    knowledge.engine.set_policy(Stuck())
    told = await knowledge.ok("knowledge-add", file_path=knowledge.file("a.html"), async_=False)
    (job,) = knowledge.engine.state().jobs
    assert (told["task_id"], job.status) == (job.id, "running")
    assert "knowledge-task-status" in told["message"]


async def test_a_job_that_cannot_be_followed_is_still_told(knowledge: Knowledge) -> None:
    """Its id is never lost because of a later error."""
    knowledge.engine.faults.arm("internal_error", operation="getJob")
    told = await knowledge.ok("knowledge-add", file_path=knowledge.file("a.html"), async_=False)
    (job,) = knowledge.engine.state().jobs
    assert told["task_id"] == job.id
    assert "it cannot be followed" in told["message"]


async def test_a_refusal_by_the_engine_keeps_its_error_code(knowledge: Knowledge) -> None:
    knowledge.engine.faults.arm("storage_full", operation="createJob")
    refused = await knowledge.refused("knowledge-add", file_path=knowledge.file("a.html"))
    assert refused["error"] == "storage_full"


async def test_a_file_that_shrinks_while_it_is_sent_is_not_added(
    knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = knowledge.root / "a.html"
    path.write_bytes(b"x" * 3 * MIB)
    read = files._read

    async def shrinking(*arguments: object) -> bytes:
        block = await read(*arguments)  # type: ignore[arg-type]
        path.write_bytes(b"")
        return block

    monkeypatch.setattr(files, "_read", shrinking)
    refused = await knowledge.refused("knowledge-add", file_path=str(path))
    assert refused["error"] == "file_not_readable"
    assert knowledge.engine.state().jobs == []
