"""What the files with vectors have in common: a header that is checked, and how a file comes into being.

    0    8 bytes   the kind of file
    8    uint32    version of the layout
    12   uint32    dimensions
    16   uint64    rows
    24   float32   length of the longest row, 4 bytes of nothing
    32   32 bytes  SHA-256 of the 32 bytes before
    64             the data

All numbers are little-endian. A file is written under another name, synced and then renamed, so that what
stands under its own name is whole; to sync the directory is the caller's, who has more than one file to
bring in. Nobody writes to a file after that.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

VERSION = 1
_HEADER = struct.Struct("<8sIIQf4x")
HEADER_BYTES = 64


class FileDamaged(Exception):
    """An index file cannot be used; the message names it and says why. It can be made again from the base."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


@dataclass(frozen=True, slots=True)
class Header:
    """The head of a file. `longest`: no row is longer than this."""

    kind: bytes
    dimensions: int
    rows: int
    longest: float = 0.0

    def pack(self) -> bytes:
        """As the first `HEADER_BYTES` of the file."""
        head = _HEADER.pack(self.kind, VERSION, self.dimensions, self.rows, self.longest)
        return head + hashlib.sha256(head).digest()


def read_header(path: Path, file: IO[bytes], kind: bytes, row_bytes: tuple[int, int]) -> Header:
    """The header, where the file is of this kind and exactly as long as it must be.

    `row_bytes`: what a row takes, for each dimension and beside.

    Raises:
        FileDamaged: it is not.
    """
    head = file.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        raise FileDamaged(path, f"{len(head)} bytes are no header")
    found, version, dimensions, rows, longest = _HEADER.unpack_from(head)
    if found != kind:
        raise FileDamaged(path, f"begins with {found!r}, not {kind!r}")
    if head[_HEADER.size :] != hashlib.sha256(head[: _HEADER.size]).digest():
        raise FileDamaged(path, "the digest in its header is that of another header")
    if version != VERSION:
        raise FileDamaged(path, f"has layout {version}, and this version reads layout {VERSION}")
    size = os.fstat(file.fileno()).st_size
    expected = HEADER_BYTES + rows * (row_bytes[0] * dimensions + row_bytes[1])
    if size != expected:
        raise FileDamaged(path, f"has {size} bytes, where {rows} rows of {dimensions} take {expected}")
    return Header(kind, dimensions, rows, longest)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of `path` when the block ends, and never when it fails."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
