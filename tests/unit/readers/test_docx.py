"""DOCX: the whole document in order, and clear errors for files that are no DOCX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from kb_readers.docx import read_docx
from tests.support.documents import docx_of, docx_package
from tests.support.reading import only_text, refusal

text = partial(only_text, read_docx)
refused = partial(refusal, read_docx)


EXAMPLES = Path(__file__).parents[3] / "examples" / "documents"
MAIN = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
WORD = f'xmlns:w="{MAIN}"'
PARAGRAPH = "<w:p><w:r><w:t>{}</w:t></w:r></w:p>"


def body(inner: str, before: str = "", parts: Mapping[str, str] | None = None) -> bytes:
    links = "".join(
        f'<Relationship Id="r{kind}" Type="{OFFICE}/{kind}" Target="{kind}.xml"/>' for kind in parts or {}
    )
    package = "http://schemas.openxmlformats.org/package/2006/relationships"
    more = {f"word/{kind}.xml": xml.encode() for kind, xml in (parts or {}).items()}
    more["word/_rels/document.xml.rels"] = (
        f'<Relationships xmlns="{package}">{links}</Relationships>'.encode()
    )
    return docx_package(f"{before}<w:document {WORD}><w:body>{inner}</w:body></w:document>", more)


def paragraph(words: str, properties: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t xml:space='preserve'>{words}</w:t></w:r></w:p>"


def test_a_docx_is_one_text_with_its_headings() -> None:
    """A character that Markdown would take for a heading is escaped."""
    data = docx_of(
        [("Heading1", "Guide"), ("", "a_b *c* <d> `e` \\f & 1. g!"), ("Heading2", "Part"), ("", "# h")]
    )
    extraction = read_docx(data)
    assert extraction.title == "Guide"
    assert text(data) == "# Guide\n\na_b *c* <d> `e` \\f & 1. g!\n\n## Part\n\n\\# h"


def test_headings_are_recognised_by_style_names_and_inherited_styles() -> None:
    """Word names styles in the user's language, and users base their own styles on them."""
    styles = (
        f'<w:styles {WORD}><w:style w:styleId="berschrift2"><w:name w:val="heading 2"/></w:style>'
        '<w:style w:styleId="Mine"><w:name w:val="Mine"/><w:basedOn w:val="berschrift2"/></w:style>'
        '<w:style w:styleId="Loop"><w:name w:val="Loop"/><w:basedOn w:val="Loop"/></w:style>'
        '<w:style w:styleId="Deep"><w:name w:val="Deep"/><w:pPr><w:outlineLvl w:val="2"/></w:pPr></w:style>'
        "</w:styles>"
    )
    names = ["Title", "berschrift2", "Mine", "Deep", "Loop", "Unknown"]
    inner = "".join(paragraph(name, f'<w:pStyle w:val="{name}"/>') for name in names)
    assert text(body(inner, parts={"styles": styles})) == (
        "# Title\n\n## berschrift2\n\n## Mine\n\n### Deep\n\nLoop\n\nUnknown"
    )


def test_lists_have_their_marks_and_numbers() -> None:
    numbering = (
        f'<w:numbering {WORD}><w:abstractNum w:abstractNumId="4">'
        '<w:lvl w:ilvl="0"><w:numFmt w:val="decimal"/></w:lvl>'
        '<w:lvl w:ilvl="1"><w:numFmt w:val="bullet"/></w:lvl></w:abstractNum>'
        '<w:num w:numId="1"><w:abstractNumId w:val="4"/></w:num></w:numbering>'
    )
    item = '<w:numPr><w:ilvl w:val="{}"/><w:numId w:val="1"/></w:numPr>'
    inner = paragraph("one", item.format(0)) + paragraph("deeper", item.format(1))
    inner += paragraph("two", item.format(0)) + paragraph("between") + paragraph("three", item.format(0))
    inner += paragraph("out", '<w:numPr><w:numId w:val="0"/></w:numPr>')
    assert text(body(inner, parts={"numbering": numbering})) == (
        "1. one\n  - deeper\n2. two\n\nbetween\n\n3. three\n\nout"
    )


