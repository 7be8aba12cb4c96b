"""OpenDocument: texts, spreadsheets and presentations, without trust in the file."""

from __future__ import annotations

from functools import partial

import pytest

from kb_readers import xml_files
from kb_readers.opendocument import read_opendocument
from tests.support.documents import ODF_NAMESPACES, encrypted, odf
from tests.support.reading import Read, only_text, reader_of, refusal

read_odt, read_ods, read_odp = (reader_of(read_opendocument, name) for name in ("odt", "ods", "odp"))
refused = partial(refusal, read_odt)


def row(*cells: str, repeated: int = 1) -> str:
    inside = "".join(f"<table:table-cell><text:p>{cell}</text:p></table:table-cell>" for cell in cells)
    filler = '<table:table-cell table:number-columns-repeated="16000"/>'
    return f'<table:table-row table:number-rows-repeated="{repeated}">{inside}{filler}</table:table-row>'


def sheet(*rows: str) -> str:
    return f'<table:table table:name="Sums">{"".join(rows)}</table:table>'


def test_an_odt_keeps_headings_lists_tables_and_notes_in_order() -> None:
    note = "<text:note><text:note-body><text:p>of quartz</text:p></text:note-body></text:note>"
    body = (
        "<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>"
        '<text:h text:outline-level="2">Hard</text:h>'
        f"<text:p>Granite<text:s/>is{note} grey.</text:p>"
        "<text:list><text:list-item><text:p>chalk</text:p></text:list-item></text:list>"
        f"{sheet(row('stone', 'kg'), row('granite', '12 kg'))}"
    )
    meta = f"<office:meta {ODF_NAMESPACES}><dc:title>Of Stones</dc:title></office:meta>"
    found = read_odt(odf("text", body, meta=meta))
    assert found.title == "Of Stones"
    assert found.pages[0].text == (
        "## Hard\n\nGranite is (of quartz) grey.\n\n- chalk\n\n"
        "| stone | kg |\n| --- | --- |\n| granite | 12 kg |"
    )


def test_a_numbered_list_of_an_odt_keeps_its_numbers() -> None:
    """Also the second list that continues it; a second paragraph of an item has none."""

    def items(*texts: str, more: str = "") -> str:
        inside = "".join(f"<text:list-item><text:p>{text}</text:p>{more}</text:list-item>" for text in texts)
        return f"{inside}</text:list>"

    levels = (
        '<text:list-level-style-number text:level="1" text:num-format="1"/>'
        '<text:list-level-style-number text:level="2" text:num-format="i" text:start-value="4"/>'
        '<text:list-level-style-bullet text:level="3"/>'
    )
    styles = (
        f'<office:s {ODF_NAMESPACES}><text:list-style text:name="L">{levels}</text:list-style></office:s>'
    )
    body = (
        f'<text:list text:style-name="L">{items("a", "b")}'
        f'<text:list text:style-name="L" text:continue-numbering="true">'
        f"{items('c', more='<text:p>more</text:p><text:list>' + items('d'))}"
        f'<text:list text:style-name="L"><text:list-item text:start-value="99999999"><text:p>e</text:p>'
        "</text:list-item></text:list>"
    )
    text = only_text(read_odt, odf("text", body, styles=styles))
    assert text.split("\n\n") == ["1. a", "2. b", "3. c", "  more", "  iv. d", "99999999. e"]


def test_an_ods_leaves_out_the_empty_grid_and_repeats_equal_rows() -> None:
    data = odf("spreadsheet", sheet(row("stone"), row("a|b", repeated=2), row(repeated=1_000_000)))
    assert only_text(read_ods, data) == "# Sums\n\n| stone |\n| --- |\n| a\\|b |\n| a\\|b |"


def test_a_slide_of_an_odp_is_a_page() -> None:
    pages = "".join(f"<draw:page><text:p>{text}</text:p></draw:page>" for text in ("Hard", "Soft"))
    assert [(page.number, page.text) for page in read_odp(odf("presentation", pages)).pages] == [
        (1, "Hard"),
        (2, "Soft"),
    ]


MANIFEST = '<m><file-entry><encryption-data checksum="x"/></file-entry></m>'


@pytest.mark.parametrize(
    ("data", "code", "word"),
    [
        (b"", "file_corrupt", "damaged"),
        (odf("spreadsheet", ""), "file_corrupt", "opendocument.spreadsheet"),
        (odf("text", "", META_INF__manifest=MANIFEST), "file_encrypted", "password"),
        (encrypted(odf("text", ""), "content.xml"), "file_encrypted", "password"),
        (odf("text", "<text:p>"), "file_corrupt", "damaged"),
        (odf("text", "<text:p>" * 2_000), "extraction_failed", "deep"),
    ],
)
def test_a_damaged_or_locked_odt_is_refused_with_its_reason(data: bytes, code: str, word: str) -> None:
    refused(data, code, word)


@pytest.mark.parametrize("read", [read_odt, read_ods])
def test_a_sheet_of_repeated_cells_is_bounded(read: Read) -> None:
    cell = '<table:table-cell table:number-columns-repeated="99999999"><text:p>x</text:p></table:table-cell>'
    many = f'<table:table-row table:number-rows-repeated="99999999">{cell * 9}</table:table-row>'
    kind = "text" if read is read_odt else "spreadsheet"
    assert "cells" in refusal(read, odf(kind, sheet(many))).message


def test_one_wide_row_does_not_widen_the_others() -> None:
    cell = "<table:table-cell><text:p>x</text:p></table:table-cell>"
    wide = (
        f'<table:table-row><table:table-cell table:number-columns-repeated="9000"/>{cell}</table:table-row>'
    )
    data = odf("spreadsheet", sheet(wide, f"<table:table-row>{cell}</table:table-row>" * 500))
    assert len(only_text(read_ods, data)) < 200_000


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml_files, "MOST_UNPACKED_BYTES", 1 << 16)
    assert "unpacks" in refused(odf("text", f"<text:p>{'x' * (1 << 17)}</text:p>")).message
