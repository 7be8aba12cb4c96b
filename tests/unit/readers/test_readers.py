"""Rules for the reader of every format: it runs in the child, and no file causes an unknown error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openpyxl import Workbook
from pptx import Presentation

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import ExtractionFailed
from kb_readers.grammars import GRAMMARS
from kb_readers.model import DEFAULT_LIMITS, Context, Extraction
from kb_readers.readers import READERS
from tests.support.documents import docx_of, odf
from tests.support.epubs import book
from tests.support.old_office import doc, msg, number_cell, placed, ppt, record, text_cell, xls
from tests.support.pdfs import pdf_of
from tests.support.reading import Read, read_path, refusal, saved


def pptx() -> bytes:
    presentation = Presentation()
    presentation.slides.add_slide(presentation.slide_layouts[5]).shapes.title.text = "feldspar"
    return saved(presentation)


def xlsx() -> bytes:
    book = Workbook()
    book.worksheets[0].append(["feldspar", 12.5])
    return saved(book)


SOUND = {
    "pdf": pdf_of([["feldspar"]]),
    "docx": docx_of([("Heading1", "Guide"), ("", "feldspar")]),
    "pptx": pptx(),
    "xlsx": xlsx(),
    "odt": odf("text", "<text:p>feldspar</text:p>"),
    "ods": odf(
        "spreadsheet",
        "<table:table><table:table-row><table:table-cell><text:p>feldspar</text:p></table:table-cell>"
        "</table:table-row></table:table>",
    ),
    "odp": odf("presentation", "<draw:page><text:p>feldspar</text:p></draw:page>"),
    "rtf": rb"{\rtf1{\fonttbl{\f0 Arial;}}{\stylesheet{\s1 heading 1;}}\f0\'66eldspar\u233?\cell\row}",
    "doc": doc([("Stones\r", 1, b""), ("feldspar\r", 0, b"")]),
    "xls": xls(("Sums", 0, text_cell(0, 0, "feldspar") + number_cell(0, 1, 12.5))),
    "ppt": ppt([record(0x03EF, bytes(20))], placed(2, (0, "feldspar"))),
    "csv": b"Stone,Weight\nfeldspar,12.5",
    "html": b"<title>a</title><table><tr><td>feldspar<td>12.5</table>",
    "mhtml": b"MIME-Version: 1.0\nContent-Type: multipart/related; boundary=b\n\n--b\n"
    b"Content-Type: text/html\n\n<p>feldspar\n--b--\n",
    "svg": b"<svg><title>a</title><switch><text>feldspar<tspan x='1' y='2'>c</tspan></text></switch></svg>",
    "rst": b"Stones\n======\n\nfeldspar",
    "adoc": b"= Stones\n\nfeldspar",
    "org": b"* Stones\n\nfeldspar",
    "tex": b"\\section{Stones}\n\nfeldspar",
    "vtt": b"WEBVTT\n\n00:01.000 --> 00:02.000\nfeldspar",
    "ipynb": b'{"cells": [{"cell_type": "code", "source": ["feldspar"], "outputs": [{"text": "x"}]}]}',
    "xml": b"<a><b>feldspar</b></a>",
    "epub": book(**{"OEBPS__text__one a.xhtml": "<p>feldspar</p>"}),
    "msg": msg({"0037001F": "Stones".encode("utf-16-le"), "1000001E": b"feldspar"}),
    "eml": b"From: ada@example.org\nSubject: Stones\n\nfeldspar",
    **dict.fromkeys(GRAMMARS, b"class Stone {\n  void feldspar() {}\n}\nfunction weigh() {}\n"),
}
OFFICE = ("docx", "pptx", "xlsx")


def reader_of(name: str) -> Read:
    reader = READERS[name]
    read: Callable[..., Extraction] = getattr(import_module(reader.module), reader.function)
    context = [Context(name, DEFAULT_LIMITS)] * reader.takes_context
    return lambda data: read(data, *context)


@pytest.mark.parametrize("name", READERS)
def test_a_file_is_read_with_the_type_of_its_format(name: str) -> None:
    extraction = reader_of(name)(SOUND[name])
    assert "feldspar" in extraction.pages[0].text
    assert (extraction.method, extraction.mime_type) == ("text_extraction", FORMATS[name].mime_type)


@pytest.mark.parametrize("name", {reader.module: name for name, reader in READERS.items()}.values())
async def test_a_file_is_read_in_the_child_as_its_reader_reads_it(tmp_path: Path, name: str) -> None:
    """Once for each module that the child imports."""
    path = tmp_path / "x"
    path.write_bytes(SOUND[name])
    assert await read_path(path, FORMATS[name]) == reader_of(name)(SOUND[name])


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"pdf"}))  # PDFium is tested in the child only
@given(noise=st.binary(max_size=200), place=st.integers(0, 40_000))
def test_no_damage_is_a_fault_of_the_reader(name: str, noise: bytes, place: int) -> None:
    data = bytearray(SOUND[name])
    place %= len(data)
    data[place : place + len(noise)] = noise
    with suppress(ExtractionFailed):
        assert isinstance(reader_of(name)(bytes(data)), Extraction)


@pytest.mark.parametrize(("name", "other"), [(one, two) for one in OFFICE for two in OFFICE if one != two])
def test_an_office_file_of_another_kind_is_refused(name: str, other: str) -> None:
    refusal(reader_of(name), SOUND[other], "file_corrupt", f"no {FORMATS[name].label}")
