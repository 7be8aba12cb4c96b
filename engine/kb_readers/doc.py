"""Word files from before 2007 as one text without pages, from their table of pieces.

The body comes first, with headings, lists and tables as Markdown; then text boxes, notes, and headers and
footers without repetition. Hidden text is read; comments, tracked deletions, pictures, and numbers that Word
computes are not. Files of Word 6 and 95 are read without headings.

Offsets and codes follow [MS-DOC].
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

from kb_contracts.api.formats import FORMATS
from kb_readers.blocks import Blocks
from kb_readers.disguised import read_disguised
from kb_readers.failures import ExtractionFailed, damaged, locked
from kb_readers.markdown import title_of
from kb_readers.model import Extraction, TextBudget
from kb_readers.ole import Compound, reading

_FORMAT = FORMATS["doc"]
_MAGIC = frozenset([0xA5EC, 0xA5DC])
_WORD_97 = 193  # first version of the file format with Unicode, and with a table of pieces in each file
_IS_COMPLEX, _IS_ENCRYPTED, _HAS_TABLE_1 = 0x0004, 0x0100, 0x0200
_LENGTHS_6, _LENGTHS_97 = 0x34, 0x4C
_STYLES, _CHARACTERS, _PARAGRAPHS, _PIECES = 1, 12, 13, 33  # numbers of structures in the header of the file
_IS_COMPRESSED = 1 << 30
_PAGE_BYTES = 512
_MOST_BASES = 20
_TITLE_STYLE, _NORMAL_STYLE = 62, 0x0FFF

_OUTLINE, _DEPTH, _LIST, _ENDS_ROW, _IN_TABLE, _IS_DELETED = 0x2640, 0x260A, 0x460B, 0x2417, 0x2416, 0x0800
_LAST_LIST = 0x07FE
_OPERAND_BYTES = (1, 1, 2, 4, 2, 2, 0, 3)  # by kind of property; 0: the first byte is the number of the rest
_DEFINES_TABLE, _SETS_TABS, _TABS_OF_MANY = 0xD608, 0xC615, 255

_NO_ENCODING = (
    "Word 6 and 95 do not record the encoding of a text: letters that are not Western European are wrong. "
    "Save it as DOCX and send it again."
)

_PARAGRAPH_END = re.compile("[\r\x07\x0c]")
_FIELD_MARK = re.compile("([\x13\x14\x15])")
_REPLACED = dict.fromkeys(range(32), "") | {0x09: " ", 0x0B: "\n", 0x1E: "-"}

_Properties: TypeAlias = dict[int, int]


class _Piece(NamedTuple):
    """Characters from position `start` to `end` of the document, from `offset` of the stream."""

    start: int
    end: int
    offset: int
    width: int  # bytes of a character: 1 for Windows 1252, 2 for UTF-16


class _Run(NamedTuple):
    """The properties of the bytes of the stream from `start` to `end`."""

    start: int
    end: int
    style: int
    properties: _Properties


def read_doc(data: bytes) -> Extraction:
    """Return the whole document as one page without a number. Raises ExtractionFailed."""
    if (other := read_disguised(data, _FORMAT)) is not None:
        return other
    file = Compound(data, _FORMAT)
    with reading(_FORMAT):
        document = _Document(file)
        text = document.text()
    title = file.title or title_of(text)
    remark = None if document.has_encoding or text.isascii() else _NO_ENCODING
    return Extraction.of_text(_FORMAT, text, title, remark)


class _Document:
    """The structures of one file. Methods may raise any error that `reading` converts."""

    def __init__(self, file: Compound) -> None:
        self._main = file.read("WordDocument")
        magic, version = struct.unpack_from("<2H", self._main)
        (flags,) = struct.unpack_from("<H", self._main, 10)
        if magic not in _MAGIC:
            raise damaged(_FORMAT.label, "it has no Word document")
        if flags & _IS_ENCRYPTED:
            raise locked(_FORMAT.label)
        self.has_encoding = version >= _WORD_97
        self._budget = TextBudget()
        self._table = b""
        self._pieces: list[_Piece] = []
        self._paragraphs: list[_Run] = []
        self._deleted: list[_Run] = []
        self._styles: list[_Properties] = []
        if self.has_encoding:
            self._table = file.read("1Table" if flags & _HAS_TABLE_1 else "0Table")
            self._lengths = struct.unpack_from("<8i", self._main, _LENGTHS_97)
            self._pieces = list(self._read_pieces())
            self._styles = self._read_styles()
            self._paragraphs = sorted(self._read_runs(_PARAGRAPHS), key=lambda run: run.start)
            runs = self._read_runs(_CHARACTERS)
            self._deleted = sorted(
                (run for run in runs if run.properties.get(_IS_DELETED)), key=lambda run: run.start
            )
        elif flags & _IS_COMPLEX:
            raise ExtractionFailed(
                "file_corrupt",
                "The DOC file was saved in parts by Word 6 or 95. Save it as DOCX and send it again.",
            )
        else:
            self._lengths = struct.unpack_from("<8i", self._main, _LENGTHS_6)
            (offset,) = struct.unpack_from("<i", self._main, 24)
            self._pieces = [_Piece(0, sum(map(abs, self._lengths)), offset, 1)]
        self._paragraph_starts = [run.start for run in self._paragraphs]
        self._deleted_ends = [run.end for run in self._deleted]

    def text(self) -> str:
        ends = list(accumulate((max(0, length) for length in self._lengths), initial=0))
        stories = [self._story(start, end) for start, end in pairwise(ends)]
        body, footnotes, margins, _macros, _comments, endnotes, boxes, boxes_of_margins = stories
        parts = body + boxes
        for heading, more in (
            ("## Footnotes", footnotes + endnotes),
            ("## Headers and footers", margins + boxes_of_margins),
        ):
            parts += [heading, *dict.fromkeys(more)] if more else []
        return "\n\n".join(parts)

    def _story(self, start: int, end: int) -> list[str]:
        blocks = Blocks(_FORMAT.label)
        hidden: list[bool] = []  # for each open field, true in its instruction
        hidden_fields = 0
        line: list[str] = []
        for text, offset, width in self._texts(start, end):
            at = 0
            for mark in [*_PARAGRAPH_END.finditer(text), None]:
                for piece in _FIELD_MARK.split(text[at : mark.start() if mark else None]):
                    if piece == "\x13":
                        hidden.append(True)
                        hidden_fields += 1
                    elif piece in ("\x14", "\x15"):
                        hidden_fields -= bool(hidden and hidden[-1])
                        if hidden:
                            hidden[-1] = False
                            del hidden[len(hidden) - (piece == "\x15") :]
                    elif not hidden_fields:
                        line.append(piece.translate(_REPLACED))
                if mark is None:
                    break
                at = mark.end()
                self._end_paragraph(blocks, "".join(line), mark[0], offset + mark.start() * width)
                line = []
        self._end_paragraph(blocks, "".join(line), "\r", -1)
        return blocks.finished()

    def _end_paragraph(self, blocks: Blocks, text: str, mark: str, offset: int) -> None:
        self._budget.spend(text)
        properties = self._properties_at(offset)
        if mark == "\x07":
            blocks.add_to_cell(text)
            if properties.get(_ENDS_ROW) or not (self._paragraphs or text):
                blocks.end_row()
            else:
                blocks.end_cell()
        elif properties.get(_IN_TABLE):
            blocks.add_to_cell(text)
        else:
            level = (properties.get(_OUTLINE, 9) + 1) % 10
            is_item = 0 < properties.get(_LIST, 0) <= _LAST_LIST
            blocks.add_paragraph(text, level, "-" if is_item else "", properties.get(_DEPTH, 0))

    def _texts(self, start: int, end: int) -> Iterator[tuple[str, int, int]]:
        """Yield texts without tracked deletions, each with its offset in the stream and bytes a character."""
        for piece in self._pieces:
            first, last = max(start, piece.start), min(end, piece.end)
            if first >= last:
                continue
            at = piece.offset + (first - piece.start) * piece.width
            end_at = piece.offset + (last - piece.start) * piece.width
            for run in self._deleted[bisect_right(self._deleted_ends, at) :]:
                if run.start >= end_at:
                    break
                yield self._decoded(at, min(max(run.start, at), end_at), piece.width)
                at = min(max(run.end, at), end_at)
            yield self._decoded(at, end_at, piece.width)

    def _decoded(self, start: int, end: int, width: int) -> tuple[str, int, int]:
        return self._main[start:end].decode("cp1252" if width == 1 else "utf-16-le", "replace"), start, width

    def _properties_at(self, offset: int) -> _Properties:
        """Return the properties of the paragraph whose mark is at an offset of the stream."""
        index = bisect_right(self._paragraph_starts, offset) - 1
        if index < 0 or self._paragraphs[index].end <= offset:
            return {}
        run = self._paragraphs[index]
        style = self._styles[run.style] if run.style < len(self._styles) else {}
        return style | run.properties if run.properties else style

    # Structures

    def _part(self, number: int) -> bytes:
        """Return a structure by its number in the header of the file."""
        offset, size = struct.unpack_from("<2I", self._main, 0x9A + 8 * number)
        return self._table[offset : offset + size]

    def _read_pieces(self) -> Iterator[_Piece]:
        data, at = self._part(_PIECES), 0
        while data[at] == 1:  # changes that a fast save added
            at += 3 + struct.unpack_from("<H", data, at + 1)[0]
        (size,) = struct.unpack_from("<I", data, at + 1)
        data = data[at + 5 : at + 5 + size]
        count = (len(data) - 4) // 12
        positions = struct.unpack_from(f"<{count + 1}i", data)
        for number, (start, end) in enumerate(pairwise(positions)):
            (offset,) = struct.unpack_from("<I", data, 4 * (count + 1) + 8 * number + 2)
            if offset & _IS_COMPRESSED:
                yield _Piece(start, end, (offset & ~_IS_COMPRESSED) // 2, 1)
            else:
                yield _Piece(start, end, offset, 2)

    def _read_runs(self, number: int) -> Iterator[_Run]:
        """Yield the properties of paragraphs or characters, from pages of the stream."""
        data = self._part(number)
        count = max(0, (len(data) - 4) // 8)
        for page_number in struct.unpack_from(f"<{count}I", data, 4 * (count + 1)) if count else ():
            start = (page_number & 0x3FFFFF) * _PAGE_BYTES
            page = self._main[start : start + _PAGE_BYTES]
            if len(page) == _PAGE_BYTES:
                yield from _runs_of(page, is_of_paragraphs=number == _PARAGRAPHS)

    def _read_styles(self) -> list[_Properties]:
        """Return the properties of each paragraph style, its bases included."""
        data = self._part(_STYLES)
        if not data:
            return []
        size, count, base_bytes = struct.unpack_from("<3H", data)
        at = 2 + size
        own: list[_Properties] = []
        bases: list[int] = []
        for _ in range(count):
            if at + 2 > len(data):
                break
            (size,) = struct.unpack_from("<H", data, at)
            properties, base = _style(data[at + 2 : at + 2 + size], base_bytes)
            own.append(properties)
            bases.append(base)
            at += 2 + size + size % 2
        return [_inherited(number, own, bases) for number in range(len(own))]


def _inherited(number: int, own: list[_Properties], bases: list[int]) -> _Properties:
    found: _Properties = {}
    for _ in range(_MOST_BASES):
        if number >= len(own):
            break
        found = own[number] | found
        number = bases[number]
    return found


def _style(data: bytes, base_bytes: int) -> tuple[_Properties, int]:
    """Return the properties of a paragraph style, and the number of the style that it is based on."""
    if len(data) < max(base_bytes, 10):
        return {}, _NORMAL_STYLE
    known, base, counts = (word for word in struct.unpack_from("<3H", data))
    known &= 0x0FFF
    if base & 0xF != 1:  # a style of characters or tables
        return {}, _NORMAL_STYLE
    properties: _Properties = {}
    if 1 <= known <= 9:
        properties[_OUTLINE] = known - 1
    elif known == _TITLE_STYLE:
        properties[_OUTLINE] = 0
    at = base_bytes + 4 + 2 * int.from_bytes(data[base_bytes : base_bytes + 2], "little")
    at += at % 2
    size = int.from_bytes(data[at : at + 2], "little")
    if counts & 0xF and size >= 2:
        properties |= _properties(data[at + 4 : at + 2 + size])
    return properties, base >> 4


def _runs_of(page: bytes, *, is_of_paragraphs: bool) -> Iterator[_Run]:
    count = page[-1]
    entry_bytes = 13 if is_of_paragraphs else 1
    if 4 * (count + 1) + entry_bytes * count > len(page) - 1:
        return
    offsets = struct.unpack_from(f"<{count + 1}I", page)
    for number, (start, end) in enumerate(pairwise(offsets)):
        at = 2 * page[4 * (count + 1) + entry_bytes * number]
        if not at:
            yield _Run(start, end, 0, {})
        elif not is_of_paragraphs:
            yield _Run(start, end, 0, _properties(page[at + 1 : at + 1 + page[at]]))
        else:
            size = 2 * page[at] - 1
            if size < 0:
                at += 1
                size = 2 * page[at]
            data = page[at + 1 : at + 1 + size]
            yield _Run(start, end, int.from_bytes(data[:2], "little"), _properties(data[2:]))


def _properties(data: bytes) -> _Properties:
    """Return properties by code; operands of more than four bytes are left out."""
    found: _Properties = {}
    at = 0
    while at + 3 <= len(data):
        (code,) = struct.unpack_from("<H", data, at)
        at += 2
        size = _OPERAND_BYTES[code >> 13]
        if code == _DEFINES_TABLE:
            size = 1 + int.from_bytes(data[at : at + 2], "little")
        elif not size and not (code == _SETS_TABS and data[at] == _TABS_OF_MANY):
            size = 1 + data[at]
        elif not size:
            break
        if size <= 4:
            found[code] = int.from_bytes(data[at : at + size], "little")
        at += size
    return found
