"""What uploads leave in this engine's folders, and what it refuses before it has read it."""

from __future__ import annotations

import asyncio
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from openpyxl import Workbook
from PIL import Image, ImageDraw, ImageFont
from pptx import Presentation

from kb_verify.files import END, MULTIPART, field_part, file_part, part
from kb_verify.suite.test_uploads import BODIES
from tests.contract.conftest import Raw, Start
from tests.support.engine_http import Caller, Json, answered, problem


async def post(kb: Caller, body: bytes) -> httpx.Response:
    return await kb.http.post("/api/v1/jobs", content=body, headers=MULTIPART)


def spooled(home: Path) -> list[str]:
    return [path.name for path in (home / "engine" / "spool").iterdir()]


async def test_a_file_that_was_taken_in_leaves_the_spool(kb: Caller, tmp_path: Path) -> None:
    document = await kb.file("stone.txt", b"granite quarry")
    assert (await kb.document(document))["size_bytes"] == 14
    assert spooled(tmp_path) == []


async def test_an_unknown_kind_of_file_is_refused_before_it_is_sent(kb: Caller, tmp_path: Path) -> None:
    """The rest of the body is not waited for."""
    async with Raw(kb.http.base_url.port) as raw, asyncio.timeout(20):
        await raw.begin(1_000_000)
        await raw.write(file_part(b"MZ", "setup.exe"))
        assert b" 415 " in await raw.reader.readline()
    assert spooled(tmp_path) == []


def presentation() -> bytes:
    made, file = Presentation(), BytesIO()
    made.slides.add_slide(made.slide_layouts[5]).shapes.title.text = "zircon and feldspar"
    made.save(file)
    return file.getvalue()


def workbook() -> bytes:
    made, file = Workbook(), BytesIO()
    made.worksheets[0].append(["zircon", "feldspar"])
    made.save(file)
    return file.getvalue()


def picture(kind: str) -> bytes:
    made, file = Image.new("RGB", (500, 100), "white"), BytesIO()
    font = ImageFont.load_default(size=30)
    ImageDraw.Draw(made).text((20, 30), "zircon and feldspar", fill="black", font=font)
    made.save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "doc_type", "method"),
    [
        ("a.pptx", presentation(), "pptx", "text_extraction"),
        ("a.xlsx", workbook(), "xlsx", "text_extraction"),
        ("a.svg", b"<svg><text>zircon and feldspar</text></svg>", "image", "text_extraction"),
        pytest.param("a.jpg", picture("JPEG"), "image", "image_analysis", marks=pytest.mark.process),
        pytest.param("a.png", picture("PNG"), "image", "image_analysis", marks=pytest.mark.process),
    ],
    ids=["pptx", "xlsx", "svg", "jpg", "png"],
)
async def test_office_files_and_pictures_are_found_by_their_text(
    kb: Caller, name: str, data: bytes, doc_type: str, method: str
) -> None:
    document = await kb.file(name, data)
    assert await kb.found("zircon feldspar", doc_type=doc_type, mode="fts") == [document]
    read = await kb.document(document)
    assert (read["format"], read["extraction_method"]) == (name.partition(".")[2], method)
    assert (read["status"], read["chunk_count"]) == ("searchable", 1)


async def test_a_picture_without_words_is_an_empty_document(kb: Caller) -> None:
    file = BytesIO()
    Image.new("RGB", (300, 200), "navy").save(file, "PNG")
    document = await kb.document(await kb.file("a.png", file.getvalue()))
    assert (document["status"], document["chunk_count"]) == ("empty", 0)
    assert document["status_reason"] == "No words were recognized in the picture."


@pytest.mark.parametrize(
    ("data", "name", "code"),
    [
        (b"%PDF-1.4 no more", "a.pdf", "file_corrupt"),
        (presentation(), "a.xlsx", "file_corrupt"),
        (b"\xff\xff\xff", "a.txt", "undecodable_text"),
    ],
)
async def test_a_file_that_cannot_be_read_fails_its_job(
    kb: Caller, tmp_path: Path, data: bytes, name: str, code: str
) -> None:
    """With a code and words; nothing is stored, and the file is kept so that the job can be tried again."""
    ended = await kb.ended(await kb.send(name, data))
    assert (ended["status"], ended["error"]["code"]) == ("failed", code)
    assert ended["error"]["message"]
    assert (await kb.documents())["total"] == 0
    assert spooled(tmp_path) == [ended["id"]]
    assert (await kb.status())["storage"]["failed_bytes"] == len(data)