def level(depth: int, shown: str, fmt: str = "decimal", start: str = "1", more: str = "") -> str:
    return (
        f'<w:lvl w:ilvl="{depth}"><w:start w:val="{start}"/><w:numFmt w:val="{fmt}"/>{more}'
        f'<w:lvlText w:val="{shown}"/></w:lvl>'
    )


def numbered(inner: str, *levels: str, lists: str = "", styles: str = "") -> str:
    """The text of a body with the lists 1 and 2, which share these levels, and further lists."""
    shared = '<w:num w:numId="{}"><w:abstractNumId w:val="0"/></w:num>'
    numbering = (
        f'<w:numbering {WORD}><w:abstractNum w:abstractNumId="0">{"".join(levels)}</w:abstractNum>'
        f"{shared.format(1)}{shared.format(2)}{lists}</w:numbering>"
    )
    return text(
        body(inner, parts={"numbering": numbering, "styles": f"<w:styles {WORD}>{styles}</w:styles>"})
    )


def item(words: str, depth: int = 0, list_id: int = 1) -> str:
    properties = f'<w:numPr><w:ilvl w:val="{depth}"/><w:numId w:val="{list_id}"/></w:numPr>'
    return paragraph(words, properties)


def test_headings_have_the_numbers_that_their_styles_give_them() -> None:
    """A derived style belongs to its base's list, at its own depth."""
    styles = (
        '<w:style w:styleId="H1"><w:name w:val="heading 1"/><w:pPr><w:numPr><w:numId w:val="1"/></w:numPr>'
        '</w:pPr></w:style><w:style w:styleId="H2"><w:name w:val="heading 2"/><w:basedOn w:val="H1"/>'
        '<w:pPr><w:numPr><w:ilvl w:val="1"/></w:numPr></w:pPr></w:style>'
    )
    headings = {"Terms": 1, "Ends": 1, "Notice": 2, "Cause": 2, "Rest": 1, "A": 2}
    inner = "".join(paragraph(words, f'<w:pStyle w:val="H{rank}"/>') for words, rank in headings.items())
    assert numbered(inner, level(0, "Article %1"), level(1, "%1.%2"), styles=styles) == (
        "# Article 1 Terms\n\n# Article 2 Ends\n\n## 2.1 Notice\n\n## 2.2 Cause\n\n"
        "# Article 3 Rest\n\n## 3.1 A"
    )


def test_items_have_the_numbers_of_their_list() -> None:
    """A level that was never counted shows its start; a level without a text shows nothing."""
    levels = [
        level(0, "%1.", start="4"), level(1, "%1.%2"), level(2, "(%3)", "lowerLetter"),
        level(3, "%3.%4", "upperRoman", more="<w:isLgl/>"), level(4, "%5)"), level(5, ""),
        level(6, "*", "bullet"),
    ]  # fmt: skip
    depths = [1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 2, 1, 2]
    inner = "".join(item("x", depth) for depth in depths)
    assert [line.strip() for line in numbered(inner, *levels).splitlines()] == [
        "- 4.1 x", "4. x", "5. x", "- 5.1 x", "- 5.2 x", "- (a) x", "- (b) x", "- 2.1 x", "1) x",
        "- x", "- x", "- (c) x", "- 5.3 x", "- (a) x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fmt", "start", "mark"),
    [
        ("lowerLetter", "28", "bb"),
        ("upperLetter", "26", "Z"),
        ("lowerLetter", "781", "781"),
        ("lowerRoman", "14", "xiv"),
        ("upperRoman", "1994", "MCMXCIV"),
        ("upperRoman", "4000", "4000"),
        ("decimalZero", "7", "07"),
        ("chineseCounting", "3", "3"),
        ("decimal", "9" * 50, "1000000"),
        ("none", "1", ""),
    ],
)
def test_numbers_are_written_in_the_format_of_their_level(fmt: str, start: str, mark: str) -> None:
    assert numbered(item("x"), level(0, "No %1:", fmt, start)) == f"- No {mark}: x"


