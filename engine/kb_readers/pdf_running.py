"""Running heads, page numbers and stamps of a PDF: lines that come back from page to page.

A line is one if it stands alone at the upper or lower edge, or is not level, and on two further pages within
reach of each other there is the same line, but for a number that grows with the page. It is kept where it
occurs first, unless it is a page number alone. A page of such lines only stays as it is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from kb_readers.pdf_lines import Line

_EDGE_LINES = 3  # maximum lines of a running head
_APART = 1.4  # minimum step between a running head and the text, in steps from line to line
_LEAST_PAGES = 3
_REACH = 2  # pages: left and right pages may have heads of their own
_LONGEST = 200
_MOST_NUMBERS = 6  # in a line
_NUMBER = re.compile(r"\d{1,6}|\b[ivxlc]{1,9}\b|\b[IVXLC]{1,9}\b")
_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
_PAGE_NUMBER = re.compile(
    r"\W*(?:(?:page|pages|p|pp|of|seite|s|von|pagina|página|pág|de|di|du|sur|страница|стр|из|strona|z|"
    r"sida|av|side|af|第|页|頁|共|ページ|صفحة|من|صفحه|از|\d++|[ivxlc]++)\W*+)++",
    re.IGNORECASE,
)


class _Place(NamedTuple):
    """A line by its page and its number there, from 0."""

    page: int
    line: int


def without_running(pages: Sequence[Sequence[Line]]) -> list[list[Line]]:
    """Return the lines of each page without the repeated ones."""
    found: defaultdict[tuple[str, str], list[_Place]] = defaultdict(list)
    for page, lines in enumerate(pages):
        for edge, line in _candidates(lines):
            for key in _keys(lines[line].text, page):
                found[edge, key].append(_Place(page, line))
    repeated: set[_Place] = set()
    for places in found.values():
        for chain in _chains(places):
            text = pages[chain[0].page][chain[0].line].text
            repeated.update(chain[0 if _PAGE_NUMBER.fullmatch(text) else 1 :])
    kept = (
        [line for number, line in enumerate(lines) if (page, number) not in repeated]
        for page, lines in enumerate(pages)
    )
    return [some or list(lines) for some, lines in zip(kept, pages, strict=True)]


def _candidates(lines: Sequence[Line]) -> Iterator[tuple[str, int]]:
    """Yield the edge and the number of each line that may run on."""
    level = [number for number, line in enumerate(lines) if not line.turn]
    yield from (("turned", number) for number, line in enumerate(lines) if line.turn)
    steps = [step for a, b in pairwise(level) if (step := lines[a].last_base - lines[b].first_base) > 0]
    apart = _APART * median(steps or [0.0])
    yield from (("top", number) for number in _edge(lines, level, apart))
    yield from (("bottom", number) for number in _edge(lines, level[::-1], apart))


def _edge(lines: Sequence[Line], inwards: Sequence[int], apart: float) -> Sequence[int]:
    """Return the lines before the first wide step; none if there is none, or if they are rows of a table."""
    for count, (here, further) in enumerate(pairwise(inwards[: _EDGE_LINES + 1]), 1):
        if len(lines[here].cells) == len(lines[further].cells) > 1:
            return ()
        upper, lower = sorted((here, further))
        if lines[upper].last_base - lines[lower].first_base > apart:
            return inwards[:count]
    return ()


def _keys(text: str, page: int) -> Iterator[str]:
    """Yield the text, and the text with each of its numbers counted from that of the page."""
    if len(text) > _LONGEST:
        return
    yield text
    for number in list(_NUMBER.finditer(text))[:_MOST_NUMBERS]:
        value = int(number[0]) if number[0].isdigit() else _value(number[0].lower())
        yield f"{text[: number.start()]}\0{value - page}\0{text[number.end() :]}"


def _value(roman: str) -> int:
    values = [_ROMAN[letter] for letter in roman]
    return sum(-a if a < b else a for a, b in pairwise([*values, 0]))


def _chains(places: Iterable[_Place]) -> Iterator[list[_Place]]:
    """Yield the runs of places on pages within reach of each other."""
    chain: list[_Place] = []
    for place in places:
        if chain and place.page - chain[-1].page > _REACH:
            if len({each.page for each in chain}) >= _LEAST_PAGES:
                yield chain
            chain = []
        chain.append(place)
    if len({each.page for each in chain}) >= _LEAST_PAGES:
        yield chain
