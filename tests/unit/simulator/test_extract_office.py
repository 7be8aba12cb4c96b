"""Office files and drawings give the simulator the text that they give the engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openpyxl import Workbook
from pptx import Presentation

from kb_engine.extract import Extraction
from kb_engine.extract.pptx import read_pptx
from kb_engine.extract.svg import read_svg
from kb_engine.extract.xlsx import read_xlsx
from kb_simulator.extract import Extracted, ExtractionFailed, extract, format_of
from kb_simulator.extract.model import MAX_TEXT_CHARS
from tests.support.documents import docx_of
from tests.support.office_files import laughs, rewritten

SLIDE = "ppt/slides/slide1.xml"
SHEET = "xl/worksheets/sheet1.xml"


def pptx() -> bytes:
    """Slides with a title and without, hidden, with notes and with a table."""
    presentation = Presentation()
    slide: Any = presentation.slides.add_slide(presentation.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text = "Granite", "First\n# Second"
    slide.notes_slide.notes_text_frame.text = "Remember"
    slide = presentation.slides.add_slide(presentation.slide_layouts[6])
    slide.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "loose\vwords"
    table = slide.shapes.add_table(1, 2, 0, 0, 9, 9).table
    table.cell(0, 0).text, table.cell(0, 1).text = "a|b", "c"
    slide._element.set("show", "0")
    presentation.slides.add_slide(presentation.slide_layouts[6])
    file = BytesIO()
    presentation.save(file)
    return file.getvalue()


def xlsx() -> bytes:
    """Sheets with gaps, empty and hidden."""
    book = Workbook()
    sheet: Any = book.active
    sheet.append(["Stone", "We|ght", None, True])
    sheet["A2"], sheet["Z2"], sheet["A4"], sheet["B4"] = "feldspar", 12.5, "=A1", "two\nlines"
    book.create_sheet("Empty")
    book.create_sheet("Away")["A1"] = "hidden words"
    book["Away"].sheet_state = "hidden"
    file = BytesIO()
    book.save(file)
    return file.getvalue()


PPTX, XLSX = pptx(), xlsx()
SVG = b"""<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://127.0.0.1:9/svg11.dtd" [<!ENTITY who "Ada">]>
<svg xmlns="http://www.w3.org/2000/svg"><title>The  quarry</title><desc>by &who;</desc><script>no()</script>
<g><title>a tip</title><text>North <tspan>gate</tspan></text></g><text># 7</text></svg>"""


def failure(data: bytes, name: str) -> str:
    """The code that a file fails with."""
    with pytest.raises(ExtractionFailed) as caught:
        extract(data, format_of(name))
    return caught.value.code


@pytest.mark.parametrize(
    ("data", "name", "read"),
    [(PPTX, "a.pptx", read_pptx), (XLSX, "a.xlsx", read_xlsx), (SVG, "a.svg", read_svg)],
    ids=["pptx", "xlsx", "svg"],
)
def test_the_text_is_the_engines(data: bytes, name: str, read: Callable[[bytes], Extraction]) -> None:
    ours, theirs = extract(data, format_of(name)), read(data)
    assert [(page.number, page.text) for page in ours.pages] == [
        (page.number, page.text) for page in theirs.pages
    ]
    assert ours.title == theirs.title


@pytest.mark.parametrize("name", ["a.pptx", "a.xlsx", "a.svg"])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a zip",
        docx_of([("", "words")]),
        PPTX[:-100],
        rewritten(PPTX, {SLIDE: laughs}),
        rewritten(PPTX, {SLIDE: None}),
        rewritten(XLSX, {SHEET: laughs}),
        rewritten(XLSX, {SHEET: lambda _: b"<worksheet>"}),
        laughs(b"<svg/>"),
        b"<html/>",
    ],
)
def test_what_is_no_sound_file_is_corrupt(data: bytes, name: str) -> None:
    """Cut off, another kind, with entities, with a part missing."""
    assert failure(data, name) == "file_corrupt"


@pytest.mark.parametrize("name", ["a.jpg", "a.jpeg", "a.PNG"])
def test_pictures_are_taken_and_not_read(name: str) -> None:
    assert failure(b"\x89PNG", name) == "ocr_failed"


def test_a_file_is_unpacked_up_to_a_bound() -> None:
    """All its parts together."""
    large = rewritten(XLSX, {SHEET: lambda xml: xml + b" " * MAX_TEXT_CHARS})
    assert failure(large, "a.xlsx") == "extraction_memory"


FILES = st.sampled_from([(PPTX, "a.pptx"), (XLSX, "a.xlsx"), (SVG, "a.svg")])


@given(FILES, st.binary(max_size=200), st.integers(0, 20_000))
def test_no_damage_is_a_fault_of_the_reader(file: tuple[bytes, str], noise: bytes, place: int) -> None:
    """Bytes overwritten anywhere leave a text, or a failure that the contract has a code for."""
    data = bytearray(file[0])
    data[place : place + len(noise)] = noise
    with suppress(ExtractionFailed):
        assert isinstance(extract(bytes(data), format_of(file[1])), Extracted)
