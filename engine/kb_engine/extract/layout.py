"""The lines that were recognized in a picture, in the order in which people read them.

A recognizer goes from row to row. That is right for tables and forms, and wrong for columns of running text:
they are read one after the other, and what spans them, such as a headline, between what is above and below.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import median
from typing import NamedTuple

from kb_readers.markdown import escaped

_LEAST_CERTAINTY = 0.8  # what is recognized with less is as often wrong as right
_STANDING = 1.5  # the height of a line that stands, in widths
_SAME_ROW = 0.5  # how much of the lower of two lines must stand beside the other
_WIDEST_GAP = 2.0  # between pieces of one line, in heights
_PARAGRAPH_GAP = 1.0  # between lines, in heights
_BELOW = 0.5  # how much of the narrower of two lines of a paragraph stands below the other
_LEAST_LINES = 4  # of a paragraph that tells a column
_FILLED = 0.7  # of its width, what most of its lines take: the cells of a table are of many lengths
_NARROWEST = 8.0  # its width, in heights of a line


class Line(NamedTuple):
    """One piece of text, how sure its reader is of it (0 to 1), and the box around it, in pixels."""

    text: str
    certainty: float
    left: float
    top: float
    right: float
    bottom: float

    @property
    def is_certain(self) -> bool:
        """Whether it was read, rather than guessed."""
        return self.certainty >= _LEAST_CERTAINTY

    @property
    def stands(self) -> bool:
        """Whether it runs from the top to the bottom, or the other way."""
        return self.height > _STANDING * (self.right - self.left)

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def area(self) -> float:
        return self.height * (self.right - self.left)


def as_markdown(lines: Iterable[Line]) -> str:
    """The certain ones: neighbours in a row on one line, an empty line where there is a gap."""
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
        if beside > _SAME_ROW * lower and gap < _WIDEST_GAP * lower:  # other columns are lines of their own
            texts[-1] += f" {line.text}"
        else:
            if line.top - before.bottom > _PARAGRAPH_GAP * line.height:
                texts.append("")
            texts.append(line.text)
        before = line
    return "\n".join(map(escaped, texts))


def in_reading_order(lines: Sequence[Line]) -> Sequence[Line]:
    """Columns of running text one after the other, from left to right; all else as it comes."""
    gutter = _gutter(lines)
    if gutter is None:
        return lines
    spanning = sorted(line.top for line in lines if line.left < gutter < line.right)

    def part(line: Line) -> tuple[int, bool, bool]:
        """Below how many of those that span it, whether it is in a column, and whether in the right one."""
        spans = line.left < gutter < line.right
        return sum(top <= line.top for top in spanning), not spans, line.left >= gutter

    ordered: list[Line] = []
    for (_, is_in_column, _), group in groupby(sorted(lines, key=part), part):
        together = list(group)
        ordered += in_reading_order(together) if is_in_column else together
    return ordered


def _gutter(lines: Sequence[Line]) -> float | None:
    """Where, from the left, two columns of running text part; None: there are none."""
    columns = [each for each in _paragraphs(lines) if each.is_running_text]
    best, gutter = 0.0, None
    for left in columns:
        for right in columns:
            beside = min(left.bottom, right.bottom) - max(left.top, right.top)
            if left.right <= right.left and beside > best:
                best, gutter = beside, (left.right + right.left) / 2
    return gutter


class _Paragraph(NamedTuple):
    """Lines one below the other."""

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
    """Each line goes on with the only one that ends closely above it."""
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
