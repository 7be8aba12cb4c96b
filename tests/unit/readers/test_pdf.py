"""PDF: pages, order, headings, tables, titles, and clear errors for files that are no PDF."""

from __future__ import annotations

import math
import re
import zlib
from functools import partial
from pathlib import Path

import pytest

from kb_readers.failures import ExtractionFailed
from kb_readers.model import Context, Limits, PagesCounted, Progress
from kb_readers.pdf import check_page_tree, read_pdf, title_of_pdf
from kb_verify.files import pdf_file, pdf_stream
from tests.support.documents import (
    LOCKED_TRAILER,
    bushy_pdf,
    large_pdf,
    looping_pdf,
    seen_pdf,
    sentence_of_page,
)
from tests.support.pdfs import pdf_of
from tests.support.reading import refusal

refused = partial(refusal, read_pdf)


EXAMPLES = Path(__file__).parents[3] / "examples" / "documents"


def text_of(content: str) -> str:
    """The text of a page with this content, in a font that has the fi ligature at octal 223."""
    (only,) = read_pdf(page_of(f"/F1 10 Tf {content}", font=b"/Encoding /MacRomanEncoding")).pages
    return only.text


def test_every_page_of_a_pdf_has_its_text_and_number() -> None:
    pages = read_pdf(large_pdf(30, filler_bytes=100_000, seed=3)).pages
    assert [page.number for page in pages] == list(range(1, 31))
    for page in pages:
        at = [n for n in range(1, 31) if sentence_of_page(n, 3) in page.text]
        assert at == [page.number]


def test_the_known_sentences_are_unique_and_repeat_with_the_seed() -> None:
    """Other tests search for one of them."""
    sentences = {sentence_of_page(n) for n in range(1, 2001)}
    assert len(sentences) == 2000
    assert large_pdf(2, seed=5) == large_pdf(2, seed=5) != large_pdf(2, seed=6)
    with pytest.raises(ValueError, match="from 1"):
        sentence_of_page(0)
    with pytest.raises(ValueError, match="at least one page"):
        large_pdf(0)


def test_a_page_without_text_is_empty_and_no_error() -> None:
    """A scan, for example; the ingestion reports it."""
    assert [page.text for page in read_pdf(pdf_of([[], [], []])).pages] == ["", "", ""]


def test_a_page_tree_that_was_mended_is_read() -> None:
    sound = pdf_of([["granite"]])
    assert sound.count(b"\n2 0 obj\n") == 1
    mended = sound.replace(b"\n2 0 obj\n", b"\n2 0 obj\n<< /Kids [2 0 R] >>\nendobj\n2 0 obj\n")
    check_page_tree(mended)
    with pytest.raises(ExtractionFailed):
        check_page_tree(mended.replace(b"\n2 0 obj\n<< /Type", b"\n9 0 obj\n<< /Type"))


@pytest.mark.parametrize(
    ("declared", "text", "title"),
    [
        ("Pump Manual", "# Pumps", "Pump Manual"),
        ("Microsoft Word - pumps.docx", "# Pumps", "Pumps"),
        ("odf_rich_cells.odt", "text\n\n# Pumps", "Pumps"),
        ("Document", "## Pumps\n\ntext", "Pumps"),
        ("pumps_v2", "text", "pumps_v2"),
        ("pump-manual", "# Pumps", "Pumps"),
        ("Paper Title (use style: paper title)", "text", None),
        ("doi:10.1016/j.pumps.2005.01.006", "text", None),
        ("127.0.0.1:80/pumps", "text", None),
        ("TCP/IP Illustrated", "# Pumps", "TCP/IP Illustrated"),
        ("88300 162..177", "# Pumps", "Pumps"),
        ("Presentación de PowerPoint", "text", None),
        ("(anonymous)", "text", None),
        ("Release 23.7.R1", "# Pumps", "Release 23.7.R1"),
        (None, "text\n\n## Pumps", None),
        (None, "# Table of Contents\n\nPumps 3", None),
        (None, "# Chapter 1\n\n# Pumps", "Chapter 1 Pumps"),
        (None, "## Pump Manual\n\n# LOGO", "Pump Manual"),
    ],
)
def test_a_declared_title_gives_way_to_a_heading_if_it_is_no_title(
    declared: str | None, text: str, title: str | None
) -> None:
    assert title_of_pdf(declared, text) == title


