"""OpenDocument: texts (ODT), spreadsheets (ODS) and presentations (ODP), from their `content.xml`.

Headings, paragraphs, lists, tables and notes are read in the order of the file; a slide is a page, a sheet a
table under its name. Repeated empty rows and cells, with which a sheet fills its grid, are left out; deleted
text and macros are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kb_contracts.api.formats import FORMATS, Format
from kb_readers.docx_numbering import numeral
from kb_readers.failures import damaged, locked, unsafe
from kb_readers.markdown import escaped, given_title, one_line, table_row, table_rule, title_of
from kb_readers.model import Context, Extraction, Page, TextBudget
from kb_readers.xml_files import Archive, Attributes, Handler, value_of

_DEEPEST = 6
_MOST_REPEATS = 1_000  # maximum repetitions of a cell or row with text
_MOST_CELLS = 1_000_000
_MOST_COLUMNS = 16_384
_SKIPPED = frozenset(["tracked-changes", "annotation", "forms", "settings", "sequence-decls"])
_PARAGRAPHS = frozenset(["p", "h"])
_NUMERALS = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}


def read_opendocument(data: bytes, context: Context) -> Extraction:
    """Return a page per slide, or one page without a number. Raises ExtractionFailed."""
    fmt = FORMATS[context.format]
    archive = Archive(data, fmt.label)
    if archive.elements("META-INF/manifest.xml", "encryption-data").attributes:
        raise locked(fmt.label)
    kind = ""
    if archive.holds("mimetype"):
        kind = archive.read("mimetype").decode("ascii", "replace").strip()
    if kind and not kind.startswith(fmt.mime_type):
        raise damaged(fmt.label, f"its content is {kind[:100]}")
    styles = _ListStyles()
    content = _Content(fmt, styles)
    if archive.holds("styles.xml"):
        archive.feed("styles.xml", styles)
    archive.feed("content.xml", content)
    pages = content.finished()
    title = given_title(archive.elements("meta.xml", "title").text) or (
        title_of(pages[0].text) if pages else None
    )
    return Extraction(pages, title, "text_extraction", fmt.mime_type)


class _ListStyles(Handler):
    """The numbered levels of list styles: the format of their numbers, and the first number."""

    def __init__(self) -> None:
        self._levels: dict[tuple[str, int], tuple[str, int]] = {}
        self._style = ""

    def start(self, name: str, attributes: Attributes) -> None:
        if name == "list-style":
            self._style = value_of(attributes, "name")
        elif name == "list-level-style-number" and (shape := value_of(attributes, "num-format")):
            level = self._style, _count(attributes, "level")
            self._levels[level] = shape, _count(attributes, "start-value")

    def level(self, style: str, depth: int) -> tuple[str, int]:
        """Return format and first number of a level; the format is empty for bullets."""
        return self._levels.get((style, depth), ("", 1))


@dataclass(slots=True)
class _List:
    """An open list. `number` is that of the next item, `mark` that of the open item, until it is written."""

    style: str
    shape: str
    number: int
    mark: str = "-"

    def begin_item(self) -> None:
        self.mark = f"{numeral(self.number, _NUMERALS.get(self.shape, ''))}." if self.shape else "-"
        self.number += 1


class _Table:
    """A table under construction; trailing empty cells and empty rows are left out."""

    def __init__(self, name: str, fmt: Format) -> None:
        self.name = name
        self.rows: list[list[str]] = []
        self.row: list[str] = []
        self.cell: list[str] | None = None
        self.row_repeats = self.cell_repeats = 1
        self._empty = self._cells = 0
        self._fmt = fmt

    def end_cell(self) -> None:
        text = one_line(" ".join(self.cell or []))
        self.cell = None
        if not text:
            self._empty += self.cell_repeats
            return
        missing = self._empty + min(self.cell_repeats, _MOST_REPEATS)
        self._cells += missing
        if len(self.row) + missing > _MOST_COLUMNS:
            raise unsafe(self._fmt.label, f"more than {_MOST_COLUMNS:,} columns")
        if self._cells > _MOST_CELLS:
            raise unsafe(self._fmt.label, f"more than {_MOST_CELLS:,} cells")
        self.row += [""] * self._empty + [text] * min(self.cell_repeats, _MOST_REPEATS)
        self._empty = 0

    def end_row(self) -> None:
        repeats = min(self.row_repeats, _MOST_REPEATS)
        self._cells += len(self.row) * (repeats - 1)
        if self._cells > _MOST_CELLS:
            raise unsafe(self._fmt.label, f"more than {_MOST_CELLS:,} cells")
        if self.row:
            self.rows += [self.row] * repeats
        self.row, self._empty = [], 0

    def lines(self) -> Iterator[str]:
        """Yield the table as Markdown, its first row as the header; further rows end with their last cell."""
        if self.rows:
            columns = max(map(len, self.rows))
            yield table_row(self.rows[0] + [""] * (columns - len(self.rows[0])))
            yield table_rule(columns)
            yield from map(table_row, self.rows[1:])


class _Content(Handler):
    """The pages of a file, built from the events of its content."""

    def __init__(self, fmt: Format, styles: _ListStyles) -> None:
        self._fmt = fmt
        self._styles = styles
        self._budget = TextBudget()
        self._pages: list[Page] = []
        self._parts: list[str] = []
        self._paragraphs: list[tuple[int, list[str]]] = []
        """Paragraphs under construction, innermost last, with their heading levels; 0 is no heading."""
        self._tables: list[_Table] = []
        self._lists: list[_List] = []
        self._ended: dict[tuple[str, int], int] = {}
        """The next number of each list style and depth, for lists that continue one."""
        self._skipped = self._notes = 0

    def finished(self) -> list[Page]:
        if self._fmt.name != "odp":
            self._end_page(None)
        return self._pages

    def start(self, name: str, attributes: Attributes) -> None:
        if self._skipped or name in _SKIPPED:
            self._skipped += 1
        elif name in _PARAGRAPHS:
            level = value_of(attributes, "outline-level") if name == "h" else "0"
            self._paragraphs.append((min(int(level), _DEEPEST) if level.isdecimal() else 1, []))
        elif name == "list":
            self._begin_list(attributes)
        elif name == "list-item" and self._lists:
            self._lists[-1].number = _count(attributes, "start-value", self._lists[-1].number)
            self._lists[-1].begin_item()
        elif name == "note":
            self._notes += 1
        elif name == "table":
            self._tables.append(_Table(value_of(attributes, "name"), self._fmt))
        elif name == "table-row" and self._tables:
            self._tables[-1].row_repeats = _count(attributes, "number-rows-repeated")
        elif name in ("table-cell", "covered-table-cell") and self._tables:
            self._tables[-1].cell = []
            self._tables[-1].cell_repeats = _count(attributes, "number-columns-repeated")
        elif self._paragraphs and name in ("s", "tab", "line-break"):
            self._paragraphs[-1][1].append(" ")
        else:
            self._styles.start(name, attributes)

    def end(self, name: str) -> None:
        if self._skipped:
            self._skipped -= 1
        elif name in _PARAGRAPHS and self._paragraphs:
            level, pieces = self._paragraphs.pop()
            self._add(level, one_line("".join(pieces)))
        elif name == "list" and self._lists:
            ended = self._lists.pop()
            self._ended[ended.style, len(self._lists) + 1] = ended.number
        elif name == "note":
            self._notes -= 1
        elif name in ("table-cell", "covered-table-cell") and self._tables:
            self._tables[-1].end_cell()
        elif name == "table-row" and self._tables:
            self._tables[-1].end_row()
        elif name == "table" and self._tables:
            self._end_table(self._tables.pop())
        elif name == "page" and self._fmt.name == "odp":
            self._end_page(len(self._pages) + 1)

    def characters(self, text: str) -> None:
        if self._paragraphs and not self._skipped:
            self._budget.spend(text)
            self._paragraphs[-1][1].append(text)

    def _add(self, level: int, text: str) -> None:
        """Add a paragraph to its cell, to the paragraph that its note belongs to, or to the page."""
        if not text:
            return
        if self._paragraphs and self._notes:
            self._paragraphs[-1][1].append(f" ({text}) ")
        elif self._tables and (cell := self._tables[-1].cell) is not None:
            cell.append(text)
        elif level:
            self._parts.append(f"{'#' * level} {text}")
        else:
            self._parts.append(self._item(text) if self._lists else escaped(text))

    def _begin_list(self, attributes: Attributes) -> None:
        depth = len(self._lists) + 1
        style = value_of(attributes, "style-name") or (self._lists[-1].style if self._lists else "")
        shape, first = self._styles.level(style, depth)
        if value_of(attributes, "continue-numbering") == "true":
            first = self._ended.get((style, depth), first)
        self._lists.append(_List(style, shape, first))

    def _item(self, text: str) -> str:
        """Return a paragraph of a list; those after the first one of an item have no mark."""
        item = self._lists[-1]
        mark, item.mark = item.mark, ""
        return f"{'  ' * (len(self._lists) - 1)}{mark or ' '} {text}"

    def _end_table(self, table: _Table) -> None:
        if not table.rows:
            return
        if self._tables and (cell := self._tables[-1].cell) is not None:
            cell += [text for row in table.rows for text in row]
            return
        if self._fmt.name == "ods":
            self._parts.append(f"# {one_line(table.name)}")
        lines = []
        for line in table.lines():
            self._budget.spend(line)
            lines.append(line)
        self._parts.append("\n".join(lines))

    def _end_page(self, number: int | None) -> None:
        self._pages.append(Page(number, "\n\n".join(self._parts)))
        self._parts = []


def _count(attributes: Attributes, name: str, default: int = 1) -> int:
    repeats = value_of(attributes, name)
    is_number = repeats.isascii() and repeats.isdecimal() and len(repeats) < 9
    return max(1, int(repeats)) if is_number else default
