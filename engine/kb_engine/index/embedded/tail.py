"""The newest chunks: a block in memory that is appended to while it is read."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kb_contracts.semantics.query import spelled
from kb_engine.index.embedded.block import Block, runs
from kb_engine.index.embedded.postings import RecentWords
from kb_engine.index.embedded.vectors import QuantisedVectors, quantise
from kb_engine.index.embedded.word_order import END, Keys, UnnumberedOrder, keys_in
from kb_engine.index.port import Ids, Vectors
from kb_engine.index.words import AnalysedChunk

_FIRST_CAPACITY = 64
_AT_ONCE = 1 << 16  # size of the texts whose keys are computed at once, in bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """New chunks of one document. `chunk_ids` ascend within a batch and across batches; `texts` are pairs of
    heading and text. Ids, texts and vectors have the same length.
    """

    document_id: int
    title: str
    chunk_ids: Ids
    texts: Sequence[tuple[str | None, str]]
    vectors: Vectors
    language: str | None = None


class Tail:
    """The block of the newest chunks. One thread appends; readers use a view of the first rows, which never
    change and need no lock.
    """

    def __init__(self, dimensions: int) -> None:
        self._chunk_ids = _Growing((), np.int64)
        self._document_ids = _Growing((), np.int64)
        self._codes = _Growing((dimensions,), np.int8)
        self._scales = _Growing((), np.float32)
        self._residuals = _Growing((), np.float32)
        self._longest = 0.0
        self._words = RecentWords()
        self._order = _RecentOrder()

    def __len__(self) -> int:
        """Return the number of rows, including partly appended ones."""
        return self._chunk_ids.size

    def append(self, batch: Batch, words: Iterable[AnalysedChunk]) -> None:
        """Add a row for each chunk.
        Raises ValueError: a vector has a number that is not finite, or the wrong dimensions.
        """
        found = quantise(batch.vectors)
        self._chunk_ids.append(batch.chunk_ids)
        self._document_ids.append(np.full(len(batch.chunk_ids), batch.document_id, np.int64))
        self._codes.append(found.codes)
        self._scales.append(found.scales)
        self._residuals.append(found.residuals)
        self._longest = max(self._longest, found.longest)
        self._words.append(words)
        self._order.append(batch.title, batch.texts)

    def view(self, size: int) -> Block:
        """Return a block of the first `size` rows."""
        document_ids, document_rows = runs(self._document_ids.first(size))
        vectors = QuantisedVectors(
            self._codes.first(size), self._scales.first(size), self._residuals.first(size), self._longest
        )
        return Block(
            self._chunk_ids.first(size),
            document_ids,
            document_rows,
            vectors,
            self._words.view(size),
            order=self._order.view(size),
        )


class _RecentOrder:
    """The words of the newest chunks in their order, which grow. The keys of the last ones are computed when
    there are many, or by the first reader.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting = bytearray()
        self._keys = _Growing((), np.uint64)
        self._ends = _Growing((), np.int64)

    def append(self, title: str, texts: Iterable[tuple[str | None, str]]) -> None:
        titled = spelled(title)
        for heading, text in texts:
            row = b" ".join([titled, END, spelled(heading or ""), END, spelled(text), END, b""])
            with self._guard:
                self._waiting += row
                if len(self._waiting) >= _AT_ONCE:
                    self._read()

    def view(self, size: int) -> UnnumberedOrder:
        return UnnumberedOrder(lambda: self._first(size))

    def _first(self, size: int) -> tuple[NDArray[np.int64], Keys]:
        """Return the ends of the first rows, and their keys."""
        with self._guard:
            if self._ends.size < size:
                self._read()
            ends = self._ends.first(size)
            return ends, self._keys.first(int(ends[-1]) if size else 0)

    def _read(self) -> None:
        keys, ends = keys_in(bytes(self._waiting))
        self._ends.append(self._keys.size + ends[2::3] + 1)
        self._keys.append(keys)
        self._waiting.clear()


class _Growing:
    """An array whose first rows never change: appending writes after them, or into a larger copy."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self._array: NDArray[Any] = np.empty((_FIRST_CAPACITY, *shape), dtype)
        self.size = 0

    def append(self, rows: NDArray[Any]) -> None:
        end = self.size + len(rows)
        if end > len(self._array):
            larger = np.empty((max(end, 2 * len(self._array)), *self._array.shape[1:]), self._array.dtype)
            larger[: self.size] = self._array[: self.size]
            self._array = larger
        self._array[self.size : end] = rows
        self.size = end

    def first(self, size: int) -> NDArray[Any]:
        return self._array[:size]