def test_lists_of_one_definition_go_on_unless_they_begin_again() -> None:
    """A list may override levels, which has no effect on other lists."""
    override = '<w:lvlOverride w:ilvl="0">{}</w:lvlOverride>'
    lists = "".join(
        f'<w:num w:numId="{number}"><w:abstractNumId w:val="0"/>{override.format(changed)}</w:num>'
        for number, changed in [(3, '<w:startOverride w:val="1"/>'), (4, level(0, "Step %1:"))]
    )
    inner = "".join(item("x", list_id=number) for number in (1, 2, 3, 3, 4, 1))
    assert numbered(inner, level(0, "%1."), lists=lists) == "1. x\n2. x\n1. x\n2. x\n- Step 3: x\n4. x"


def test_items_without_text_count_unless_they_were_removed() -> None:
    removed = item("").replace("<w:t xml:space='preserve'></w:t>", "<w:del/>")
    assert numbered(item("a") + item("") + item("b") + removed + item("c"), level(0, "%1.")) == (
        "1. a\n3. b\n4. c"
    )


def test_the_numbers_of_rows_are_in_their_cells() -> None:
    cells = [(item(""), "a"), (item(""), "b")]
    rows = "".join(f"<w:tr><w:tc>{i}</w:tc><w:tc>{PARAGRAPH.format(w)}</w:tc></w:tr>" for i, w in cells)
    assert numbered(f"<w:tbl>{rows}</w:tbl>{item('c')}", level(0, "R-%1")) == (
        "| R-1 | a |\n| --- | --- |\n| R-2 | b |\n\n- R-3 c"
    )


def test_marks_are_bounded() -> None:
    long = numbered(item("x"), level(0, "%1" * 10_000, "lowerLetter", "780"))
    assert len(long) < 2_000
    assert numbered(item("x", 10**9) + item("y", -1), level(8, "%9."), level(0, "%1.")).split() == [
        *["1.", "x"],
        *["1.", "y"],
    ]


def test_a_table_is_a_table_and_a_frame_is_text() -> None:
    cell = "<w:tc>{}</w:tc>"
    row = "<w:tr>" + cell * 2 + "</w:tr>"
    inner = "<w:tbl>" + row.format(PARAGRAPH.format("a|b"), PARAGRAPH.format("c") + PARAGRAPH.format("d"))
    within = "<w:tbl><w:tr>" + cell.format(PARAGRAPH.format("inner")) + "</w:tr></w:tbl>"
    inner += row.format(within, "<w:p/>") + "</w:tbl>"
    frame = "<w:tbl><w:tr>" + cell.format(PARAGRAPH.format("framed")) + "</w:tr></w:tbl>"
    assert text(body(inner + frame)) == "| a\\|b | c d |\n| --- | --- |\n| inner |  |\n\nframed"


def table(*rows: list[tuple[str, int]]) -> str:
    """A table of cells, each with its number of columns."""
    cells = (
        "".join(
            f'<w:tc><w:tcPr><w:gridSpan w:val="{span}"/></w:tcPr>{PARAGRAPH.format(words)}</w:tc>'
            for words, span in row
        )
        for row in rows
    )
    return "<w:tbl>" + "".join(f"<w:tr>{row}</w:tr>" for row in cells) + "</w:tbl>"


def test_cells_after_a_merged_cell_keep_their_columns() -> None:
    inner = table([("Stones", 3)], [("City", 1), ("Kind", 1), ("Sales", 1)], [("Total", 2), ("30", 1)])
    assert text(body(inner)) == (
        "| Stones |  |  |\n| --- | --- | --- |\n| City | Kind | Sales |\n| Total |  | 30 |"
    )
    assert text(body(table([("framed", 3)], [("too", 3)]))) == "framed\n\ntoo"


def test_merged_cells_fill_a_bounded_number_of_columns() -> None:
    assert text(body(table([("a", 10**9), ("b", 10**9), ("c", 1)]))).splitlines()[0].count("|") == 1003
    assert refused(body(table(*[[("a", 10**9)]] * 30_000))).code == "extraction_failed"


def test_rows_have_at_most_1000_cells() -> None:
    assert text(body(table([("a", 1)] * 1_000))).splitlines()[0].count("|") == 1_001
    assert refused(body(table([("a", 1)] * 1_001))).code == "extraction_failed"


