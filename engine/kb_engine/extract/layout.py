"""Puts the lines recognized in a picture into reading order.

A recognizer works from row to row. That is right for tables and forms, and wrong for columns of running text:
columns are read one after another, and lines that span them, such as a headline, split them into sections.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import median
from typing import NamedTuple

from kb_readers.markdown import escaped

_LEAST_CERTAINTY = 0.8  # below this certainty a line is as often wrong as right
_STANDING = 1.5  # minimum height of a vertical line, in widths
_SAME_ROW = 0.5  # minimum vertical overlap of two lines of a row, as a part of the lower one
_WIDEST_GAP = 2.0  # between pieces of one line, in heights
_PARAGRAPH_GAP = 1.0  # between lines, in heights
_BELOW = 0.5  # minimum horizontal overlap of two lines of a paragraph, as a part of the narrower one
_LEAST_LINES = 4  # minimum number of lines of a paragraph of running text
_FILLED = 0.7  # minimum median width of its lines, as a part of its width: table cells vary more
_NARROWEST = 8.0  # minimum width of it, in line heights


class Line(NamedTuple):
    """One piece of text, the recognizer's certainty (0 to 1), and its bounding box, in pixels."""

    text: str
    certainty: float
    left: float
    top: float
    right: float
    bottom: float

    @property
    def is_certain(self) -> bool:
        """True if the certainty is high enough for the text to be used."""
        return self.certainty >= _LEAST_CERTAINTY

    @property
    def stands(self) -> bool:
        """True if the line is vertical."""
        return self.height > _STANDING * (self.right - self.left)

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def area(self) -> float:
        return self.height * (self.right - self.left)


def as_markdown(lines: Iterable[Line]) -> str:
    """Return the certain lines: neighbours in a row joined, and an empty line for a vertical gap."""
    texts: list[str] = []
    before: Line | None = None
    for line in in_reading_order([line for line in lines if line.is_certain]):
        if before is None:
            texts.append(line.text)
            before = line
            continue
        beside = min(before.bottom, line.bottom) - max(before.top, line.top)
        lower = min(before.height, line.height)
        gap = abs(line.left - before.right)
        if beside > _SAME_ROW * lower and gap < _WIDEST_GAP * lower:  # wider gaps separate columns
            texts[-1] += f" {line.text}"
        else:
            if line.top - before.bottom > _PARAGRAPH_GAP * line.height:
                texts.append("")
            texts.append(line.text)
        before = line
    return "\n".join(map(escaped, texts))


def in_reading_order(lines: Sequence[Line]) -> Sequence[Line]:
    """Put columns of running text one after another, from left to right; other lines keep their order."""
    gutter = _gutter(lines)
    if gutter is None:
        return lines
    spanning = sorted(line.top for line in lines if line.left < gutter < line.right)

    def part(line: Line) -> tuple[int, bool, bool]:
        """Sort key: number of spanning lines above, in a column or spanning, left or right column."""
        spans = line.left < gutter < line.right
        return sum(top <= line.top for top in spanning), not spans, line.left >= gutter

    ordered: list[Line] = []
    for (_, is_in_column, _), group in groupby(sorted(lines, key=part), part):
        together = list(group)
        ordered += in_reading_order(together) if is_in_column else together
    return ordered


def _gutter(lines: Sequence[Line]) -> float | None:
    """Return the horizontal position between two columns of running text, or None without columns."""
    columns = [each for each in _paragraphs(lines) if each.is_running_text]
    best, gutter = 0.0, None
    for left in columns:
        for right in columns:
            beside = min(left.bottom, right.bottom) - max(left.top, right.top)
            if left.right <= right.left and beside > best:
                best, gutter = beside, (left.right + right.left) / 2
    return gutter


class _Paragraph(NamedTuple):
    """Lines below each other."""

    lines: list[Line]

    @property
    def left(self) -> float:
        return min(line.left for line in self.lines)

    @property
    def right(self) -> float:
        return max(line.right for line in self.lines)

    @property
    def top(self) -> float:
        return self.lines[0].top

    @property
    def bottom(self) -> float:
        return self.lines[-1].bottom

    @property
    def is_running_text(self) -> bool:
        width = self.right - self.left
        return (
            len(self.lines) >= _LEAST_LINES
            and median(line.right - line.left for line in self.lines) >= _FILLED * width
            and width >= _NARROWEST * median(line.height for line in self.lines)
        )


def _paragraphs(lines: Iterable[Line]) -> list[_Paragraph]:
    """Group lines: a line continues the paragraph that ends closely above it, if there is only one."""
    found: list[_Paragraph] = []
    for line in sorted(lines, key=lambda line: line.top):
        above = [
            each
            for each in found
            if abs(line.top - each.bottom) <= _PARAGRAPH_GAP * line.height and _is_below(line, each.lines[-1])
        ]
        if len(above) == 1:
            above[0].lines.append(line)
        else:
            found.append(_Paragraph([line]))
    return found


def _is_below(line: Line, other: Line) -> bool:
    shared = min(line.right, other.right) - max(line.left, other.left)
    return shared >= _BELOW * min(line.right - line.left, other.right - other.left)
