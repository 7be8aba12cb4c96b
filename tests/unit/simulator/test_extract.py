"""Files give their text, or say why there is none; hostile ones are bounded."""

from __future__ import annotations

import codecs
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_simulator.extract import FORMATS, Extracted, ExtractionFailed, Format, extract, format_of
from kb_simulator.extract.model import MAX_TEXT_CHARS
from tests.support.documents import LOCKED_OFFICE, large_pdf, sentence_of_page
from tests.unit.simulator.files import docx, pdf, zipped

SHOWN = b"BT /F1 10 Tf 50 700 Td (Granite quarry) Tj ET"


def text(data: bytes, name: str) -> str:
    """The text of a file's only page."""
    (page,) = extract(data, format_of(name)).pages
    return page.text


def failure(data: bytes, name: str) -> str:
    """The code that a file fails with."""
    with pytest.raises(ExtractionFailed) as caught:
        extract(data, format_of(name))
    return caught.value.code


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.PDF", "pdf"),
        ("b.docx", "docx"),
        ("b.pptx", "pptx"),
        ("b.xlsx", "xlsx"),
        ("c.htm", "html"),
        ("d.markdown", "md"),
        ("e.log", "txt"),
    ],
)
def test_the_end_of_the_name_tells_the_format(name: str, kind: str) -> None:
    assert format_of(name).name == kind


@pytest.mark.parametrize("name", ["a.xyz", "a", "a.pdf.zip", ".pdf"])
def test_other_files_are_refused_with_what_is_taken(name: str) -> None:
    with pytest.raises(ExtractionFailed, match=r"PDF \(\.pdf\)") as caught:
        format_of(name)
    assert caught.value.code == "unsupported_format"


@pytest.mark.parametrize(
    "data",
    [
        "Grüße".encode(),
        codecs.BOM_UTF8 + "Grüße".encode(),
        "Grüße".encode("utf-16"),
        codecs.BOM_UTF16_BE + "Grüße".encode("utf-16-be"),
        "Grüße".encode("utf-32"),
    ],
)
def test_text_is_utf_8_or_what_its_mark_says(data: bytes) -> None:
    assert text(data, "a.txt") == "Grüße"


@pytest.mark.parametrize("data", [b"\xff\xfe\xff", "Grüße".encode("latin-1"), b"a\0b"])
def test_other_bytes_are_no_text(data: bytes) -> None:
    """Nothing is guessed."""
    assert failure(data, "a.txt") == "undecodable_text"


def test_markdown_is_taken_as_it_is() -> None:
    """Its first heading is its title."""
    found = extract(b"# Bees\n\nThey hum.", format_of("a.md"))
    assert (found.pages[0].text, found.title, found.headings) == ("# Bees\n\nThey hum.", "Bees", True)


def test_html_is_what_a_reader_sees() -> None:
    """Headings as Markdown's, blocks apart, no scripts, entities as characters."""
    page = b"""<!doctype html><title>The  hive</title><style>p { color: red }</style>
    <h1>Bees</h1><p>They &amp; their <b>queen</b><br>hum.<script>alert(1)</script></p>
    <ul><li>one<li>two</ul>"""
    found = extract(page, format_of("a.html"))
    assert found.pages[0].text == "# Bees\n\nThey & their queen hum.\n\none\n\ntwo"
    assert found.title == "The hive"


def test_docx_paragraphs_keep_their_headings() -> None:
    found = extract(docx(("Title", "Bees"), ("", "They hum."), ("Heading2", "Wax")), format_of("a.docx"))
    assert found.pages[0].text == "# Bees\n\nThey hum.\n\n## Wax"
    assert found.title == "Bees"


def test_docx_entities_are_refused_and_not_expanded() -> None:
    bomb = '<!DOCTYPE w [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    assert failure(docx(("", "&b;"), prologue=bomb), "a.docx") == "file_corrupt"


def test_docx_is_unpacked_up_to_a_bound() -> None:
    """A small file that unpacks to a large one is refused."""
    assert (
        failure(zipped({"word/document.xml": b" " * (MAX_TEXT_CHARS + 1)}), "a.docx") == "extraction_memory"
    )


@pytest.mark.parametrize(
    "data", [b"", b"not a zip", zipped({"other.xml": b"<a/>"}), zipped({"word/document.xml": b"<w:p>"})]
)
def test_what_is_no_docx_is_corrupt(data: bytes) -> None:
    assert failure(data, "a.docx") == "file_corrupt"


