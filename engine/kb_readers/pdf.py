"""Text of a PDF by page. A page with pictures only, such as a scan, has an empty text.

A PDF has glyphs at positions, and no paragraphs. PDFium combines them into lines, in the order in which the
file draws them, and joins hyphenated words. The role of lines follows from their size and position:

    larger than most of the text     ─▶ headings; the sizes, from the largest down, are their levels
    the same columns, line on line   ─▶ a table
    a wider step, or an indent       ─▶ a new paragraph
    short, and the next line does
    not continue its sentence        ─▶ a line of its own, as in a list or an address

Form values and annotations follow the text of the page.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import pypdfium2
from pypdfium2 import raw

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import ExtractionFailed, damaged, locked
from kb_readers.markdown import escaped, given_title, table_row, table_rule, title_of
from kb_readers.model import DEFAULT_LIMITS, Context, Extraction, Page, PagesCounted
from kb_readers.pdf_notes import notes_of
from kb_readers.pdf_streams import damaged_pages
from kb_readers.remarks import pages_listed

_FORMAT = FORMATS["pdf"]
_NO_CONTEXT = Context(_FORMAT.name, DEFAULT_LIMITS)

_LOCKED = (4, 5)  # FPDF_ERR_PASSWORD, FPDF_ERR_SECURITY
# Range in which PDF viewers accept the header and the end mark.
_HEAD_BYTES = 1024
_TAIL_BYTES = 2048
_PADDING = b"\0 \t\r\n"
_OBJECT_OR_KIDS = re.compile(rb"(\d{1,10})\s+\d{1,5}\s+obj\b|/Kids\s*\[([^\]]*)\]")
_REFERENCE = re.compile(rb"(\d{1,10})\s+\d{1,5}\s+R\b")

_HEADING_SIZE = 1.15  # minimum size of a heading, in sizes of the text
_LONGEST_HEADING = 200
_HEADING_LINES = 3
_LEVELS = 6
_CELL_GAP = 1.2  # minimum gap between table columns, in sizes of the text: wider than in justified lines
_LONGEST_STEP = 3.0  # from line to line of one text, in sizes of the text
_PARAGRAPH_STEP = 1.25  # minimum step between paragraphs, in steps from line to line
_INDENTED = (0.8, 4.0)  # range of the first-line indent, in sizes of the text
_FULL = 0.75  # of the column's width: a shorter line was not broken for lack of room
_COLUMN_POINTS = 40.0  # lines whose left edges differ by less are in one column
_SENTENCE_END = (".", "!", "?", ":", ";", "”", '"', "。", "！", "？")
_LEADERS = re.compile(r"(?:\s?\.){4,}")  # the dots of a table of contents
_COMPOUND = re.compile("([^\\W\\d_])\ufffe([^\\W\\d_])")  # PDFium's mark for a removed hyphen
# PDFium's mark of a joined word, characters that are no text, and ligatures of one character.
_CLEANED = {0xFFFE: None, 0xFFFF: None, 0xAD: None, **dict.fromkeys([*range(9), *range(11, 32)])} | {
    0xFB00 + number: letters for number, letters in enumerate(("ff", "fi", "fl", "ffi", "ffl", "st", "st"))
}


def read_pdf(data: bytes, context: Context = _NO_CONTEXT) -> Extraction:
    """Return pages numbered from 1; their count is reported before. Raises ExtractionFailed.

    A remark lists pages that lost text to damage.
    """
    with open_pdf(data) as document:
        with suppress(pypdfium2.PdfiumError):  # without the form its fields are omitted
            document.init_forms()
        if len(document):
            context.report_progress(PagesCounted(len(document)))
        found = [_read(document, index) for index in range(len(document))]
        levels = _heading_levels([line for each in found for line in each.lines])
        pages = [
            Page.of(number, "\n\n".join(_blocks(each.lines, levels)), each.notes)
            for number, each in enumerate(found, 1)
        ]
        title = declared_title(document) or (title_of(pages[0].body) if pages else None)
        spoilt = damaged_pages(document, data)
    extraction = Extraction(pages, title, "text_extraction", _FORMAT.mime_type)
    if not spoilt:
        return extraction
    where = pages_listed(spoilt).lower()
    if all(each.is_bare for each in found):
        raise damaged(_FORMAT.label, f"{where} cannot be unpacked")
    return extraction.with_remark(f"The file is damaged on {where}: text may be missing there, or wrong.")


@contextmanager
def open_pdf(data: bytes) -> Iterator[Any]:
    """Check and open a PDF: yield a `pypdfium2.PdfDocument`, which has no types.

    PDFium comes in the package pypdfium2 (Apache-2.0 or BSD-3-Clause; PDFium is BSD-3-Clause). It is C++ and
    reads hostile files: use it in a process that may be killed.

    Raises ExtractionFailed: no PDF, truncated, damaged or locked.
    """
    if b"%PDF-" not in data[:_HEAD_BYTES]:
        raise ExtractionFailed("file_corrupt", "The file is not a PDF, although its name says so.")
    # PDFium repairs a truncated file as far as it can, without reporting the loss.
    if b"%%EOF" not in data[-_TAIL_BYTES:] and b"%%EOF" not in data.rstrip(_PADDING)[-_TAIL_BYTES:]:
        raise ExtractionFailed(
            "file_corrupt",
            "The PDF is cut off: its end is missing. Copy or download it again and try once more.",
        )
    check_page_tree(data)
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        raise (
            locked(_FORMAT.label) if error.err_code in _LOCKED else damaged(_FORMAT.label, str(error))
        ) from None
    with closing(document):
        yield document


def declared_title(document: Any) -> str | None:
    """Return the title in the metadata, or None."""
    try:
        return given_title(document.get_metadata_value("Title"))
    except UnicodeDecodeError:
        return None


def check_page_tree(data: bytes) -> None:
    """Raise ExtractionFailed "file_corrupt" if a node of the page tree is its own ancestor.

    PDFium would read the same pages as often as the file claims to have pages. Only uncompressed nodes are
    checked; `Limits.cpu_seconds` bounds the rest.
    """
    # The children of each node by its number; for an updated node, those of its last version.
    kids: dict[int, list[int]] = {}
    number = 0
    for found in _OBJECT_OR_KIDS.finditer(data):
        if found[1] is None:
            kids[number] = [int(reference) for reference in _REFERENCE.findall(found[2])]
        else:
            number = int(found[1])
            kids.pop(number, None)
    open_nodes: set[int] = set()
    sound: set[int] = set()
    for root in kids:
        path = [(root, iter(kids[root]))]
        open_nodes.add(root)
        while path:
            node, left = path[-1]
            child = next((child for child in left if child in kids and child not in sound), None)
            if child is None:
                path.pop()
                open_nodes.discard(node)
                sound.add(node)
            elif child in open_nodes:
                raise damaged(_FORMAT.label, f"object {child} of its page tree holds itself")
            else:
                open_nodes.add(child)
                path.append((child, iter(kids[child])))


class _Line(NamedTuple):
    """One line of a page; lengths in points, from the lower left corner."""

    cells: list[str]
    """Its text, split at wide gaps."""
    size: float
    left: float
    right: float
    first_base: float
    """Baseline of its first character; the last one is lower if a hyphenated word joined two lines."""
    last_base: float

    @property
    def text(self) -> str:
        return " ".join(self.cells)


class _Read(NamedTuple):
    """The content of one page."""

    lines: list[_Line]
    notes: str
    is_bare: bool
    """True if the page shows nothing."""


def _read(document: Any, index: int) -> _Read:
    """Read a page; it is empty if PDFium cannot load it."""
    try:
        with closing(document[index]) as page, closing(page.get_textpage()) as textpage:
            text = textpage.get_text_range()
            notes = notes_of(document, page, text)
            is_bare = not notes and raw.FPDFPage_CountObjects(page) <= 0
            return _Read(_lines(textpage.raw, text), notes, is_bare)
    except pypdfium2.PdfiumError:
        return _Read([], "", True)


def _lines(textpage: Any, text: str) -> list[_Line]:
    found: list[_Line] = []
    start = 0  # of the line, in UTF-16 code units
    for line in text.split("\r\n"):
        if line.strip():
            found.append(_line(textpage, start, line))
        start += len(line.encode("utf-16-le", "surrogatepass")) // 2 + 2
    lines = [line for line in found if line.text]
    # Move a footer that was drawn first to the end, and a header that was drawn last to the start.
    header: list[_Line] = []
    if len(lines) > 1 and lines[-1].last_base > max(line.first_base for line in lines[:-1]):
        header = [lines.pop()]
    if len(lines) > 1 and lines[0].first_base < min(line.last_base for line in lines[1:]):
        lines.append(lines.pop(0))
    return header + lines


def _line(textpage: Any, start: int, line: str) -> _Line:
    def character(index: int) -> int:
        """Return PDFium's index of the character at an index of the line."""
        units = index if line.isascii() else len(line[:index].encode("utf-16-le", "surrogatepass")) // 2
        return int(raw.FPDFText_GetCharIndexFromTextIndex(textpage, start + units))

    first, last = (character(index) for index in (len(line) - len(line.lstrip()), len(line.rstrip()) - 1))
    matrix = raw.FS_MATRIX()
    raw.FPDFText_GetMatrix(textpage, first, matrix)
    size = raw.FPDFText_GetFontSize(textpage, first) * math.hypot(matrix.c, matrix.d)
    cells, begin = [], 0
    for gap in re.finditer(" +", line):
        before, after = character(gap.start() - 1), character(gap.end())
        if gap.start() and _box(textpage, after).left - _box(textpage, before).right > _CELL_GAP * size:
            cells.append(line[begin : gap.start()])
            begin = gap.end()
    cells.append(line[begin:])
    cleaned = (_COMPOUND.sub(_with_hyphen, cell).translate(_CLEANED) for cell in cells)
    cells = [" ".join(_LEADERS.sub(" … ", cell).split()) for cell in cleaned]
    return _Line(
        list(filter(None, cells)),
        size,
        _box(textpage, first).left,
        _box(textpage, last).right,
        _base(textpage, first),
        _base(textpage, last),
    )


