"""Text of a PDF by page. A page with pictures only, such as a scan, has an empty text.

A PDF has glyphs at positions, and no paragraphs. PDFium combines them into lines, in the order in which the
file draws them, and joins hyphenated words. The role of lines follows from their size and position:

    larger than most of the text     ─▶ headings; the sizes, from the largest down, are their levels;
                                        several full lines, or lines with a full stop, are a paragraph
    bold, short and apart from the
    text above it                ─▶ a heading below these, unless much of the text is bold
    the same columns, line on line   ─▶ a table
    a wider step, or an indent       ─▶ a new paragraph
    short, and the next line does
    not continue its sentence        ─▶ a line of its own, as in a list or an address

Lines that are not level, such as a stamp in the margin, are no headings and follow the others. Form values
and annotations follow the text of the page.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain, pairwise
from statistics import median
from typing import Any, NamedTuple

import pypdfium2
from pypdfium2 import raw

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import ExtractionFailed, damaged, locked
from kb_readers.markdown import escaped, given_title, headings, table
from kb_readers.model import DEFAULT_LIMITS, Context, Extraction, Page, PagesCounted
from kb_readers.pdf_lines import Line, lines_of
from kb_readers.pdf_notes import notes_of
from kb_readers.pdf_running import without_running
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
_TITLE_SIZE = 1.4  # in sizes of the text: a smaller heading has no two full lines
_LONGEST_HEADING = 200
_HEADING_LINES = 3
_LARGE_LINES = 6  # of a heading of at least _LARGE_SIZE sizes of the text
_LARGE_SIZE = 2.0
_BOLD_LINES = 2
_HIGHEST_ROW = 5.0  # of a table, in sizes of the text
_SECTION = re.compile(r"(?:\d{1,2}\.){0,4}\d{1,2}\.?|[IVX]{1,5}\.|[A-Z]\.")
# A letter before a further initial is no number: "D. E. Knuth", "A. Bell and C. Dunn".
_NUMBERED = re.compile(
    r"(?:(?:\d{1,2}\.){1,4}(?:\d{1,2})?|[IVX]{2,5}\.|[A-HIVX]\.(?!.*\b[A-ZÀ-Þ]\. )) +[A-ZÀ-Þ]"
)
_BOLD_SHARE = 0.3  # maximum share of bold characters in a text with bold headings
_LEVELS = 6
_LONGEST_STEP = 3.0  # from line to line of one text, in sizes of the text
_PARAGRAPH_STEP = 1.25  # minimum step between paragraphs, in steps from line to line
_INDENTED = (0.8, 4.0)  # range of the first-line indent, in sizes of the text
_FULL = 0.75  # of the column's width: a shorter line was not broken for lack of room
_COLUMN_POINTS = 40.0  # lines whose left edges differ by less are in one column
_FULL_STOPS = (".", "。", "؟", "۔")
_SENTENCE_END = (".", "!", "?", ":", ";", "”", '"', "。", "！", "？")
_CAPTION = re.compile(
    r"(?:table|figure|fig|tab|tabelle|abb|abbildung|tableau|tabla|figura)\b\.? *\d", re.IGNORECASE
)
_LABEL = re.compile(
    r"(?:chapter|part|kapitel|teil|chapitre|partie|capítulo|parte) [\divxl]+\W?", re.IGNORECASE
)
_NO_TITLE = re.compile(
    r"(?:a?pr[eéä][sz]ent\w+ (?:standard )?(?:de |do |di )?)?powerpoint(?:[ -]?pr[eéä][sz]ent\w+)?"
    r"|presentation|document|paper title \(use .*|(?:no )?title|none|untitled(?:[ _-]?\d+| document)?"
    r"|\(anonymous\)|documento? s[ae]ns? t[ií]t\w+|unbenanntes dokument|doi:\S+"
    r"|(?:\w+://|www\.|[\w-]+(?:\.[\w-]+)+(?::\d+)?/)\S*|[\W\d_]*",
    re.IGNORECASE,
)
"""Defaults of programs and templates, addresses and numbers that PDFs declare as their titles."""
_FILE_NAME = re.compile(
    r"microsoft (?:word|powerpoint|excel) - .*|.*\.(?:docx?|dot|odt|rtf|tex|dvi|e?ps|pdf|txt|html?|pptx?|odp"
    r"|xlsx?|xls|ods|indd|qxd|pmd|p65|graffle|pages|pub|wpd|cdr|vsdx?|exe)|.*\w_\w.*|(?-i:[a-z\d]+(?:-[a-z\d]+)+)",
    re.IGNORECASE,
)
"""Names of files and of their parts; declared titles that name a text without a heading."""
_CONTENTS = frozenset(
    ("contents", "table of contents", "inhalt", "inhaltsverzeichnis", "sommaire", "table des matières")
)
"""Headings that are no title of a document, in small letters."""


def read_pdf(data: bytes, context: Context = _NO_CONTEXT) -> Extraction:
    """Return pages numbered from 1; a remark lists those that lost text. Raises ExtractionFailed."""
    with open_pdf(data) as document:
        with suppress(pypdfium2.PdfiumError):  # without the form its fields are omitted
            document.init_forms()
        if len(document):
            context.report_progress(PagesCounted(len(document)))
        found = [_read(document, index) for index in range(len(document))]
        kept = without_running([each.lines for each in found])
        body = _Body.of(chain.from_iterable(kept))
        layouts = [_Layout(lines, body) for lines in kept]
        levels = _heading_levels(layouts)
        pages = [
            Page.of(number, "\n\n".join(layout.blocks(levels)), each.notes)
            for number, (layout, each) in enumerate(zip(layouts, found, strict=True), 1)
        ]
        title = title_of_pdf(declared_title(document), pages[0].body if pages else "")
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
    try:
        return given_title(document.get_metadata_value("Title"))
    except UnicodeDecodeError:
        return None


def title_of_pdf(declared: str | None, text: str) -> str | None:
    """Return the declared title, or the title on the first page, which has this text, if the declared one is
    the name of a file; None rather than the default of a program.

    The title on the page is its first heading of level 1, else a heading that begins it. One word gives
    way to the largest heading of several words above it, and "Chapter 1" has the heading after it.
    """
    if declared is not None and _NO_TITLE.fullmatch(declared):
        declared = None
    if declared is not None and not _FILE_NAME.fullmatch(declared):
        return declared
    found = [each for each in headings(text) if each.title and each.title.casefold() not in _CONTENTS]
    chosen = [each for each in found if each.level == 1] or [each for each in found[:1] if not each.start]
    if not chosen:
        return declared
    title = chosen[0].title
    if _LABEL.fullmatch(title) and len(chosen) > 1:
        return f"{title} {chosen[1].title}"
    above = [each for each in found if " " in each.title and each.start < chosen[0].start]
    is_word = title.isascii() and " " not in title
    return min(above, key=lambda each: each.level).title if is_word and above else title


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


class _Read(NamedTuple):
    """The content of one page."""

    lines: list[Line]
    notes: str
    is_bare: bool  # true if the page shows nothing


def _read(document: Any, index: int) -> _Read:
    """Read a page; it is empty if PDFium cannot load it."""
    try:
        with closing(document[index]) as page, closing(page.get_textpage()) as textpage:
            text = textpage.get_text_range()
            notes = notes_of(document, page, text)
            is_bare = not notes and raw.FPDFPage_CountObjects(page) <= 0
            return _Read(lines_of(page, textpage, text), notes, is_bare)
    except pypdfium2.PdfiumError:
        return _Read([], "", True)


class _Group(NamedTuple):
    """Lines of one heading, table or paragraph."""

    lines: list[Line]
    is_heading: bool


class _Body(NamedTuple):
    """The type of most of the text."""

    size: float
    has_bold_headings: bool  # true if bold type is rare enough to mark headings

    @classmethod
    def of(cls, lines: Iterable[Line]) -> _Body:
        characters: Counter[float] = Counter()
        bold = 0
        for line in lines:
            characters[_rounded(line.size)] += len(line.text)
            bold += line.is_bold * len(line.text)
        size = max(characters, key=lambda each: characters[each], default=0.0)
        return cls(size, bold <= _BOLD_SHARE * characters.total())


class _Layout:
    """The lines of a page, in groups."""

    def __init__(self, lines: Sequence[Line], body: _Body) -> None:
        lines = [_with_number(line) for line in lines]
        columns = [0, *(len(line.cells) for line in lines), 0]
        self._lines = [  # keep columns only if a neighbouring line has as many: a single row is no table
            line
            if len(line.cells) == 1 or here in (before, after)
            else line._replace(cells=[line.text], is_bold=False)
            for line, before, here, after in zip(lines, columns, columns[1:], columns[2:], strict=False)
        ]
        self._body = body
        self._edges: dict[tuple[int, int], float] = {}
        for line in self._lines:
            column = line.turn, _column(line)
            self._edges[column] = max(self._edges.get(column, line.right), line.right)
        self._lines = list(self._with_bold_headings())
        self.groups = list(self._grouped())

    def blocks(self, levels: dict[float, int]) -> Iterator[str]:
        """Yield headings, tables and paragraphs as Markdown."""
        for group, is_heading in self.groups:
            if is_heading:
                yield f"{'#' * levels[_rounded(group[0].size)]} {_joined(group)}"
            elif len(group[0].cells) > 1:
                yield table(line.cells for line in group)
            else:
                yield self._paragraph(group)

    def _with_bold_headings(self) -> Iterator[Line]:
        """Yield the lines; only headings of the size of text are bold: bold ones, and numbered ones apart."""
        usual_step = _usual_step(self._lines)
        runs = list(_split(self._lines, partial(_continues_bold, usual_step)))
        for before, run, after in zip([None, *runs], runs, [*runs[1:], None], strict=False):
            is_apart = before is None or self._is_apart(before[-1], run[0], usual_step)
            is_heading = is_apart and self._is_of_heading(run)
            if is_heading and after is not None:
                step = _step(run[-1], after[0])
                is_heading = not (after[0].text[0].islower() or _is_in_row(step, run[-1]))
                if not run[0].is_bold:
                    is_numbered = _NUMBERED.match(after[0].text) is not None
                    is_heading = is_heading and not is_numbered and step > _PARAGRAPH_STEP * usual_step
            if before is not None and not run[0].is_bold:  # the last of a numbered list is no heading
                is_heading = is_heading and _numbering(before[-1]) != _numbering(run[0])
            yield from (line._replace(is_bold=is_heading) for line in run)

    def _is_apart(self, before: Line, line: Line, usual_step: float) -> bool:
        step = _step(before, line)
        is_near = 0 < step <= _PARAGRAPH_STEP * usual_step
        return self._is_large(before) or not (is_near or _is_in_row(step, line))

    def _is_of_heading(self, run: Sequence[Line]) -> bool:
        """True if lines of the size of text have the type and the words of a heading."""
        first, text = run[0], _joined(run)
        is_of_text_size = self._body.size <= _rounded(first.size) < _HEADING_SIZE * self._body.size
        is_marked = (self._body.has_bold_headings and first.is_bold) or _NUMBERED.match(text)
        return bool(
            is_marked
            and is_of_text_size
            and not first.turn
            and len(first.cells) == 1
            and len(run) <= _BOLD_LINES
            and len(text) <= _LONGEST_HEADING
            and not text[0].islower()
            and not text.endswith((*_SENTENCE_END, ","))
            and 2 * sum(map(str.isalpha, text)) > len(text)
            and not _CAPTION.match(text)
        )

    def _grouped(self) -> Iterator[_Group]:
        for group in _split(self._lines, partial(self._continues, _usual_step(self._lines))):
            if not self._is_large(group[0]):
                yield _Group(group, False)
            elif self._is_heading(group):
                yield _Group(group, True)
            else:  # text in large type
                for part in _split(group, partial(_continues_text, _usual_step(group))):
                    yield _Group(part, self._is_heading(part))

    def _continues(self, usual_step: float, before: Line, line: Line) -> bool:
        """True if a line continues the heading, table or paragraph of the line before it."""
        is_large = self._is_large(line)
        if before.turn != line.turn or is_large != self._is_large(before):
            return False
        if is_large:
            step = _step(before, line)
            is_same = _rounded(before.size) == _rounded(line.size) and 0 < step < 2 * line.size
            return is_same and not (line.is_bold and _NUMBERED.match(line.text))
        return _continues_text(usual_step, before, line)

    def _is_large(self, line: Line) -> bool:
        """True if the line is larger than text, and level, or a bold heading."""
        is_words = len(line.cells) == 1 and any(map(str.isalpha, line.text))
        is_larger = _rounded(line.size) >= _HEADING_SIZE * self._body.size
        return line.is_bold or (is_words and not line.turn and is_larger)

    def _is_heading(self, group: Sequence[Line]) -> bool:
        """True if large lines are a heading, and no paragraph in large type."""
        size, body = _rounded(group[0].size), self._body.size
        lines = _LARGE_LINES if size >= _LARGE_SIZE * body else _HEADING_LINES
        if len(group) > lines or len(_joined(group)) > _LONGEST_HEADING:
            return False
        if len(group) > 1 and group[-1].text.endswith(_FULL_STOPS):
            return False
        return sum(map(self._is_full, group)) < (lines if size >= _TITLE_SIZE * body else 2)

    def _is_full(self, line: Line) -> bool:
        edge = max(self._edges.get((line.turn, _column(line) + side), line.right) for side in (-1, 0, 1))
        return line.right - line.left >= _FULL * (edge - line.left)

    def _paragraph(self, group: Sequence[Line]) -> str:
        text = escaped(group[0].text)
        for before, line in pairwise(group):
            is_joined = self._is_full(before) or line.text[0].islower()
            text += f" {line.text}" if is_joined else f"\n{escaped(line.text)}"
        return text


def _split(lines: Sequence[Line], continues: Callable[[Line, Line], bool]) -> Iterator[list[Line]]:
    group: list[Line] = []
    for line in lines:
        if group and not continues(group[-1], line):
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _continues_text(usual_step: float, before: Line, line: Line) -> bool:
    """True if a line continues the table or paragraph of the line before it."""
    step = _step(before, line)
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


def _continues_bold(usual_step: float, before: Line, line: Line) -> bool:
    """True if both lines are bold, of one size, and lines of one text."""
    is_near = 0 < _step(before, line) <= _PARAGRAPH_STEP * usual_step
    return before.is_bold and line.is_bold and is_near and _rounded(before.size) == _rounded(line.size)


def _step(before: Line, line: Line) -> float:
    return before.last_base - line.first_base


def _numbering(line: Line) -> str | None:
    """Return the form of the number before a line, or None: that of `1.2. Pumps` is `0.0.`."""
    found = _NUMBERED.match(line.text)
    return found and re.sub(r"\w+", "0", found[0][:-1]).strip()


def _is_in_row(step: float, line: Line) -> bool:
    """True if two lines are cells of one row of a table: side by side, or the second a little higher."""
    return -_HIGHEST_ROW * line.size < step < line.size / 2


def _with_number(line: Line) -> Line:
    """Return a bold line with the number of a section and its title in one cell."""
    is_section = line.is_bold and len(line.cells) == 2 and _SECTION.fullmatch(line.cells[0])
    return line._replace(cells=[line.text]) if is_section else line


def _usual_step(lines: Sequence[Line]) -> float:
    """Return the median step from line to line."""
    steps = (_step(before, line) for before, line in pairwise(lines))
    near = [step for step, line in zip(steps, lines[1:], strict=True) if 0 < step < _LONGEST_STEP * line.size]
    return median(near or [0.0])


def _heading_levels(layouts: Iterable[_Layout]) -> dict[float, int]:
    """Return the heading level of each size of a heading; bold type alone makes none of level 1."""
    found = [group.lines[0] for layout in layouts for group in layout.groups if group.is_heading]
    sizes = sorted({_rounded(line.size) for line in found}, reverse=True)
    first = 2 if all(line.is_bold for line in found) else 1
    return {size: min(level, _LEVELS) for level, size in enumerate(sizes, first)}


def _joined(group: Sequence[Line]) -> str:
    return " ".join(line.text for line in group)


def _rounded(size: float) -> float:
    return round(size * 2) / 2 if math.isfinite(size) else 0.0


def _column(line: Line) -> int:
    return int(line.left // _COLUMN_POINTS) if math.isfinite(line.left) else 0
