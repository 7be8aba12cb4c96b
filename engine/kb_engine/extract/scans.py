"""The pages of a PDF that show words without holding them, such as scans, read by OCR.

    all pages ─▶ those with next to no text ─▶ those that show something more ─▶ rendered ─▶ read
                 (all, where OCR is forced)

A page takes 3 to 25 seconds on one core, by the number of its lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pypdfium2
from pypdfium2 import raw

from kb_contracts.api.formats import FORMATS
from kb_engine.extract import pages_listed, too_many_pages
from kb_engine.extract.pictures import LONGEST_SIDE, TALLEST, Pixels, Seen, illegible, load_recognizer
from kb_readers import Extraction, Method, Page, PageBegun
from kb_readers.failures import damaged
from kb_readers.model import Context
from kb_readers.pdf import declared_title, open_pdf
from kb_readers.text import count_letters, has_few_letters

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


_FORMAT = FORMATS["pdf"]
_COVERED = 0.5  # the part of a page that a picture takes where the page is a scan
_TIMES_THE_TEXT = 2  # what OCR must find to stand for the text of a page


def read_scans(data: bytes, context: Context) -> Extraction:
    """What is known, with the words of pages that hold next to none; where nothing is, all pages by OCR.

    Each page that is read is reported before. Raises ExtractionFailed.
    """
    known = context.known
    with open_pages(data) as pages:
        texts = [] if known is None else [page.text for page in known.pages]
        scans = _Scans(pages, texts + [""] * (len(pages) - len(texts)), forced=known is None)
        wanted = scans.wanted()
        if len(wanted) > context.limits.ocr_pages:
            raise too_many_pages(len(wanted), context.limits.ocr_pages)
        for number, seen in _read(pages, wanted, context.report_progress):
            scans.add(number, seen)
        return scans.extraction(pages.title if known is None else known.title)


def _read(
    pages: Pages, wanted: Sequence[int], report_progress: Callable[[PageBegun], None]
) -> Iterator[tuple[int, Seen | None]]:
    """What is seen on each page; None of one that cannot be shown."""
    read: Callable[[Pixels], Seen] | None = None
    for done, number in enumerate(wanted):
        report_progress(PageBegun(number, len(pages), done, len(wanted)))
        pixels = pages.pixels(number)
        if pixels is None:
            yield number, None
        elif (pixels == pixels[0, 0]).all():
            yield number, Seen("", is_legible=True)  # one colour
        else:
            read = read or load_recognizer()
            yield number, read(pixels)


@dataclass
class _Scans:
    """What is known of the pages of a file. `texts` are theirs, by their number less one."""

    pages: Pages
    texts: list[str]
    forced: bool
    seen: dict[int, str] = field(default_factory=dict)
    hidden: list[int] = field(default_factory=list)
    illegible: list[int] = field(default_factory=list)

    def wanted(self) -> list[int]:
        """The pages to read; those that cannot be shown are noted."""
        numbers = range(1, len(self.pages) + 1)
        few = [number for number in numbers if self.forced or has_few_letters(self.texts[number - 1])]
        return [number for number in few if self._shows_more(number)]

    def _shows_more(self, number: int) -> bool:
        """Whether there is more to see on a page than its text says."""
        look = self.pages.look(number)
        if look is None:
            self.hidden.append(number)
            return False
        return look.covered >= _COVERED if count_letters(self.texts[number - 1]) else not look.is_bare

    def add(self, number: int, seen: Seen | None) -> None:
        """Note what was read on a page."""
        if seen is None:
            self.hidden.append(number)
            return
        self.seen[number] = seen.text
        if not seen.is_legible:
            self.illegible.append(number)

    def extraction(self, title: str | None) -> Extraction:
        """All pages, each with what says more: its text, or what was read on it."""
        found = [self._chosen(number, text) for number, text in enumerate(self.texts, 1)]
        if self.hidden and not any(found):
            raise damaged(_FORMAT.label, f"{pages_listed(self.hidden)} cannot be shown")
        pages = [Page(number, text) for number, text in enumerate(found, 1)]
        return Extraction(pages, title, self._method(found), _FORMAT.mime_type, self._remark())

    def _chosen(self, number: int, text: str) -> str:
        seen = self.seen.get(number, "")
        return seen if count_letters(seen) > _TIMES_THE_TEXT * count_letters(text) else text

    def _method(self, found: Sequence[str]) -> Method:
        if self.forced:
            return "image_analysis"
        by_text = any(chosen and chosen == text for chosen, text in zip(found, self.texts, strict=True))
        by_ocr = any(chosen and chosen != text for chosen, text in zip(found, self.texts, strict=True))
        if by_text:
            return "mixed_extraction" if by_ocr else "text_extraction"
        return "image_analysis" if self.seen else "text_extraction"

    def _remark(self) -> str | None:
        remarks = []
        if self.hidden:
            remarks.append(f"{pages_listed(self.hidden)} cannot be shown and were not read.")
        if self.illegible:
            remarks.append(illegible(f"On {pages_listed(self.illegible).lower()}"))
        return " ".join(remarks) or None
