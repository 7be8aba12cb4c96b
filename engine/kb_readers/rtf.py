"""RTF as one text without pages: headings by their styles, paragraphs, lists and tables as Markdown.

Text boxes precede the paragraph that they are in; footnotes follow the body, then headers and footers without
repetition. Hidden text is read; comments, tracked deletions, pictures and embedded objects are not. HTML that
Outlook wrapped in RTF is unwrapped and read as HTML. The parser is a loop over tokens with a stack of groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html import escape

from kb_contracts.api.formats import FORMATS
from kb_readers.blocks import Blocks
from kb_readers.failures import damaged, unsafe
from kb_readers.html import markdown_of
from kb_readers.linear import LinearText
from kb_readers.markdown import given_title, one_line, title_of
from kb_readers.model import Extraction, TextBudget
from kb_readers.symbols import symbol
from kb_readers.text import codec_named

_FORMAT = FORMATS["rtf"]
_DEEPEST = 1_000
_LOST = "\N{REPLACEMENT CHARACTER}"
_LONGEST_NAME = 1_000

_TOKEN = re.compile(
    rb"\\(?P<word>[A-Za-z]{1,32})(?P<number>-?\d{1,10})? ?|\\'(?P<byte>[0-9A-Fa-f]{2})|\\(?P<mark>[^A-Za-z])"
    rb"|(?P<group>[{}])|(?P<text>[^\\{}\r\n\0]+)"
)
_HEADING = re.compile(r"heading ?([1-9])", re.IGNORECASE)

_CHARACTERS = {
    "tab": " ", "line": "\n", "softline": "\n", "emspace": " ", "enspace": " ", "qmspace": " ", "emdash": "—",
    "endash": "–", "bullet": "•", "lquote": "‘", "rquote": "’", "ldblquote": "“", "rdblquote": "”",
    "zwj": "\u200d", "zwnj": "\u200c",
}  # fmt: skip
_MARKS = {"~": "\xa0", "_": "-", "{": "{", "}": "}", "\\": "\\", "\t": " "}
_PARAGRAPH_ENDS = frozenset(["par", "sect", "page", "column", "nestcell", "nestrow"])

_NOT_TEXT = frozenset(
    """annotation atnauthor author buptim category colortbl comment company creatim doccomm filetbl fldinst
    fldtype hlinkbase info keywords listtable listoverridetable manager nonesttables nonshppict
    objdata operator pict printim private revtim rxe shprslt sn subject sv tc template txe upr xe""".split()  # noqa: SIM905
)
_READ_THOUGH_OPTIONAL = frozenset(["shpinst", "do", "footnote", "fldrslt"])
_MARGINS = frozenset(["header", "headerl", "headerr", "headerf", "footer", "footerl", "footerr", "footerf"])
_STORIES = frozenset(["footnote", "shptxt", "dptxbxtext", "listtext", "pntext", *_MARGINS])
_TABLES = {"fonttbl": "fonts", "stylesheet": "styles", "title": "title", "upr": "upr"}
"""Destinations that are not text of the document, and are read."""

_SETS = {"mac": "mac-roman", "pc": "cp437", "pca": "cp850"}
_SYMBOLS = "symbols"
_CODECS = {
    0: "cp1252", 2: _SYMBOLS, 77: "mac-roman", 128: "cp932", 129: "cp949", 130: "johab", 134: "gb18030",
    136: "cp950", 161: "cp1253", 162: "cp1254", 163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257",
    204: "cp1251", 222: "cp874", 238: "cp1250", 254: "cp437", 255: "cp850",
}  # fmt: skip
"""By the character set of a font."""


def read_rtf(data: bytes) -> Extraction:
    """Return the whole document as one page without a number. Raises ExtractionFailed."""
    reading = _Reading(data)
    reading.run()
    text = reading.text()
    lost = text.count(_LOST)
    remarks = [
        "It may be cut off: its last group is not closed." if reading.is_cut_off else "",
        f"{lost:,} characters cannot be decoded and are shown as {_LOST}." if lost else "",
    ]
    remark = " ".join(filter(None, remarks)) or None
    title = given_title(reading.title) or title_of(text)
    return Extraction.of_text(_FORMAT, text, title, remark)


@dataclass
class _Font:
    name: str = ""
    codec: str | None = None


@dataclass
class _Style:
    name: str = ""
    outline: int | None = None

    @property
    def level(self) -> int:
        found = _HEADING.fullmatch(self.name.strip().rstrip(";"))
        if self.outline is not None or found is None:
            return self.outline or 0
        return min(int(found[1]), 6)


@dataclass
class _Story:
    """The text of the body, a note, a text box or a margin, while it is written."""

    blocks: Blocks = field(default_factory=lambda: Blocks(_FORMAT.label))
    line: LinearText = field(default_factory=LinearText)
    mark: str = ""  # the bullet or number of the open paragraph


@dataclass
class _Group:
    """The properties of an open group; a group in it begins with a copy of them."""

    story: _Story
    takes: str = "text"
    """The destination of its text: "text", "html", an entry of `_TABLES`, or "" if it is skipped."""
    name: str = ""  # the destination that the group begins
    is_new: bool = False
    """True up to its first word, which may begin a destination that older programs ignore."""
    is_optional: bool = False
    fallback: int = 1  # number of characters that replace a Unicode character in older programs
    codec: str = "cp1252"
    font: str = ""
    style: int = 0
    outline: int | None = None
    depth: int = 0
    in_table: bool = False
    raised: bool = False
    is_deleted: bool = False


class _Reading:
    """The state of one file while its tokens go by."""

    def __init__(self, data: bytes) -> None:
        self._data = data.removeprefix(b"\xef\xbb\xbf").lstrip()
        if not self._data.startswith(b"{\\rtf"):
            raise damaged(_FORMAT.label, "it does not begin as RTF")
        self.title = ""
        self.is_cut_off = False
        self._budget = TextBudget()
        self._body = _Story()
        self._notes: list[str] = []
        self._margins: dict[str, None] = {}
        self._html: list[str] | None = None
        self._fonts: dict[int, _Font] = {}
        self._font = _Font()
        self._default_font = -1
        self._styles: dict[int, _Style] = {}
        self._style = self._styles[0] = _Style()
        self._codec = "cp1252"
        self._bytes = bytearray()  # text to decode
        self._units = bytearray()  # text in UTF-16 before it
        self._ignored = 0  # characters to skip after a Unicode character
        self._group = _Group(self._body)
        self._stack: list[_Group] = []

    def text(self) -> str:
        """Return the whole text; call after `run`."""
        if self._html is not None:
            return markdown_of("".join(self._html)).replace("\0", "")
        parts = self._body.blocks.finished()
        for heading, more in (("## Footnotes", self._notes), ("## Headers and footers", self._margins)):
            parts += [heading, *more] if more else []
        return "\n\n".join(parts).replace("\0", "")

    def run(self) -> None:
        for token in self._tokens():
            if text := token["text"]:
                self._add(text)
            elif byte := token["byte"]:
                self._add(bytes([int(byte, 16)]))
            elif group := token["group"]:
                self._ignored = 0
                self._flush()
                if group == b"{":
                    self._begin()
                elif self._stack:
                    self._end()
            elif mark := token["mark"]:
                self._take_mark(mark.decode("latin-1"))
            else:
                self._take(token["word"].decode(), None if token["number"] is None else int(token["number"]))
        self._flush()
        self.is_cut_off = bool(self._stack)
        while self._stack:
            self._end()
        self._end_paragraph()

    def _tokens(self) -> Iterator[re.Match[bytes]]:
        """Yield the tokens up to the end of the first group, without the bytes of `\\bin`."""
        at, depth = 0, 0
        while (token := _TOKEN.search(self._data, at)) is not None:
            at = token.end()
            if token["word"] == b"bin":
                at += max(0, int(token["number"] or 0))
                continue
            yield token
            if group := token["group"]:
                depth += 1 if group == b"{" else -1
                if depth <= 0:
                    return

    # Text

    def _add(self, data: bytes) -> None:
        """Add text that is not decoded; a character may begin in one token and end in the next."""
        self._group.is_new = False
        if self._ignored:
            data, self._ignored = data[self._ignored :], max(0, self._ignored - len(data))
        if self._group.takes and data:
            self._bytes += data

    def _flush(self) -> None:
        """Write the collected text."""
        if self._units:
            text, self._units = self._units.decode("utf-16-le", "replace"), bytearray()
            self._put(text)
        if self._bytes:
            data, self._bytes = bytes(self._bytes), bytearray()
            if self._group.codec == _SYMBOLS:
                self._put("".join(symbol(self._group.font, f"{0xF000 + byte:X}") for byte in data))
                return
            self._put(data.decode(self._group.codec, "replace"))

    def _put(self, text: str) -> None:
        group = self._group
        self._budget.spend(text)
        if group.takes == "fonts":
            self._font.name = (self._font.name + text)[:_LONGEST_NAME]
        elif group.takes == "styles":
            self._style.name = (self._style.name + text)[:_LONGEST_NAME]
        elif group.takes == "title":
            self.title = (self.title + text)[:_LONGEST_NAME]
        elif self._html is not None:
            self._html.append(
                text if group.takes == "html" else escape(text) if group.takes == "text" else ""
            )
        elif group.takes == "text" and not group.is_deleted:
            line = group.story.line
            line.raised = group.raised
            line.write(text)

    def _end_paragraph(self) -> None:
        group, story = self._group, self._group.story
        text, mark, story.line, story.mark = story.line.text, story.mark, LinearText(), ""
        if group.in_table:
            story.blocks.add_to_cell(f"{mark} {text}")
            return
        style = self._styles.get(group.style)
        level = (style.level if style else 0) if group.outline is None else group.outline
        story.blocks.add_paragraph(text, level, mark, group.depth)

    # Groups

    def _begin(self) -> None:
        if len(self._stack) >= _DEEPEST:
            raise unsafe(_FORMAT.label, f"groups more than {_DEEPEST:,} deep")
        self._stack.append(self._group)
        self._group = replace(self._group, is_new=True, is_optional=False, name="")

    def _end(self) -> None:
        ended, before = self._group, self._stack.pop()
        if ended.name in _STORIES and ended.story is not before.story:
            self._end_story(ended, before)
        if ended.takes == "fonts" != before.takes:
            self._use_font(before, self._default_font)
        self._group = before

    def _end_story(self, ended: _Group, before: _Group) -> None:
        if ended.name in ("listtext", "pntext"):
            before.story.mark = one_line(ended.story.line.text) or "-"
            return
        self._end_paragraph()
        blocks = ended.story.blocks.finished()
        if ended.name == "footnote":
            self._notes += blocks
        elif ended.name in _MARGINS:
            self._margins |= dict.fromkeys(blocks)
        else:
            for block in blocks:
                before.story.blocks.add_block(block)

    def _open(self, word: str) -> bool:
        """Begin the destination of the open group; return False if the word begins none."""
        group = self._group
        if word == "ud" and self._stack and self._stack[-1].takes == "upr":  # the Unicode form of a text
            group.takes = "text"
        elif not group.takes:
            return False
        elif word == "htmltag" and self._html is not None:
            group.takes = "html"
        elif word in _TABLES:
            group.takes = _TABLES[word]
        elif word == "info":
            group.takes = "info"
        elif word in _NOT_TEXT or (group.is_optional and word not in _READ_THOUGH_OPTIONAL):
            group.takes = ""
        elif word in _STORIES and group.takes == "text":
            group.story, group.outline, group.style, group.in_table = _Story(), None, 0, False
        else:
            return word in _READ_THOUGH_OPTIONAL
        group.name = word
        return True

    # Control words

    def _take_mark(self, mark: str) -> None:
        if mark == "*":
            self._group.is_optional = self._group.is_new
        elif mark in "\r\n":
            self._take("par", None)
        elif self._ignored:
            self._ignored -= 1
        elif mark in _MARKS:
            self._flush()
            if self._group.takes:
                self._put(_MARKS[mark])

    def _take(self, word: str, number: int | None) -> None:
        if word == "u" and number is not None:
            self._take_unicode(number)
            return
        self._flush()
        self._ignored = 0
        group = self._group
        begins = self._open(word)
        group.is_new = group.is_optional = False
        if begins or not group.takes:
            return
        if word in _CHARACTERS:
            self._put(_CHARACTERS[word])
        elif group.takes in ("fonts", "styles"):
            self._take_definition(word, number or 0)
        elif word == "fromhtml" and number == 1:
            self._html = []
        elif word == "htmlrtf":  # RTF beside the HTML that it shows
            group.takes = "text" if number == 0 else "rtf"
        elif self._html is not None and word == "par":
            self._put("\n")
        elif word in _PARAGRAPH_ENDS:
            self._end_paragraph()
        elif word == "cell":
            group.in_table = True
            self._end_paragraph()
            group.story.blocks.end_cell()
        elif word == "row":
            group.story.blocks.end_row()
        else:
            self._take_property(word, number)

    def _take_unicode(self, number: int) -> None:
        if self._bytes:
            self._flush()
        if self._group.takes:
            self._units += (number & 0xFFFF).to_bytes(2, "little")
        self._ignored = self._group.fallback

    def _take_definition(self, word: str, number: int) -> None:
        """Take a word of the table of fonts or of styles."""
        if self._group.takes == "fonts":
            if word == "f":
                self._font = self._fonts[number] = _Font()
            elif word == "fcharset":
                self._font.codec = _CODECS.get(number)
        elif word in ("s", "cs", "ds", "ts"):
            self._style = _Style()
            if word == "s":
                self._styles[number] = self._style
        elif word == "outlinelevel":
            self._style.outline = number + 1

    def _use_font(self, group: _Group, number: int) -> None:
        font = self._fonts.get(number, _Font())
        group.codec, group.font = font.codec or self._codec, font.name.strip().rstrip(";")

    def _take_property(self, word: str, number: int | None) -> None:
        group = self._group
        if word == "ansicpg":
            self._codec = group.codec = codec_named(f"cp{number}") or self._codec
        elif word in _SETS:
            self._codec = group.codec = _SETS[word]
        elif word == "deff":
            self._default_font = number or 0
        elif word == "f":
            self._use_font(group, number or 0)
        elif word == "uc":
            group.fallback = max(0, number or 0)
        elif word == "pard":
            group.style, group.outline, group.depth, group.in_table = 0, None, 0, False
        elif word == "plain":
            group.raised = group.is_deleted = False
            self._use_font(group, self._default_font)
        elif word == "s":
            group.style = number or 0
        elif word == "outlinelevel":
            group.outline = (number or 0) + 1
        elif word == "ilvl":
            group.depth = max(0, number or 0)
        elif word == "intbl":
            group.in_table = number != 0
        elif word in ("super", "nosupersub", "sub"):
            group.raised = word == "super" and number != 0
        elif word == "deleted":
            group.is_deleted = number != 0