def test_headings_and_title_of_a_pdf_come_from_its_letters() -> None:
    lines = [f"This is line {n} of the text below the heading." for n in range(20)]
    extraction = read_pdf(pdf_of([["# Cooking with Gas", "", *lines]]))
    assert extraction.title == "Cooking with Gas"
    assert extraction.pages[0].text.startswith("# Cooking with Gas\n\nThis is line 0")


def test_the_words_of_a_sound_pdf_stay_as_they_are() -> None:
    line = "The chief financial officer of life, half life, C#sharp and a*b*c on behalf of it."
    (page,) = read_pdf(pdf_of([[line, "It was a leaf", "left on the roof if it fell."]])).pages
    assert line in page.text
    assert "a leaf left on the roof if it fell" in page.text


def test_the_number_of_pages_is_reported_before_they_are_read() -> None:
    """The caller then knows the amount of work."""
    reported: list[Progress] = []
    read_pdf(large_pdf(3), Context("pdf", Limits(), reported.append))
    assert reported == [PagesCounted(3)]


def test_lines_become_paragraphs_and_hyphenated_words_whole() -> None:
    line = "The granite quarry above the river opened in the spring"
    content = (
        f"12 TL 50 700 Td ({line} and exam-) Tj T* (ined {line.lower()} and there.) Tj T* ({line}) Tj T* "
        f"(Feldspar) Tj T* (Zircon) Tj 0 -24 Td (Apart from it.) Tj 10 -12 Td (Indented.) Tj"
    )
    assert text_of(content) == (
        f"{line} and examined {line.lower()} and there. {line} Feldspar\nZircon\n\n"
        "Apart from it.\n\nIndented."
    )


def test_a_hyphen_before_a_capital_is_one_of_the_word() -> None:
    content = "12 TL 50 700 Td (A map of Alsace-) Tj T* (Lorraine in CAPI-) Tj T* (TALS) Tj"
    assert text_of(content) == "A map of Alsace-Lorraine in CAPITALS"


def test_columns_are_a_table_and_one_wide_gap_is_none() -> None:
    rows = [("Stone", "Weight", "Colour"), ("feld|spar", "12.5 kg", "pink"), ("zircon", "3", "red")]
    cells = " ".join(
        f"1 0 0 1 {50 + 100 * column} {700 - 14 * row} Tm ({cell}) Tj"
        for row, each in enumerate(rows)
        for column, cell in enumerate(each)
    )
    gap = " 1 0 0 1 50 600 Tm (left) Tj 1 0 0 1 150 600 Tm (right) Tj"
    assert text_of(cells + gap) == (
        "| Stone | Weight | Colour |\n| --- | --- | --- |\n| feld\\|spar | 12.5 kg | pink |\n"
        "| zircon | 3 | red |\n\nleft right"
    )


def test_a_footer_drawn_first_comes_last_and_a_header_drawn_last_comes_first() -> None:
    """Programs draw them in this order; the text between keeps its drawing order."""
    content = (
        "1 0 0 1 50 30 Tm (page 7) Tj 1 0 0 1 50 700 Tm (Body.) Tj 1 0 0 1 50 686 Tm (More.) Tj "
        "1 0 0 1 50 820 Tm (Running head) Tj"
    )
    assert text_of(content) == "Running head\n\nBody.\nMore.\n\npage 7"