def test_notes_headers_and_footers_follow_the_body_each_once() -> None:
    """Those of a first page and of even pages are often the same."""

    def part(name: str, inner: str) -> str:
        return f"<w:{name} {WORD}>{inner}</w:{name}>"

    note = f"<w:footnote><w:p/></w:footnote><w:footnote>{PARAGRAPH.format('a note')}</w:footnote>"
    parts = {
        "footnotes": part("footnotes", note),
        "header": part("hdr", PARAGRAPH.format("ACME")),
        "footer": part("ftr", PARAGRAPH.format("ACME") + PARAGRAPH.format("Page 1")),
    }
    assert text(body(PARAGRAPH.format("words"), parts=parts)) == (
        "words\n\n## Footnotes\n\na note\n\n## Headers and footers\n\nACME\n\nPage 1"
    )


def test_alternative_content_is_read_once_and_deleted_text_is_omitted() -> None:
    box = f"<w:r><w:pict><w:txbxContent>{PARAGRAPH.format('boxed')}</w:txbxContent></w:pict></w:r>"
    choice = (
        '<mc:AlternateContent xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006">'
        f"<mc:Choice>{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback></mc:AlternateContent>"
    )
    changed = (
        "<w:p><w:del><w:r><w:delText>old</w:delText><w:sym w:char='2264'/></w:r></w:del>"
        "<w:ins><w:r><w:t>new</w:t></w:r></w:ins>"
        "<w:moveFrom><w:r><w:t>moved</w:t></w:r></w:moveFrom>"
        "<w:hyperlink><w:r><w:t> linked</w:t></w:r></w:hyperlink>"
        "<w:r><w:tab/><w:t>tabbed</w:t><w:br/><w:t>below</w:t></w:r></w:p>"
    )
    assert text(body(f"<w:p>{choice}</w:p>{changed}")) == "boxed\n\nnew linked tabbed\nbelow"


def test_a_picture_is_read_as_its_description() -> None:
    drawing = '<w:r><w:drawing><docPr name="Picture 1" descr="a grey stone"/></w:drawing></w:r>'
    older = '<w:r><w:pict><shape alt="a map"/></w:pict></w:r>'
    assert text(body(f"<w:p><w:r><w:t>Here:</w:t></w:r>{drawing}{older}</w:p>")) == "Here: a grey stone a map"


def test_properties_of_before_a_tracked_change_do_not_count() -> None:
    """The former properties follow the current ones."""
    former = '<w:pPrChange w:id="1" w:author="a"><w:pPr>{}</w:pPr></w:pPrChange>'
    was_heading = former.format('<w:pStyle w:val="Heading1"/><w:outlineLvl w:val="0"/>')
    was_item = former.format('<w:numPr><w:ilvl w:val="1"/><w:numId w:val="1"/></w:numPr>')
    styles = (
        f'<w:styles {WORD}><w:style w:styleId="Plain"><w:name w:val="Plain"/>'
        f"<w:pPr>{was_heading}{was_item}</w:pPr></w:style>"
        '<w:style w:styleId="Heading2"><w:name w:val="heading 2"/></w:style></w:styles>'
    )
    inner = paragraph("text", was_heading) + paragraph("no item", was_item)
    inner += paragraph("Part", f'<w:pStyle w:val="Heading2"/>{was_heading}')
    inner += paragraph("plain", '<w:pStyle w:val="Plain"/>')
    assert text(body(inner, parts={"styles": styles})) == "text\n\nno item\n\n## Part\n\nplain"


@pytest.mark.parametrize(
    ("font", "code", "character"),
    [
        ("Symbol", "F06D", "μ"),
        ("Symbol", "00B3", "≥"),
        ("Symbol", "f0fe", "⎭"),
        ("Symbol", "2264", "≤"),
        ("Symbol", "F080", "�"),
        ("Wingdings", "F0FC", "✓"),
        ("Wingdings 2", "F050", "✓"),
        ("Wingdings", "F041", "�"),
        ("Segoe UI Emoji", "1F600", "😀"),
        ("Webdings", "F06D", "�"),
        ("Arial", "D800", "�"),
        ("Arial", "0", "�"),
        ("Arial", "FFFFFF", "�"),
        ("Arial", "no code", "�"),
    ],
)
def test_a_symbol_is_the_character_that_its_font_shows(font: str, code: str, character: str) -> None:
    inner = f'<w:p><w:r><w:t>5</w:t><w:sym w:font="{font}" w:char="{code}"/><w:t>g</w:t></w:r></w:p>'
    assert text(body(inner)) == f"5{character}g"