def _with_hyphen(broken: re.Match[str]) -> str:
    """Join a hyphenated word; the hyphen is kept between a lower-case and an upper-case letter."""
    before, after = broken.groups()
    return f"{before}-{after}" if before.islower() and after.isupper() else f"{before}{after}"


def _box(textpage: Any, character: int) -> Any:
    box = raw.FS_RECTF()
    raw.FPDFText_GetLooseCharBox(textpage, character, box)
    return box


def _base(textpage: Any, character: int) -> float:
    x, y = ctypes.c_double(), ctypes.c_double()
    raw.FPDFText_GetCharOrigin(textpage, character, x, y)
    return y.value


def _heading_levels(lines: Sequence[_Line]) -> dict[float, int]:
    """Return the heading level of each size larger than that of most of the text."""
    characters: Counter[float] = Counter()
    for line in lines:
        characters[_rounded(line.size)] += len(line.text)
    if not characters:
        return {}
    (body, _), *_ = characters.most_common(1)
    sizes = {_rounded(line.size) for line in lines if _may_be_heading(line)}
    larger = sorted((size for size in sizes if size >= _HEADING_SIZE * body), reverse=True)
    return {size: min(level, _LEVELS) for level, size in enumerate(larger, 1)}


def _rounded(size: float) -> float:
    return round(size * 2) / 2 if math.isfinite(size) else 0.0


