"""Promises on uploads: files are ingested, and invalid requests are refused without an effect."""

from __future__ import annotations

from functools import partial

import httpx
import pytest

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_verify.client import Client, decode, problem, together
from kb_verify.files import END, MULTIPART, docx, field_part, file_part, locked_pdf, part, pdf

HTML = (
    b"<html><head><title>Stones</title></head><body><h1>Stones</h1><p>zircon and feldspar</p></body></html>"
)


def post(kb: Client, body: bytes) -> httpx.Response:
    return kb.request(ops.CREATE_JOB, content=body, headers=MULTIPART)


@pytest.mark.requirement("E26")
def test_a_file_is_taken_in_with_its_fields(kb: Client) -> None:
    body = (
        field_part("tags", b'["collection:documents", "stone"]')
        + file_part(b"granite quarry", "stone.txt")
        + field_part("metadata", b'{"author": "Ada"}')
        + field_part("title", b"Stones")
        + field_part("source_path", b"books/stone.txt")
        + END
    )
    document = kb.document(kb.completed(decode(post(kb, body), m.Job, 202)))
    assert (document.title, document.filename, document.format) == ("Stones", "stone.txt", "txt")
    assert sorted(document.tags) == ["collection:documents", "stone"]
    assert (document.metadata, document.source_path) == ({"author": "Ada"}, "books/stone.txt")
    assert (document.doc_type, document.size_bytes) == ("text", 14)


def test_a_file_is_accepted_as_a_job(kb: Client) -> None:
    job = kb.send("stone.txt", b"granite", tags='["a"]')
    assert (job.status, job.kind, job.filename, job.tags) == ("queued", "file", "stone.txt", ["a"])


@pytest.mark.parametrize(
    ("name", "data", "doc_type"),
    [
        ("a.txt", b"zircon and feldspar", "text"),
        ("a.md", b"# Stones\n\nzircon and feldspar", "markdown"),
        ("a.html", HTML, "html"),
        ("a.pdf", pdf(["zircon and feldspar"]), "pdf"),
        ("a.docx", docx("zircon and feldspar"), "docx"),
    ],
    ids=["txt", "md", "html", "pdf", "docx"],
)
def test_every_kind_of_file_is_found_by_its_text(kb: Client, name: str, data: bytes, doc_type: str) -> None:
    document = kb.file(name, data)
    assert kb.found("zircon feldspar", doc_type=doc_type) == [document]
    assert kb.document(document).format == name.partition(".")[2]


def test_a_pdf_is_found_with_its_page(kb: Client) -> None:
    document = kb.file("valley.pdf", pdf(["granite stood here", "zircon lay there", "nothing more"]))
    result = kb.search("zircon", mode="fts").results[0]
    assert (result.document.id, result.chunk.page) == (document, 2)
    assert kb.document(document).pages == 3


def test_the_same_file_twice_is_one_document(kb: Client) -> None:
    first = kb.file("a.txt", b"granite")
    again = kb.ended(kb.send("b.txt", b"granite"))
    assert (again.deduplicated, again.document_id) == (True, first)


@pytest.mark.requirement("N8")
def test_forced_ocr_is_done_or_fails_for_want_of_it(kb: Client) -> None:
    """A PDF with text becomes one more document, read by OCR; its embedded text is never used for it."""
    data = pdf(["zircon and feldspar"])
    plain = kb.file("a.pdf", data)
    ended = kb.ended(kb.send("a.pdf", data, force_ocr="true"))
    if ended.status == "failed":
        assert ended.error is not None
        assert ended.error.code == "ocr_failed"
        assert kb.listed() == [plain]
        return
    assert ended.document_id not in (None, plain)
    assert not ended.deduplicated
    assert kb.document(ended.document_id or 0).extraction_method == "image_analysis"
    assert sorted(kb.found("zircon feldspar")) == sorted([plain, ended.document_id or 0])
    again = kb.ended(kb.send("a.pdf", data, force_ocr="true"))
    assert (again.deduplicated, again.document_id) == (True, ended.document_id)


