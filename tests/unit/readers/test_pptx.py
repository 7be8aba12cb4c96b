"""PPTX: slide by slide with titles, tables and notes, and clear errors for damaged files."""

from __future__ import annotations

import zipfile
from functools import partial
from typing import Any
from xml.parsers import expat

import pytest
from pptx import Presentation
from pptx.util import Inches

from kb_engine.chunk import chunks
from kb_readers import xml_files
from kb_readers.failures import ExtractionFailed
from kb_readers.pptx import read_pptx
from kb_readers.xml_files import unsound
from tests.support.documents import LOCKED_OFFICE, encrypted, laughs, outside, rewritten, with_part
from tests.support.reading import refusal, saved

refused = partial(refusal, read_pptx)


SLIDE = "ppt/slides/slide1.xml"
TITLE_AND_BODY, TITLE_ONLY, BLANK = 1, 5, 6
MACROS = b"application/vnd.ms-powerpoint.presentation.macroEnabled.main+xml"
PLAIN = b"application/vnd.openxmlformats-officedocument.presentationml.presentation.main+xml"


def titled(presentation: Any, title: str, body: str = "", notes: str = "") -> Any:
    slide = presentation.slides.add_slide(presentation.slide_layouts[TITLE_AND_BODY])
    slide.shapes.title.text = title
    slide.placeholders[1].text = body
    if notes:
        slide.notes_slide.notes_text_frame.text = notes
    return slide


def one_slide(body: str = "pale feldspar") -> bytes:
    presentation = Presentation()
    titled(presentation, "Quarry", body)
    return saved(presentation)


ONE = one_slide()


def texts(data: bytes) -> list[str]:
    return [page.text for page in read_pptx(data).pages]


def test_a_slide_is_a_page_with_its_title_as_heading_and_its_notes_below() -> None:
    """Slides are numbered from 1; text that Markdown would take for a heading is escaped."""
    presentation = Presentation()
    titled(presentation, "Granite", "First point\n# Second point", "Remember the zircon")
    titled(presentation, "Basalt", "Third point")
    extraction = read_pptx(saved(presentation))
    assert [(page.number, page.text) for page in extraction.pages] == [
        (1, "# Granite\n\nFirst point\n\\# Second point\n\n## Notes\n\nRemember the zircon"),
        (2, "# Basalt\n\nThird point"),
    ]
    assert (extraction.method, extraction.title) == ("text_extraction", "Granite")


def test_a_passage_knows_its_slide_and_heading() -> None:
    """A hit in the notes can then be told from one on the slide."""
    presentation = Presentation()
    titled(presentation, "Granite", "word " * 150, "note " * 150)
    passages = chunks(read_pptx(saved(presentation)))
    assert {(each.page, each.heading) for each in passages} == {(1, "Granite"), (1, "Granite > Notes")}


def test_slides_come_in_the_order_they_are_shown() -> None:
    presentation = Presentation()
    for title in ("one", "two", "three"):
        titled(presentation, title)
    order = presentation.slides._sldIdLst
    order.append(order[0])
    assert texts(saved(presentation)) == ["# two", "# three", "# one"]


def test_tables_are_rows_of_cells_and_groups_are_looked_into() -> None:
    presentation = Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[TITLE_ONLY])
    box = slide.shapes.add_group_shape().shapes.add_textbox(0, 0, Inches(1), Inches(1))
    box.text_frame.text = "in a group\vnext line"
    table = slide.shapes.add_table(2, 2, 0, 0, Inches(5), Inches(1)).table
    for row, column, text in [(0, 0, "Stone"), (0, 1, "Weight"), (1, 0, "a|b\nc"), (1, 1, "12.5")]:
        table.cell(row, column).text = text
    slide.shapes.title.text = "Weights"
    assert texts(saved(presentation)) == [
        "# Weights\n\nin a group\nnext line\n\n| Stone | Weight |\n| --- | --- |\n| a\\|b c | 12.5 |"
    ]


def test_a_slide_without_title_and_a_hidden_one_say_so() -> None:
    """A slide without a title is never under the previous slide's; an empty slide is empty."""
    presentation = Presentation()
    titled(presentation, "Granite")._element.set("show", "0")
    untitled = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    untitled.shapes.add_textbox(0, 0, Inches(1), Inches(1)).text_frame.text = "loose words"
    presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    assert texts(saved(presentation)) == ["# Granite (hidden slide)", "# Slide 2\n\nloose words", ""]


def test_the_title_of_the_file_stands_over_that_of_its_first_slide() -> None:
    presentation = Presentation()
    titled(presentation, "Granite")
    presentation.core_properties.title = "All about stones"
    assert read_pptx(saved(presentation)).title == "All about stones"
    presentation.core_properties.title = "PowerPoint Presentation"
    assert read_pptx(saved(presentation)).title == "Granite"


def test_fallback_copies_for_older_programs_are_not_read() -> None:
    """A newer shape has a copy of itself for older programs."""
    both = (
        b'<mc:AlternateContent xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006">'
        b"<mc:Choice><a:r><a:t>once</a:t></a:r></mc:Choice>"
        b"<mc:Fallback><a:r><a:t>twice</a:t></a:r></mc:Fallback></mc:AlternateContent>"
    )
    data = rewritten(one_slide("HERE"), {SLIDE: lambda xml: xml.replace(b"<a:r><a:t>HERE</a:t></a:r>", both)})
    assert texts(data) == ["# Quarry\n\nonce"]


