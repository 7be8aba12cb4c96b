"""The objects of a PDF file, found by reading it from front to back, and its pages in order.

The cross-reference table is not used: damaged files have damaged tables, and a table is one more thing
that can lie.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from kb_simulator.extract.model import MAX_TEXT_CHARS, ExtractionFailed, locked, too_much_text

_HEADER_BYTES = 1024
_MOST_PAGES = 20_000

_OBJECT = re.compile(rb"(\d{1,10})\s+\d{1,5}\s+obj\b")
_BODY_END = re.compile(rb"stream\r?\n|endobj")
_LENGTH = re.compile(rb"/Length\s+(\d{1,12})(?!\s+\d+\s+R)")
_REFERENCE = re.compile(rb"(\d{1,10})\s+\d{1,5}\s+R")
_KIDS = re.compile(rb"/Kids\s*\[([^\[\]]*)\]")
_CONTENTS = re.compile(rb"/Contents\s*(?:\[([^\[\]]*)\]|(\d{1,10}\s+\d{1,5}\s+R))")
_PAGES_OF_ROOT = re.compile(rb"/Pages\s+(\d{1,10})\s+\d{1,5}\s+R")
_FILTER = re.compile(rb"/Filter\s*\[?\s*((?:/\w+\s*)+)\]?")
_TYPE = re.compile(rb"/Type\s*/(\w+)")
_NUMBER_OF = re.compile(rb"/N\s+(\d{1,7})")
_FIRST = re.compile(rb"/First\s+(\d{1,9})")
_ENCRYPTED = re.compile(rb"/Encrypt\s+(?:\d|<<)")


@dataclass(frozen=True, slots=True)
class _Object:
    entries: bytes  # what stands before the stream, or all of it
    stream: bytes | None


class PdfFile:
    """A PDF file's pages. Raises ExtractionFailed: `file_corrupt` or `file_encrypted`."""

    def __init__(self, data: bytes) -> None:
        if b"%PDF-" not in data[:_HEADER_BYTES]:
            raise _corrupt("it does not begin as one")
        self._unpacked = 0
        self._objects = dict(_objects(data))
        trailers = b"".join(
            found for found in re.findall(rb"trailer(.{0,2000}?)startxref", data[-65_536:], re.DOTALL)
        )
        references = b"".join(each.entries for each in self._objects.values() if _type(each) == b"XRef")
        if _ENCRYPTED.search(trailers + references):
            raise locked("PDF")
        for packed in [each for each in self._objects.values() if _type(each) == b"ObjStm"]:
            self._objects.update(self._unpack(packed))

    def page_contents(self) -> Iterator[bytes]:
        """The content stream of each page, in order; empty where it cannot be read."""
        pages = self._pages()
        if not pages:
            raise _corrupt("it has no pages")
        for page in pages:
            yield self._content(page)

    def _pages(self) -> list[_Object]:
        for each in self._objects.values():
            if _type(each) == b"Catalog" and (root := _PAGES_OF_ROOT.search(each.entries)):
                return list(self._walk(int(root[1])))
        return [each for each in self._objects.values() if _type(each) == b"Page"]

    def _walk(self, root: int) -> Iterator[_Object]:
        """The leaves of the tree of pages; a node that stands in it twice counts once."""
        seen: set[int] = set()
        waiting = [root]
        while waiting and len(seen) < _MOST_PAGES:
            number = waiting.pop()
            node = self._objects.get(number)
            if node is None or number in seen:
                continue
            seen.add(number)
            if kids := _KIDS.search(node.entries):
                waiting.extend(int(kid) for kid in reversed(_REFERENCE.findall(kids[1])))
            elif _type(node) == b"Page":
                yield node

    def _content(self, page: _Object) -> bytes:
        found = _CONTENTS.search(page.entries)
        numbers = _REFERENCE.findall(found[1] or found[2]) if found else []
        parts = (self._objects.get(int(number)) for number in numbers)
        return b"\n".join(self._decoded(part) for part in parts if part is not None)

    def _decoded(self, part: _Object) -> bytes:
        """The stream's bytes; none where its filter is not known here."""
        if part.stream is None:
            return b""
        filters = _FILTER.search(part.entries)
        names = filters[1].split() if filters else []
        if not names:
            return part.stream
        return self._inflated(part.stream) if names == [b"/FlateDecode"] else b""

    def _inflated(self, stream: bytes) -> bytes:
        room = MAX_TEXT_CHARS - self._unpacked
        try:
            data = zlib.decompressobj().decompress(stream, room + 1)
        except zlib.error:
            return b""
        self._unpacked += len(data)
        if len(data) > room:
            raise too_much_text()
        return data

    def _unpack(self, packed: _Object) -> Iterator[tuple[int, _Object]]:
        """The objects of an object stream: pairs of number and offset, then the objects."""
        data = self._decoded(packed)
        count, first = _NUMBER_OF.search(packed.entries), _FIRST.search(packed.entries)
        if count is None or first is None:
            return
        start = int(first[1])
        numbers = [int(number) for number in data[:start].split()[: 2 * int(count[1])] if number.isdigit()]
        offsets = [*numbers[1::2], len(data) - start]
        for number, begin, end in zip(numbers[::2], offsets, offsets[1:], strict=False):
            yield number, _Object(data[start + begin : start + end], None)


def _objects(data: bytes) -> Iterator[tuple[int, _Object]]:
    position = 0
    while found := _OBJECT.search(data, position):
        end = _BODY_END.search(data, found.end())
        if end is None:
            return
        entries = data[found.end() : end.start()]
        stream = None
        position = end.end()
        if end[0] != b"endobj":
            position = _stream_end(data, entries, position)
            stream = data[end.end() : position]
        yield int(found[1]), _Object(entries, stream)


def _stream_end(data: bytes, entries: bytes, start: int) -> int:
    if length := _LENGTH.search(entries):
        # What follows a stream is looked at, so that a wrong length costs one stream and not the file.
        end = start + int(length[1])
        if data[end : end + 32].lstrip().startswith(b"endstream"):
            return end
    end = data.find(b"endstream", start)
    return len(data) if end < 0 else end


def _type(each: _Object) -> bytes:
    found = _TYPE.search(each.entries)
    return found[1] if found else b""


def _corrupt(why: str) -> ExtractionFailed:
    return ExtractionFailed("file_corrupt", f"This is not a readable PDF file: {why}. Save it again.")
