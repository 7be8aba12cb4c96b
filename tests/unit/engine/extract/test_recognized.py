"""The orientation of a picture, from recognized lines; the pictures' tests have the real recognizer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kb_engine.extract.layout import Line
from kb_engine.extract.pictures import Pixels, is_legible, upright_lines

LEVEL = [Line("The granite quarry", 0.99, 10, 10, 90, 20), Line("opens at seven", 0.98, 10, 30, 80, 40)]
GUESSED = [line._replace(text="Thne gi ry", certainty=0.7) for line in LEVEL]
STANDING = [Line("opens at seven", 0.99, 10, 10, 20, 90), Line("The granite quarry", 0.99, 30, 10, 40, 90)]
GUESSED_STANDING = [line._replace(certainty=0.7) for line in STANDING]
PICTURE: Pixels = np.zeros((100, 100, 3), dtype=np.uint8)
PICTURE[0, 0] = 255  # the corner shows the number of turns
CORNERS = {(0, 0): 0, (-1, 0): 1, (-1, -1): 2, (0, -1): 3}


def turns(pixels: Pixels) -> int | None:
    return next((number for corner, number in CORNERS.items() if pixels[corner].all()), None)


class Recognizer:
    def __init__(self, first: list[Line], sample: list[Line]) -> None:
        self._first, self._sample = first, sample
        self.seen: list[int | None] = []

    def __call__(self, pixels: Pixels) -> list[Line]:
        self.seen.append(turns(pixels))
        return {0: self._first, None: self._sample}.get(self.seen[-1], LEVEL)


def whole(pixels: Pixels) -> Iterator[Pixels]:
    yield pixels


def test_a_picture_that_is_read_well_is_read_once() -> None:
    recognize = Recognizer(LEVEL, [])
    assert upright_lines(PICTURE, whole, recognize) == [LEVEL]
    assert recognize.seen == [0]


def test_a_picture_is_turned_as_its_lines_lie() -> None:
    """Clear vertical lines mean a left turn, unclear ones a right turn.

    Unclear level lines mean a turn by 180 degrees.
    """
    for first, turned in ((STANDING, 1), (GUESSED_STANDING, 3), (GUESSED, 2)):
        recognize = Recognizer(first, LEVEL)
        assert upright_lines(PICTURE, whole, recognize) == [LEVEL]
        assert recognize.seen == [0, None, turned]


def test_a_picture_that_is_no_better_when_turned_is_left() -> None:
    """Columns of another script, or illegible text: only a few lines are tried."""
    for first in (GUESSED, GUESSED_STANDING):
        recognize = Recognizer(first, GUESSED)
        assert upright_lines(PICTURE, whole, recognize) == [first]
        assert recognize.seen == [0, None]


def test_all_pieces_are_turned_as_the_first_with_lines_tells() -> None:
    def halves(pixels: Pixels) -> Iterator[Pixels]:
        half = pixels.shape[0] // 2
        yield from (pixels[:half], pixels[half:])

    answers = [[], GUESSED, LEVEL, LEVEL, []]  # upper, lower, sample; then upper and lower after the turn
    assert upright_lines(PICTURE, halves, lambda _: answers.pop(0)) == [LEVEL, []]
    assert answers == []


def test_a_certain_line_among_uncertain_lines_is_not_legible() -> None:
    chance = Line("cha", 0.84, 10, 50, 20, 60)
    assert not is_legible([*GUESSED, chance])
    assert is_legible([*LEVEL, chance._replace(certainty=0.1)])
    assert is_legible([])