RAISED = '<w:rPr><w:vertAlign w:val="superscript"/></w:rPr>'


def run(words: str, align: str = "baseline") -> str:
    properties = RAISED.replace("superscript", align)
    return f'<w:r>{properties}<w:t xml:space="preserve">{words}</w:t></w:r>'


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (run("10") + run("6", "superscript") + run(" copies"), "10^6 copies"),
        (run("10") + run("-", "superscript") + run("1", "superscript") + run("2", "superscript"), "10^-12"),
        (run("2019") + run("3", "superscript") + "<w:r><w:t>, 4</w:t></w:r>", "2019^3, 4"),
        (run("CO") + run("2", "subscript"), "CO2"),
        (run("end.") + run("3", "superscript"), "end.3"),
        (run("end") + run(" 3", "superscript"), "end 3"),
        (f"<w:pPr>{RAISED}</w:pPr>{run('a')}<w:r><w:t>b</w:t></w:r>", "ab"),
        (f"{run('n')}<w:r>{RAISED}<w:sym w:font='Symbol' w:char='F0A2'/></w:r>", "n^′"),
        (f"{run('note')}<w:r>{RAISED}<w:footnoteReference/></w:r>{run('.')}", "note."),
    ],
)
def test_a_superscript_follows_a_caret(runs: str, expected: str) -> None:
    assert text(body(f"<w:p>{runs}</w:p>")) == expected


def equation(name: str, *terms: tuple[str, str]) -> str:
    inner = "".join(f"<m:{term}>{content}</m:{term}>" for term, content in terms)
    return (
        f'<m:{name} xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math">{inner}</m:{name}>'
    )


def term(words: str) -> str:
    return f"<m:r><m:t>{words}</m:t></m:r>"


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (equation("f", ("num", term("1")), ("den", term("2"))) + run(" of it"), "1/2 of it"),
        (run("2") + equation("f", ("num", term("1")), ("den", term("2"))), "2 1/2"),
        (equation("f", ("num", term("a+b")), ("den", term("2") + term("c"))), "(a+b)/(2c)"),
        (equation("sSup", ("e", term("x")), ("sup", term("−1"))), "x^−1"),
        (equation("sSup", ("e", term("x")), ("sup", term("n+1"))), "x^(n+1)"),
        (equation("nary", ("sub", ""), ("sup", ""), ("e", term("x"))), "x"),
        (
            equation("f", ("num", equation("f", ("num", term("1")), ("den", term("2")))), ("den", term("3"))),
            "(1/2)/3",
        ),
    ],
)
def test_fractions_and_exponents_of_equations_are_written_in_one_line(inner: str, expected: str) -> None:
    assert text(body(f"<w:p>{inner}</w:p>")) == expected


def with_chunks(chunks: Mapping[str, bytes]) -> bytes:
    """A document whose body consists of these parts, as converters from HTML write it."""
    package = "http://schemas.openxmlformats.org/package/2006/relationships"
    links = "".join(
        f'<Relationship Id="{name}" Type="{OFFICE}/aFChunk" Target="/word/{name}"/>' for name in chunks
    )
    inner = "".join(f'<w:altChunk r:id="{name}"/>' for name in chunks)
    more = {f"word/{name}": content for name, content in chunks.items()}
    more["word/_rels/document.xml.rels"] = (
        f'<Relationships xmlns="{package}">{links}</Relationships>'.encode()
    )
    return docx_package(f'<w:document {WORD} xmlns:r="{OFFICE}"><w:body>{inner}</w:body></w:document>', more)


