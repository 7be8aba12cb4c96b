"""The vectors themselves, in a file of which a search reads the rows that it must score exactly.

Mapped, and not read row by row: each read would let go of the interpreter's lock and wait for it. Without
read-ahead, which multiplies by ten what the first reads of a cold file take. And no page stays mapped after
a search: the kernel maps large surroundings of each page that is touched, so that a thousand rows would count
as hundreds of MB of this process. The pages remain in the cache of the system, which is free to drop them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kb_engine.index.files.layout import HEADER_BYTES, Header, read_header, replacing
from kb_engine.index.files.vectors import Rows
from kb_engine.index.port import Vectors

KIND = b"kb-float"


@dataclass(frozen=True, slots=True, eq=False)
class OriginalVectors:
    """The float32 rows of a file. Reading them is safe from several threads."""

    _mapped: mmap.mmap
    _matrix: Vectors

    def __len__(self) -> int:
        return len(self._matrix)

    def rows(self, rows: Rows) -> Vectors:
        """A copy of these rows, shape (len(rows), dimensions)."""
        found: Vectors = self._matrix[rows]
        self._mapped.madvise(mmap.MADV_DONTNEED)
        return found


def write_originals(path: Path, dimensions: int, parts: Iterable[Vectors]) -> None:
    """A file of these rows, in this order, synced. The parts are read one at a time.

    Raises:
        ValueError: a part has other dimensions.
        OSError: it cannot be written; what stood under the name before still does.
    """
    count = 0
    with replacing(path) as file:
        file.write(bytes(HEADER_BYTES))
        for part in parts:
            if part.ndim != 2 or part.shape[1] != dimensions:
                raise ValueError(f"rows of shape {part.shape} in a file of {dimensions} dimensions")
            file.write(np.ascontiguousarray(part, "<f4").data)
            count += len(part)
        file.seek(0)
        file.write(Header(KIND, dimensions, count).pack())


def open_originals(path: Path) -> OriginalVectors:
    """The rows of a file, mapped.

    Raises:
        FileDamaged: it is not whole, or of another version.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        header = read_header(path, file, KIND, row_bytes=(4, 0))
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    numbers = np.frombuffer(mapped, "<f4", header.rows * header.dimensions, HEADER_BYTES)
    return OriginalVectors(mapped, numbers.reshape(header.rows, header.dimensions))
