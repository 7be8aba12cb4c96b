"""Merging blocks of words, without their removed rows.

Memory is limited to a bounded number of postings, the dictionaries of the blocks (about 100 bytes per term of
each), and 16 bytes per row. Sorting and copying are done by numpy, which releases the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kb_engine.index.embedded.array_file import ArrayFileWriter
from kb_engine.index.embedded.postings import (
    COLUMN_SHARE,
    KEY_TYPE,
    LONG_FROM,
    STRETCH,
    WIDE,
    Places,
    Postings,
    Rows,
    stretches,
)

Numbers: TypeAlias = "NDArray[np.int64]"
Kept: TypeAlias = "NDArray[np.bool_]"

POSTINGS_AT_ONCE = 2_000_000  # number of postings merged in memory at once; about 100 MB


class _Source:
    """A block, with the numbers of its terms in the merged block."""

    def __init__(self, postings: Postings, kept: Kept | None, first_row: int) -> None:
        self._postings, self._kept = postings, kept
        starts, counts = postings.starts, postings.counts
        is_short = starts < postings.short
        is_column = starts >= postings.listed
        self._columns = np.flatnonzero(is_column)
        self._list_ends = (
            np.cumsum(np.where(is_short, counts, 0), dtype=np.int64),
            np.cumsum(np.where(is_short | is_column, 0, counts), dtype=np.int64) + postings.short,
        )
        """For each term the end of its (possibly empty) list among the short lists, and among the
        long lists.
        """
        self._first_row = first_row
        self._new_rows = None if kept is None else first_row - 1 + np.cumsum(kept)
        self.keys = postings.keys
        self.lengths = postings.lengths if kept is None else postings.lengths[kept]
        self.numbers: Numbers = np.empty(0, np.int64)
        """In ascending order. A term without remaining rows shares the number of an earlier one, and
        contributes no posting to it.
        """

    def counts(self) -> Numbers:
        """Return the number of kept rows with each term."""
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
        """Yield number, new row and frequency of the postings with numbers from `first` to before `beyond`.

        Numbers ascend, as do the rows of each; each number occurs in only one of the tuples.
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


class MergedPostings:
    """One block made of several: the kept rows of each (None: all), in the order of the blocks.

    All sizes are known before a posting is copied, except for the wide frequencies.
    """

    def __init__(self, blocks: Sequence[tuple[Postings, Kept | None]]) -> None:
        self._sources: list[_Source] = []
        self._size = 0
        for postings, kept in blocks:
            self._sources.append(_Source(postings, kept, self._size))
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
        """Number of frequencies of each term in the short lists, the long lists, and the columns."""
        short, long, columns = (int(lengths.sum()) for lengths in self._lengths)
        places = [np.cumsum(lengths) - lengths for lengths in self._lengths]
        self._starts = np.select(
            [is_column, is_long], [short + long + places[2], short + places[1]], default=places[0]
        )
        self.lengths = {"rows": short, "low_rows": long, "frequencies": short + long + columns}
        """Lengths of the sections that are written piecewise."""

    def write(self, writer: ArrayFileWriter) -> None:
        """Write all sections of words."""
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
        """Write the rows of the short lists, and yield their frequencies."""
        for _, rows, frequencies in self._lists(self._lengths[0]):
            writer.append("rows", rows)
            yield frequencies

    def _long(self, writer: ArrayFileWriter) -> Iterator[Rows]:
        """Write the rows of the long lists, and yield their frequencies."""
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
        """Yield batches of lists: their lengths (0 for terms without one), rows and frequencies."""
        for first, beyond in _ranges(self._counts):  # the batches cover all lists for any ranges
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
        """Yield the frequencies of all rows, column by column."""
        for number in np.flatnonzero(self._lengths[2]).tolist():
            frequencies = np.zeros(self._size, np.uint32)
            for source in self._sources:
                for _, rows, found in source.postings(number, number + 1):
                    frequencies[rows] = found
            yield frequencies


def _bounds(ends: Numbers, start: int, first: int, beyond: int) -> Numbers:
    """Return the starts of these lists and the end of the last one; the first list of all begins
    at `start`.
    """
    return np.concatenate([ends[first - 1 : first] if first else [start], ends[first:beyond]]).astype(
        np.int64
    )


def _ranges(lengths: Numbers) -> Iterator[tuple[int, int]]:
    """Yield ranges of lists with about `POSTINGS_AT_ONCE` postings, and at least one list."""
    ends = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        start = int(ends[first] - lengths[first])
        beyond = max(first + 1, int(ends.searchsorted(start + POSTINGS_AT_ONCE, side="right")))
        yield first, beyond
        first = beyond
