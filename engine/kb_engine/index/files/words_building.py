"""How blocks of postings come about: from the words of chunks, and from other blocks.

Nothing here takes more memory than a bounded number of postings, the dictionaries of the blocks (about 100
bytes a term of each), and 16 bytes a row. Sorting and copying are done by numpy, which lets other threads run
meanwhile.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kb_engine.index.files.analyser import AnalysedChunk
from kb_engine.index.files.array_file import ArrayFileWriter, new_array_file
from kb_engine.index.files.words import (
    COLUMN_SHARE,
    DTYPES,
    KEY_TYPE,
    KIND,
    LONG_FROM,
    STRETCH,
    VERSION,
    WIDE,
    Places,
    Postings,
    Rows,
    key_of,
    open_postings,
    stretches,
)

Numbers: TypeAlias = "NDArray[np.int64]"
Kept: TypeAlias = "NDArray[np.bool_]"

TERMS_AT_ONCE = 4_000_000
"""So many words of chunks are sorted in memory; about 200 MB."""
POSTINGS_AT_ONCE = 2_000_000
"""So many postings are merged in memory; about 100 MB."""
MERGED_AT_ONCE = 8
"""Blocks; their dictionaries are in memory together."""


def build(chunks: Iterable[AnalysedChunk]) -> Postings:
    """A block in memory, one row for each chunk in their order."""
    vocabulary = _Vocabulary()
    numbers = array("I")
    sizes = array("Q")
    lengths = array("f")
    for terms, length in chunks:
        numbers.extend(map(vocabulary.__getitem__, terms))
        sizes.append(len(terms))
        lengths.append(length)
    keys, order = sorted_keys(vocabulary)
    ranks = np.empty(len(keys), np.uint64)
    ranks[order] = np.arange(len(keys), dtype=np.uint64)
    codes = ranks[np.frombuffer(numbers, np.uint32)] << np.uint64(32)
    codes |= np.repeat(
        np.arange(len(sizes), dtype=np.uint64), np.frombuffer(sizes, np.uint64).astype(np.int64)
    )
    codes.sort()
    firsts = np.flatnonzero(np.diff(codes, prepend=~codes[:1]))
    frequencies = np.diff(firsts, append=len(codes))
    codes = codes[firsts]
    return in_memory(
        keys,
        np.bincount((codes >> np.uint64(32)).astype(np.int64), minlength=len(keys)),
        (codes & np.uint64(0xFFFFFFFF)).astype(np.uint32),
        frequencies,
        np.frombuffer(lengths, np.float32),
    )


class _Vocabulary(dict[str, int]):
    """Terms with their numbers, in the order in which they were first met."""

    def __missing__(self, term: str) -> int:
        number = self[term] = len(self)
        return number


def sorted_keys(terms: Iterable[str]) -> tuple[NDArray[np.bytes_], NDArray[np.intp]]:
    """The keys of terms, ascending, and which term each belongs to."""
    keys = np.array([key_of(term) for term in terms], KEY_TYPE)
    order = np.argsort(keys)
    return keys[order], order


def in_memory(
    keys: NDArray[np.bytes_], counts: Numbers, rows: Rows, frequencies: Numbers, lengths: NDArray[np.float32]
) -> Postings:
    """A block of lists alone: of each term, by ascending keys, its rows and their frequencies."""
    wide = np.flatnonzero(frequencies >= WIDE)
    return Postings(
        keys=keys,
        starts=np.cumsum(counts) - counts,
        counts=counts.astype(np.uint32),
        rows=rows,
        low_rows=np.empty(0, np.uint16),
        stretch_ends=np.empty(0, np.int64),
        frequencies=np.minimum(frequencies, WIDE).astype(np.uint8),
        wide_places=wide,
        wide_values=frequencies[wide].astype(np.uint32),
        lengths=lengths,
    )


def write(path: Path, chunks: Iterable[AnalysedChunk], analyser: str) -> None:
    """Write a block of any number of chunks, one row for each in their order.

    Raises:
        OSError: the disk is full, for example; nothing is left behind then.
    """
    with TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as folder:
        names = (Path(folder) / str(number) for number in count())
        remaining = iter(chunks)
        runs: list[Path] = []
        while len((run := build(_at_most(TERMS_AT_ONCE, remaining))).lengths):
            runs.append(next(names))
            merge(runs[-1], [Part(run)], analyser)
        while len(runs) > MERGED_AT_ONCE:
            groups = [runs[at : at + MERGED_AT_ONCE] for at in range(0, len(runs), MERGED_AT_ONCE)]
            runs = [_merged_away(group, next(names), analyser) for group in groups]
        _merged_away(runs, path, analyser)


def _merged_away(paths: Sequence[Path], into: Path, analyser: str) -> Path:
    """Merge files, of which only the new one remains."""
    merge(into, [Part(open_postings(path, analyser)) for path in paths], analyser)
    for path in paths:
        path.unlink()
    return into


def _at_most(terms: int, chunks: Iterator[AnalysedChunk]) -> Iterator[AnalysedChunk]:
    """The next chunks with about so many terms."""
    for chunk in chunks:
        yield chunk
        terms -= len(chunk.terms)
        if terms <= 0:
            return


@dataclass(frozen=True, slots=True)
class Part:
    """A block to be merged, and which of its rows are kept; None: all."""

    postings: Postings
    kept: Kept | None = None


def merge(path: Path, parts: Sequence[Part], analyser: str) -> None:
    """Write one block of several: the rows that are kept, in the order of the parts, numbered from 0.

    Raises:
        OSError: the disk is full, for example; nothing is left behind then.
    """
    merged = _Merged(parts)
    with new_array_file(path, KIND, VERSION, {"analyser": analyser}, DTYPES, merged.lengths) as writer:
        merged.write(writer)


class _Source:
    """A part, with the numbers that its terms have in the merged block."""

    def __init__(self, part: Part, first_row: int) -> None:
        self._postings, self._kept = part.postings, part.kept
        starts, counts = part.postings.starts, part.postings.counts
        is_short = starts < part.postings.short
        is_column = starts >= part.postings.listed
        self._columns = np.flatnonzero(is_column)
        self._list_ends = (
            np.cumsum(np.where(is_short, counts, 0), dtype=np.int64),
            np.cumsum(np.where(is_short | is_column, 0, counts), dtype=np.int64) + part.postings.short,
        )
        """Of each term, where its list ends or would end: among the short, and among the long."""
        self._first_row = first_row
        self._new_rows = None if part.kept is None else first_row - 1 + np.cumsum(part.kept)
        self.keys = part.postings.keys
        self.lengths = part.postings.lengths if part.kept is None else part.postings.lengths[part.kept]
        self.numbers: Numbers = np.empty(0, np.int64)
        """Ascending. A term that is gone has the number of one before it, and adds nothing to that."""

    def counts(self) -> Numbers:
        """In how many of the rows that are kept each term stands."""
        if self._kept is None:
            return self._postings.counts.astype(np.int64)
        counts = np.zeros(len(self.keys), np.int64)
        for list_ends, start in zip(self._list_ends, (0, self._postings.short), strict=True):
            for first, beyond in _ranges(np.diff(list_ends, prepend=start)):
                bounds = _bounds(list_ends, start, first, beyond)
                rows = self._postings.rows_at(slice(int(bounds[0]), int(bounds[-1])))
                kept = np.concatenate([[0], np.cumsum(self._kept[rows])])
                counts[first:beyond] += np.diff(kept[bounds - bounds[0]])
        for term in self._columns.tolist():
            column = self._postings.frequencies_at(self._postings.places(term))
            counts[term] = np.count_nonzero(column[self._kept])
        return counts

    def postings(self, first: int, beyond: int) -> Iterator[tuple[Numbers, Numbers, Rows]]:
        """What it holds of these numbers: number, new row and frequency of each posting.

        Numbers ascend, and so do the rows of each; every number is in one of the tuples alone.
        """
        low, high = (int(place) for place in self.numbers.searchsorted([first, beyond]))
        for list_ends, start in zip(self._list_ends, (0, self._postings.short), strict=True):
            bounds = _bounds(list_ends, start, low, high)
            places = slice(int(bounds[0]), int(bounds[-1]))
            numbers = np.repeat(self.numbers[low:high], np.diff(bounds))
            yield self._kept_postings(numbers, self._postings.rows_at(places), places)
        for term in self._columns[slice(*self._columns.searchsorted([low, high]))].tolist():
            yield self._column(term)

    def _column(self, term: int) -> tuple[Numbers, Numbers, Rows]:
        places = self._postings.places(term)
        rows = np.flatnonzero(self._postings.frequencies_at(places))
        return self._kept_postings(np.full(len(rows), self.numbers[term]), rows, places.start + rows)

    def _kept_postings(
        self, numbers: Numbers, rows: NDArray[np.integer[Any]], places: Places
    ) -> tuple[Numbers, Numbers, Rows]:
        frequencies = self._postings.frequencies_at(places)
        if self._kept is None or self._new_rows is None:
            return numbers, rows + np.int64(self._first_row), frequencies
        kept = self._kept[rows]
        return numbers[kept], self._new_rows[rows[kept]], frequencies[kept]


class _Merged:
    """What becomes of several blocks: known before any posting is copied, but for the wide frequencies."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._sources: list[_Source] = []
        self._size = 0
        for part in parts:
            self._sources.append(_Source(part, self._size))
            self._size += len(self._sources[-1].lengths)
        keys, numbers = np.unique(
            np.concatenate([np.empty(0, KEY_TYPE), *(source.keys for source in self._sources)]),
            return_inverse=True,
        )
        counts = np.zeros(len(keys), np.int64)
        for source in self._sources:
            source.numbers, numbers = np.split(numbers, [len(source.keys)])
            counts[source.numbers] += source.counts()
        new_numbers = np.cumsum(counts > 0) - 1
        for source in self._sources:
            source.numbers = new_numbers[source.numbers]
        self._keys, self._counts = keys[counts > 0], counts[counts > 0]
        is_column = self._counts * COLUMN_SHARE >= self._size
        is_long = ~is_column & (self._counts >= LONG_FROM * stretches(self._size))
        self._lengths = (
            np.where(is_column | is_long, 0, self._counts),
            np.where(is_long, self._counts, 0),
            np.where(is_column, self._size, 0),
        )
        """How many frequencies each term has among the short lists, the long ones, and the columns."""
        short, long, columns = (int(lengths.sum()) for lengths in self._lengths)
        places = [np.cumsum(lengths) - lengths for lengths in self._lengths]
        self._starts = np.select(
            [is_column, is_long], [short + long + places[2], short + places[1]], default=places[0]
        )
        self.lengths = {"rows": short, "low_rows": long, "frequencies": short + long + columns}
        """Of the sections that are written piece by piece."""

    def write(self, writer: ArrayFileWriter) -> None:
        """Write all sections."""
        wide: list[tuple[Numbers, Rows]] = []
        start = 0
        for frequencies in chain(self._short(writer), self._long(writer), self._columns()):
            writer.append("frequencies", np.minimum(frequencies, WIDE))
            places = np.flatnonzero(frequencies >= WIDE)
            wide.append((places + start, frequencies[places]))
            start += len(frequencies)
        writer.add("wide_places", np.concatenate([np.empty(0, np.int64), *(places for places, _ in wide)]))
        writer.add("wide_values", np.concatenate([np.empty(0, np.uint32), *(values for _, values in wide)]))
        writer.add("lengths", np.concatenate([np.empty(0, np.float32), *(s.lengths for s in self._sources)]))
        writer.add("keys", self._keys)
        writer.add("starts", self._starts)
        writer.add("counts", self._counts)

    def _short(self, writer: ArrayFileWriter) -> Iterator[Rows]:
        """Write the rows of the short lists; their frequencies."""
        for _, rows, frequencies in self._lists(self._lengths[0]):
            writer.append("rows", rows)
            yield frequencies

    def _long(self, writer: ArrayFileWriter) -> Iterator[Rows]:
        """Write the rows of the long lists; their frequencies."""
        count = stretches(self._size)
        in_stretches = [np.empty(0, np.int64)]
        for lengths, rows, frequencies in self._lists(self._lengths[1]):
            writer.append("low_rows", rows % STRETCH)
            lists = lengths[lengths > 0]
            runs = np.repeat(np.arange(len(lists)) * count, lists) + rows // STRETCH
            in_stretches.append(np.bincount(runs, minlength=len(lists) * count))
            yield frequencies
        writer.add("stretch_ends", np.cumsum(np.concatenate(in_stretches)))

    def _lists(self, lengths: Numbers) -> Iterator[tuple[Numbers, Rows, Rows]]:
        """Some lists at once: their lengths, which are 0 where a term has none, and rows and frequencies."""
        for first, beyond in _ranges(self._counts):  # whatever they are, the parts give all of them
            ends = np.cumsum(lengths[first:beyond])
            next_places = ends - lengths[first:beyond]
            rows = np.empty(ends[-1], np.uint32)
            frequencies = np.empty_like(rows)
            for source in self._sources:
                for numbers, new_rows, found in source.postings(first, beyond):
                    listed = lengths[numbers] > 0
                    numbers = numbers[listed] - first
                    counts = np.bincount(numbers, minlength=beyond - first)
                    places = np.arange(len(numbers))
                    places += np.repeat(next_places - np.cumsum(counts) + counts, counts)
                    rows[places], frequencies[places] = new_rows[listed], found[listed]
                    next_places += counts
            yield lengths[first:beyond], rows, frequencies

    def _columns(self) -> Iterator[Rows]:
        """The frequencies of all rows, column behind column."""
        for number in np.flatnonzero(self._lengths[2]).tolist():
            frequencies = np.zeros(self._size, np.uint32)
            for source in self._sources:
                for _, rows, found in source.postings(number, number + 1):
                    frequencies[rows] = found
            yield frequencies


def _bounds(ends: Numbers, start: int, first: int, beyond: int) -> Numbers:
    """Where these lists begin, and where the last one ends; the first of all begins at `start`."""
    return np.concatenate([ends[first - 1 : first] if first else [start], ends[first:beyond]]).astype(
        np.int64
    )


def _ranges(lengths: Numbers) -> Iterator[tuple[int, int]]:
    """From which to before which list there are about `POSTINGS_AT_ONCE`, one list at least."""
    ends = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        start = int(ends[first] - lengths[first])
        beyond = max(first + 1, int(ends.searchsorted(start + POSTINGS_AT_ONCE, side="right")))
        yield first, beyond
        first = beyond