def test_ligatures_are_letters_and_leaders_are_a_mark() -> None:
    """Words are then found, and a table of contents has no rows of dots."""
    assert (
        text_of(r"50 700 Td (A di\033erent coe\036cient of 2\02513) Tj") == "A different coefficient of 2–13"
    )
    assert text_of(r"50 700 Td (The \336rst \337ow) Tj") == "The first flow"
    assert text_of(f"50 700 Td (Chapter {'. ' * 30}7) Tj") == "Chapter … 7"


def test_a_line_that_looks_like_markup_is_text() -> None:
    assert text_of("50 700 Td (# 7 of the list) Tj") == "\\# 7 of the list"


def test_a_tree_that_branches_without_end_is_counted_as_the_file_says() -> None:
    assert {page.text for page in read_pdf(bushy_pdf()).pages} == {""}


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (b"", "file_corrupt", "not a PDF"),
        (b"just words", "file_corrupt", "not a PDF"),
        (large_pdf(3)[:5000], "file_corrupt", "cut off"),
        (large_pdf(3)[:-20], "file_corrupt", "cut off"),
        (b"%PDF-1.7\n" + bytes(range(256)) * 20 + b"%%EOF", "file_corrupt", "damaged"),
        (looping_pdf(), "file_corrupt", "object 2 of its page tree holds itself"),
        (pdf_of([["secret"]], trailer=LOCKED_TRAILER), "file_encrypted", "without one and send it again"),
    ],
)
def test_a_pdf_that_cannot_be_read_says_why(data: bytes, code: str, message: str) -> None:
    refused(data, code, message)


def test_padding_after_the_end_of_a_pdf_does_no_harm() -> None:
    """Disks and mail programs append it."""
    assert read_pdf(pdf_of([["text"]]) + b"\0" * 10_000).pages[0].text == "text"


def test_a_changed_byte_in_the_contents_of_a_page_is_remarked() -> None:
    """PDFium reads up to the byte, without an error."""
    sound = (EXAMPLES / "garden-soil.pdf").read_bytes()
    assert read_pdf(sound).remark is None
    streams = [found.span(1) for found in re.finditer(rb"stream\r?\n(.*?)endstream", sound, re.DOTALL)]
    assert len(streams) == 6
    for number, (start, end) in enumerate(streams, 1):
        for share in (0.2, 0.5, 0.9):
            changed = bytearray(sound)
            changed[start + int(share * (end - start))] ^= 1
            extraction = read_pdf(bytes(changed))
            assert len(extraction.pages) == 6
            assert extraction.remark == (
                f"The file is damaged on page {number}: text may be missing there, or wrong."
            )


