"""The lines of a PDF page that are seen on it, with their place in reading direction.

PDFium gives the text of a page in drawing order, and places in the page's own coordinates. Text off the
visible part of the page is left out: printers' marks, and the other page of a spread. The place of a line is
taken along its own direction, so that pages which are turned for display, and lines that run upwards, have
lines below each other too.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, takewhile
from operator import itemgetter
from typing import Any, NamedTuple

from pypdfium2 import raw

from kb_readers.pdf_bidi import Place, has_right_to_left, is_from_right, logical, logical_order, seen_order

_CELL_GAP = 1.2  # minimum gap between table columns, in sizes of the text: wider than in justified lines
_LEADERS = re.compile(r"(?:\s?\.){4,}")  # the dots of a table of contents
_JOINED = "\ufffe"  # PDFium's mark for a removed hyphen
_COMPOUND = re.compile("([^\\W\\d_])\ufffe([^\\W\\d_])")
# PDFium's mark of a joined word, characters that are no text, and ligatures of one character.
_CLEANED = {0xFFFE: None, 0xFFFF: None, 0xAD: None, **dict.fromkeys([*range(9), *range(11, 32)])} | {
    0xFB00 + number: letters for number, letters in enumerate(("ff", "fi", "fl", "ffi", "ffl", "st", "st"))
}
# Ligatures and the dash of TeX's T1 encoding, which fonts without other names for them have as characters.
_T1_LIGATURES = {0x1B: "ff", 0x1C: "fi", 0x1D: "fl", 0x1E: "ffi", 0x1F: "ffl"}
_T1_LIGATURE = re.compile("(?<=[a-z])[\x1b-\x1f]|[\x1b-\x1f](?=[a-z])")
_T1_DASH = re.compile("(?<=[0-9A-Za-z])\x15(?=[0-9A-Za-z])")
_BOLD = re.compile(rb"bold|black|heavy|demi|[a-z]{2}bx\d|-medi\b|[-,]bd", re.IGNORECASE)
_FONT_NAME_BYTES = 128
_ANOTHER_SIZE = 1.6  # minimum ratio of sizes of two texts in one line
_FEWEST_LETTERS = 4  # of a text in a line: superscripts and initials have fewer
_MOST_SLANT = 5  # of a level line, in degrees: scanned pages lie askew


class Line(NamedTuple):
    """One line of a page; lengths in points, along and across the direction of the line.

    They are negative along a line of right-to-left script, so that they grow in reading direction.
    """

    cells: list[str]  # its text, split at wide gaps
    size: float
    turn: int  # direction in degrees, as displayed: 0 if it is level, from left to right
    left: float
    right: float
    first_base: float
    """Baseline of its first character; the last one is lower if a hyphenated word joined two lines."""
    last_base: float
    is_bold: bool

    @property
    def text(self) -> str:
        return " ".join(self.cells)


def lines_of(page: Any, textpage: Any, text: str) -> list[Line]:
    """Return the lines of `text`, the whole text of the page, without those that are not seen."""
    seen = _Characters(page, textpage)
    found: list[Line] = []
    for line, units in _with_units(text):
        found += seen.lines(line, units)
    level = [line for line in found if line.text and not line.turn]
    turned = [line for line in found if line.text and line.turn]
    # Move a footer that was drawn first to the end, and a header that was drawn last to the start.
    header: list[Line] = []
    if len(level) > 1 and level[-1].last_base > max(line.first_base for line in level[:-1]):
        header = [level.pop()]
    feet = sum(1 for _ in takewhile(lambda line: abs(line.first_base - level[0].first_base) < 2, level))
    if len(level) > feet and level[0].first_base < min(line.last_base for line in level[feet:]):
        level = level[feet:] + level[:feet]
    return [*header, *level, *turned]


def logical_numbers(page: Any, textpage: Any, most: int) -> list[int]:
    """Return PDFium's numbers of the first characters of a page, in logical order."""
    count = min(most, textpage.count_chars())
    text = textpage.get_text_range(0, count) if count > 0 else ""
    if not has_right_to_left(text):
        return list(range(count))
    seen = _Characters(page, textpage)
    return [number for line, units in _with_units(text) for number in seen.numbers(line, units)]