def test_ocr_that_is_not_forced_leaves_the_text(kb: Client) -> None:
    """`false` is the default: the same file is the same document."""
    first = kb.file("a.txt", b"granite")
    again = kb.ended(kb.send("a.txt", b"granite", force_ocr="false"))
    assert (again.deduplicated, again.document_id) == (True, first)


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.txt", b"granite"), ("a.md", b"# granite"), ("a.html", HTML), ("a.docx", docx("granite"))],
    ids=["txt", "md", "html", "docx"],
)
def test_ocr_is_not_forced_on_what_has_no_pages_to_look_at(kb: Client, name: str, data: bytes) -> None:
    with kb.adding_jobs(0):
        response = kb.request(ops.CREATE_JOB, files={"file": (name, data)}, data={"force_ocr": "true"})
        assert problem(response, "invalid_parameter").parameter == "force_ocr"


def test_an_empty_file_is_an_empty_document(kb: Client) -> None:
    """It does not look like a success: its status says that no text can be found, with the reason."""
    document = kb.document(kb.file("a.txt", b""))
    assert (document.status, document.chunk_count) == ("empty", 0)
    assert document.status_reason


@pytest.mark.parametrize("filename", ["setup.exe", "noextension", "a.pdf.zip", "pdf"])
def test_an_unknown_kind_of_file_is_refused_by_name(kb: Client, filename: str) -> None:
    with kb.adding_jobs(0):
        problem(post(kb, file_part(filename=filename) + END), "unsupported_format")


@pytest.mark.parametrize("content_type", ["text/plain", "Text/Plain; charset=utf-8"])
def test_text_of_an_unknown_kind_is_taken_where_its_part_says_so(kb: Client, content_type: str) -> None:
    """The extension of a known format takes precedence; content that is not text fails its job."""
    files = {"file": ("quarry.conf", b"zircon = 1", content_type)}
    document = kb.completed(kb.call(ops.CREATE_JOB, files=files))
    found = kb.document(document)
    assert (found.filename, found.format, found.doc_type) == ("quarry.conf", "txt", "text")
    assert kb.found("zircon", doc_type="text") == [document]
    known = {"file": ("a.md", b"# granite", content_type)}
    assert kb.document(kb.completed(kb.call(ops.CREATE_JOB, files=known))).format == "md"
    noise = {"file": ("a.bin", b"\xff\xff\xff", content_type)}
    ended = kb.ended(kb.call(ops.CREATE_JOB, files=noise))
    assert (ended.status, ended.error and ended.error.code) == ("failed", "undecodable_text")


@pytest.mark.parametrize(
    ("filename", "content_type", "data"),
    [
        ("towns.csv", "text/csv; charset=windows-1252", "Name;Stadt\nMüller;Köln\n".encode("cp1252")),
        ("a.txt", 'text/plain; charset="UTF-16LE"', "Stadt Köln".encode("utf-16-le")),
        ("a.md", "application/octet-stream; charset=latin1", "Stadt Köln".encode("utf-16")),
        (
            "a.html",
            "text/html; charset=x-sjis",
            "<meta charset=utf-8><p>東京 Köln".replace("ö", "o").encode("cp932"),
        ),
    ],
    ids=["Windows 1252", "UTF-16", "byte order mark", "HTML"],
)
def test_a_text_is_decoded_as_its_part_declares(
    kb: Client, filename: str, content_type: str, data: bytes
) -> None:
    document = kb.completed(kb.call(ops.CREATE_JOB, files={"file": (filename, data, content_type)}))
    chunks = kb.document(document).chunks
    assert chunks
    assert any(word in chunks[0].text for word in ("Köln", "東京"))


@pytest.mark.parametrize(
    ("charset", "code"),
    [
        ("x-granite", "invalid_parameter"),
        ("replacement", "invalid_parameter"),
        ("euc-jp", "undecodable_text"),
    ],
)
def test_a_text_that_is_not_in_its_declared_encoding_is_refused(kb: Client, charset: str, code: str) -> None:
    header = f"Content-Type: text/plain; charset={charset}\r\n"
    file = part('form-data; name="file"; filename="a.txt"', b"\xff\xff", header=header)
    with kb.adding_jobs(0):
        problem(post(kb, file + END), code)


def test_a_file_has_a_report_of_its_reading(kb: Client) -> None:
    """With its page without text; a note has none."""
    document = kb.document(kb.file("valley.pdf", pdf(["granite stood here", ""])))
    if not document.fidelity:
        pytest.skip("the engine makes no reports")
    assert document.fidelity.pages_without_text == [2]
    assert not kb.document(kb.note("granite")).fidelity