def packed_pdf(contents: list[bytes]) -> bytes:
    """A PDF of pages whose contents are these compressed streams."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * number) for number in range(len(contents)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%b] /Count %d /MediaBox [0 0 595 842] >>" % (kids, len(contents)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, packed in enumerate(contents):
        font = b"/Resources << /Font << /F1 3 0 R >> >>"
        objects.append(b"<< /Type /Page /Parent 2 0 R /Contents [%d 0 R] %b >>" % (5 + 2 * number, font))
        objects.append(pdf_stream(packed, b"/Filter /FlateDecode"))
    return pdf_file(objects)


def drawn(words: str) -> bytes:
    return zlib.compress(f"BT /F1 10 Tf 50 700 Td ({words}) Tj ET".encode())


def test_contents_without_an_end_are_damage_where_others_have_one() -> None:
    """Some programs always write streams without a checksum."""
    first, second = drawn("granite"), drawn("feldspar")
    extraction = read_pdf(packed_pdf([first, second[:-6]]))
    assert (extraction.remark or "").startswith("The file is damaged on page 2: ")
    habit = read_pdf(packed_pdf([first[:-4], second[:-4]]))
    assert [page.text for page in habit.pages] == ["granite", "feldspar"]
    assert habit.remark is None
    assert read_pdf(packed_pdf([first + b"\r\n", second])).remark is None


def test_a_pdf_of_which_nothing_can_be_unpacked_is_refused() -> None:
    nothing = drawn("granite")[:2] + b"\xff" * 40
    refused(packed_pdf([nothing, nothing]), "file_corrupt", "pages 1 and 2 cannot be unpacked")


FIELDS = [
    b"/FT /Tx /T (name) /V (Ada Lovelace)",
    b"/FT /Tx /T (addr) /TU (Home address) /Ff 4096 /V (Dorset Street 1\\rLondon)",
    b"/FT /Tx /T (empty)",
    b"/FT /Tx /T (secret) /Ff 8192 /V (hunter2)",
    b"/FT /Tx /T (unseen) /F 2 /V (hidden)",
    b"/FT /Ch /T (country) /Ff 131072 /Opt [[(DE) (Germany)] [(FR) (France)]] /V (FR)",
    b"/FT /Btn /T (agreed) /V /Yes /AS /Yes",
]
NOTES = [
    b"/Subtype /FreeText /Contents (Comment by a reviewer)",
    b"/Subtype /Text /Contents (# Ask the quarry.\\nThen call back.)",
    b"/Subtype /Highlight /Contents (The granite quarry above the river)",
    b"/Subtype /Highlight /Contents (river)",
    b"/Subtype /Popup /Contents (of a popup)",
    b"/Subtype /Link /Contents (of a link)",
]


def noted_pdf(text: str, fields: list[bytes], notes: list[bytes]) -> bytes:
    """A PDF of two pages: one with this text, fields and notes, and an empty one."""
    numbers = [7 + number for number in range(len(fields) + len(notes))]
    named = [b"%d 0 R" % number for number in numbers]
    catalog = b"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [%b] >> >>" % b" ".join(
        named[: len(fields)]
    )
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 4 0 R >> >> "
    kinds = [b"/Subtype /Widget " + field for field in fields] + notes
    return pdf_file(
        [
            catalog,
            b"<< /Type /Pages /Kids [3 0 R 6 0 R] /Count 2 >>",
            page + b"/Contents 5 0 R /Annots [%b] >>" % b" ".join(named),
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
            pdf_stream(f"BT /F1 10 Tf 50 700 Td ({text}) Tj ET".encode()),
            page + b"/Contents 5 0 R >>",
            *(b"<< /Type /Annot /Rect [10 10 90 30] %b >>" % each for each in kinds),
        ]
    )


def test_form_fields_and_annotations_follow_the_text_of_their_page() -> None:
    """Repeated text, invisible text and buttons are left out."""
    line = "The granite quarry above the river opened."
    first, second = read_pdf(noted_pdf(line, FIELDS, NOTES)).pages
    assert first.text == (
        f"{line}\n\nname: Ada Lovelace\nHome address:\nDorset Street 1\nLondon\ncountry: France\n"
        "Comment by a reviewer\n\\# Ask the quarry.\nThen call back.\nriver"
    )
    assert (first.body, second.text, second.notes) == (line, line, "")


def test_notes_of_a_page_are_read_within_bounds() -> None:
    many = [b"/Subtype /Text /Contents (%d %b)" % (number, b"x" * 999) for number in range(200)]
    (page, _) = read_pdf(noted_pdf("x", [], many)).pages
    assert 50_000 <= len(page.notes) < 50_100
    huge = [b"/Subtype /Text /Contents (%b)" % (b"y" * (2 << 20)), b"/Subtype /Text /Contents (z)"]
    assert read_pdf(noted_pdf("x", [], huge)).pages[0].notes == "z"


def page_of(content: str, entries: bytes = b"", font: bytes = b"", more: tuple[bytes, ...] = ()) -> bytes:
    """A PDF whose pages have this content, each with further entries."""
    return pages_of([content], entries, font, more)


def pages_of(
    contents: list[str], entries: bytes = b"", font: bytes = b"", more: tuple[bytes, ...] = ()
) -> bytes:
    """A PDF of pages with further entries, and of objects numbered from 4."""
    first = 4 + len(more)
    kids = b" ".join(b"%d 0 R" % (first + 2 * number) for number in range(len(contents)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%b] /Count %d /MediaBox [0 0 595 842] >>" % (kids, len(contents)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica %b >>" % font,
        *more,
    ]
    for number, content in enumerate(contents):
        objects += [
            b"<< /Type /Page /Parent 2 0 R /Contents %d 0 R /Resources << /Font << /F1 3 0 R >> >> %b >>"
            % (first + 2 * number + 1, entries),
            pdf_stream(f"BT {content} ET".encode("latin-1")),
        ]
    return pdf_file(objects)


def set_at(x: float, y: float, text: str, size: float = 10, turn: float = 0) -> str:
    """Operators that set a line at a point, turned against the clock."""
    a, b = math.cos(math.radians(turn)), math.sin(math.radians(turn))
    return f"/F1 {size} Tf {a:.5f} {b:.5f} {-b:.5f} {a:.5f} {x} {y} Tm ({text}) Tj "


BODY = "".join(
    set_at(60, 700 - 14 * row, f"Row {row}: the pumps are inspected in every third month of the year.")
    for row in range(12)
)


@pytest.mark.parametrize(
    ("x", "turn"), [(30, 90), (570, 90), (30, 270), (570, 270), (400, 180), (200, 45), (200, -30), (200, 12)]
)
def test_a_line_that_is_not_level_is_no_heading_and_no_title(x: float, turn: float) -> None:
    stamp = set_at(x, 400, "STAMP 2101.00001", 20, turn)
    for content in (
        stamp + set_at(60, 750, "Pump Manual", 16) + BODY,
        set_at(60, 750, "Pump Manual", 16) + BODY + stamp,
    ):
        extraction = read_pdf(page_of(content))
        assert extraction.title == "Pump Manual"
        assert extraction.pages[0].text.startswith("# Pump Manual\n\nRow 0")
        assert extraction.pages[0].text.endswith("year.\n\nSTAMP 2101.00001")


@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_a_page_turned_for_display_is_read_as_displayed(rotation: int) -> None:
    """A page laid out for the turn has the same headings, tables and paragraphs as an upright one."""
    content = set_at(60, 750, "Pump Manual", 16) + BODY + set_at(60, 500, "left") + set_at(200, 500, "right")
    content += set_at(60, 486, "one") + set_at(200, 486, "two")
    upright = read_pdf(page_of(content)).pages
    turned = {90: "0 1 -1 0 842 0", 180: "-1 0 0 -1 595 842", 270: "0 -1 1 0 0 595"}[rotation]
    box = b"/MediaBox [0 0 %b] /Rotate %d" % (b"595 842" if rotation == 180 else b"842 595", rotation)
    assert read_pdf(page_of(f"ET {turned} cm BT {content}", box)).pages == upright
    stamped = read_pdf(page_of(content, b"/Rotate 90"))
    assert stamped.title is None
    assert "#" not in stamped.pages[0].text


@pytest.mark.parametrize(
    "boxes",
    [
        b"/MediaBox [-100 -100 495 742]",
        b"/MediaBox [-300 -300 1200 1200] /CropBox [-100 -100 495 742]",
        b"/MediaBox [-100 -100 1200 1200] /CropBox [-300 -300 495 742] /Rotate 180",
    ],
)
def test_text_off_the_visible_page_is_left_out(boxes: bytes) -> None:
    """Printers' marks, and the other page of a spread, also where a line runs on into it."""
    line = set_at(-60, 500, "The visible line") + set_at(520, 500, "of the other page")
    marks = set_at(-60, 760, "proof 7 cyan", 30) + set_at(-200, 500, "registration", 30)
    (page,) = read_pdf(page_of(line + marks, boxes)).pages
    assert page.text == "The visible line"