def _blocks(lines: Sequence[_Line], levels: dict[float, int]) -> Iterator[str]:
    """Yield headings, tables and paragraphs as Markdown."""
    columns = [0, *(len(line.cells) for line in lines), 0]
    lines = [  # keep columns only if a neighbouring line has as many: a single row is no table
        line if here in (before, after) else line._replace(cells=[line.text])
        for line, before, here, after in zip(lines, columns, columns[1:], columns[2:], strict=False)
    ]
    steps = [
        step
        for before, line in pairwise(lines)
        if 0 < (step := before.last_base - line.first_base) < _LONGEST_STEP * line.size
    ]
    usual_step = median(steps or [0.0])
    edges: dict[int, float] = {}
    for line in lines:
        column = _column(line)
        edges[column] = max(edges.get(column, line.right), line.right)
    group: list[_Line] = []
    for line in lines:
        if group and not _continues(group, line, levels, usual_step):
            yield _block(group, levels, edges)
            group = []
        group.append(line)
    if group:
        yield _block(group, levels, edges)


def _continues(group: Sequence[_Line], line: _Line, levels: dict[float, int], usual_step: float) -> bool:
    """True if a line continues the heading, table or paragraph of the lines before it."""
    before = group[-1]
    level = _level(line, levels)
    if level != _level(before, levels):
        return False
    step = before.last_base - line.first_base
    if level:
        return 0 < step < 2 * line.size and len(group) < _HEADING_LINES
    if len(line.cells) > 1 or len(before.cells) > 1:
        return len(line.cells) == len(before.cells)
    is_middle = line.text[0].islower() and not before.text.endswith(_SENTENCE_END)
    if step <= 0:
        return is_middle  # the next column, or another position on the page
    if step > _PARAGRAPH_STEP * usual_step:
        return is_middle and step < 2 * usual_step
    low, high = (line.left + share * line.size for share in _INDENTED)
    is_indented = low - line.left < line.left - before.left < high - line.left
    return is_middle or not (is_indented and before.text.endswith(_SENTENCE_END))


def _block(group: Sequence[_Line], levels: dict[float, int], edges: dict[int, float]) -> str:
    first = group[0]
    if level := _level(first, levels):
        return f"{'#' * level} {' '.join(line.text for line in group)}"
    if len(first.cells) > 1:
        header, *rows = (table_row(line.cells) for line in group)
        return "\n".join([header, table_rule(len(first.cells)), *rows])
    text = escaped(first.text)
    for before, line in pairwise(group):
        edge = max(edges.get(_column(before) + side, 0.0) for side in (-1, 0, 1))
        is_full = before.right - before.left >= _FULL * (edge - before.left)
        text += f" {line.text}" if is_full or line.text[0].islower() else f"\n{escaped(line.text)}"
    return text


def _level(line: _Line, levels: dict[float, int]) -> int:
    return levels.get(_rounded(line.size), 0) if _may_be_heading(line) else 0


def _may_be_heading(line: _Line) -> bool:
    text = line.text
    return len(line.cells) == 1 and len(text) <= _LONGEST_HEADING and any(map(str.isalpha, text))


def _column(line: _Line) -> int:
    return int(line.left // _COLUMN_POINTS) if math.isfinite(line.left) else 0