def _with_units(text: str) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield lines with the number of each character in UTF-16 code units, without empty lines."""
    start = 0  # of the line
    for line in text.split("\r\n"):
        units: Sequence[int] = range(start, start + len(line))
        if not line.isascii() and max(line) > "\uffff":
            units = list(accumulate((1 + (each > "\uffff") for each in line), initial=start))
        if line.strip():
            yield line, units
        start = (units[-1] + 1 + (line[-1] > "\uffff") if line else start) + 2


class _Place(NamedTuple):
    """The part of the file's surface in which a character stands."""

    is_seen: bool
    turn: int


class _Characters:
    """The characters of a page, by their number."""

    def __init__(self, page: Any, textpage: Any) -> None:
        self._textpage = textpage.raw
        self._left, self._bottom, self._right, self._top = page.get_bbox()
        self._rotation = page.get_rotation()
        self._font_name = ctypes.create_string_buffer(_FONT_NAME_BYTES)

    def lines(self, line: str, units: Sequence[int]) -> Iterator[Line]:
        """Yield the seen parts of a line of text, which may run off the page, or into a stamp."""
        first, last = len(line) - len(line.lstrip()), len(line.rstrip()) - 1
        place = self._place(units[first])
        if place == self._place(units[last]):
            if place.is_seen:
                yield from self._by_size(line, units, place.turn)
            return
        words = ((self._place(units[word.start()]), word) for word in re.finditer(r"\S+", line))
        for place, group in groupby(words, key=itemgetter(0)):
            if place.is_seen:
                part = [word for _, word in group]
                span = slice(part[0].start(), part[-1].end())
                yield from self._by_size(line[span], units[span], place.turn)

    def _by_size(self, line: str, units: Sequence[int], turn: int) -> Iterator[Line]:
        """Yield the line; two, if a text of another size stands beside its first words."""
        size = self._size(units[len(line) - len(line.lstrip())])
        if size != self._size(units[len(line.rstrip()) - 1]):
            words = list(re.finditer(r"\S+", line))
            sizes = [self._size(units[word.start()]) for word in words]
            apart = next((at for at, each in enumerate(sizes) if _differ(each, sizes[0])), 0)
            split = words[apart].start()
            if min(map(_letters, (line[:split], line[split:]))) >= _FEWEST_LETTERS:
                yield self._line(line[:split], units[:split], turn, sizes[0])
                line, units, words, sizes = line[split:], units[split:], words[apart:], sizes[apart:]
            weights: Counter[float] = Counter()
            for word, each in zip(words, sizes, strict=True):
                weights[each] += len(word[0])
            size = max(weights, key=lambda each: weights[each])
        yield self._line(line, units, turn, size)

    def _size(self, unit: int) -> float:
        matrix = self._matrix(unit)
        points = raw.FPDFText_GetFontSize(self._textpage, self._number(unit))
        return float(points * math.hypot(matrix.c, matrix.d))

    def _is_bold(self, unit: int) -> bool:
        name = self._font_name
        count = raw.FPDFText_GetFontInfo(self._textpage, self._number(unit), name, _FONT_NAME_BYTES, None)
        return 0 < count <= _FONT_NAME_BYTES and bool(_BOLD.search(name.value))

    def numbers(self, line: str, units: Sequence[int]) -> list[int]:
        """Return PDFium's numbers of the characters of a line in logical order."""
        first = units[len(line) - len(line.lstrip())]
        angle, size = self._place(first).turn + self._rotation, self._size(first)
        line, units = self._as_seen(line, units, angle, size)
        if not _is_reordered(line):
            return list(map(self._number, units))
        cells, from_right = self._cells(line, units, angle, size), is_from_right(line)
        return [
            self._number(units[cell.start + index])
            for cell in (reversed(cells) if from_right else cells)
            for index in logical_order(line[cell], from_right=_direction(line[cell], from_right))
        ]

    def _as_seen(self, line: str, units: Sequence[int], angle: int, size: float) -> tuple[str, Sequence[int]]:
        """Return a line with right-to-left script as it is seen, from left to right."""
        if not _is_reordered(line):
            return line, units
        places = [Place(_turned(*self._origin(unit), angle)[0], *self._extent(unit, angle)) for unit in units]
        order = seen_order(line, places, size)
        return "".join(line[index] for index in order), [units[index] for index in order]

    def _cells(self, line: str, units: Sequence[int], angle: int, size: float) -> list[slice]:
        cells, begin = [], 0
        for gap in re.finditer(" +", line):
            if not gap.start() or gap.end() == len(line):
                continue
            before, after = units[gap.start() - 1], units[gap.end()]
            if self._extent(after, angle)[0] - self._extent(before, angle)[1] > _CELL_GAP * size:
                cells.append(slice(begin, gap.start()))
                begin = gap.end()
        return [*cells, slice(begin, len(line))]

    def _line(self, line: str, units: Sequence[int], turn: int, size: float) -> Line:
        angle = turn + self._rotation
        line, units = self._as_seen(line, units, angle, size)
        first, last = units[len(line) - len(line.lstrip())], units[len(line.rstrip()) - 1]
        left, right = self._extent(first, angle)[0], self._extent(last, angle)[1]
        cells = [line[cell] for cell in self._cells(line, units, angle, size)]
        if _is_reordered(line):
            from_right = is_from_right(line)
            cells = [logical(cell, from_right=_direction(cell, from_right)) for cell in cells]
            if from_right:
                cells.reverse()
                first, last, left, right = last, first, -right, -left
        cleaned = (_COMPOUND.sub(_with_hyphen, _with_ligatures(cell)).translate(_CLEANED) for cell in cells)
        cells = [" ".join(_LEADERS.sub(" … ", cell).split()) for cell in cleaned]
        return Line(
            list(filter(None, cells)),
            size,
            turn,
            left,
            right,
            _turned(*self._origin(first), angle)[1],
            _turned(*self._origin(last), angle)[1],
            self._is_bold(first) and self._is_bold(last),
        )

    def _place(self, unit: int) -> _Place:
        x, y = self._origin(unit)
        is_seen = self._left <= x <= self._right and self._bottom <= y <= self._top
        matrix = self._matrix(unit)
        if not (math.isfinite(matrix.a) and math.isfinite(matrix.b)):
            return _Place(is_seen, 0)
        turn = round(math.degrees(math.atan2(matrix.b, matrix.a)) - self._rotation) % 360
        return _Place(is_seen, 0 if min(turn, 360 - turn) <= _MOST_SLANT else turn)

    def _number(self, unit: int) -> int:
        """Return PDFium's number of the character at a code unit of the text."""
        return int(raw.FPDFText_GetCharIndexFromTextIndex(self._textpage, unit))

    def _matrix(self, unit: int) -> Any:
        matrix = raw.FS_MATRIX()
        raw.FPDFText_GetMatrix(self._textpage, self._number(unit), matrix)
        return matrix

    def _origin(self, unit: int) -> tuple[float, float]:
        x, y = ctypes.c_double(), ctypes.c_double()
        raw.FPDFText_GetCharOrigin(self._textpage, self._number(unit), x, y)
        return x.value, y.value

    def _extent(self, unit: int, angle: int) -> tuple[float, float]:
        """Return begin and end of a character along its line."""
        box = raw.FS_RECTF()
        raw.FPDFText_GetLooseCharBox(self._textpage, self._number(unit), box)
        if not angle % 360:
            return box.left, box.right
        places = [_turned(x, y, angle)[0] for x in (box.left, box.right) for y in (box.bottom, box.top)]
        return min(places), max(places)