def test_a_paragraph_in_larger_type_is_no_heading() -> None:
    words = "The company supplied pumps to every harbour of the northern coast"
    heading, lead = set_at(60, 790, "Annual Report", 20), [words, f"{words}, and more", "than before."]
    for size in (12.5, 15):
        drawn_lead = "".join(set_at(60, 750 - 1.2 * size * n, line, size) for n, line in enumerate(lead))
        text = read_pdf(page_of(heading + drawn_lead + BODY)).pages[0].text
        assert [line for line in text.splitlines() if line.startswith("#")] == ["# Annual Report"]
        assert f"\n\n{' '.join(lead)}\n\nRow 0" in text
    numbered = set_at(60, 740, "1. Introduction.", 12.5)
    assert "## 1. Introduction.\n\nRow 0" in read_pdf(page_of(heading + numbered + BODY)).pages[0].text
    long = set_at(60, 790, "Dense Retrieval of Pump Manuals for the", 20) + set_at(
        60, 766, "Open Questions", 20
    )
    assert read_pdf(page_of(long + BODY)).title == "Dense Retrieval of Pump Manuals for the Open Questions"


def test_short_bold_and_numbered_lines_apart_from_the_text_are_headings() -> None:
    lines = [
        (520, "F2", "3.1 "),
        (480, "F2", "Table 3 Weights"),
        (460, "F2", "a bold remark"),
        (440, "F1", "II. REPAIR BY C. Bell"),
        (420, "F1", "The repair is done in spring."),
        (380, "F1", "1. Close the valve"),
        (360, "F1", "2. Stop the pump"),
        (340, "F1", "The pump is still warm."),
        (300, "F1", "D. E. Knuth and A. Bell"),
        (280, "F1", "The authors measured it."),
        (400, "F2", "Head"),
        (410, "F2", "of a table"),
    ]
    title = set_at(60, 750, "The Pump Manual").replace("/F1", "/F2")
    content = "".join(set_at(60, y, text).replace("/F1", f"/{font}") for y, font, text in lines)
    content = content.replace("(3.1 ) Tj", "(3.1 ) Tj 1 0 0 1 120 520 Tm (Cold Pumps) Tj")
    fonts = b"/Resources << /Font << /F1 3 0 R /F2 4 0 R >> >>"
    bold = (b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold >>",)
    extraction = read_pdf(page_of(title + BODY + content, fonts, more=bold))
    found = [line for line in extraction.pages[0].text.splitlines() if line.startswith("#")]
    assert found == ["## The Pump Manual", "## 3.1 Cold Pumps", "## II. REPAIR BY C. Bell"]
    assert extraction.title == "The Pump Manual"


def test_an_address_beside_a_title_and_a_large_initial_do_not_change_the_type_of_a_line() -> None:
    title = set_at(60, 750, "Pump Dispatch", 24) + set_at(400, 750, "12 Harbour Street", 8)
    initial = set_at(60, 530, "R", 30) + "/F1 10 Tf (epairs are done in spring and in autumn.) Tj "
    text = read_pdf(page_of(title + BODY + initial)).pages[0].text
    assert text.startswith("# Pump Dispatch\n\n12 Harbour Street\n\nRow 0")
    assert text.endswith("Repairs are done in spring and in autumn.")
    tiny = read_pdf(page_of(set_at(60, 750, "Tiny stones", 0.1))).pages[0].text  # its size is rounded to 0
    assert tiny.endswith("Tiny stones")


@pytest.mark.parametrize("by_letter", [False, True], ids=["as one text", "by letter"])
@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (["ت", "لا", "ك", "ش", "م", "ل", "ا"], "المشكلات"),
        (["ت", "\ufefc", "ك", "ش", "م", "ل", "ا"], "المشكلات"),
        (["ل", "لا", "خ"], "خلال"),
        (["ة", "ي", "ج", "ا", "ت", "ن", "لإ", "ا"], "الإنتاجية"),
        (["ل", "ا", "ب", "ق", "ت", "س", "لا", "ا"], "الاستقبال"),
        (["ن", "لا", "ا", "\ufb56"], "پالان"),
        (["ف", "ل", "أ"], "ألف"),
        (["\ufe96", "\ufef4", "\ufee7", "\ufe8d"], "انيت"),
        ("ةميدقلا تينارجلا قوف", "فوق الجرانيت القديمة"),
        (
            "ةخضم Grundfos CR 32-4 ماع يف ،2024 اهنزوو 12.5 غك",
            "كغ 12.5 ووزنها 2024، في عام Grundfos CR 32-4 مضخة",
        ),
        ("12.5 = ٤٥٫٦ :نزولا", "الوزن: ٤٥٫٦ = 12.5"),
        (".12-05-2024 خيرات", "تاريخ 2024-05-12."),
        (".50% ריחמ ,12-3 דומע", "עמוד 12-3, מחיר 50%."),
        ("(היינש) הרודהמ", "מהדורה (שנייה)"),
        (")היינש( הרודהמ", "מהדורה (שנייה)"),
        ("ISO 9001 (1) ןקתה יפל", "לפי התקן ISO 9001 (1)"),
        ("an old word תינרג רוחש (see 45) here", "an old word שחור גרנית (see 45) here"),
        (["ם", "וֹ", "ל", "שָׁ"], "שָׁלוֹם"),
    ],
)
def test_a_line_of_right_to_left_script_is_in_logical_order(
    seen: str | list[str], text: str, by_letter: bool
) -> None:
    """Glyphs are drawn from left to right, ligatures with several characters; brackets as seen or meant."""
    (page,) = read_pdf(seen_pdf([list(seen)], by_letter=by_letter)).pages
    assert page.text == text