@pytest.mark.parametrize("flate", [False, True])
def test_pdf_pages_give_their_text_in_order(flate: bool) -> None:
    found = extract(pdf(SHOWN, b"BT (Second) Tj ET", flate=flate), format_of("a.pdf"))
    assert [(page.number, page.text) for page in found.pages] == [(1, "Granite quarry"), (2, "Second")]
    assert found.page_count == 2


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (rb"BT (a \(b\) \\ (c) \101\n) Tj ET", "a (b) \\ (c) A"),
        (b"BT [(Gra) -20 (nite) -400 (quarry)] TJ ET", "Granite quarry"),
        (b"BT <4772616E697465> Tj ET", "Granite"),
        (b"BT (one) Tj 0 -14 Td (two) Tj 20 0 Td (three) Tj T* (four) ' ET", "one\ntwo three\n\nfour"),
        (b"BT <00010002> Tj (seen) Tj ET", "seen"),
        (b"BI /W 1 ID (no) Tj EI BT (yes) Tj ET", "yes"),
        (b"] ) >> BT (still) Tj ET", "still"),
    ],
)
def test_pdf_strings_are_read_as_they_are_drawn(content: bytes, shown: str) -> None:
    """Escapes, kerning, hexadecimal, lines; codes that are no characters are left out."""
    assert text(pdf(content), "a.pdf") == shown


def test_pdf_pages_in_object_streams_are_found() -> None:
    """As PDF 1.5 packs them."""
    packed = b"1 0 2 34 3 80 "
    members = (
        b"<< /Type /Catalog /Pages 2 0 R >>".ljust(34)
        + b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>".ljust(46)
        + b"<< /Type /Page /Contents 4 0 R >>"
    )
    stream = zlib.compress(packed + members)
    data = (
        b"%%PDF-1.5\n9 0 obj\n<< /Type /ObjStm /N 3 /First %d /Length %d /Filter /FlateDecode >>\n"
        b"stream\n%b\nendstream\nendobj\n4 0 obj\n<< /Length %d >>\nstream\n%b\nendstream\nendobj\n"
        % (len(packed), len(stream), stream, len(SHOWN), SHOWN)
    )
    assert text(data, "a.pdf") == "Granite quarry"


def test_a_large_pdf_gives_every_page() -> None:
    found = extract(large_pdf(12, filler_bytes=200_000), format_of("a.pdf"))
    assert all(sentence_of_page(page.number or 0) in page.text for page in found.pages)


def test_a_scan_gives_empty_pages() -> None:
    """A page without text is empty, never wrong."""
    assert text(pdf(b"q 595 0 0 842 0 0 cm /Im1 Do Q"), "a.pdf") == ""


@pytest.mark.parametrize(
    "data",
    [b"", b"%PDF-1.4 no more", b"GIF89a"],
    ids=["empty", "cut off", "another kind"],
)
def test_what_is_no_readable_pdf_is_corrupt(data: bytes) -> None:
    """Cut off too."""
    assert failure(data, "a.pdf") == "file_corrupt"


@pytest.mark.parametrize("name", ["a.pdf", "a.docx", "a.pptx", "a.xlsx"])
def test_a_locked_file_is_encrypted_and_not_corrupt(name: str) -> None:
    data = pdf(SHOWN, trailer=b"/Encrypt 9 0 R") if name == "a.pdf" else LOCKED_OFFICE
    assert failure(data, name) == "file_encrypted"


def test_pdf_streams_are_unpacked_up_to_a_bound() -> None:
    """All streams of a file together."""
    assert failure(pdf(b" " * (MAX_TEXT_CHARS + 1), flate=True), "a.pdf") == "extraction_memory"


def test_a_tree_of_pages_that_bites_its_tail_ends() -> None:
    """Each node counts once."""
    data = pdf(SHOWN).replace(b"/Kids [3 0 R]", b"/Kids [2 0 R 3 0 R 3 0 R]")
    assert text(data, "a.pdf") == "Granite quarry"


@given(
    st.sampled_from(list(FORMATS.values())),
    st.sampled_from([b"", b"%PDF-1.4\n1 0 obj\n", pdf(SHOWN)]),
    st.binary(max_size=300),
)
def test_no_bytes_are_a_fault_of_the_reader(kind: Format, before: bytes, data: bytes) -> None:
    """Whatever comes, there is a text, or a failure that the contract has a code for."""
    with suppress(ExtractionFailed):
        assert isinstance(extract(before + data, kind), Extracted)
