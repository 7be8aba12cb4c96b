"""Finds PDF pages that lost text to damage: PDFium reads a stream up to the first invalid byte.

PDFium does not report the damage and gives no access to raw streams, but it can save the file in a plain
form: each object uncompressed under its number, nothing encrypted, streams unchanged. In that copy the
content streams of each page are located, and inflated once to check that they end properly.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from io import BytesIO
from itertools import pairwise
from typing import Any

import pypdfium2
from pypdfium2 import raw

_MOST_INFLATED_BYTES = 256 << 20  # limit for all content streams together; streams beyond it count as sound
_INFLATED_BYTES = 1 << 18  # at a time

_FLATE = re.compile(rb"/Fl(?:ateDecode)?[\s/>\]]")
_XREF = re.compile(rb"startxref\s+(\d+)\s+%%EOF\s*$")
_SECTION = re.compile(rb"(\d+) (\d+)\s+")
_ENTRY_BYTES = 20
_HEAD = re.compile(rb"\s*\d+ \d+ obj\s*")
_STREAM = re.compile(rb"stream\r?\n")
_LENGTH = re.compile(rb"/Length (\d+)\b")
_FILTERS = re.compile(rb"/Filter\s*(?:\[([^\]]*)\]|(/\w+))")
_ROOT = re.compile(rb"/Root (\d+) \d+ R\b")
_PAGES = re.compile(rb"/Pages (\d+) \d+ R\b")
_KIDS = re.compile(rb"/Kids\s*(?:\[([^\]]*)\]|(\d+) \d+ R\b)")
_CONTENTS = re.compile(rb"/Contents\s*(?:\[([^\]]*)\]|(\d+) \d+ R\b)")
_REFERENCE = re.compile(rb"(\d+) \d+ R\b")


def damaged_pages(document: Any, data: bytes) -> list[int]:
    """Return the numbers of truncated or altered pages; `document`, `data` opened, cannot be read after."""
    if not _FLATE.search(data):
        return []  # no stream has a checksum
    copy = BytesIO()
    try:
        document.save(copy, flags=raw.FPDF_REMOVE_SECURITY)
    except pypdfium2.PdfiumError:
        return []
    objects = _Objects(copy.getvalue())
    pages = objects.pages(len(document))
    states: dict[int, _State] = {}
    room = _MOST_INFLATED_BYTES
    for number in dict.fromkeys(number for contents in pages for number in contents):
        states[number], taken = _look(objects.packed(number), room)
        room -= taken
    # Programs that write no or wrong checksums do so in all of their streams.
    wrong = {_State.BROKEN}
    if _State.SOUND in states.values() or len(states) == 1:
        wrong.add(_State.UNPROVEN)
    return [
        number for number, contents in enumerate(pages, 1) if any(states[each] in wrong for each in contents)
    ]


class _State(Enum):
    SOUND = auto()  # complete, with a matching checksum
    UNPROVEN = auto()  # inflatable, but truncated or with another checksum
    BROKEN = auto()
    UNKNOWN = auto()  # without a checksum, or not examined


class _Objects:
    """The objects of a file written by PDFium."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._places: dict[int, tuple[int, int]] = {}
        self._trailer = b""
        found = _XREF.search(data, len(data) - 64)
        if found is None:
            return
        start = int(found[1])
        starts = dict(self._table(start))
        ends = [*sorted(starts.values()), start]
        following = dict(pairwise(ends))
        self._places = {
            number: (place, following[place]) for number, place in starts.items() if place in following
        }
        self._trailer = data[start:]

    def _table(self, start: int) -> Iterator[tuple[int, int]]:
        """Yield object numbers and their offsets."""
        place = start + len(b"xref\r\n")
        while section := _SECTION.match(self._data, place):
            first, count = int(section[1]), int(section[2])
            place = section.end()
            for number in range(first, first + count):
                entry = self._data[place : place + _ENTRY_BYTES]
                if entry[17:18] == b"n":
                    yield number, int(entry[:10])
                place += _ENTRY_BYTES

    def pages(self, count: int) -> list[list[int]]:
        """Return the content streams of each page; empty unless exactly `count` pages are found."""
        root = _PAGES.search(self._plain(self._one(_ROOT, self._trailer)))
        left = [int(root[1])] if root else []
        seen: set[int] = set()
        found: list[list[int]] = []
        while left and len(found) <= count:
            number = left.pop()
            node = self._plain(number)
            kids = self._listed(_KIDS, node)
            if kids is None:
                found.append(self._listed(_CONTENTS, node) or [])
            elif number not in seen:
                seen.add(number)
                left += reversed(kids)
        return found if len(found) == count else []

    @staticmethod
    def _one(pattern: re.Pattern[bytes], text: bytes) -> int:
        found = pattern.search(text)
        return int(found[1]) if found else -1

    def _listed(self, pattern: re.Pattern[bytes], node: bytes) -> list[int] | None:
        """Return the object numbers under a key, directly or in a referenced array."""
        found = pattern.search(node)
        if found is None:
            return None
        if found[1] is None:
            number = int(found[2])
            array = self._plain(number)
            if not array.startswith(b"["):
                return [number]
        else:
            array = found[1]
        return [int(reference) for reference in _REFERENCE.findall(array)]

    def _plain(self, number: int) -> bytes:
        """Return an object without its stream."""
        start, end = self._places.get(number, (0, 0))
        head = _HEAD.match(self._data, start, end)
        if head is None:
            return b""
        stream = _STREAM.search(self._data, head.end(), end)
        return self._data[head.end() : stream.start() if stream else end]

    def packed(self, number: int) -> tuple[Sequence[bytes], bytes] | None:
        """Return the filters of a stream, and its encoded bytes."""
        start, end = self._places.get(number, (0, 0))
        stream = _STREAM.search(self._data, start, end)
        plain = self._plain(number)
        filters, length = _FILTERS.search(plain), _LENGTH.search(plain)
        if stream is None or filters is None or length is None:
            return None
        names = re.findall(rb"/(\w+)", filters[1] or filters[2])
        return names, self._data[stream.end() : min(stream.end() + int(length[1]), end)]