def _is_reordered(line: str) -> bool:
    """True for a line with right-to-left script, unless PDFium joined it with the next one."""
    return has_right_to_left(line) and _JOINED not in line


def _direction(cell: str, of_line: bool | None) -> bool:
    """True if a cell runs from the right: by its letters, or those of the line."""
    own = is_from_right(cell)
    return bool(of_line if own is None else own)


def _turned(x: float, y: float, angle: int) -> tuple[float, float]:
    """Return a point in the axes along and across a line of this direction."""
    if not angle % 360:
        return x, y
    along, across = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    return x * along + y * across, y * along - x * across


def _with_hyphen(broken: re.Match[str]) -> str:
    """Join a hyphenated word; the hyphen is kept between a lower-case and an upper-case letter."""
    before, after = broken.groups()
    return f"{before}-{after}" if before.islower() and after.isupper() else f"{before}{after}"


def _with_ligatures(text: str) -> str:
    if text.isprintable():
        return text
    text = _T1_LIGATURE.sub(lambda found: _T1_LIGATURES[ord(found[0])], text)
    return _T1_DASH.sub("–", text)


def _differ(size: float, other: float) -> bool:
    return max(size, other) >= _ANOTHER_SIZE * min(size, other)


def _letters(text: str) -> int:
    return sum(map(str.isalnum, text))