def test_superscripts_and_fractions_are_written_in_one_line() -> None:
    maths = "http://schemas.openxmlformats.org/officeDocument/2006/math"
    runs = "".join(
        f"<a:r><a:rPr{baseline}/><a:t>{words}</a:t></a:r>"
        for words, baseline in [
            ("10", ""),
            ("6", ' baseline="30000"'),
            (" CO", ' baseline="0"'),
            ("2", ' baseline="-25000"'),
            (", ", ""),
        ]
    )
    half = (
        f'<m:f xmlns:m="{maths}"><m:num><m:r><m:t>1</m:t></m:r></m:num>'
        "<m:den><m:r><m:t>2</m:t></m:r></m:den></m:f>"
    )
    data = rewritten(
        one_slide("HERE"),
        {SLIDE: lambda xml: xml.replace(b"<a:r><a:t>HERE</a:t></a:r>", f"{runs}{half}".encode())},
    )
    assert texts(data) == ["# Quarry\n\n10^6 CO2, 1/2"]


def test_the_texts_of_a_smartart_stand_in_their_place() -> None:
    main = "http://schemas.openxmlformats.org/drawingml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    diagrams = "http://schemas.openxmlformats.org/drawingml/2006/diagram"
    frame = (
        f'<p:graphicFrame><a:graphic><a:graphicData><d:relIds xmlns:d="{diagrams}" xmlns:r="{office}" '
        'r:dm="rIdD"/></a:graphicData></a:graphic></p:graphicFrame></p:spTree>'
    )
    points = "".join(
        f"<d:pt><d:t><a:p><a:r><a:t>{word}</a:t></a:r></a:p></d:t></d:pt>" for word in ("dig", "cut")
    )
    link = f'<Relationship Id="rIdD" Type="{office}/diagramData" Target="../diagrams/data1.xml"/>'
    data = rewritten(
        one_slide(""),
        {
            SLIDE: lambda xml: xml.replace(b"</p:spTree>", frame.encode()),
            "ppt/slides/_rels/slide1.xml.rels": lambda xml: xml.replace(
                b"</Relationships>", f"{link}</Relationships>".encode()
            ),
        },
        {"ppt/diagrams/data1.xml": f'<d:m xmlns:d="{diagrams}" xmlns:a="{main}">{points}</d:m>'},
    )
    assert texts(data) == ["# Quarry\n\ndig\n\ncut"]


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (b"", "file_corrupt", "damaged"),
        (b"just words", "file_corrupt", "damaged"),
        (ONE[:-100], "file_corrupt", "damaged"),
        (ONE[: len(ONE) // 2], "file_corrupt", "damaged"),
        (b"\xd0\xcf\x11\xe0" + bytes(600), "file_corrupt", "before 2007"),
        (LOCKED_OFFICE, "file_encrypted", "without one"),
        (encrypted(ONE, SLIDE), "file_encrypted", "password"),
        (with_part(ONE, SLIDE, b"<p:sld"), "file_corrupt", "damaged"),
        (rewritten(ONE, {SLIDE: None}), "file_corrupt", "slide1.xml is missing"),
        (rewritten(ONE, {"ppt/_rels/presentation.xml.rels": None}), "file_corrupt", "is missing"),
        (rewritten(ONE, {"_rels/.rels": None}), "file_corrupt", "no PPTX"),
        (rewritten(ONE, {SLIDE: laughs}), "file_corrupt", "entities"),
        (rewritten(ONE, {SLIDE: outside}), "file_corrupt", "entities"),
    ],
)
def test_a_pptx_that_cannot_be_read_says_why(data: bytes, code: str, message: str) -> None:
    refused(data, code, message)


def test_macros_are_ignored_and_the_slides_are_read() -> None:
    marked = rewritten(ONE, {"[Content_Types].xml": lambda xml: xml.replace(PLAIN, MACROS)})
    assert texts(marked) == texts(ONE)


def test_a_part_that_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml_files, "MOST_UNPACKED_BYTES", 1 << 20)
    large = rewritten(ONE, {SLIDE: lambda xml: xml + b" " * (1 << 20)})
    again = rewritten(ONE, {"ppt/presentation.xml": repeated})
    for data in (large, again):
        refused(data, "extraction_failed", "1,048,576 bytes")


def repeated(xml: bytes) -> bytes:
    slide = xml[xml.index(b"<p:sldId ") : xml.index(b"</p:sldIdLst>")]
    return xml.replace(slide, slide * 1000)


def broken_by(code: str) -> expat.ExpatError:
    error = expat.ExpatError(code)
    error.code = expat.errors.codes[code]
    return error


def test_a_parser_that_ran_out_of_memory_says_nothing_of_the_file() -> None:
    """The sender must not be asked to save a sound file again."""
    assert isinstance(unsound("DOCX", broken_by(expat.errors.XML_ERROR_NO_MEMORY)), MemoryError)


@pytest.mark.parametrize(
    "error",
    [broken_by(expat.errors.XML_ERROR_SYNTAX), zipfile.BadZipFile("x" * 10_000), ValueError("no number")],
)
def test_whatever_else_it_meets_is_a_damaged_file(error: Exception) -> None:
    failure = unsound("DOCX", error)
    assert isinstance(failure, ExtractionFailed)
    assert failure.code == "file_corrupt"
    assert len(failure.message) < 400
