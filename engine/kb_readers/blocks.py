"""Blocks of Markdown from paragraphs and cell ends, as Word files, old and new, and RTF have them."""

from __future__ import annotations

import re
from typing import TypeAlias

from kb_readers.failures import unsafe
from kb_readers.markdown import escaped, one_line, table

LEVELS = 6  # of headings
_DEEPEST_INDENT = 6
_MOST_COLUMNS = 1_000
_NUMBERED = re.compile(r"\w{1,9}[.)]")

_Row: TypeAlias = list[tuple[str, int]]  # cells, each with its column span


class Blocks:
    """Headings, paragraphs, lists and tables, in the order in which they are added."""

    def __init__(self, label: str) -> None:
        """`label`: the format in the messages of failures."""
        self._label = label
        self._blocks: list[list[str]] = []  # the lines of each block
        self._in_list = False
        self._cell: list[str] = []
        self._row: _Row = []
        self._rows: list[_Row] = []

    def add_paragraph(self, text: str, level: int = 0, mark: str = "", depth: int = 0) -> None:
        """Add a paragraph outside tables: a heading of a `level` from 1 to 6, or a list item with a mark.

        A heading keeps a mark that numbers it, and no bullet.
        """
        lines = [line for line in map(one_line, text.split("\n")) if line]
        if not lines:
            return
        self.end_table()
        if 0 < level <= LEVELS:
            numbered = [mark] if any(map(str.isalnum, mark)) else []
            self._add(f"{'#' * level} {' '.join([*numbered, *lines])}")
        elif mark:
            mark = mark if _NUMBERED.fullmatch(mark) else "-"
            self._add(f"{'  ' * min(depth, _DEEPEST_INDENT)}{mark} {' '.join(lines)}", is_item=True)
        else:
            self._add("\n".join(map(escaped, lines)))

    def add_block(self, block: str) -> None:
        """Add a finished block, such as one of a text box."""
        self.end_table()
        self._add(block)

    def add_to_cell(self, text: str) -> None:
        """Add a paragraph to the open cell."""
        if words := one_line(text):
            self._cell.append(words)

    def end_cell(self, span: int = 1) -> None:
        """End the open cell, which spans so many columns. Raises ExtractionFailed for too many cells."""
        if len(self._row) >= _MOST_COLUMNS:
            raise unsafe(self._label, f"more than {_MOST_COLUMNS:,} columns")
        self._row.append((" ".join(self._cell), span))
        self._cell = []

    def end_row(self) -> None:
        if self._cell:
            self.end_cell()
        if any(text for text, _ in self._row):
            self._rows.append(self._row)
        self._row = []

    def finished(self) -> list[str]:
        """Return all blocks, each a heading, a paragraph, a list or a table."""
        self.end_table()
        return ["\n".join(lines) for lines in self._blocks]

    def end_table(self) -> None:
        self.end_row()
        rows, self._rows = self._rows, []
        if max(map(len, rows), default=0) == 1:  # a frame around text
            for [(text, _)] in rows:
                self._add(escaped(text))
        elif rows:
            self._add(table(map(_columns, rows)))

    def _add(self, block: str, *, is_item: bool = False) -> None:
        if is_item and self._in_list:
            self._blocks[-1].append(block)
        else:
            self._blocks.append([block])
        self._in_list = is_item


def _columns(row: _Row) -> list[str]:
    """Return the cells of a row by column, with empty cells after a merged one."""
    columns: list[str] = []
    for text, span in row:
        columns += [text, *[""] * min(span - 1, _MOST_COLUMNS - len(columns))]
    return columns