ROMAN = ["i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x"]


@pytest.mark.parametrize(
    ("head", "foot"),
    [
        ("Pump Inspection Manual", "{number}"),
        ("{number} Pump Inspection Manual", "- {number} -"),
        ("Pump Inspection Manual", "Page {number} of 10"),
        ("Pump Inspection Manual", "{roman}"),
        ("Pump Inspection Manual {roman}", "Seite {number} von 10"),
        (f"{'1' * 60} Pump Inspection Manual", "{number}"),  # a long number, as of a bar code
    ],
)
def test_running_heads_stand_once_and_page_numbers_not_at_all(head: str, foot: str) -> None:
    contents = [
        set_at(60, 800, head.format(number=page + 7, roman=ROMAN[page]))
        + "".join(set_at(60, 700 - 14 * row, f"Row {row} of {word} and its pumps.") for row in range(9))
        + set_at(290, 30, foot.format(number=page + 7, roman=ROMAN[page]))
        for page, word in enumerate(["granite", "feldspar", "zircon", "quartz", "mica"])
    ]
    pages = [page.text for page in read_pdf(pages_of(contents)).pages]
    assert "\n".join(pages).count("Pump Inspection Manual") == 1
    assert "Pump Inspection Manual" in pages[0]
    assert all(text.startswith("Row 0") for text in pages[1:])
    assert all(text.endswith("pumps.") for text in pages)


def test_lines_that_only_resemble_running_heads_stay() -> None:
    """Text that begins alike on each page, header rows of tables, and pages of a single line."""
    alike = ["".join(set_at(60, 700 - 14 * row, f"Row {row} of the pumps.") for row in range(9))] * 4
    rows = "".join(
        set_at(60 + 100 * column, 700 - (30 if row else 0) - 14 * row, f"cell {row} {column}")
        for row in range(4)
        for column in range(3)
    )
    for contents in (alike, [rows] * 4, [set_at(60, 800, "Pump Manual")] * 4):
        texts = [page.text for page in read_pdf(pages_of(contents)).pages]
        assert len(set(texts)) == 1
        assert texts[0] == read_pdf(pages_of(contents[:1])).pages[0].text


def test_the_example_is_read_whole() -> None:
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
    assert "| Clay | sticky when wet | slowly | well | late |" in soil.pages[1].text
