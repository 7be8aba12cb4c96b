"""PDF and DOCX: pages, headings, titles, and a clear answer for every file that is not what its name says."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from kb_engine.extract import Extraction, ExtractionFailed
from kb_engine.extract.docx import read_docx
from kb_engine.extract.ligatures import with_words_of
from kb_engine.extract.page_tree import check_page_tree
from kb_engine.extract.pdf import read_pdf
from tests.support.documents import (
    LOCKED_OFFICE,
    docx_of,
    docx_package,
    large_pdf,
    looping_pdf,
    pdf_of,
    sentence_of_page,
)
from tests.support.office_files import encrypted

EXAMPLES = Path(__file__).parents[4] / "examples" / "documents"
WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
PARAGRAPH = "<w:p><w:r><w:t>{}</w:t></w:r></w:p>"
LOCKED = (
    b"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <"
    + b"41" * 32
    + b"> /U <"
    + b"42" * 32
    + b"> >> /ID [<00> <00>]"
)


def body(inner: str, before: str = "") -> bytes:
    """A DOCX whose body is this XML."""
    return docx_package(f"{before}<w:document {WORD}><w:body>{inner}</w:body></w:document>")


def refused(read: Callable[[bytes], Extraction], data: bytes) -> ExtractionFailed:
    """How reading these bytes fails; the message ends with what to do."""
    with pytest.raises(ExtractionFailed) as failed:
        read(data)
    assert failed.value.message.endswith(".")
    return failed.value


def test_every_page_of_a_pdf_has_its_text_and_number() -> None:
    """In order, from 1, each known sentence on its page alone."""
    pages = read_pdf(large_pdf(30, filler_bytes=100_000, seed=3)).pages
    assert [page.number for page in pages] == list(range(1, 31))
    for page in pages:
        at = [n for n in range(1, 31) if sentence_of_page(n, 3) in page.text]
        assert at == [page.number]


def test_the_known_sentences_are_unique_and_repeat_with_the_seed() -> None:
    """So that a test elsewhere may search for one."""
    sentences = {sentence_of_page(n) for n in range(1, 2001)}
    assert len(sentences) == 2000
    assert large_pdf(2, seed=5) == large_pdf(2, seed=5) != large_pdf(2, seed=6)
    with pytest.raises(ValueError, match="from 1"):
        sentence_of_page(0)
    with pytest.raises(ValueError, match="at least one page"):
        large_pdf(0)


def test_a_page_without_text_is_empty_and_no_error() -> None:
    """A scan is a document with nothing in it, and is told so by whoever stores it."""
    assert [page.text for page in read_pdf(pdf_of([[], [], []])).pages] == ["", "", ""]


def test_a_pdf_whose_page_tree_loops_is_refused_at_once() -> None:
    """Whatever reads it would follow it for ever."""
    assert len(looping_pdf()) == 576
    failed = refused(read_pdf, looping_pdf())
    assert failed.code == "file_corrupt"
    assert "object 2 of its page tree holds itself" in failed.message


def test_a_page_tree_that_was_mended_is_read() -> None:
    sound = pdf_of([["granite"]])
    assert sound.count(b"\n2 0 obj\n") == 1
    mended = sound.replace(b"\n2 0 obj\n", b"\n2 0 obj\n<< /Kids [2 0 R] >>\nendobj\n2 0 obj\n")
    check_page_tree(mended)
    with pytest.raises(ExtractionFailed):
        check_page_tree(mended.replace(b"\n2 0 obj\n<< /Type", b"\n9 0 obj\n<< /Type"))


def test_headings_and_title_of_a_pdf_come_from_its_letters() -> None:
    """What is set larger is a heading."""
    lines = [f"This is line {n} of the text below the heading." for n in range(20)]
    extraction = read_pdf(pdf_of([["# Cooking with Gas", "", *lines]]))
    assert extraction.title == "Cooking with Gas"
    assert extraction.pages[0].text.startswith("# Cooking with Gas\n\nThis is line 0")


def test_the_words_of_a_sound_pdf_stay_as_they_are() -> None:
    """xberg joins what ends with f to what follows, and reads ligatures out of marks."""
    line = "The chief financial officer of life, half life, C#sharp and a*b*c on behalf of it."
    (page,) = read_pdf(pdf_of([[line, "It was a leaf", "left on the roof if it fell."]])).pages
    assert line in page.text
    assert "a leaf left on the roof if it fell" in page.text


def test_words_that_lost_their_ligatures_stay_mended() -> None:
    """Where the plain text shows that the font is broken, the mended words are kept."""
    assert with_words_of(["f irst eff icient half life"], ["first efficient halflife"]) == [
        "first efficient halflife"
    ]
    assert with_words_of(["half life", 'o"ces'], ["halflife", "offices"]) == ["halflife", "offices"]
    assert with_words_of(["half life, halflife"], ["halflife, halflife"]) == ["halflife, halflife"]
    assert with_words_of(["one page"], ["two", "pages"]) == ["two", "pages"]
    assert with_words_of(["of leaf litter of life"], ["ofleaflitter oflife"]) == ["of leaf litter of life"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a PDF"),
        (b"just words", "not a PDF"),
        (bytes(range(256)) * 20, "not a PDF"),
        (large_pdf(3)[:5000], "cut off"),
        (large_pdf(3)[:-20], "cut off"),
        (b"%PDF-1.7\n" + bytes(range(256)) * 20 + b"%%EOF", "damaged"),
    ],
)
def test_a_pdf_that_cannot_be_read_says_why(data: bytes, message: str) -> None:
    """Empty, another kind, cut off, damaged."""
    failure = refused(read_pdf, data)
    assert failure.code == "file_corrupt"
    assert message in failure.message


def test_a_locked_pdf_is_not_a_damaged_one() -> None:
    """Whoever sent it can send it without its password."""
    failure = refused(read_pdf, pdf_of([["secret"]], trailer=LOCKED))
    assert failure.code == "file_encrypted"
    assert "without one and send it again" in failure.message


def test_padding_after_the_end_of_a_pdf_does_no_harm() -> None:
    assert read_pdf(pdf_of([["text"]]) + b"\0" * 10_000).pages[0].text == "text"


def test_a_docx_is_one_text_with_its_headings() -> None:
    """Escapes stay only where the bare character would make a heading."""
    extraction = read_docx(
        docx_of(
            [("Heading1", "Guide"), ("", "a_b *c* <d> `e` \\f & 1. g!"), ("Heading2", "Part"), ("", "# h")]
        )
    )
    (page,) = extraction.pages
    assert page.number is None
    assert page.text == "# Guide\n\na_b *c* <d> `e` \\f & 1. g!\n\n## Part\n\n\\# h"
    assert extraction.title == "Guide"


def test_an_empty_docx_is_empty_and_no_error() -> None:
    """There was no text to lose."""
    assert read_docx(body(PARAGRAPH.format(" "))).pages[0].text == ""


def laughs() -> bytes:
    """A billion of them, by entities that hold entities."""
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    return body(PARAGRAPH.format("&e9;"), f'<!DOCTYPE x [<!ENTITY e0 "ha">{entities}]>')


def outsider() -> bytes:
    """An entity that wants a file of this machine."""
    return body(PARAGRAPH.format("&e;"), '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>')


def large_body() -> bytes:
    """A hundred megabytes of one letter."""
    return body(PARAGRAPH.format("a" * (101 << 20)))


def large_picture() -> bytes:
    """A hundred megabytes of nothing beside the text."""
    return docx_package(f"<w:document {WORD}/>", {"word/media/x.png": bytes(120 << 20)})


def deep() -> bytes:
    """A table in a table in a table."""
    tables = 1000
    inner = PARAGRAPH.format("x")
    return body("<w:tbl><w:tr><w:tc>" * tables + inner + "</w:tc></w:tr></w:tbl>" * tables)


@pytest.mark.parametrize(
    ("bomb", "code", "message"),
    [
        (laughs, "file_corrupt", "entities"),
        (outsider, "file_corrupt", "entities"),
        (large_body, "extraction_failed", "safe to read"),
        (large_picture, "extraction_failed", "safe to read"),
        (deep, "extraction_failed", "safe to read"),
    ],
)
def test_a_docx_bomb_is_refused(bomb: Callable[[], bytes], code: str, message: str) -> None:
    failure = refused(read_docx, bomb())
    assert failure.code == code
    assert message in failure.message


def zip_without_a_body() -> bytes:
    """A zip file that is no document."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.txt", "x")
    return packed.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "damaged"),
        (b"just words", "damaged"),
        (docx_of([("", "x" * 5000)])[:-100], "damaged"),
        (body("<w:p><w:r><w:t>never closed"), "damaged"),
        (zip_without_a_body(), "no document in it"),
        (b"\xd0\xcf\x11\xe0" + bytes(600), "before 2007"),
    ],
)
def test_a_docx_that_cannot_be_read_says_why(data: bytes, message: str) -> None:
    """Cut off, broken inside, another zip, an old Word file."""
    failure = refused(read_docx, data)
    assert failure.code == "file_corrupt"
    assert message in failure.message


