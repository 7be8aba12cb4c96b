"""The text of a PDF, page by page. A page that holds a picture only, such as a scan, has an empty text.

A PDF has glyphs at places, and no paragraphs. PDFium puts them into lines, in the order in which the file
draws them, and joins words that were hyphenated. What the lines are is told from their size and place:

    larger than most of the text     ─▶ headings; the sizes, from the largest down, are their levels
    the same columns, line on line   ─▶ a table
    a wider step, or an indent       ─▶ a new paragraph
    short, and the next is no middle
    of a sentence                    ─▶ a line of its own, as in a list or an address

Behind it stands what was written onto the page: into a form, and as notes.
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
# Where readers look for the marks of beginning and end.
_HEAD_BYTES = 1024
_TAIL_BYTES = 2048
_PADDING = b"\0 \t\r\n"
_OBJECT_OR_KIDS = re.compile(rb"(\d{1,10})\s+\d{1,5}\s+obj\b|/Kids\s*\[([^\]]*)\]")
_REFERENCE = re.compile(rb"(\d{1,10})\s+\d{1,5}\s+R\b")

_HEADING_SIZE = 1.15  # of a heading at least, in sizes of the text
_LONGEST_HEADING = 200
_HEADING_LINES = 3
_LEVELS = 6
_CELL_GAP = 1.2  # between the columns of a table at least, in sizes of the text: no justified line is as wide
_LONGEST_STEP = 3.0  # from line to line of one text, in sizes of the text
_PARAGRAPH_STEP = 1.25  # from one paragraph to the next at least, in steps from line to line
_INDENTED = (0.8, 4.0)  # how far the first line of a paragraph may stand to the right, in sizes of the text
_FULL = 0.75  # of the width of its column: a line that takes less was not broken for want of room
_COLUMN_POINTS = 40.0  # lines that begin within so much of one another are of one column
_SENTENCE_END = (".", "!", "?", ":", ";", "”", '"', "。", "！", "？")
_LEADERS = re.compile(r"(?:\s?\.){4,}")  # the dots of a table of contents
_COMPOUND = re.compile("([^\\W\\d_])\ufffe([^\\W\\d_])")  # PDFium's mark where it joined what a hyphen broke
# The hyphen of a word that PDFium joined, characters that are no text, and ligatures of one character.
_CLEANED = {0xFFFE: None, 0xFFFF: None, 0xAD: None, **dict.fromkeys([*range(9), *range(11, 32)])} | {
    0xFB00 + number: letters for number, letters in enumerate(("ff", "fi", "fl", "ffi", "ffl", "st", "st"))
}


def read_pdf(data: bytes, context: Context = _NO_CONTEXT) -> Extraction:
    """Pages numbered from 1; their count is reported before they are read. Raises ExtractionFailed.

    A remark says which pages lost text to damage.
    """
    with open_pdf(data) as document:
        with suppress(pypdfium2.PdfiumError):  # its fields are left out then
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
    """A PDF checked and opened: a `pypdfium2.PdfDocument`, which has no types.

    PDFium comes in the package pypdfium2 (Apache-2.0 or BSD-3-Clause; PDFium is BSD-3-Clause). It is C++ and
    reads hostile files: use it in a process that may be killed.

    Raises ExtractionFailed: no PDF, cut off, damaged or locked.
    """
    if b"%PDF-" not in data[:_HEAD_BYTES]:
        raise ExtractionFailed("file_corrupt", "The file is not a PDF, although its name says so.")
    # PDFium repairs a file that was cut off as well as it can, and says nothing of what is lost.
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
    """What the file says its title is."""
    try:
        return given_title(document.get_metadata_value("Title"))
    except UnicodeDecodeError:
        return None


def check_page_tree(data: bytes) -> None:
    """Raise ExtractionFailed "file_corrupt" where a node of the page tree is its own ancestor.

    PDFium would read the same pages as often as the file claims to have any. Only nodes that stand in the
    file uncompressed are seen; of the others a reader has `Limits.cpu_seconds`.
    """
    # The children of each node by its number; of a node that was changed, those of its last version.
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
    """Its text, in pieces where there is a wide gap."""
    size: float
    left: float
    right: float
    first_base: float
    """Where its first character stands; the last one is lower where a hyphenated word joined two lines."""
    last_base: float

    @property
    def text(self) -> str:
        return " ".join(self.cells)


class _Read(NamedTuple):
    """What one page gave."""

    lines: list[_Line]
    notes: str
    is_bare: bool
    """Whether it shows nothing at all."""


def _read(document: Any, index: int) -> _Read:
    """A page; nothing of one that PDFium cannot load."""
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
    start = 0  # of the line, in units of UTF-16
    for line in text.split("\r\n"):
        if line.strip():
            found.append(_line(textpage, start, line))
        start += len(line.encode("utf-16-le", "surrogatepass")) // 2 + 2
    lines = [line for line in found if line.text]
    # A footer that was drawn first goes to the end, and a header that was drawn last to the start.
    header: list[_Line] = []
    if len(lines) > 1 and lines[-1].last_base > max(line.first_base for line in lines[:-1]):
        header = [lines.pop()]
    if len(lines) > 1 and lines[0].first_base < min(line.last_base for line in lines[1:]):
        lines.append(lines.pop(0))
    return header + lines


def _line(textpage: Any, start: int, line: str) -> _Line:
    def character(index: int) -> int:
        """PDFium's number of the character at an index of the line."""
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
    """The letters around a line's end; a hyphen from a small letter to a capital belongs to the word."""
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
    """The level of each size that is larger than that of most of the text."""
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
    """Headings, tables and paragraphs as Markdown."""
    columns = [0, *(len(line.cells) for line in lines), 0]
    lines = [  # only those in columns that have a neighbour in as many: a row alone is no table
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
    """Whether a line belongs to the heading, the table or the paragraph of the lines before it."""
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
        return is_middle  # the next column, or another place on the page
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
