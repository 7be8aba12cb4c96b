"""reStructuredText: titles become Markdown headings; nothing is run or included."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kb_contracts.api.formats import FORMATS
from kb_readers.markdown import escaped, title_of
from kb_readers.model import Extraction
from kb_readers.text import decode, encoding_by_mark

_LINE_OF_MARKS = re.compile(r"([!-/:-@\[-`{-~])\1*")
_DEEPEST = 6


def read_rst(data: bytes) -> Extraction:
    """Return the whole file as one page without a number. Raises ExtractionFailed "undecodable_text"."""
    text = "\n".join(_lines(decode(data, encoding_by_mark(data) or "utf-8").splitlines()))
    return Extraction.of_text(FORMATS["rst"], text, title_of(text))


def _lines(lines: list[str]) -> Iterator[str]:
    """Yield the lines. Adornment styles (below, or above and below) get levels in order of appearance."""
    levels: list[tuple[str, bool]] = []

    def heading(title: str, mark: str, *, is_framed: bool) -> str:
        if (kind := (mark[0], is_framed)) not in levels:
            levels.append(kind)
        return f"{'#' * min(levels.index(kind) + 1, _DEEPEST)} {title.strip()}"

    place = 0
    while place < len(lines):
        first, second, third = (line.rstrip() for line in (*lines[place : place + 3], "", "")[:3])
        if _marks(first) and third == first and _fits(second, first):
            yield heading(second, first, is_framed=True)
            place += 3
        elif not first[:1].isspace() and not _marks(first) and _marks(second) and _fits(first, second):
            yield heading(first, second, is_framed=False)
            place += 2
        else:
            yield escaped(lines[place])
            place += 1


def _marks(line: str) -> bool:
    return _LINE_OF_MARKS.fullmatch(line) is not None


def _fits(title: str, marks: str) -> bool:
    return bool(title.strip()) and len(title.strip()) <= len(marks)