async def test_a_file_over_the_limit_is_refused(start: Start, tmp_path: Path) -> None:
    """At the limit it is taken, one byte more is not."""
    kb = await start(max_upload_bytes=1000)
    await kb.file("a.txt", b"x" * 1000)
    response = await post(kb, file_part(b"x" * 1001) + END)
    assert "1000" in problem(response, "payload_too_large")["detail"]
    assert spooled(tmp_path) == []


async def test_a_body_far_over_the_limit_is_refused_unread(start: Start) -> None:
    kb = await start(max_upload_bytes=1000)
    problem(await post(kb, file_part(b"x" * 10_000_000) + END), "payload_too_large")


@pytest.mark.parametrize(
    ("filename", "kept"),
    [("../../etc/passwd.txt", "passwd.txt"), ("C:\\temp\\b.txt", "b.txt"), ("a b é 🦓.txt", "a b é 🦓.txt")],
)
async def test_a_filename_never_becomes_a_path(kb: Caller, tmp_path: Path, filename: str, kept: str) -> None:
    """Its last component is kept as a name; the file lies in the spool under the job's id."""
    before = {path for path in tmp_path.rglob("*") if "spool" not in path.parts}
    document = await kb.document(await kb.file(filename, b"granite"))
    assert document["filename"] == kept
    after = {path for path in tmp_path.rglob("*") if "spool" not in path.parts}
    assert {path.name for path in after - before} <= {"kb.sqlite-wal", "kb.sqlite-shm"}


FIELD_X = 'form-data; name="x"'
FURTHER_BODIES = {
    "giant field": (file_part() + field_part("title", b"x" * 300_000) + END, "payload_too_large"),
    "charset": (field_part("_charset_", b"x" * 64) + file_part() + END, "invalid_request"),
    "giant header": (part(FIELD_X, b"", header="X: " + "y" * 20_000 + "\r\n") + END, "invalid_request"),
    "header without colon": (part(FIELD_X, b"", header="no colon\r\n") + END, "invalid_request"),
    "many parts": (b"".join(field_part(f"x{n}", b"") for n in range(40)) + END, "invalid_request"),
    "nested": (
        part(FIELD_X, b"", header="Content-Type: multipart/mixed; boundary=y\r\n") + END,
        "invalid_request",
    ),
}
"""Bodies that the contract leaves open; this engine refuses them too."""


@pytest.mark.parametrize(("body", "code"), (REFUSED := BODIES | FURTHER_BODIES).values(), ids=REFUSED)
async def test_a_body_that_does_not_fit_is_refused(
    kb: Caller, tmp_path: Path, body: bytes, code: str
) -> None:
    problem(await post(kb, body), code)
    assert spooled(tmp_path) == []
    assert answered(await kb.http.get("/api/v1/jobs"))["total"] == 0


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/mixed; boundary=x", "text/plain"])
async def test_another_content_type_is_refused(kb: Caller, content_type: str) -> None:
    """Without a boundary it is no multipart body; other types are not taken."""
    response = await kb.http.post("/api/v1/jobs", content=b"x", headers={"Content-Type": content_type})
    assert response.json()["code"] in {"invalid_request", "unsupported_media_type"}
    assert response.status_code in {400, 415}


async def test_an_upload_cut_off_leaves_nothing(kb: Caller, tmp_path: Path) -> None:
    """The caller goes away in the middle of its file."""
    async with Raw(kb.http.base_url.port) as raw:
        await raw.begin(1_000_000)
        await raw.write(file_part(b"x" * 300_000))
    for _ in range(2_000):
        await kb.status()  # the engine goes on meanwhile
        if not spooled(tmp_path):
            break
    assert spooled(tmp_path) == []


async def test_a_cancelled_upload_leaves_the_spool(kb: Caller, tmp_path: Path) -> None:
    await kb.hold()
    job: Json = await kb.send("a.txt", b"granite")
    assert spooled(tmp_path) == [job["id"]]
    await kb.http.delete(f"/api/v1/jobs/{job['id']}")
    assert spooled(tmp_path) == []


async def test_clearing_leaves_the_spool_empty(kb: Caller, tmp_path: Path) -> None:
    await kb.hold()
    for number in range(3):
        await kb.send(f"{number}.txt", b"granite")
    removed: Any = answered(await kb.http.delete("/api/v1/documents", params={"confirm": "true"}))
    assert removed["jobs_cancelled"] == 5
    assert spooled(tmp_path) == []