def test_a_short_text_in_an_undeclared_encoding_is_refused(kb: Client) -> None:
    """Below 200 bytes no encoding is certain."""
    ended = kb.ended(kb.send("a.txt", "Die Größe der Öfen ist für die Türen nötig. ".encode("cp1252") * 4))
    assert (ended.status, ended.error and ended.error.code) == ("failed", "undecodable_text")


@pytest.mark.parametrize(
    ("data", "name", "code"),
    [
        (b"%PDF-1.4 no more", "a.pdf", "file_corrupt"),
        (b"not a zip", "a.docx", "file_corrupt"),
        (locked_pdf(), "a.pdf", "file_encrypted"),
        (b"\xff\xff\xff", "a.txt", "undecodable_text"),
    ],
)
def test_a_file_that_cannot_be_read_fails_its_job(kb: Client, data: bytes, name: str, code: str) -> None:
    """With a code and a message; no document is stored."""
    ended = kb.ended(kb.send(name, data))
    assert ended.error is not None
    assert (ended.status, ended.error.code, ended.document_id) == ("failed", code, None)
    assert ended.error.message
    assert kb.call(ops.LIST_DOCUMENTS).total == 0


@pytest.mark.parametrize(
    ("filename", "kept"),
    [("../../etc/passwd.txt", "passwd.txt"), ("C:\\temp\\b.txt", "b.txt"), ("a b é 🦓.txt", "a b é 🦓.txt")],
)
def test_a_filename_never_becomes_a_path(kb: Client, filename: str, kept: str) -> None:
    """Its last component is kept as a name."""
    assert kb.document(kb.file(filename, b"granite")).filename == kept


BODIES = {
    "no part": (END, "missing_parameter"),
    "nothing": (b"", "invalid_request"),
    "garbage": (b"garbage", "invalid_request"),
    "another boundary": (b"--other\r\n\r\n\r\n--other--\r\n", "invalid_request"),
    "no filename": (field_part("file", b"granite") + END, "missing_parameter"),
    "empty filename": (file_part(filename="") + END, "missing_parameter"),
    "dots for a filename": (file_part(filename="..") + END, "missing_parameter"),
    "long filename": (file_part(filename="x" * 300 + ".txt") + END, "invalid_parameter"),
    "filename not UTF-8": (
        file_part(filename="\x00").replace(b"\x00", b"\xff.txt") + END,
        "invalid_parameter",
    ),
    "two files": (file_part() + file_part() + END, "invalid_parameter"),
    "no end": (file_part(), "invalid_request"),
    "cut off in the file": (file_part()[:-5], "invalid_request"),
    "unknown field": (file_part() + field_part("colour", b"red") + END, "unknown_parameter"),
    "force_ocr neither true nor false": (
        file_part(filename="a.pdf") + field_part("force_ocr", b"maybe") + END,
        "invalid_parameter",
    ),
    "tags not JSON": (file_part() + field_part("tags", b"a,b") + END, "invalid_parameter"),
    "tags cut off": (file_part() + field_part("tags", b'["a"') + END, "invalid_parameter"),
    "tag with a slash": (file_part() + field_part("tags", b'["a/b"]') + END, "invalid_parameter"),
    "deep JSON": (file_part() + field_part("tags", b"[" * 100_000) + END, "invalid_parameter"),
    "title not UTF-8": (file_part() + field_part("title", b"\xff") + END, "invalid_request"),
    "title twice": (file_part() + field_part("title", b"a") * 2 + END, "invalid_parameter"),
    "nameless part": (file_part() + part("form-data", b"x") + END, "invalid_request"),
    "large metadata": (
        file_part() + field_part("metadata", b'{"a": "' + b"x" * 70_000 + b'"}') + END,
        "invalid_parameter",
    ),
}


@pytest.mark.parametrize(("body", "code"), BODIES.values(), ids=BODIES)
def test_a_body_that_does_not_fit_is_refused(kb: Client, body: bytes, code: str) -> None:
    with kb.adding_jobs(0):
        problem(post(kb, body), code)


def test_many_files_at_once_are_all_taken_in(kb: Client) -> None:
    """Their contents are not mixed up."""
    take = [partial(kb.file, f"{number}.txt", f"word{number} granite".encode()) for number in range(6)]
    for number, document in enumerate(together(*take)):
        assert kb.document(document).filename == f"{number}.txt"
        assert kb.found(f"word{number}") == [document]
