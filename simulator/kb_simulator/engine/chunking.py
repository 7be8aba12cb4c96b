"""A text into passages: whole paragraphs up to a bound, a new one at each heading, offsets exact.

For every passage `text[start:end]` is the passage, to the code point; passages are in order, do not
overlap, and leave out nothing but white space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from kb_readers import Page

MAX_CHARS = 1_000
"""Code points in a passage at the most."""

_BLANK_LINES = re.compile(r"\n[ \t\r]*(?=\n)")
_HEADING = re.compile(r"^ {0,3}(?P<marks>#{1,6})[ \t]+(?P<title>[^\s#][^\n]*)", re.MULTILINE)
_SENTENCE_END = re.compile(r"[.!?…。！？]\s")
_HEADING_CHARS = 200


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of the document's text. `start` is inclusive, `end` exclusive, in code points."""

    text: str
    start: int
    end: int
    page: int | None
    heading: str | None


@dataclass(frozen=True, slots=True)
class _Span:
    start: int
    end: int
    title: str | None  # of the heading that it begins with


PAGE_BREAK = "\n\n"
"""What stands between two pages in the document's text."""


def text_of(pages: Iterable[Page]) -> str:
    """The document's text, which offsets count in."""
    return PAGE_BREAK.join(page.text for page in pages)


def passages(pages: Iterable[Page], *, headings: bool) -> list[Passage]:
    """The passages of all pages; `headings`: lines with `#` are headings, and hold on over pages."""
    found: list[Passage] = []
    offset = 0
    heading: str | None = None
    for page in pages:
        for span in _spans(page.text, headings):
            heading = span.title or heading
            text = page.text[span.start : span.end]
            found.append(Passage(text, offset + span.start, offset + span.end, page.number, heading))
        offset += len(page.text) + len(PAGE_BREAK)
    return found


def _spans(text: str, headings: bool) -> Iterator[_Span]:
    """Neighbouring pieces put together while they fit; a heading begins a new one."""
    whole: _Span | None = None
    for piece in _pieces(text, headings):
        if whole is None:
            whole = piece
        elif piece.title or piece.end - whole.start > MAX_CHARS:
            yield whole
            whole = piece
        else:
            whole = _Span(whole.start, piece.end, whole.title)
    if whole is not None:
        yield whole


def _pieces(text: str, headings: bool) -> Iterator[_Span]:
    """Paragraphs, or parts of long ones, without white space at their ends, cut before each heading."""
    titles = {found.start(): _title(found) for found in _HEADING.finditer(text)} if headings else {}
    breaks = (found.start() for found in _BLANK_LINES.finditer(text))
    edges = sorted({0, len(text), *titles, *breaks})
    for begin, end in pairwise(edges):
        title = titles.get(begin)
        for start, stop in _cut(text, begin, end):
            yield _Span(start, stop, title)
            title = None  # of a paragraph in parts, the first one has it


def _title(found: re.Match[str]) -> str:
    return found["title"].rstrip("# \t\r")[:_HEADING_CHARS]


def _cut(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """A paragraph in parts that fit: cut after a sentence, else between words, else anywhere."""
    while True:
        while begin < end and text[begin].isspace():
            begin += 1
        if begin >= end:
            return
        stop = end if end - begin <= MAX_CHARS else _edge(text, begin, begin + MAX_CHARS)
        yield begin, begin + len(text[begin:stop].rstrip())
        begin = stop


def _edge(text: str, begin: int, limit: int) -> int:
    half = begin + MAX_CHARS // 2
    ends = [match.end() for match in _SENTENCE_END.finditer(text, half, limit)]
    if ends:
        return ends[-1]
    space = max(text.rfind(" ", half, limit), text.rfind("\n", half, limit))
    return space if space > 0 else limit
