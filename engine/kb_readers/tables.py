"""Tables in Markdown text, for passages that begin below a header row."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

# The line below the header row of a table: bars and dashes; and the first line after the table.
_RULE = re.compile(r"^[|:\- \t\r]++$", re.MULTILINE)
_NO_ROW = re.compile(r"^[^|\n]*+$", re.MULTILINE)
_BAR = re.compile(r"(?<!\\)\|")
_LONGEST_COLUMNS = 400  # maximum length of the names in a header row, in characters
_FARTHEST = 16_000
"""Maximum distance from the beginning of a row to a place whose column is counted, in characters."""


class Table(NamedTuple):
    """A table of a page, including its header row."""

    start: int
    rule: int  # start of the line below the header row
    end: int


def tables_in(text: str) -> Iterator[Table]:
    """Yield the tables of a page in order. Linear in the length of the text."""
    end = 0
    for rule in _RULE.finditer(text):
        if rule.start() <= end or "|" not in rule[0] or "-" not in rule[0]:
            continue
        start = text.rfind("\n", end, rule.start() - 1) + 1 or end
        if "|" not in text[start : rule.start()]:
            continue
        behind = _NO_ROW.search(text, rule.end() + 1)
        end = behind.start() if behind else len(text)
        yield Table(start, rule.start(), end)


def table_at(tables: Sequence[Table], place: int) -> Table | None:
    last = bisect_right(tables, place, key=lambda table: table.start) - 1
    return tables[last] if last >= 0 and place < tables[last].end else None


def header_at(text: str, place: int, tables: Sequence[Table]) -> str:
    """Return the header row for a passage that begins at `place` below it, or an empty text: the names from
    the column of the place on, cut at a maximum length.

    It is unknown if the passage begins more than `_FARTHEST` after the beginning of its row.
    """
    table = table_at(tables, place)
    if table is None or place < table.rule:
        return ""
    row = text.rfind("\n", max(0, place - _FARTHEST), place) + 1
    if not row:
        return ""
    first = 0
    if row not in (place, table.rule):
        bars = text.count("|", row, place + 1) - text.count("\\|", row, place + 1)
        first = bars - 1 if text[row] == "|" else bars
    names = columns(text, table, first)
    return f"| {names} |" if names else ""


def columns(text: str, table: Table, first: int = 0) -> str:
    """Return the names in the header row from column `first` on, cut at a maximum length."""
    header = text[table.start : min(table.rule, table.start + _FARTHEST)].strip()
    header = header.removeprefix("|").removesuffix("|")
    if first:
        bar = next(islice(_BAR.finditer(header), first - 1, None), None)
        header = header[bar.end() :] if bar else ""
    names = " ".join(header[: 2 * _LONGEST_COLUMNS].split())
    if not names.strip("|:- "):
        return ""
    return names if len(names) <= _LONGEST_COLUMNS else names[: _LONGEST_COLUMNS - 1] + "…"
