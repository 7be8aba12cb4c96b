"""HTML to Markdown as displayed: headings, paragraphs, lists, tables and code; only the words of links.

Built on the standard library's tokenizer, without a tree, so that no nesting is too deep. Converters with a
tree drop deeply nested content, or overflow their stack.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser

from kb_readers.failures import ExtractionFailed
from kb_readers.markdown import escaped, fenced, given_title, table_row, table_rule, title_of
from kb_readers.model import Extraction, Page
from kb_readers.text import codec_named, declared_label, decode, encoding_by_mark

_MIME_TYPE = "text/html"
_LONGEST_TITLE = 500
_DEEPEST_INDENT = 6
_LARGEST_SPAN = 1_000

# As in browsers: Latin 1 and ASCII mean Windows 1252, East Asian encodings include the characters added to
# them later, and a declaration of UTF-16, itself readable as ASCII, is wrong.
_READ_AS = {
    "iso8859-1": "cp1252", "ascii": "cp1252", "big5": "big5hkscs", "gb2312": "gb18030", "gbk": "gb18030",
    "shift_jis": "cp932", "euc_kr": "cp949", "utf-16": "utf-8", "utf-16-le": "utf-8", "utf-16-be": "utf-8",
}  # fmt: skip
_TAKEN = frozenset(
    ["utf-8", "cp1252", "gb18030", "big5hkscs", "cp932", "euc_jp"]
    + ["iso2022_jp", "cp949", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "cp866", "cp874", "tis-620"]
    + [f"cp125{n}" for n in range(9)]
    + [f"iso8859-{n}" for n in range(2, 17)]
)

_HIDDEN = frozenset(["script", "style", "template", "noscript"])
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_LISTS = frozenset(["ul", "ol", "menu"])
_CELLS = frozenset(["td", "th"])
_ROW_GROUPS = frozenset(["table", "thead", "tbody", "tfoot"])
# Elements that end a line of text before and after themselves.
_BLOCKS = frozenset(
    """address article aside blockquote body caption center dd details dialog dir div dl dt fieldset
    figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu nav ol option p
    pre search section select summary table tbody tfoot thead tr ul""".split()  # noqa: SIM905 - read as words
)
_ANNOTATIONS = frozenset(["rt", "rp", "rtc"])  # pronunciation of the words before
_ENDS_OF_ANNOTATIONS = _ANNOTATIONS | _BLOCKS | _CELLS | frozenset(["rb", "ruby"])
# A table cell with one of these lays out a page, and is no data cell.
_LAYOUT = _ROW_GROUPS | frozenset(["pre", "blockquote", "hr", "section", "article", *_HEADINGS])

# End tags with attributes, which end scripts and styles too.
_RAW_END = re.compile(r"</(script|style|noscript)[\s/][^<>]*>", re.IGNORECASE)
# A single letter may be a power. Several letters, and the excluded ones, belong to an ordinal or an
# abbreviation: 21st, XXe, no.
_EXPONENT = re.compile(r"[\d+\-\N{MINUS SIGN}]|(?![aeorAEOR])[^\W\d_](?![^\W\d_])")
_NUMBER = re.compile(r"\s*([+-]?\d{1,9})(?!\d)", re.ASCII)


def read_html(data: bytes) -> Extraction:
    """Return the whole file as one page without a number.

    Raises ExtractionFailed "undecodable_text" if the bytes do not match the declared encoding, by default
    UTF-8.
    """
    document = _read(decode(data, find_encoding(data)))
    text = document.text()
    title = given_title(document.title) or title_of(text)
    return Extraction([Page(None, text)], title, "text_extraction", _MIME_TYPE)


def markdown_of(html: str) -> str:
    """Return the displayed text of HTML as Markdown."""
    return _read(html).text()


def find_encoding(data: bytes) -> str:
    """Return the encoding of a byte order mark, the declared one, or UTF-8."""
    if marked := encoding_by_mark(data):
        return marked
    declared = declared_label(data)
    return "utf-8" if declared is None else encoding_named(declared, "page")


def encoding_named(label: str, where: str) -> str:
    """Return the codec for a declared label, as browsers do. Raises ExtractionFailed "undecodable_text"."""
    name = codec_named(label) or label.lower()
    name = _READ_AS.get(name, name)
    if name not in _TAKEN:
        raise ExtractionFailed(
            "undecodable_text",
            f"The {where} declares an encoding that is not read: {label[:40]}. "
            "Save it as UTF-8 and try again.",
        )
    return name


def _read(html: str) -> _Document:
    document = _Document(len(html))
    document.feed(_RAW_END.sub(r"</\1>", html))
    document.close()
    return document


def _number(attribute: str | None, default: int = 1) -> int:
    """Parse an attribute of at most nine digits."""
    found = _NUMBER.match(attribute or "")
    return int(found[1]) if found else default


class Tokenizer(HTMLParser):
    """The tokenizer of the standard library, which accepts any declaration here."""

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Treat `<![anything` as a comment, as browsers do; the base class asserts on unknown words."""
        return self.parse_bogus_comment(i, report)