def test_embedded_parts_are_read_and_unreadable_parts_are_named() -> None:
    page = "<h2>Quarry</h2><p>Granite caf=C3=A9</p>"
    archive = (
        "MIME-Version: 1.0\r\nContent-Type: multipart/related; boundary=b\r\n\r\n--b\r\n"
        "Content-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
        f"{page}\r\n--b\r\nContent-Type: image/png\r\n\r\nx\r\n--b--\r\n"
    )
    chunks = {
        "a.mht": archive.encode(),
        "b.html": b"<meta charset=utf-8><p>Feldspar</p>",
        "c.txt": b"# 7 zircons",
        "d.rtf": b"{\\rtf1 mica}",
        "e.html": b"<p>\xff</p>",
        "f.html": b"",
    }
    extraction = read_docx(with_chunks(chunks))
    assert extraction.pages[0].text == "## Quarry\n\nGranite café\n\nFeldspar\n\n\\# 7 zircons"
    assert extraction.remark == "Parts of other formats are not read: d.rtf, e.html, f.html"
    assert read_docx(with_chunks({"b.html": chunks["b.html"]})).remark is None


def test_a_part_in_another_format_that_is_missing_is_named() -> None:
    inner = '<w:altChunk r:id="rId9"/>'
    data = docx_package(f'<w:document {WORD} xmlns:r="{OFFICE}"><w:body>{inner}</w:body></w:document>')
    assert read_docx(data).remark == "Parts of other formats are not read: rId9"


@pytest.mark.parametrize(
    ("chosen", "shown", "expected"),
    [
        ('<w:result w:val="1"/>', "", "red"),
        ('<w:default w:val="2"/>', "", "blue"),
        ("", "", "green"),
        ('<w:result w:val="9"/>', "", ""),
        ('<w:result w:val="1"/>', "<w:r><w:t>red</w:t></w:r>", "red"),
    ],
    ids=["chosen", "default", "first", "none such", "shown too"],
)
def test_the_chosen_entry_of_a_drop_down_field_is_read(chosen: str, shown: str, expected: str) -> None:
    entries = "".join(f'<w:listEntry w:val="{colour}"/>' for colour in ("green", "red", "blue"))
    field = (
        f'<w:r><w:fldChar w:fldCharType="begin"><w:ffData><w:ddList>{chosen}{entries}</w:ddList></w:ffData>'
        f"</w:fldChar></w:r><w:r><w:instrText>FORMDROPDOWN</w:instrText></w:r>{shown}"
        '<w:r><w:fldChar w:fldCharType="end"/></w:r>'
    )
    inner = f"<w:p><w:r><w:t xml:space='preserve'>Colour: </w:t></w:r>{field}<w:r><w:t>.</w:t></w:r></w:p>"
    assert text(body(inner)) == f"Colour: {expected}."


@pytest.mark.parametrize(
    "inner",
    [PARAGRAPH.format(" "), '<w:p><w:r><w:drawing><docPr name="Picture 1"/></w:drawing></w:r></w:p>'],
    ids=["white space", "a picture alone"],
)
def test_a_docx_without_words_is_empty_and_no_error(inner: str) -> None:
    assert text(body(inner)) == ""


def large_body() -> bytes:
    return body(PARAGRAPH.format("a" * (101 << 20)))


def deep() -> bytes:
    tables = 1000
    inner = PARAGRAPH.format("x")
    return body("<w:tbl><w:tr><w:tc>" * tables + inner + "</w:tc></w:tr></w:tbl>" * tables)


@pytest.mark.process
@pytest.mark.parametrize(
    ("bomb", "code", "message"),
    [
        (large_body, "extraction_failed", "67,108,864 bytes of text"),
        (deep, "extraction_failed", "safe to read"),
    ],
)
def test_a_docx_bomb_is_refused(bomb: Callable[[], bytes], code: str, message: str) -> None:
    refused(bomb(), code, message)


@pytest.mark.process
def test_pictures_of_any_size_cost_nothing() -> None:
    data = docx_package(
        f"<w:document {WORD}><w:body>{PARAGRAPH.format('x')}</w:body></w:document>",
        {"word/media/x.png": bytes(300 << 20)},
    )
    assert text(data) == "x"


def test_the_example_is_read_whole() -> None:
    bees = read_docx((EXAMPLES / "honey-bees.docx").read_bytes())
    assert bees.title == "A Year with Honey Bees"
    assert "### How bees talk" in bees.pages[0].text
    assert "| Queen | 16 |" in bees.pages[0].text
