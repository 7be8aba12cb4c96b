"""DOCX as one text without pages: page breaks depend on the program that displays it.

The body comes first, in its order, with headings, lists and tables as Markdown, and with Word's numbering;
text boxes follow their paragraph. Then come footnotes and endnotes, and headers and footers without
repetition. Hidden text and descriptions of pictures are read; tracked deletions, comments, and the words in
charts and pictures are not.
HTML and plain text that a converter embedded in place of the body are read; parts in other formats are listed
in the remark.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from kb_contracts.api.formats import FORMATS
from kb_readers.blocks import LEVELS, Blocks
from kb_readers.docx_numbering import Counter, Numbering
from kb_readers.failures import ExtractionFailed
from kb_readers.html import read_html
from kb_readers.linear import TERMS, LinearText
from kb_readers.mail import body_of
from kb_readers.markdown import escaped, one_line, title_of
from kb_readers.model import PLAIN_TEXT, Extraction, TextBudget
from kb_readers.remarks import names_listed
from kb_readers.symbols import symbol
from kb_readers.text import read_text
from kb_readers.xml_files import Attributes, Handler, Package, reference, value_of

_FORMAT = FORMATS["docx"]
_HEADING = re.compile(r"heading ?([1-9])", re.IGNORECASE)
_TITLES = frozenset(["title"])
_DEEPEST_STYLE = 20  # maximum length of a chain of base styles
_MOST_SPANNED = 1_000  # columns of a row that merged cells may fill
# Properties before a tracked change.
_FORMER = frozenset(["pPrChange", "rPrChange", "tcPrChange"])
# Alternatives of another element, and content removed by a tracked change.
_REMOVED = frozenset(["del", "moveFrom"])
_UNREAD = frozenset(["Fallback", "rt", *_REMOVED, *_FORMER])
_ORDERED = re.compile(r"\d{1,9}[.)]")  # a mark that numbers the item in Markdown too
_PICTURES = {"docPr": "descr", "shape": "alt"}
"""Elements of pictures, and the attribute that describes each, in DrawingML and VML."""
_BREAKS = {"br": "\n", "cr": "\n", "tab": " ", "ptab": " ", "noBreakHyphen": "-"}


def read_docx(data: bytes) -> Extraction:
    """Return the whole document as one page without a number. Raises ExtractionFailed."""
    package = Package(data, _FORMAT, ("wordprocessingml", "vnd.ms-word."))
    outgoing = list(package.relationships(package.main).values())
    styles, numbering = _Styles(), Numbering()
    for each in outgoing:
        if each.kind == "styles":
            package.feed(each.part, styles)
        elif each.kind == "numbering":
            package.feed(each.part, numbering)

    unread: dict[str, None] = {}

    def blocks(part: str) -> list[str]:
        relationships = package.relationships(part)

        def embedded(id_: str) -> str:
            relationship = relationships.get(id_)
            name = relationship.part if relationship else id_
            try:
                return _embedded(name, package.read(name) if package.holds(name) else b"")
            except (ExtractionFailed, LookupError):
                unread[one_line(posixpath.basename(name))] = None
                return ""

        text = _Text(styles, numbering, embedded)
        package.feed(part, text)
        return text.blocks.finished()

    found = blocks(package.main)
    for kinds, heading in (
        (("footnotes", "endnotes"), "## Footnotes"),
        (("header", "footer"), "## Headers and footers"),
    ):
        more = [block for each in outgoing if each.kind in kinds for block in blocks(each.part)]
        if more:
            found += [heading, *dict.fromkeys(more)]
    text = "\n\n".join(found)
    title = package.title or title_of(text)
    remark = f"Parts of other formats are not read: {names_listed([*unread])}" if unread else None
    return Extraction.of_text(_FORMAT, text, title, remark, [*unread])


def _embedded(name: str, data: bytes) -> str:
    """Return the text of an embedded part, by its file extension. Raises as its reader, or LookupError."""
    extension = name.rpartition(".")[2].lower()
    if not data or extension not in _EMBEDDED:
        raise LookupError(name)
    return _EMBEDDED[extension](data).replace("\0", "").strip()


def _plain_text(data: bytes) -> str:
    lines = read_text(data, PLAIN_TEXT).pages[0].text.strip().splitlines()
    return "\n".join(map(escaped, lines))


_EMBEDDED: dict[str, Callable[[bytes], str]] = {
    **dict.fromkeys(["html", "htm", "xhtml"], lambda data: read_html(data).pages[0].text),
    **dict.fromkeys(["mht", "mhtml"], body_of),  # a page saved with its resources, in the format of a mail
    "txt": _plain_text,
}


@dataclass
class _Style:
    """The properties of a paragraph style; None if inherited from its base style."""

    name: str = ""
    based_on: str = ""
    level: int | None = None
    list_id: str | None = None
    depth: int | None = None


class _Styles(Handler):
    def __init__(self) -> None:
        self._by_id: defaultdict[str, _Style] = defaultdict(_Style)
        self._open = _Style()
        self._former = 0

    def level(self, style_id: str) -> int:
        """Return the heading level of paragraphs of this style, or 0."""
        for style in self._chain(style_id):
            if style.level is not None:
                return style.level
            name = style.name or style_id  # some programs omit styles, and use Word's names as ids
            if name.lower() in _TITLES:
                return 1
            if heading := _HEADING.fullmatch(name):
                return min(int(heading[1]), LEVELS)
        return 0

    def list_of(self, style_id: str) -> tuple[str, int]:
        """Return the list of paragraphs of this style, and their depth in it; "" without a list."""
        depth: int | None = None
        for style in self._chain(style_id):
            depth = style.depth if depth is None else depth
            if style.list_id is not None:
                return style.list_id, depth or 0
        return "", 0

    def _chain(self, style_id: str) -> list[_Style]:
        chain: list[_Style] = []
        while (style_id or not chain) and len(chain) < _DEEPEST_STYLE:
            chain.append(self._by_id.get(style_id, _Style()))
            style_id = chain[-1].based_on
        return chain

    def start(self, name: str, attributes: Attributes) -> None:
        value = value_of(attributes)
        self._former += name in _FORMER
        if self._former:
            return
        if name == "style":
            self._open = self._by_id[value_of(attributes, "styleId")]
        elif name == "name":
            self._open.name = value
        elif name == "basedOn":
            self._open.based_on = value
        elif name == "outlineLvl":
            self._open.level = int(value) + 1 if int(value) < LEVELS else 0
        elif name == "numId":
            self._open.list_id = value
        elif name == "ilvl":
            self._open.depth = int(value)

    def end(self, name: str) -> None:
        self._former -= name in _FORMER


@dataclass
class _Paragraph(LinearText):
    """An open paragraph; the paragraphs of a text box are read while the enclosing one is open."""

    style: str = ""
    level: int | None = None
    list_id: str | None = None
    depth: int | None = None
    has_removed: bool = False  # true if a tracked change removed text of the paragraph, or its end
    chosen: str = ""  # the selected entry of the open drop-down field
    begin: int = 0  # start of the displayed text of the field, in `parts`


class _Text(Handler):
    """The blocks of one part: headings, paragraphs, lists and tables as Markdown."""

    def __init__(self, styles: _Styles, numbering: Numbering, embedded: Callable[[str], str]) -> None:
        """`embedded` returns the text of an embedded part, by the id of its relationship."""
        self.blocks = Blocks(_FORMAT.label)
        self._styles = styles
        self._counter = Counter(numbering)
        self._embedded = embedded
        self._entries: list[str] | None = None  # entries of the open drop-down field
        self._entry = 0  # index of the selected one
        self._paragraphs: list[_Paragraph] = []
        self._unread = 0
        self._in_text = False
        self._tables = 0  # nesting depth; an inner table becomes text of its cell
        self._span = 1  # column span of the open cell
        self._budget = TextBudget()

    def start(self, name: str, attributes: Attributes) -> None:
        if name in _REMOVED and self._paragraphs:
            self._paragraphs[-1].has_removed = True
        self._unread += name in _UNREAD
        if self._unread:
            return
        if name == "p":
            self._paragraphs.append(_Paragraph())
        elif name == "tbl":
            self._tables += 1
        elif name == "gridSpan" and self._tables == 1:
            self._span = min(int(value_of(attributes) or 1), _MOST_SPANNED)
        elif name == "altChunk":
            self._add_embedded(self._embedded(reference(attributes)))
        elif self._paragraphs:
            self._start_in(self._paragraphs[-1], name, attributes)

    def _start_in(self, paragraph: _Paragraph, name: str, attributes: Attributes) -> None:
        if name == "t":
            self._in_text = True
        elif name == "ddList":
            self._entries, self._entry = [], 0
        elif self._entries is not None:
            if name == "listEntry":
                self._entries.append(value_of(attributes))
            elif name in ("default", "result"):
                self._entry = int(value_of(attributes) or 0)
        elif paragraph.chosen and name == "fldChar" and value_of(attributes, "fldCharType") == "end":
            # Some programs write the displayed text in addition to the entries.
            if not "".join(paragraph.parts[paragraph.begin :]).strip():
                paragraph.parts.append(paragraph.chosen)
            paragraph.chosen = ""
        elif name in _BREAKS:
            paragraph.parts.append(_BREAKS[name])
        elif name in _PICTURES:
            if text := attributes.get(_PICTURES[name], ""):
                self._budget.spend(text)
                paragraph.parts.append(f" {text} ")
        elif name in ("sym", "symEx"):
            paragraph.write(symbol(value_of(attributes, "font"), value_of(attributes, "char")))
        elif name == "r":
            paragraph.begin_run()
        elif name == "vertAlign":
            paragraph.raised = value_of(attributes) == "superscript"
        elif name in TERMS:
            paragraph.begin_term(name)
        elif name == "pStyle":
            paragraph.style = value_of(attributes)
        elif name == "outlineLvl":
            paragraph.level = int(value_of(attributes)) + 1
        elif name == "numId":
            paragraph.list_id = value_of(attributes)
        elif name == "ilvl":
            paragraph.depth = int(value_of(attributes))

    def end(self, name: str) -> None:
        if self._unread:
            self._unread -= name in _UNREAD
        elif name == "t":
            self._in_text = False
        elif name == "ddList" and self._paragraphs:
            paragraph, entries = self._paragraphs[-1], self._entries or []
            if 0 <= self._entry < len(entries):
                self._budget.spend(entries[self._entry])
                paragraph.chosen, paragraph.begin = entries[self._entry], len(paragraph.parts)
            self._entries = None
        elif name in TERMS and self._paragraphs:
            self._paragraphs[-1].end_term(name)
        elif name == "p" and self._paragraphs:
            self._end_paragraph(self._paragraphs.pop())
        elif name == "tbl":
            self._tables -= 1
            if not self._tables:
                self.blocks.end_table()
        elif self._tables == 1 and name == "tc":
            self._budget.spend(" | " * (self._span - 1))
            self.blocks.end_cell(self._span)
            self._span = 1
        elif self._tables == 1 and name == "tr":
            self.blocks.end_row()

    def characters(self, text: str) -> None:
        if self._in_text and not self._unread and self._paragraphs:
            self._budget.spend(text)
            self._paragraphs[-1].write(text)

    def _end_paragraph(self, paragraph: _Paragraph) -> None:
        text, has_words = paragraph.text, bool(paragraph.text.strip())
        level = self._styles.level(paragraph.style) if paragraph.level is None else paragraph.level
        list_id, depth = self._styles.list_of(paragraph.style)
        list_id = list_id if paragraph.list_id is None else paragraph.list_id
        depth = depth if paragraph.depth is None else paragraph.depth
        is_item = list_id not in ("", "0")  # 0 removes a paragraph from the list of its style
        mark = ""
        if is_item and (has_words or not paragraph.has_removed):  # an item without text counts too
            mark = self._counter.mark(list_id, depth)
            self._budget.spend(mark)
        if self._tables:
            self.blocks.add_to_cell(f"{mark} {text}")
        elif has_words:
            if is_item and not 0 < level <= LEVELS and not _ORDERED.fullmatch(mark):
                text, mark = f"{mark} {text}", "-"
            self.blocks.add_paragraph(text, level, mark, depth)

    def _add_embedded(self, text: str) -> None:
        self._budget.spend(text)
        if self._tables:
            self.blocks.add_to_cell(text)
        elif text:
            self.blocks.add_block(text)
