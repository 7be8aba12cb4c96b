"""CSV and TSV: each non-empty row as a line of a table, under the names of the columns.

The separator is detected from the beginning of the file: tab, semicolon, bar or comma, whichever splits most
rows into the same number of values, and into most values; the comma comes last, since texts and numbers have
commas too. A first line `sep=;` names it. Values may be quoted, also after a space, and then contain
separators, line breaks and doubled quotation marks (RFC 4180).
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from io import StringIO
from itertools import islice

from msgspec.structs import replace

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import unsafe
from kb_readers.markdown import escaped, one_line, table_row, table_rule
from kb_readers.model import DEFAULT_LIMITS, Extraction, TextBudget
from kb_readers.text import decode_marked

MOST_COLUMNS = 16_384  # maximum columns of a row; the same as for workbooks

_FORMAT = FORMATS["csv"]
_SEPARATORS = "\t;|,"
_GIVEN_SEPARATOR = re.compile(r"""sep=([^\r\n"])(?:\r\n?|\n)""", re.IGNORECASE)  # a line for Excel
_SAMPLE_ROWS = 50
_SAMPLE_CHARACTERS = 256 * 1024


def read_delimited(data: bytes) -> Extraction:
    """Return the whole file as one page without a number. Raises ExtractionFailed.

    The encoding is UTF-8, or that of a byte order mark. Without a separator the lines are kept as they are.
    """
    text = decode_marked(data)
    csv.field_size_limit(DEFAULT_LIMITS.text_bytes)  # global, but this process reads one file only
    lines: list[str] = []
    budget = TextBudget()
    widths: list[int] = []
    for line in _lines(text, widths):
        budget.spend(line)
        lines.append(line)
    extraction = Extraction.of_text(_FORMAT, "\n".join(lines).strip(), None)
    return replace(extraction, columns=max(widths, default=None))


def separator_of(text: str) -> str | None:
    """Return the separator that splits most rows equally, then into most values; None without any."""
    found: dict[str, tuple[float, int]] = {}
    for separator in _SEPARATORS:
        rows = islice(_rows(text[:_SAMPLE_CHARACTERS], separator), _SAMPLE_ROWS)
        lengths = Counter(len(row) for row in rows if row)
        for values, count in lengths.most_common(1):
            if values > 1:
                found[separator] = (count / lengths.total(), values)
    return max(found, key=lambda separator: found[separator], default=None)


def _rows(text: str, separator: str) -> Iterator[Sequence[str]]:
    """Yield the rows. Where a quotation mark is not closed, its line is read without quotation marks.

    Linear: a line after an open mark opens no further one, unless it closes the first.
    """
    reading = partial(csv.reader, delimiter=separator, skipinitialspace=True)
    lines = list(StringIO(text, newline=""))
    start = 0
    while start < len(lines):
        reader = reading(map(lines.__getitem__, range(start, len(lines))), strict=True)
        read = 0
        try:
            for row in reader:
                yield row
                read = reader.line_num
            return
        except csv.Error:
            is_whole = reader.line_num == read + 1  # characters after a closing mark
            start += read
        yield from reading([lines[start]], quoting=csv.QUOTE_MINIMAL if is_whole else csv.QUOTE_NONE)
        start += 1


def _lines(text: str, widths: list[int]) -> Iterator[str]:
    """Yield a table for each run of non-empty rows; a row of one value above it is a line by itself.

    The number of columns of each table is appended to `widths`, unless the file names its separator.
    """
    if given := _GIVEN_SEPARATOR.match(text):
        text = text[given.end() :]
    separator = given[1] if given else separator_of(text)
    if separator is None:
        yield from map(escaped, text.splitlines())
        return
    is_table = False
    for row in _rows(text, separator):
        values = [one_line(value) for value in row]
        if len(values) > MOST_COLUMNS:
            raise unsafe(_FORMAT.label, f"more than {MOST_COLUMNS:,} columns")
        while values and not values[-1]:
            values.pop()
        if not values:
            is_table = False
        elif is_table:
            yield table_row(values)
        elif len(values) == 1:
            yield escaped(values[0])
        else:
            is_table = True
            if given is None:
                widths.append(len(values))
            yield from ("", table_row(values), table_rule(len(values)))
