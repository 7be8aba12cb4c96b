"""XLSX: sheets and rows in display order, and limits of a workbook's cost."""

from __future__ import annotations

import time
from datetime import date, datetime, timedelta
from datetime import time as clock
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openpyxl import Workbook
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont

from kb_contracts.api.formats import FORMATS
from kb_readers import xlsx
from kb_readers.failures import ExtractionFailed
from kb_readers.model import Limits
from kb_readers.xlsx import formatter, read_xlsx
from tests.support.documents import rewritten, with_part
from tests.support.reading import only_text, read_path, refusal, saved

text = partial(only_text, read_xlsx)
refused = partial(refusal, read_xlsx)


SHEET = "xl/worksheets/sheet1.xml"
STRINGS = "xl/sharedStrings.xml"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'


def book_of(*rows: list[Any], name: str = "Stones") -> bytes:
    book = Workbook()
    sheet: Any = book.active
    sheet.title = name
    for row in rows:
        sheet.append(row)
    return saved(book)


ONE = book_of(["Stone", "Weight"], ["feldspar", 12.5])


def with_sheet(rows: str, before: str = "") -> bytes:
    xml = f'<?xml version="1.0"?><worksheet {MAIN}>{before}<sheetData>{rows}</sheetData></worksheet>'
    return with_part(ONE, SHEET, xml.encode())


def with_strings(cells: str, strings: str) -> bytes:
    link = f'<Relationship Id="rIdS" Type="{OFFICE}/sharedStrings" Target="sharedStrings.xml"/>'
    return rewritten(
        with_sheet(f"<row>{cells}</row>"),
        {
            "xl/_rels/workbook.xml.rels": lambda xml: xml.replace(
                b"</Relationships>", f"{link}</Relationships>".encode()
            )
        },
        {STRINGS: f"<sst {MAIN}>{strings}</sst>"},
    )


SHARED = with_strings('<c t="s"><v>0</v></c>', "<si><t>feldspar</t></si>")


def rows(data: bytes) -> list[str]:
    return [line for line in text(data).split("\n")[2:] if line and not line.startswith("| ---")]


def test_a_sheet_is_a_heading_and_a_table_of_its_rows() -> None:
    data = book_of(["Stone", "Weight"], ["feld|spar", 12.5], [], ["# no\nheading", None, "right"])
    assert text(data) == (
        "# Stones\n\n| Stone | Weight |\n| --- | --- |\n| feld\\|spar | 12.5 |\n\n"
        "| # no heading |  | right |\n| --- | --- | --- |"
    )


def test_sheets_come_in_the_order_of_their_tabs_and_hidden_ones_say_so() -> None:
    book = Workbook()
    first: Any = book.active
    first["A1"] = "first"
    book.create_sheet("Empty")
    book.create_sheet("Away")["A1"] = "hidden words"
    book["Away"].sheet_state = "veryHidden"
    book.create_sheet("Front", 0)["A1"] = "front"
    headings = [line for line in text(saved(book)).split("\n") if line.startswith("#")]
    assert headings == ["# Front", "# Sheet", "# Away (hidden sheet)"]


def test_values_are_shown_as_their_reader_sees_them() -> None:
    book = Workbook()
    sheet: Any = book.active
    values = [date(2024, 5, 17), datetime(2024, 5, 17, 13, 30), clock(4, 5), timedelta(hours=30), 0.07]
    sheet.append([*values, True])
    sheet.append([0.1 + 0.2, 1e6, 123456789012345, -5])
    sheet["E1"].number_format = "0.0%"
    assert rows(saved(book)) == [
        "| 2024-05-17 | 2024-05-17 13:30 | 04:05 | 30:00:00 | 7% | TRUE |",
        "| 0.3 | 1000000 | 123456789012345 | -5 |",
    ]


@pytest.mark.parametrize(
    ("number", "code", "raw", "shown"),
    [
        (0, "", "45429.5", "45429.5"),
        (14, "", "45429", "2024-05-17"),
        (22, "", "45429.520833333336", "2024-05-17 12:30"),
        (46, "", "1.25", "30:00:00"),
        (10, "", "0.125", "12.5%"),
        (164, "[$-409]d. mmm yyyy;@", "45429", "2024-05-17"),
        (164, "[h]:mm", "1.25", "30:00:00"),
        (164, '"day" 0', "45429", "day 45429"),
        (164, "[Red]0.00;[Black]0.00", "45429", "45429"),
        (164, "General", "45429", "45429"),
        (164, r"\d0_d", "45429", "d45429"),
        (164, "0.00E+00", "1e100", "1e+100"),
        (14, "", "1", "1900-01-01"),
        (14, "", "59", "1900-02-28"),
        (14, "", "60", "1900-02-28"),
        (14, "", "61", "1900-03-01"),
        (14, "", "-1", "-1"),
        (14, "", "1e300", "1e+300"),
        (14, "", "2958464.9999999", "9999-12-31"),
        (46, "", "1e300", "1e+300"),
    ],
)
def test_numbers_are_shown_by_their_number_format(number: int, code: str, raw: str, shown: str) -> None:
    """By its code if it has one, otherwise by its number; values out of range of dates stay numbers."""
    assert formatter(number, code, from_1904=False)(raw) == shown


