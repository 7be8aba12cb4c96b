"""What is on the pages of a PDF, and the pages as pictures, by PDFium."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pypdfium2
from pypdfium2 import raw

from kb_engine.extract.picture import LONGEST_SIDE, TALLEST
from kb_engine.extract.recognized import Pixels
from kb_readers.pdf_file import declared_title, open_pdf

T = TypeVar("T")

MOST_HEIGHT = 10_000
"""Of a page as a picture, in pixels."""

_DOTS_A_POINT = 200 / 72
_MOST_OBJECTS = 10_000  # looked at on one page
_DEEPEST = 8  # of forms inside one another


class Look(NamedTuple):
    """What a page has on it."""

    is_bare: bool
    """Nothing at all."""
    covered: float
    """The part of it, 0 to 1, that its largest picture takes."""


@contextmanager
def open_pages(data: bytes) -> Iterator[Pages]:
    """The pages of a PDF. Raises ExtractionFailed: not a PDF, locked or damaged."""
    with open_pdf(data) as document:
        if document.get_formtype():
            document.init_forms()  # what was filled in is drawn with it
        yield Pages(document)


class Pages:
    """The pages of an open PDF, numbered from 1."""

    def __init__(self, document: Any) -> None:
        self._document = document

    def __len__(self) -> int:
        return len(self._document)

    @property
    def title(self) -> str | None:
        """What the file says its title is."""
        return declared_title(self._document)

    def look(self, number: int) -> Look | None:
        """What is on a page; None where PDFium cannot show it."""
        return self._of_page(number, self._looked)

    def pixels(self, number: int) -> Pixels | None:
        """A page as it is to be seen, turned and on white; None where PDFium cannot show it."""
        return self._of_page(number, self._rendered)

    def _of_page(self, number: int, use: Callable[[Any], T]) -> T | None:
        try:
            with closing(self._document[number - 1]) as page:
                return use(page)
        except (pypdfium2.PdfiumError, ValueError, ArithmeticError):  # also a page of no size, or of NaN
            return None

    def _looked(self, page: Any) -> Look:
        is_bare = not (raw.FPDFPage_CountObjects(page) > 0 or raw.FPDFPage_GetAnnotCount(page) > 0)
        largest = max(self._pictures(page), default=_NO_PICTURE)
        return Look(is_bare, largest.area / _area(page.get_bbox()))

    def _rendered(self, page: Any) -> Pixels:
        width, height = page.get_size()
        fineness = max(self._pictures(page), default=_NO_PICTURE).fineness
        with closing(page.render(scale=scale(width, height, fineness))) as bitmap:
            return np.array(bitmap.to_numpy())

    def _pictures(self, page: Any) -> Iterator[_Picture]:
        frame = page.get_bbox()
        placed = None
        for item in islice(page.get_objects(max_depth=_DEEPEST), _MOST_OBJECTS):
            if item.level == 0:
                placed = item  # what is inside a form is placed within that form
            if item.type == raw.FPDF_PAGEOBJ_IMAGE:
                yield self._picture(item, placed, frame)

    def _picture(self, image: Any, placed: Any, frame: _Box) -> _Picture:
        try:
            width, height = image.get_px_size()
            box = placed.get_bounds()
        except pypdfium2.PdfiumError:
            return _NO_PICTURE
        area = _area(box)
        fineness = math.sqrt(width * height / area) if area > 0 else 0.0
        return _Picture(_area(_common(box, frame)), fineness)


_Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""


class _Picture(NamedTuple):
    """A picture on a page: what it takes of it, in square points, and how fine it is, in pixels a point."""

    area: float
    fineness: float


_NO_PICTURE = _Picture(0.0, 0.0)


def scale(width: float, height: float, fineness: float) -> float:
    """How many pixels a point of a page is to have.

    The page is `width` by `height` points large, and its picture has `fineness` pixels a point. 200 dots an
    inch, or as fine as the picture, but no more than the recognizer looks at: that also bounds a page of any
    size to `LONGEST_SIDE` by `MOST_HEIGHT` pixels.
    """
    tall = min(max(height / width, 1.0), TALLEST)
    return min(max(_DOTS_A_POINT, fineness), LONGEST_SIDE / tall / width, MOST_HEIGHT / height)


def _area(box: _Box) -> float:
    left, bottom, right, top = box
    return max(0.0, right - left) * max(0.0, top - bottom)


def _common(one: _Box, other: _Box) -> _Box:
    return (
        max(one[0], other[0]),
        max(one[1], other[1]),
        min(one[2], other[2]),
        min(one[3], other[3]),
    )
