"""What a recognizer finds in a picture: lines with their places and its certainty, and their Markdown.

`upright_lines` turns a picture that lies on its side or upside down. The recognizer finds the lines of such a
picture too. It reads those that stand as if they had been turned to the left, so that they come out right in
the wrong order, or not at all. What it is certain of, and how its lines lie, tells which way up it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kb_readers.markdown import escaped

Pixels: TypeAlias = NDArray[np.uint8]
"""Of shape (height, width, 3); blue, green, red."""

_LEAST_CERTAINTY = 0.8  # what is recognized with less is as often wrong as right
_STANDING = 1.5  # the height of a line that stands, in widths
_HALF = 0.5  # of the area of all lines: a picture of which so much is read well is not turned
_SAMPLE = 8  # lines that are read in another direction before the whole picture is turned
_LEGIBLE = 1 / 3  # of the area of all lines: where less is certain, that too is chance

_SAME_ROW = 0.5  # how much of the lower of two lines must stand beside the other
_WIDEST_GAP = 2.0  # between pieces of one line, in heights
_PARAGRAPH_GAP = 1.0  # between lines, in heights


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
        """In pixels."""
        return self.bottom - self.top

    @property
    def area(self) -> float:
        """In square pixels."""
        return self.height * (self.right - self.left)


Recognize: TypeAlias = Callable[[Pixels], list[Line]]
"""Finds the lines of a picture, certain or not."""


def upright_lines(
    pixels: Pixels, pieces: Callable[[Pixels], Iterable[Pixels]], recognize: Recognize
) -> list[list[Line]]:
    """The lines of each piece of a picture, which is turned as the first piece with lines tells."""
    found: list[list[Line]] = []
    for piece in pieces(pixels):
        lines = recognize(piece)
        if lines and not any(found) and (turns := _quarter_turns(piece, lines, recognize)):
            return [recognize(turned) for turned in pieces(np.rot90(pixels, turns))]
        found.append(lines)
    return found


def is_legible(lines: Sequence[Line]) -> bool:
    """Whether enough of what looks like text was read that the rest is not chance."""
    return not lines or _share(lines, lambda line: line.is_certain) >= _LEGIBLE


def as_markdown(lines: Iterable[Line]) -> str:
    """The certain ones: neighbours in a row on one line, an empty line where there is a gap."""
    texts: list[str] = []
    before: Line | None = None
    for line in lines:
        if not line.is_certain:
            continue
        if before is not None and _continues(before, line):
            texts[-1] += f" {line.text}"
        else:
            if before is not None and line.top - before.bottom > _PARAGRAPH_GAP * line.height:
                texts.append("")
            texts.append(line.text)
        before = line
    return "\n".join(map(escaped, texts))


def _quarter_turns(pixels: Pixels, lines: Sequence[Line], recognize: Recognize) -> int:
    """How many quarters to the left the picture is to be turned, so that its lines run from left to right."""
    if _well_read(lines) >= _HALF:
        return 0
    if _share(lines, lambda line: line.stands) <= _HALF:
        turns = 2
    else:
        # What stands was read as if it were turned to the left once.
        turns = 1 if _share(lines, lambda line: line.is_certain) >= _HALF else 3
    sample = sorted(lines, key=lambda line: line.area, reverse=True)[:_SAMPLE]
    tried = recognize(_stacked([np.rot90(part, turns) for part in _parts(pixels, sample)]))
    return turns if _well_read(tried) >= max(_HALF, _well_read(sample)) else 0


def _parts(pixels: Pixels, lines: Iterable[Line]) -> Iterator[Pixels]:
    """Where the lines are, with some ground around."""
    for line in lines:
        margin = min(line.height, line.right - line.left) / 2
        top, left = max(0, int(line.top - margin)), max(0, int(line.left - margin))
        yield pixels[top : int(line.bottom + margin) + 1, left : int(line.right + margin) + 1]


def _stacked(parts: Sequence[Pixels]) -> Pixels:
    """One picture of all: a recognizer takes longer for a flat one than for a page."""
    width = max(part.shape[1] for part in parts)
    height = max(sum(part.shape[0] for part in parts), width // 2)
    stack: Pixels = np.empty((height, width, 3), dtype=np.uint8)
    stack[:] = parts[0][0, 0]
    top = 0
    for part in parts:
        stack[top : top + part.shape[0], : part.shape[1]] = part
        top += part.shape[0]
    return stack


def _well_read(lines: Sequence[Line]) -> float:
    return _share(lines, lambda line: line.is_certain and not line.stands)


def _share(lines: Sequence[Line], counts: Callable[[Line], bool]) -> float:
    """Of the area of all lines, that of those which count; a headline says more than a footnote."""
    area = sum(line.area for line in lines)
    return sum(line.area for line in lines if counts(line)) / area if area else 0.0


def _continues(before: Line, line: Line) -> bool:
    """Whether it goes on with the line; other columns are lines of their own."""
    beside = min(before.bottom, line.bottom) - max(before.top, line.top)
    lower = min(before.height, line.height)
    return beside > _SAME_ROW * lower and abs(line.left - before.right) < _WIDEST_GAP * lower
