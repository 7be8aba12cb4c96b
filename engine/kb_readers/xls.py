"""Excel files from before 2007 sheet by sheet, in the form of XLSX. The package xlrd reads them.

Values appear as in XLSX. Results of formulas are those in the file; macros, charts and comments are not read.
"""

from __future__ import annotations

from io import TextIOBase
from typing import Any

import xlrd

from kb_contracts.api.formats import FORMATS
from kb_readers.disguised import read_disguised
from kb_readers.failures import ExtractionFailed, damaged, locked
from kb_readers.markdown import one_line
from kb_readers.model import Extraction
from kb_readers.ole import Compound
from kb_readers.xlsx import Formatter, SheetText, formatter

_FORMAT = FORMATS["xls"]


def read_xls(data: bytes) -> Extraction:
    """Return the whole workbook as one page without a number. Raises ExtractionFailed."""
    if (other := read_disguised(data, _FORMAT)) is not None:
        return other
    file = Compound(data, _FORMAT)
    text = SheetText(_FORMAT.label)
    try:
        book = xlrd.open_workbook(
            file_contents=data, logfile=_Silence(), formatting_info=True, ragged_rows=True, on_demand=True
        )
        formatters = [_formatter(book, each.format_key) for each in book.xf_list]
        for number in range(book.nsheets):
            _read_sheet(book.sheet_by_index(number), formatters, text)
            book.unload_sheet(number)
    except (ExtractionFailed, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - xlrd raises any error for a damaged file
        if "encrypted" in str(error):
            raise locked(_FORMAT.label) from None
        raise damaged(_FORMAT.label, str(error) or type(error).__name__) from None
    return Extraction.of_text(_FORMAT, "\n".join(text.lines), file.title)


class _Silence(TextIOBase):
    """Discards the library's warnings."""

    def write(self, text: str, /) -> int:
        return len(text)


def _formatter(book: Any, key: int) -> Formatter:
    found = book.format_map.get(key)
    return formatter(key, found.format_str if found else "", from_1904=book.datemode == 1)


def _read_sheet(sheet: Any, formatters: list[Formatter], text: SheetText) -> None:
    text.begin(one_line(sheet.name), is_hidden=sheet.visibility != 0)
    for row in range(sheet.nrows):
        values = {}
        for column, cell in enumerate(sheet.row(row), start=1):
            if value := _value(cell, formatters).replace("\0", ""):
                values[column] = value
        if values:
            text.add(row + 1, values)


def _value(cell: Any, formatters: list[Formatter]) -> str:
    match cell.ctype:
        case xlrd.XL_CELL_TEXT:
            return one_line(str(cell.value))
        case xlrd.XL_CELL_NUMBER | xlrd.XL_CELL_DATE:
            return formatters[int(cell.xf_index)](f"{cell.value:.17g}")
        case xlrd.XL_CELL_BOOLEAN:
            return "TRUE" if cell.value else "FALSE"
        case xlrd.XL_CELL_ERROR:
            return str(xlrd.error_text_from_code.get(cell.value, ""))
        case _:
            return ""
