"""Named arrays in one immutable file, which is read through a memory map.

    sections, each at a multiple of 64 bytes │ footer (JSON) │ length and CRC of the footer, magic

A file gets its name only when it is complete and on the disk: it is written under a temporary name, the
footer last, synced, and then renamed. Opening checks as much as possible without reading the whole file:
magic, the footer's CRC, kind and version, and that the sections are the expected ones and fill the file
exactly. `check` reads everything and compares the CRCs of the sections.

Read pages are clean pages of the file: processes share them, and the kernel reclaims them if memory is short.
Arrays stay valid after the file is removed, until the last reference is dropped.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from kb_engine.disk import sync

MAGIC = b"kb-index"
ALIGNMENT = 64
CHECKED_AT_ONCE = 1 << 24  # size of the blocks read by `check`, in bytes

Array = NDArray[Any]
Attribute = int | float | str
_TRAILER = struct.Struct("<II8s")


class UnreadableIndexFile(Exception):
    """The file is truncated, damaged, of another version, or not an index file; the message has the path and
    the reason.

    An index is derived data: rebuild it from the store.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"The index file {path} cannot be used: {reason}.")


class _Section(msgspec.Struct, frozen=True):
    dtype: str
    count: int
    offset: int
    crc: int


class _Footer(msgspec.Struct, frozen=True):
    kind: str
    version: int
    attributes: dict[str, Attribute]
    sections: dict[str, _Section]


class ArrayFile:
    """A complete file: its `attributes`, and its read-only `arrays` by name.

    Raises:
        UnreadableIndexFile: it is not a complete file of this kind and version with these sections.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, kind: str, version: int, dtypes: Mapping[str, str]) -> None:
        self._path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _TRAILER.size:
                raise UnreadableIndexFile(path, "it is shorter than any index file")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        footer = _footer(path, self._map, size)
        if (footer.kind, footer.version) != (kind, version):
            raise UnreadableIndexFile(
                path, f"it holds {footer.kind} {footer.version}, expected {kind} {version}"
            )
        if {name: section.dtype for name, section in footer.sections.items()} != dtypes:
            raise UnreadableIndexFile(self._path, f"its sections are not those of {kind} {version}")
        self.attributes: Mapping[str, Attribute] = footer.attributes
        self._sections = footer.sections
        self.arrays: Mapping[str, Array] = {
            name: np.frombuffer(self._map, section.dtype, section.count, section.offset)
            for name, section in footer.sections.items()
        }

    def check(self) -> None:
        """Read the whole file and compare the CRCs of its sections.
        Raises UnreadableIndexFile: a section is damaged.
        """
        for name, array in self.arrays.items():
            if _crc(array) != self._sections[name].crc:
                raise UnreadableIndexFile(self._path, f"its section {name} is damaged")


class ArrayFileWriter:
    """A file being written. Sections of known length are written piecewise, in any order; the rest are added
    whole.
    """

    def __init__(self, file: BinaryIO, dtypes: Mapping[str, str], lengths: Mapping[str, int]) -> None:
        self._file = file
        self._dtypes = dtypes
        self.sections: dict[str, _Section] = {}
        self._places: dict[str, int] = {}
        self.end = 0
        for name, length in lengths.items():
            self._begin(name, length)

    def _begin(self, name: str, length: int) -> None:
        section = _Section(self._dtypes[name], length, _aligned(self.end), 0)
        self.sections[name] = section
        self._places[name] = section.offset
        self.end = _end(section)

    def add(self, name: str, array: Array) -> None:
        """Write a section; the values are cast to its type."""
        self._begin(name, len(array))
        self.append(name, array)

    def append(self, name: str, array: Array) -> None:
        """Append to a section; the values are cast to its type."""
        section = self.sections[name]
        cast = np.ascontiguousarray(array, section.dtype)
        if self._places[name] + cast.nbytes > _end(section):
            raise ValueError(f"section {name} is longer than its {section.count} values")
        self._file.seek(self._places[name])
        self._file.write(cast.view(np.uint8).data)
        self._places[name] += cast.nbytes
        self.sections[name] = msgspec.structs.replace(section, crc=_crc(cast, section.crc))

    def expect_complete(self) -> None:
        """Check that all sections were written.
        Raises ValueError: a section is missing, or shorter than announced.
        """
        for name in self._dtypes:
            if name not in self.sections or self._places[name] != _end(self.sections[name]):
                raise ValueError(f"section {name} is not complete")


@contextmanager
def new_array_file(
    path: Path,
    kind: str,
    version: int,
    attributes: Mapping[str, Attribute],
    dtypes: Mapping[str, str],
    lengths: Mapping[str, int],
) -> Iterator[ArrayFileWriter]:
    """Write a file with sections of these types; `lengths` has the sections that are appended to.

    The file appears at `path` when the block ends, replacing an existing one; after an exception nothing has
    changed.
    """
    unfinished = path.with_name(path.name + ".new")
    try:
        with unfinished.open("wb") as file:
            writer = ArrayFileWriter(file, dtypes, lengths)
            yield writer
            writer.expect_complete()
            footer = msgspec.json.encode(_Footer(kind, version, dict(attributes), writer.sections))
            file.truncate(writer.end)
            file.seek(writer.end)
            file.write(footer + _TRAILER.pack(len(footer), zlib.crc32(footer), MAGIC))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync(path.parent)


def _footer(path: Path, mapped: mmap.mmap, size: int) -> _Footer:
    length, crc, magic = _TRAILER.unpack_from(mapped, size - _TRAILER.size)
    start = size - _TRAILER.size - length
    if magic != MAGIC:
        raise UnreadableIndexFile(path, "it is no index file, or its end is missing")
    if start < 0 or zlib.crc32(mapped[start : start + length]) != crc:
        raise UnreadableIndexFile(path, "its footer is damaged")
    try:
        footer = msgspec.json.decode(mapped[start : start + length], type=_Footer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableIndexFile(path, "its footer is that of another version") from error
    if _layout(footer.sections) != start:
        raise UnreadableIndexFile(path, "its sections do not fill it")
    return footer


def _layout(sections: Mapping[str, _Section]) -> int | None:
    """Return the end of the last section, or None if a section is misplaced."""
    end = 0
    for section in sections.values():
        if section.offset != _aligned(end) or section.count < 0:
            return None
        try:
            end = _end(section)
        except TypeError:
            return None
    return end


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _end(section: _Section) -> int:
    return section.offset + np.dtype(section.dtype).itemsize * section.count


def _crc(array: Array, crc: int = 0) -> int:
    raw = array.view(np.uint8)
    for start in range(0, len(raw), CHECKED_AT_ONCE):
        crc = zlib.crc32(raw[start : start + CHECKED_AT_ONCE].data, crc)
    return crc