ACCOUNTING = r'_("$"* #,##0.00_);_("$"* \(#,##0.00\);_("$"* "-"??_);_(@_)'


@pytest.mark.parametrize(
    ("code", "raw", "shown"),
    [
        ("00000", "1234", "01234"),
        ("00000", "1234.5", "1234.5"),
        ("00000", "123456", "123456"),
        ('"INV-"0000', "42", "INV-0042"),
        ('"INV-"0000', "-42", "-INV-0042"),
        ("000-00-0000", "12345678", "012-34-5678"),
        ("000-00-0000", "0.5", "0.5"),
        ("(000) 000-0000", "5551234567", "(555) 123-4567"),
        ("(000) 000-0000", "15551234567", "(1555) 123-4567"),
        (r"0\.000\.000", "1234567", "1.234.567"),
        ('#,##0.00 "kg"', "1234.5", "1234.5 kg"),
        ('General" kg"', "1234.5", "1234.5 kg"),
        ('0 "kg"', "12.5", "12.5 kg"),
        ('"$"#,##0.00', "1234.5", "$1234.5"),
        ('"$"#,##0.00', "-1234.5", "-$1234.5"),
        ("$#,##0", "7", "$7"),
        (r"#,##0.00\ [$€-407];[Red]\-#,##0.00\ [$€-407]", "-5", "-5 €"),
        ("[$-407]#,##0.00", "5", "5"),
        (ACCOUNTING, "5", "$5"),
        (ACCOUNTING, "-5", "-$5"),
        (ACCOUNTING, "0", "0"),
        ('"a;b"0', "7", "a;b7"),
        ('"debit" 0;"credit" 0', "-7", "-7"),
        ('"Yes";;"No"', "1", "1"),
        ('0.0,,"M"', "1200000", "1200000"),
        ("[<=9999999]000-0000;(000) 000-0000", "5551234567", "5551234567"),
        ("# ?/?", "3.5", "3.5"),
        ("0 kg", "5", "5"),
        ("0" * 256, "7", "7"),
        ('"', "7", "7"),
        ("[$", "7", "7"),
    ],
)
def test_the_zeros_of_a_code_and_the_unit_of_a_number_are_kept(code: str, raw: str, shown: str) -> None:
    """Other properties of a format, and parts for certain numbers only, are ignored."""
    assert formatter(164, code, from_1904=False)(raw) == shown


@given(st.text(st.sampled_from('0#?.,;"\\_*[]$€- ()<%dkEGeneral'), max_size=40), st.floats())
def test_any_number_format_puts_out_any_number(code: str, number: float) -> None:
    assert formatter(164, code, from_1904=False)(repr(number)).strip()


def test_days_may_be_counted_from_1904() -> None:
    data = with_sheet('<row r="1"><c r="A1" s="1"><v>43967</v></c></row>')
    styles = f'<styleSheet {MAIN}><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs></styleSheet>'
    book = b"<workbookPr date1904='1'/><sheets>"
    changed = rewritten(
        with_part(data, "xl/styles.xml", styles.encode()),
        {"xl/workbook.xml": lambda xml: xml.replace(b"<workbookPr/>", b"").replace(b"<sheets>", book)},
    )
    assert rows(changed) == ["| 2024-05-17 |"]


def test_shared_inline_and_rich_texts_are_texts() -> None:
    book = Workbook()
    sheet: Any = book.active
    sheet["A1"] = CellRichText("plain ", TextBlock(InlineFont(b=True), "bold"))
    shared = "<si><r><t>one </t></r><r><t>two</t></r><rPh><t>aloud</t></rPh></si>"
    inline = '<c t="inlineStr"><is><t>in_x000D_line</t><rPh><t>aloud</t></rPh></is></c>'
    by_hand = with_strings(f'<c t="s"><v>0</v></c>{inline}', shared)
    assert rows(saved(book)) == ["| plain bold |"]
    assert rows(by_hand) == ["| one two | in line |"]