@pytest.mark.parametrize("data", [LOCKED_OFFICE, encrypted(docx_of([("", "secret")]), "word/document.xml")])
def test_a_locked_docx_is_not_a_damaged_one(data: bytes) -> None:
    assert refused(read_docx, data).code == "file_encrypted"


def test_text_that_the_reader_does_not_see_is_noticed() -> None:
    """Text in the file and none in the answer is a failure, not an empty document."""
    hidden = (
        f"<w:p><w:r><w:pict><w:txbxContent>{PARAGRAPH.format('seen?')}</w:txbxContent></w:pict></w:r></w:p>"
    )
    failure = refused(read_docx, body(hidden))
    assert failure.code == "extraction_failed"


def test_the_examples_are_read_whole() -> None:
    """The committed documents, with a sentence of each page or part."""
    soil = read_pdf((EXAMPLES / "garden-soil.pdf").read_bytes())
    assert soil.title == "A Short Guide to Garden Soil"
    phrases = [
        "leaf litter",
        "jar test",
        "field capacity",
        "Ground limestone",
        "wrung-out sponge",
        "rhizobia",
    ]
    assert [next(p.number for p in soil.pages if each in p.text) for each in phrases] == [1, 2, 3, 4, 5, 6]
    bees = read_docx((EXAMPLES / "honey-bees.docx").read_bytes())
    assert bees.title == "A Year with Honey Bees"
    assert "### How bees talk" in bees.pages[0].text
    assert "| Queen | 16 |" in bees.pages[0].text