class _Document(Tokenizer):
    """Collects finished blocks of Markdown while the tags go by."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.title = ""
        self._in_title = False
        self._in_annotation = False
        self._hidden = ""  # the outermost open hidden element, and its nesting depth
        self._hidden_depth = 0
        self._parts: list[str] = []  # finished blocks, each after its separator
        self._last_kind = ""
        self._line: list[str] = []  # the block that is being written
        self._may_be_exponent = False  # a superscript directly after a letter or digit begins
        self._begins_link = False
        self._level = 0  # of the open heading
        self._anchor = sys.maxsize  # index in the line where the open link to a place in the page begins
        self._pre = 0  # number of open ones
        self._lists: list[int | None] = []  # the open lists: the number of the next item, None for a bullet
        self._item = ""  # the mark of the list item that the next block begins
        self._row: list[str] | None = None  # the finished cells of the open data row
        self._in_cell = False
        self._span = 1, 1  # columns and rows of the open cell
        self._row_number = 0
        self._free_from: dict[int, int] = {}  # first row below a cell with a row span, by column
        self._empty_cells = _LARGEST_SPAN + length  # cells that spans may still add: bounded by the file size

    def text(self) -> str:
        """The whole document; call after `close`."""
        self._end_row()
        self._end_block()
        return "".join(self._parts[1:])

    # Callbacks of the tokenizer

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden:
            self._hidden_depth += tag == self._hidden
        elif tag == "template" and dict(attrs).get("shadowrootmode") in ("open", "closed"):
            self._start_block("div", {})  # displayed in place of the element that it is in
        elif tag in _HIDDEN or (tag == "title" and self.title):
            self._hidden, self._hidden_depth = tag, 1
            if tag == "noscript":
                self.set_cdata_mode(tag)  # with scripts, its content is no markup
        elif tag == "title":
            self._in_title = True
        else:
            self._in_title = self._in_title and tag not in _BLOCKS
            if tag in _ENDS_OF_ANNOTATIONS:
                self._in_annotation = tag in _ANNOTATIONS
            self._start_visible(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            self._hidden_depth -= tag == self._hidden
            if not self._hidden_depth:
                self._hidden = ""
            return
        if tag in _ENDS_OF_ANNOTATIONS:
            self._in_annotation = False
        if tag == "title":
            self._in_title = False
        elif tag in _CELLS:
            self._end_cell()
        elif tag == "tr":
            self._end_row()
        elif tag == "sup":
            self._may_be_exponent = False
        elif tag == "a":
            self._end_link()
        elif tag in _BLOCKS:
            self._close_block(tag)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title = (self.title + data)[:_LONGEST_TITLE]
        elif not (self._hidden or self._in_annotation):
            if self._may_be_exponent and _EXPONENT.match(data):
                self._line.append("^")
            self._may_be_exponent = self._begins_link = False
            self._line.append(data if self._pre else data.replace("\n", " "))

    # Blocks

    def _start_visible(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "br":
            self._line.append("\n")
        elif tag == "img":
            self._line.append(f" {dict(attrs).get('alt') or ''} ")
        elif tag == "sup":
            # A superscript in a link, or with a link in it, refers to a footnote.
            self._may_be_exponent = not self._begins_link and "".join(self._line[-1:])[-1:].isalnum()
        elif tag == "a":
            self._may_be_exponent, self._begins_link = False, True
            is_anchor = self._level and "#" in (dict(attrs).get("href") or "")
            self._anchor = len(self._line) if is_anchor else sys.maxsize
        elif tag in _CELLS:
            self._end_cell()
            self._in_cell = self._row is not None
            given = dict(attrs)
            # A row span of 0 means all remaining rows of the group.
            columns, rows = _number(given.get("colspan")), _number(given.get("rowspan")) or _LARGEST_SPAN
            self._span = min(max(1, columns), _LARGEST_SPAN), min(max(1, rows), _LARGEST_SPAN)
        elif tag == "tr":
            self._end_row()
            self._end_block()
            if not self._pre:
                self._row = []
                self._row_number += 1
        elif tag in _BLOCKS:
            self._start_block(tag, dict(attrs))

    def _end_link(self) -> None:
        """Remove the link of a heading to itself, such as a pilcrow."""
        self._begins_link = False
        if self._level and not any(map(str.isalnum, "".join(self._line[self._anchor :]))):
            del self._line[self._anchor :]
        self._anchor = sys.maxsize

    def _start_block(self, tag: str, attrs: dict[str, str | None]) -> None:
        if self._row is not None and tag not in _LAYOUT:
            self._line.append(" ")  # a paragraph or list in a data cell stays on the row's line
            return
        self._end_row()
        self._end_block()
        if tag in _ROW_GROUPS:
            self._free_from.clear()
        if tag in _LISTS:
            self._lists.append(_number(attrs.get("start")) if tag == "ol" else None)
        elif tag == "li":
            self._item = f"{'  ' * min(max(0, len(self._lists) - 1), _DEEPEST_INDENT)}- "
            if self._lists and (following := self._lists[-1]) is not None:
                number = _number(attrs.get("value"), following)
                self._item = f"{self._item[:-2]}{number}. "
                self._lists[-1] = number + 1
        elif tag == "table":
            self._last_kind = ""
        elif tag == "pre":
            self._pre += 1
        elif tag == "hr":
            self._append("---")
        elif tag in _HEADINGS:
            self._level = _HEADINGS[tag]

    def _close_block(self, tag: str) -> None:
        if self._row is not None and tag not in _LAYOUT:
            self._line.append(" ")
            return
        self._end_row()
        self._end_block()
        if tag in _ROW_GROUPS:
            self._free_from.clear()
        if tag in _LISTS and self._lists:
            self._lists.pop()
        elif tag == "li":
            self._item = ""
        elif tag == "pre":
            self._pre = max(0, self._pre - 1)
        elif tag in _HEADINGS:
            self._level = 0

    def _end_block(self) -> None:
        raw = "".join(self._line)
        self._line.clear()
        if not raw or raw.isspace():
            return
        if self._pre:
            self._append(fenced(raw.strip("\n")))
            return
        lines = [" ".join(line.split()) for line in raw.split("\n") if line and not line.isspace()]
        if self._level:
            self._append(f"{'#' * self._level} {' '.join(lines)}")
            self._level = 0  # an unclosed heading ends with its first block
            return
        indent = "  " * min(len(self._lists), _DEEPEST_INDENT)
        mark, self._item = self._item, ""
        text = f"\n{indent}".join(escaped(line) for line in lines)
        self._append(f"{mark or indent}{text}", "item" if mark else "")

    def _append(self, block: str, kind: str = "") -> None:
        """Add a finished block; no blank line separates blocks of the same non-empty kind."""
        self._parts += "\n" if kind and kind == self._last_kind else "\n\n", block
        self._last_kind = kind

    # Data rows: cells on one line

    def _end_cell(self) -> None:
        if self._row is None:
            self._end_block()
            return
        cell = " ".join("".join(self._line).split())
        self._line.clear()
        if self._in_cell or cell:
            self._add_cell(self._row, cell)
        self._in_cell = False
        self._span = 1, 1

    def _add_cell(self, row: list[str], cell: str) -> None:
        """Add a cell with its column span, after the columns that row spans from above cover."""
        while self._empty_cells and self._free_from.get(len(row), 0) > self._row_number:
            row.append("")
            self._empty_cells -= 1
        columns, rows = self._span
        column, further = len(row), min(columns - 1, self._empty_cells)
        row += [cell, *[""] * further]
        self._empty_cells -= further
        if rows > 1:
            self._free_from |= dict.fromkeys(range(column, len(row)), self._row_number + rows)

    def _end_row(self) -> None:
        if self._row is None:
            return
        self._end_cell()
        cells, self._row = self._row, None
        filled = [cell for cell in cells if cell]
        if len(filled) == 1 and self._last_kind != "row":
            self._append(escaped(filled[0]))
        elif filled:
            line = table_row(cells)
            if self._last_kind != "row":
                line += f"\n{table_rule(len(cells))}"
            self._append(line, "row")
