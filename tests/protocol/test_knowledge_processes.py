"""The toolset `knowledge` as started by `kb up` in front of the real engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from openpyxl import Workbook
from PIL import Image, ImageDraw, ImageFont
from pptx import Presentation

from tests.support.documents import docx_of, large_pdf, sentence_of_page
from tests.support.eventually import eventually
from tests.support.mcp_http import Caller
from tests.support.mcp_messages import request
from tests.support.patience import ANSWER_SECONDS
from tests.support.pdfs import pdf_of
from tests.support.scans import pdf_of_sheets, scan
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with files that may be added."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "report.pdf").write_bytes(large_pdf(3))
    (folder / "bees.docx").write_bytes(docx_of([("Heading1", "Bees"), ("", "Bees keep warm in a cluster.")]))
    (folder / "ants.html").write_text("<h1>Ants</h1><p>Ants dig.</p>")
    (folder / "broken.pdf").write_text("this is not a PDF")
    return folder


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Iterator[Stack]:
    """Engine and server with this toolset alone."""
    home = tmp_path_factory.mktemp("home")
    settings = {"KB_TOOLSETS": "knowledge", "KB_EMBEDDER": "hash", "KB_FILE_ROOTS": str(files)}
    with running_stack(home, **settings) as running:
        yield running


def presentation() -> bytes:
    made, file = Presentation(), BytesIO()
    slide: Any = made.slides.add_slide(made.slide_layouts[5])
    slide.shapes.title.text = WORDS
    made.save(file)
    return file.getvalue()


def workbook() -> bytes:
    made, file = Workbook(), BytesIO()
    made.worksheets[0].append(WORDS.split())
    made.save(file)
    return file.getvalue()


def picture(kind: str) -> bytes:
    made, file = Image.new("RGB", (500, 100), "white"), BytesIO()
    font = ImageFont.load_default(size=30)
    ImageDraw.Draw(made).text((20, 30), WORDS, fill="black", font=font)
    made.save(file, kind)
    return file.getvalue()


WORDS = "zircon and feldspar"
STONES: dict[str, Callable[[], bytes]] = {
    "pdf": lambda: pdf_of([[WORDS]]),
    "docx": lambda: docx_of([("", WORDS)]),
    "pptx": presentation,
    "xlsx": workbook,
    "html": lambda: f"<p>{WORDS}</p>".encode(),
    "jpg": lambda: picture("JPEG"),
    "png": lambda: picture("PNG"),
    "svg": lambda: f"<svg><text>{WORDS}</text></svg>".encode(),
}
"""A file of each format with the same words."""


@pytest.fixture
def caller(stack: Stack) -> Iterator[Caller]:
    calling = Caller(stack.mcp_url)
    with calling.http:
        yield calling


def add(caller: Caller, path: Path, **arguments: Any) -> dict[str, Any]:
    """Return the document made from a file, after the job has ended."""
    return caller.ok("knowledge-add", file_path=str(path), **{"async": False}, **arguments)


@pytest.mark.requirement("N12", "N25", "N33", "N49", "N64")
def test_documents_live_and_go_on_the_real_engine(caller: Caller, files: Path) -> None:
    assert caller.refused("knowledge-search", query="bees")["error"] == "empty_knowledge_base"
    task = caller.ok("knowledge-add", file_path=str(files / "report.pdf"), metadata={"author": "John Doe"})
    ended = eventually(
        lambda: caller.ok("knowledge-task-status", task_id=task["task_id"]),
        lambda told: told["status"] == "completed",
        what="the document",
    )
    assert ended["progress"] == 1.0
    assert ended["result"]["chunks_created"] >= 3
    bees, ants = add(caller, files / "bees.docx"), add(caller, files / "ants.html")

    found = caller.ok("knowledge-search", query=sentence_of_page(2), filters={"format": "pdf"})
    best = found["results"][0]
    assert (best["document_id"], best["metadata"]["page_num"]) == (ended["result"]["document_id"], 2)

    shown = caller.ok("knowledge-show", sort_by="filename", sort_order="asc")
    assert [each["filename"] for each in shown["documents"]] == ["ants.html", "bees.docx", "report.pdf"]
    status = caller.ok("knowledge-status")
    assert status["knowledge_base"]["document_count"] == shown["total_count"] == 3
    assert status["knowledge_base"]["total_size_bytes"] == sum(
        each["size_bytes"] for each in shown["documents"]
    )
    assert status["health"]["status"] == "healthy"
    assert Path(status["knowledge_base"]["storage_path"]).is_dir()

    removed = caller.ok("knowledge-remove", document_id=ants["document_id"], confirm=True)
    assert removed["chunks_removed"] == ants["chunks_created"]
    again = caller.refused("knowledge-remove", document_id=ants["document_id"], confirm=True)
    assert again["error"] == "document_not_found"
    chunks = ended["result"]["chunks_created"] + bees["chunks_created"]
    assert caller.refused("knowledge-clear")["current_document_count"] == 2
    cleared = caller.ok("knowledge-clear", confirm=True, confirmation_phrase="DELETE ALL")
    assert (cleared["documents_removed"], cleared["embeddings_removed"]) == (2, chunks)
    assert caller.ok("knowledge-show")["total_count"] == 0


@pytest.mark.requirement("N10", "N13", "N44")
@pytest.mark.parametrize("form", STONES)
def test_every_format_is_read_by_the_real_engine(caller: Caller, files: Path, form: str) -> None:
    path = files / f"stones.{form}"
    path.write_bytes(STONES[form]())
    added = add(caller, path)
    is_picture = form in ("jpg", "png")
    assert added["processing_method"] == ("image_analysis" if is_picture else "text_extraction")
    found = caller.ok("knowledge-search", query="zircon feldspar", filters={"format": form})
    assert [result["document_id"] for result in found["results"]] == [added["document_id"]]
    shown = {each["id"]: each for each in caller.ok("knowledge-show")["documents"]}[added["document_id"]]
    assert (shown["format"], shown["processing_status"]) == (form, "completed")
    assert (shown["chunk_count"], shown["processing_method"]) == (1, added["processing_method"])
    caller.ok("knowledge-remove", document_id=added["document_id"], confirm=True)


@pytest.mark.requirement("N8", "N13", "N74", "N87")
async def test_a_scan_is_read_page_by_page_by_the_real_engine(
    stack: Stack, caller: Caller, files: Path
) -> None:
    lines = [[f"Line {line} of the {stone} page" for line in range(8)] for stone in ("granite", "zircon")]
    (files / "scan.pdf").write_bytes(pdf_of_sheets([scan(page) for page in lines]))
    told: list[tuple[float, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        assert total == 1.0
        told.append((progress, message))

    async with Client(stack.mcp_url, read_timeout_seconds=ANSWER_SECONDS) as session:
        arguments = {"file_path": str(files / "scan.pdf"), "async": False}
        result = await session.call_tool("knowledge-add", arguments, progress_callback=note)
    added = result.structured_content
    assert added is not None
    assert added["processing_method"] == "image_analysis"
    steps = [progress for progress, _ in told]
    assert steps == sorted(set(steps))
    # A page that is read between two looks at the job is not reported.
    assert {"Processing page 1 of 2", "Processing page 2 of 2"} & {message for _, message in told}
    found = caller.ok("knowledge-search", query="the zircon page", filters={"format": "pdf"})["results"][0]
    assert (found["document_id"], found["metadata"]["page_num"]) == (added["document_id"], 2)

    (files / "words.pdf").write_bytes(pdf_of([[WORDS]]))
    plain, forced = add(caller, files / "words.pdf"), add(caller, files / "words.pdf", force_ocr=True)
    assert (plain["processing_method"], forced["processing_method"]) == ("text_extraction", "image_analysis")
    assert forced["document_id"] == plain["document_id"]  # both belong to the same document
    assert (plain["chunks_created"], forced["chunks_created"]) == (1, 1)
    for each in (added, forced):
        caller.ok("knowledge-remove", document_id=each["document_id"], confirm=True)


@pytest.mark.requirement("N65")
def test_a_damaged_file_fails_its_own_task_on_the_real_engine(caller: Caller, files: Path) -> None:
    task = caller.ok("knowledge-add", file_path=str(files / "broken.pdf"))
    told = eventually(
        lambda: caller.ok("knowledge-task-status", task_id=task["task_id"]),
        lambda told: told["status"] == "failed",
        what="the failure",
    )
    assert told["success"] is False
    assert told["error"] == "file_corrupt"
    assert told["message"]
    finished = request("tools/cancel", {"taskId": task["task_id"]})
    answer = caller.send(finished).json()
    assert answer["error"]["data"]["error_type"] == "task_finished"