def _look(stream: tuple[Sequence[bytes], bytes] | None, room: int) -> tuple[_State, int]:
    """Return the state of a stream, and the number of bytes inflated for it."""
    if stream is None:
        return _State.UNKNOWN, 0
    names, packed = stream
    first, *rest = names or [b""]
    if first in (b"ASCII85Decode", b"A85") and rest:
        first, *rest = rest
        try:
            packed = base64.a85decode(packed.partition(b"~")[0], ignorechars=b"\0\t\n\f\r ")
        except ValueError:
            return _State.BROKEN, 0
    elif first in (b"ASCIIHexDecode", b"AHx") and rest:
        first, *rest = rest
        try:
            packed = binascii.unhexlify(re.sub(rb"\s", b"", packed.partition(b">")[0]))
        except ValueError:
            return _State.BROKEN, 0
    if first not in (b"FlateDecode", b"Fl"):
        return _State.UNKNOWN, 0
    return _inflate(packed, room)


def _inflate(packed: bytes, room: int) -> tuple[_State, int]:
    inflating, taken = zlib.decompressobj(), 0
    try:
        while not inflating.eof and packed:
            piece = inflating.decompress(packed, _INFLATED_BYTES)
            packed = inflating.unconsumed_tail
            taken += len(piece)
            if taken > room:
                return _State.UNKNOWN, taken
    except zlib.error as error:
        is_whole = "incorrect data check" in str(error)
        return _State.UNPROVEN if is_whole else _State.BROKEN, taken
    return _State.SOUND if inflating.eof else _State.UNPROVEN, taken
