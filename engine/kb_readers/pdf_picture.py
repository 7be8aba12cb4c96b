"""A page of a PDF as a picture, with the place of a passage marked.

The text of a passage is Markdown, made from the lines of the page: words are joined, escaped, or moved into
tables. So letters and digits alone are compared: each run of `_RUN` of them that the passage has too is
marked. A page without a text layer has no marks.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby, islice
from typing import Any
from unicodedata import normalize

import pypdfium2
from pypdfium2 import raw

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import ExtractionFailed, damaged
from kb_readers.model import Context, Picture
from kb_readers.pdf import open_pdf
from kb_readers.pdf_lines import logical_numbers

MOST_PIXELS = 2_000_000  # maximum size of a picture: an A4 page has 1,190 by 1,680 pixels
LONGEST_SIDE = 4_000  # maximum side of a picture, in pixels
_FINEST = 3.0  # maximum scale, in pixels a point: that of small pages
_RUN = 24  # letters and digits; a shorter passage is compared whole
_MOST_CHARS = 100_000  # compared on one page
_MOST_RECTANGLES = 2_000
_YELLOW = (255, 232, 120, 255)  # red, green, blue, alpha; multiplied with the page


def draw_pdf(data: bytes, context: Context) -> Picture:
    """Return a picture of the page in `context.known`, with its text marked. Raises ExtractionFailed."""
    assert context.known is not None, "it names the page"
    (wanted,) = context.known.pages
    number, label = wanted.number or 1, FORMATS[context.format].label
    with open_pdf(data) as document:
        if number > len(document):
            raise ExtractionFailed("extraction_failed", f"The {label} has no page {number:,}.")
        if document.get_formtype():
            document.init_forms()  # so that filled-in fields are rendered
        try:
            with closing(document[number - 1]) as page:
                for box in list(islice(_places(page, wanted.text), _MOST_RECTANGLES)):
                    _mark(page, *box)
                with closing(page.render(scale=_scale(*page.get_size()), rev_byteorder=True)) as bitmap:
                    return Picture(_png(bytes(bitmap.buffer), bitmap.width, bitmap.height, bitmap.stride))
        except (pypdfium2.PdfiumError, ValueError, ArithmeticError):  # also a page of size 0 or NaN
            raise damaged(label, f"page {number:,} cannot be shown") from None


def _scale(width: float, height: float) -> float:
    """Return the scale for a page of this size in points, in pixels a point."""
    return min(_FINEST, math.sqrt(MOST_PIXELS / (width * height)), LONGEST_SIDE / max(width, height))


def _places(page: Any, text: str) -> Iterator[tuple[float, float, float, float]]:
    """Yield left, bottom, right and top, in points, of the parts of lines that the text has."""
    with closing(page.get_textpage()) as layer:
        numbers = logical_numbers(page, layer, _MOST_CHARS)
        signs = [chr(raw.FPDFText_GetUnicode(layer, number)) for number in numbers]
        for start, end in matching_runs(signs, text):
            for first, count in _consecutive(sorted(set(numbers[start:end]))):
                for index in range(layer.count_rects(first, count)):
                    yield layer.get_rect(index)


def _consecutive(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield first number and length of the runs of consecutive numbers."""
    for _, run in groupby(enumerate(numbers), key=lambda each: each[1] - each[0]):
        (_, first), *more = run
        yield first, 1 + len(more)


def matching_runs(signs: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Return start and end of the runs of characters whose letters and digits stand in the text, too.

    A run is left out if longer ones have most of its text: a phrase that is repeated elsewhere on the page.
    """
    wanted = "".join(map(_letters, text))
    size = min(_RUN, len(wanted))
    if not size:
        return []
    runs = {wanted[start : start + size] for start in range(len(wanted) - size + 1)}
    places = [(index, letter) for index, sign in enumerate(signs) for letter in _letters(sign)]
    letters = "".join(letter for _, letter in places)
    starts = [start for start in range(len(letters)) if letters[start : start + size] in runs]
    found: list[list[int]] = []
    for start in starts:
        if not found or start >= found[-1][-1] + size:
            found.append([])
        found[-1].append(start)
    kept, used = [], set[str]()
    for each in sorted(found, key=len, reverse=True):
        own = {letters[start : start + size] for start in each}
        if 2 * len(own - used) > len(own):
            kept.append((places[each[0]][0], places[each[-1] + size - 1][0] + 1))
            used |= own
    return kept


def _letters(sign: str) -> str:
    return "".join(filter(str.isalnum, normalize("NFKC", sign).casefold()))


def _mark(page: Any, left: float, bottom: float, right: float, top: float) -> None:
    rectangle = raw.FPDFPageObj_CreateNewRect(left, bottom, right - left, top - bottom)
    raw.FPDFPageObj_SetFillColor(rectangle, *_YELLOW)
    raw.FPDFPageObj_SetBlendMode(rectangle, b"Multiply")
    raw.FPDFPath_SetDrawMode(rectangle, raw.FPDF_FILLMODE_WINDING, False)
    raw.FPDFPage_InsertObject(page, rectangle)


def _png(pixels: bytes, width: int, height: int, stride: int) -> bytes:
    """Return red, green and blue pixels, in rows of `stride` bytes, as a PNG, which is grey if they are."""
    lines = [pixels[start : start + 3 * width] for start in range(0, height * stride, stride)]
    is_grey = all(line[::3] == line[1::3] == line[2::3] for line in lines)
    kind, step = (0, 3) if is_grey else (2, 1)
    rows = b"".join(b"\0" + line[::step] for line in lines)
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    framed = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)
