"""Reads PDF pages that show words without a text layer, such as scans, by OCR.

    all pages ─▶ pages with almost no text ─▶ pages that show more than the text ─▶ render ─▶ read
                 (all, with forced OCR)

A page takes 3 to 25 seconds on one core, by the number of its lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pypdfium2
from pypdfium2 import raw

from kb_contracts.api.formats import FORMATS
from kb_engine.extract.pictures import LONGEST_SIDE, TALLEST, Pixels, Seen, illegible, load_recognizer
from kb_readers.failures import ExtractionFailed, damaged
from kb_readers.model import Context, Extraction, Method, Page, PageBegun
from kb_readers.pdf import declared_title, open_pdf
from kb_readers.remarks import pages_listed
from kb_readers.text import count_letters, has_few_letters

T = TypeVar("T")

MOST_HEIGHT = 10_000  # maximum height of a rendered page, in pixels

_FORMAT = FORMATS["pdf"]
_COVERED = 0.5  # minimum part of a page that a picture covers on a scan
_TIMES_THE_TEXT = 2  # OCR replaces the text of a page if it finds this many times its letters
_DOTS_A_POINT = 200 / 72
_MOST_OBJECTS = 10_000  # examined on one page
_DEEPEST = 8  # nesting of forms


def read_scans(data: bytes, context: Context) -> Extraction:
    """Complete an extraction by OCR of pages with almost no text; without one, read all pages by OCR.

    Progress is reported before each page. Raises ExtractionFailed.
    """
    known = context.known
    with open_pages(data) as pages:
        read_before = [] if known is None else known.pages
        texts = [page.body for page in read_before] + [""] * (len(pages) - len(read_before))
        notes = [page.notes for page in read_before]
        scans = _Scans(pages, texts, notes, forced=known is None)
        wanted = scans.wanted()
        if len(wanted) > context.limits.ocr_pages:
            raise ExtractionFailed(
                "extraction_failed",
                f"{len(wanted):,} pages would have to be read by OCR; {context.limits.ocr_pages:,} are the "
                "most of one file. Split it and add the parts.",
            )
        read: Callable[[Pixels], Seen] | None = None
        for done, number in enumerate(wanted):
            context.report_progress(PageBegun(number, len(pages), done, len(wanted)))
            pixels = pages.pixels(number)
            if pixels is None:
                scans.hidden.append(number)
            elif (pixels == pixels[0, 0]).all():
                scans.seen[number] = ""  # one colour
            else:
                read = read or load_recognizer()
                seen = read(pixels)
                scans.seen[number] = seen.text
                if seen.confidence is not None:
                    scans.confidences[number] = seen.confidence
                if not seen.is_legible:
                    scans.illegible.append(number)
        extraction = scans.extraction(pages.title if known is None else known.title)
    return extraction if known is None or known.remark is None else extraction.with_remark(known.remark)


@dataclass
class _Scans:
    """The state of reading a file. `texts` and `notes` are indexed by page number less one."""

    pages: Pages
    texts: list[str]
    notes: list[str]
    forced: bool
    seen: dict[int, str] = field(default_factory=dict)
    hidden: list[int] = field(default_factory=list)
    illegible: list[int] = field(default_factory=list)
    confidences: dict[int, float] = field(default_factory=dict)

    def wanted(self) -> list[int]:
        """Return the pages to read; pages that cannot be rendered are noted."""
        numbers = range(1, len(self.pages) + 1)
        few = [number for number in numbers if self.forced or has_few_letters(self.texts[number - 1])]
        wanted = []
        for number in few:
            look = self.pages.look(number)
            if look is None:
                self.hidden.append(number)
            elif look.covered >= _COVERED if count_letters(self.texts[number - 1]) else not look.is_bare:
                wanted.append(number)  # the page shows more than the text has
        return wanted

    def extraction(self, title: str | None) -> Extraction:
        """Return all pages, each with its text layer or its OCR text, whichever has more."""
        found: list[str] = []
        for number, text in enumerate(self.texts, 1):
            seen = self.seen.get(number, "")
            found.append(seen if count_letters(seen) > _TIMES_THE_TEXT * count_letters(text) else text)
        if self.hidden and not any(found) and not any(self.notes):
            raise damaged(_FORMAT.label, f"{pages_listed(self.hidden)} cannot be shown")
        noted = zip_longest(found, self.notes, fillvalue="")
        pages = [Page.of(number, text, notes) for number, (text, notes) in enumerate(noted, 1)]
        remarks = []
        if self.hidden:
            remarks.append(f"{pages_listed(self.hidden)} cannot be shown and were not read.")
        if self.illegible:
            remarks.append(illegible(f"On {pages_listed(self.illegible).lower()}"))
        sources = {chosen == text for chosen, text in zip(found, self.texts, strict=True) if chosen}
        method: Method = "text_extraction"
        if self.forced or (self.seen and True not in sources):
            method = "image_analysis"
        elif sources == {True, False}:
            method = "mixed_extraction"
        return Extraction(
            pages,
            title,
            method,
            _FORMAT.mime_type,
            " ".join(remarks) or None,
            ocr_confidences={
                number: confidence
                for number, confidence in self.confidences.items()
                if found[number - 1] == self.seen[number]
            },
        )


@contextmanager
def open_pages(data: bytes) -> Iterator[Pages]:
    """Yield the pages of a PDF. Raises ExtractionFailed: not a PDF, locked or damaged."""
    with open_pdf(data) as document:
        if document.get_formtype():
            document.init_forms()  # so that filled-in fields are rendered
        yield Pages(document)


class Pages:
    """The pages of an open PDF, numbered from 1."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self.title = declared_title(document)

    def __len__(self) -> int:
        return len(self._document)

    def look(self, number: int) -> Look | None:
        """Return a summary of a page, or None if PDFium cannot read it."""

        def look(page: Any) -> Look:
            is_bare = not (raw.FPDFPage_CountObjects(page) > 0 or raw.FPDFPage_GetAnnotCount(page) > 0)
            largest = max(self._pictures(page), default=_NO_PICTURE)
            return Look(is_bare, largest.area / _area(page.get_bbox()))

        return self._of_page(number, look)

    def pixels(self, number: int) -> Pixels | None:
        """Render a page, turned and on white; None if PDFium cannot render it."""

        def render(page: Any) -> Pixels:
            width, height = page.get_size()
            fineness = max(self._pictures(page), default=_NO_PICTURE).fineness
            with closing(page.render(scale=scale(width, height, fineness))) as bitmap:
                return np.array(bitmap.to_numpy())

        return self._of_page(number, render)

    def _of_page(self, number: int, use: Callable[[Any], T]) -> T | None:
        try:
            with closing(self._document[number - 1]) as page:
                return use(page)
        except (pypdfium2.PdfiumError, ValueError, ArithmeticError):  # also a page of size 0 or NaN
            return None

    def _pictures(self, page: Any) -> Iterator[_Picture]:
        frame: _Box = page.get_bbox()
        placed: Any = None
        for item in islice(page.get_objects(max_depth=_DEEPEST), _MOST_OBJECTS):
            if item.level == 0:
                placed = item  # objects inside a form are placed relative to the form
            if item.type != raw.FPDF_PAGEOBJ_IMAGE:
                continue
            try:
                width, height = item.get_px_size()
                box: _Box = placed.get_bounds()
            except pypdfium2.PdfiumError:
                yield _NO_PICTURE
                continue
            area = _area(box)
            fineness = math.sqrt(width * height / area) if area > 0 else 0.0
            left, bottom = map(max, box[:2], frame[:2])
            right, top = map(min, box[2:], frame[2:])
            yield _Picture(_area((left, bottom, right, top)), fineness)


class Look(NamedTuple):
    """A summary of the content of a page."""

    is_bare: bool  # true if the page has no objects and no annotations
    covered: float  # part of the page, 0 to 1, that its largest picture covers


_Box = tuple[float, float, float, float]  # left, bottom, right and top, in points


class _Picture(NamedTuple):
    """A picture on a page: its visible area, in square points, and its resolution, in pixels a point."""

    area: float
    fineness: float


_NO_PICTURE = _Picture(0.0, 0.0)


def scale(width: float, height: float, fineness: float) -> float:
    """Return the scale for rendering a page, in pixels a point.

    The page is `width` by `height` points, and its picture has `fineness` pixels a point. The scale is 200
    dpi, or the picture's if that is more, but no more than the recognizer uses: this also bounds a page of
    any size to `LONGEST_SIDE` by `MOST_HEIGHT` pixels.
    """
    tall = min(max(height / width, 1.0), TALLEST)
    return min(max(_DOTS_A_POINT, fineness), LONGEST_SIDE / tall / width, MOST_HEIGHT / height)


def _area(box: _Box) -> float:
    left, bottom, right, top = box
    return max(0.0, right - left) * max(0.0, top - bottom)