def test_a_formula_is_its_result() -> None:
    data = with_sheet(
        '<row r="1"><c r="A1"><f>B1*2</f><v>84</v></c><c r="B1" t="str"><f>A1</f><v>forty-two</v></c>'
        '<c r="C1"><f>SUM(A1:B1)</f></c><c r="D1" t="e"><f>1/0</f><v>#DIV/0!</v></c>'
        '<c r="E1" t="b"><v>0</v></c><c r="F1" t="d"><v>2024-05-17T00:00:00</v></c></row>'
    )
    assert rows(data) == ["| 84 | forty-two | =SUM(A1:B1) | #DIV/0! | FALSE | 2024-05-17T00:00:00 |"]


def test_cells_without_places_follow_one_another() -> None:
    data = with_sheet("<row><c><v>1</v></c><c><v>2</v></c></row><row><c><v>3</v></c></row>")
    assert rows(data) == ["| 1 | 2 |", "| 3 |"]


def test_a_cell_of_an_empty_style_has_none() -> None:
    assert rows(with_sheet('<row r="1"><c r="A1" s=""><v>1</v></c></row>')) == ["| 1 |"]


def test_the_size_that_a_sheet_declares_costs_nothing() -> None:
    data = with_sheet(
        '<row r="1"><c r="A1"><v>1</v></c><c r="D1"><v>4</v></c></row>'
        '<row r="1048576"><c r="A1048576"><v>5</v></c><c r="XFD1048576"><v>6</v></c></row>',
        '<dimension ref="A1:XFD1048576"/>',
    )
    began = time.process_time()
    assert rows(data) == ["| 1 |  |  | 4 |", "| 5 | … 16382 empty … | 6 |"]
    assert time.process_time() - began < 2


def test_values_that_do_not_stand_below_the_names_of_their_columns_have_them() -> None:
    """Rows that differ only in their columns give different lines."""
    empty = [None] * 9
    data = book_of(
        ["Name", *empty, "Q10", "Q11", *empty, "x" * 50],
        ["Ann", *empty, "yes", "no"],
        ["Bob", *empty, None, "yes", *empty, "no"],
        ["Cy", *empty, None, None, None, "yes"],
        [],
        ["Dee", *empty, "yes"],
    )
    assert rows(data) == [
        f"| Name | … 9 empty … | Q10 | Q11 | … 9 empty … | {'x' * 50} |",
        "| Ann | … 9 empty … | yes | no |",
        f"| Bob | … 10 empty … | Q11: yes | … 9 empty … | {'x' * 40}: no |",
        "| Cy | … 12 empty … | yes |",
        "| Dee | … 9 empty … | yes |",
    ]


def test_a_workbook_of_more_cells_than_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlsx, "MOST_CELLS", 3)
    assert len(rows(book_of(["a", "b", None, "c"]))) == 1
    refused(book_of(["a", "b"], ["c", "d"]), "extraction_failed", "more than 3 cells")


def test_a_long_text_in_very_many_cells_is_refused() -> None:
    data = with_strings('<c t="s"><v>0</v></c>' * 100, f"<si><t>{'x' * (1 << 20)}</t></si>")
    refused(data, "extraction_failed", "bytes of text")


@pytest.mark.parametrize(
    "cell",
    [
        '<c r="A1" t="s"><v>7</v></c>',
        '<c r="A1" t="s"><v>-1</v></c>',
        '<c r="A1"><v>twelve</v></c>',
        '<c r="XFE1"><v>1</v></c>',
        '<c r="nowhere"><v>1</v></c>',
        '<c r="A1" s="x"><v>1</v></c>',
        f'<c r="A1" t="s"><v>{"9" * 5000}</v></c>',
    ],
)
def test_a_cell_that_makes_no_sense_is_damage(cell: str) -> None:
    refused(with_sheet(f'<row r="1">{cell}</row>'), "file_corrupt", "damaged")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (rewritten(ONE, {"xl/_rels/workbook.xml.rels": None}), "a sheet is missing"),
        (rewritten(SHARED, {STRINGS: None}), "sharedStrings.xml is missing"),
    ],
)
def test_an_xlsx_that_cannot_be_read_says_why(data: bytes, message: str) -> None:
    refused(data, "file_corrupt", message)


@pytest.mark.process
async def test_texts_that_fill_the_memory_cost_their_own_job(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(with_strings("", f"<si><t>{'x' * 40}</t></si>" * 1_000_000))
    with pytest.raises(ExtractionFailed) as failed:
        await read_path(path, FORMATS["xlsx"], Limits(memory_bytes=60 << 20))
    assert failed.value.code == "extraction_memory"
