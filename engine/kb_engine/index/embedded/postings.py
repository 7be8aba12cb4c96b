"""BM25 over all words of a query, from flat arrays of postings.

A block holds the words of n chunks, its rows. It contains no statistics: the caller sums the number of
chunks, their lengths and the document frequency of each term over all blocks, without the removed rows, and
passes the weights of the terms and the average length back. So a row has the same score, to the last bit, in
any block, and scores follow the state of the base at the time of the query.

    score = sum over terms of weight * frequency * (K1 + 1) / (frequency + norm)
    norm = K1 * (1 - B + B * length / average)

A term in few rows has a list of these, in ascending order, with a frequency for each. A long list stores only
the lower half of each row number, and the end of each stretch of 65,536 rows: three bytes per posting instead
of five. A term in a fifth of all rows or more has a column: a frequency for every row, mostly zero. A pass
over it is faster, and from a third of all rows on it is smaller.

Reasons: numpy sums a list of thousands in about 2 ns per posting (a cast of the rows, a gather of their
length norms, `add.at` these rows) and a column in 0.4 ns per row, without a further dependency. A compiled
loop takes 1 to 1.5 ns per posting; for it Numba would add 64 MB of wheels and 1.2 s of import, SciPy's sparse
product 35 MB and 0.55 s. Precomputed impacts instead of frequencies would save 1 ns per posting, cost three
more bytes, and be valid for one average length only. So frequencies are scored against lengths at query time.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import count as counter
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kb_engine.index.score import K1, B
from kb_engine.index.words import WITHOUT_LANGUAGES, AnalysedChunk, earlier_form

Keys: TypeAlias = "NDArray[np.bytes_]"
"""Keys of terms: shape (t,), 16 bytes each."""
Rows: TypeAlias = "NDArray[np.uint32]"
Counts: TypeAlias = "NDArray[np.int64]"
Places: TypeAlias = "slice | NDArray[np.intp]"
Mask: TypeAlias = "NDArray[np.bool_]"
Floats: TypeAlias = "NDArray[np.float32] | NDArray[np.float64]"


KEY_TYPE = "|S16"
ROWS_AT_ONCE = 1 << 16
"""Number of rows processed at once, so that intermediate results stay in the processor's cache."""
COLUMN_SHARE = 5
"""A term in at least one of `COLUMN_SHARE` rows is a column: a row of a column costs a fifth of a posting."""
STRETCH = 1 << 16
"""Number of consecutive rows with the same upper half."""
LONG_FROM = 16
"""Number of postings per stretch of the block from which a list is long: its ends take 8 bytes
per stretch.
"""
WIDE = 255
"""Frequencies take a byte; larger ones, from this value on, are stored separately."""
BISECT = 32
"""Cost of a binary search for one row, in postings of a linear pass."""
FEW = 100
"""If less than one in `FEW` rows is chosen, an array over all rows costs more than it saves."""

KNOWN_TERMS = 4_096
"""Number of terms whose lookups a block keeps."""
INDEXED_AFTER = 100
"""Number of searches of a view after which all of its words are indexed, which takes as long as these."""

_HALF, _NEXT = np.uint64(32), np.uint64(1)

DTYPES = {
    "keys": KEY_TYPE,
    "starts": "<i8",
    "counts": "<u4",
    "rows": "<u4",
    "low_rows": "<u2",
    "stretch_ends": "<i8",
    "frequencies": "|u1",
    "wide_places": "<i8",
    "wide_values": "<u4",
    "lengths": "<f4",
}
"""The sections of a file with the words of a block: the arrays of `Postings`."""


def key_of(term: str) -> bytes:
    """Return the key of a term: a digest of fixed length, unique in practice."""
    return hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def keys_of(terms: Sequence[str]) -> Keys:
    """Return the keys of terms, in their order."""
    return np.array([key_of(term) for term in terms], KEY_TYPE)


def _halves(keys: Keys) -> NDArray[np.uint64]:
    return keys.view(np.uint64).reshape(-1, 2)


def stretches(size: int) -> int:
    """Return the number of stretches of a block of this size, at least 1."""
    return max(1, -(-size // STRETCH))


class Terms:
    """The terms of a query, with cached lookups: their postings in each block."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.found: dict[Postings, Sequence[tuple[int, _Found]]] = {}
        """The places of the terms that occur in a block, with their postings there."""
        self.recent: dict[RecentView, Postings] = {}
        """The postings of at least these terms, for a growing block."""

    def of(self, analyser: str) -> Sequence[Terms]:
        """Return the terms to look up in a block of this analyser."""
        return [self, self._earlier] if analyser in WITHOUT_LANGUAGES else [self]

    @cached_property
    def _earlier(self) -> Terms:
        """The differing forms of the earlier analysers; the place of a term without one is empty."""
        known = {"", *self.texts}
        forms = []
        for form in map(earlier_form, self.texts):
            forms.append("" if form in known else form)
            known.add(form)
        return Terms(forms)


class _Found(NamedTuple):
    """The postings of a term in a block: the range of its frequencies, the number of its rows, and the ends
    of the stretches of a long list.
    """

    whole: slice
    rows: int
    ends: Sequence[int] = ()


_ABSENT = _Found(slice(0, 0), 0)


class WordBlock(Protocol):
    """The words of some chunks."""

    @property
    def lengths(self) -> NDArray[np.float32]:
        """Number of tokens of each row."""

    def frequencies(self, terms: Terms, rows: Rows | None = None) -> Counts:
        """Return the number of rows with each term, in total or among `rows` (ascending)."""

    def add_scores(
        self, terms: Terms, weights: Sequence[float], average: float, scores: Floats, rows: Rows | None = None
    ) -> None:
        """Add the BM25 of each row, or of `rows` (ascending) in their order, to `scores`.

        `average` is the mean length of all chunks of the index, above 0. Sums are computed in the type of
        `scores`, term by term in the order of `terms`, so that they depend neither on `rows` nor on the
        block.
        """

    def holding(self, terms: Terms) -> Mask:
        """Return a mask of the rows with at least one of the terms."""

    def postings(self) -> Postings:
        """Return the whole block, for merging."""


class Postings:
    """An immutable block, in a file or in memory; a `WordBlock`.

    Terms are ordered by key. A term has a start in `frequencies`, which holds first the short lists, parallel
    to `rows`, then the long lists, parallel to `low_rows`, then the columns; each in the order of the terms.
    `stretch_ends` are positions in `low_rows`: for each long list one per stretch of the block.
    """

    def __init__(
        self,
        *,
        keys: Keys,
        starts: NDArray[np.int64],
        counts: Rows,
        rows: Rows,
        low_rows: NDArray[np.uint16],
        stretch_ends: NDArray[np.int64],
        frequencies: NDArray[np.uint8],
        wide_places: NDArray[np.int64],
        wide_values: Rows,
        lengths: NDArray[np.float32],
    ) -> None:
        self.keys, self.starts, self.counts, self.lengths = keys, starts, counts, lengths
        self.short = len(rows)
        """End of the short lists in `frequencies`."""
        self.listed = len(rows) + len(low_rows)
        """End of all lists in `frequencies`."""
        self._rows, self._low_rows, self._stretch_ends = rows, low_rows, stretch_ends
        self._stretches = stretches(len(lengths))
        self._halves = _halves(keys)
        self._known: dict[str, _Found] = {}
        """Terms that were looked up, also absent ones."""
        self._kept_norms: tuple[float, np.dtype[Any], Floats] = (0.0, lengths.dtype, lengths)
        self._frequencies = frequencies
        self._wide_places, self._wide_values = wide_places, wide_values

    def frequencies(self, terms: Terms, rows: Rows | None = None) -> Counts:
        counts = [0] * len(terms.texts)
        chosen = None if rows is None else _Chosen(rows, len(self.lengths))
        for place, found in self._find(terms):
            counts[place] = found.rows if chosen is None else self._count(found, chosen)
        return np.array(counts, np.int64)

    def add_scores(
        self, terms: Terms, weights: Sequence[float], average: float, scores: Floats, rows: Rows | None = None
    ) -> None:
        chosen = None if rows is None else _Chosen(rows, len(self.lengths))
        norms = self._norms(average, scores.dtype, chosen)
        for place, found in self._find(terms):
            factor = weights[place] * (K1 + 1)
            for at, targets in self._all(found, chosen):
                impacts = self.frequencies_at(at, scores.dtype)
                if isinstance(targets, slice):
                    impacts /= norms[targets] + impacts
                    impacts *= factor
                    scores[targets] += impacts
                else:
                    impacts /= norms.take(targets) + impacts
                    impacts *= factor
                    np.add.at(scores, targets, impacts)

    def holding(self, terms: Terms) -> Mask:
        held = np.zeros(len(self.lengths), np.uint8)
        for _, found in self._find(terms):
            if found.whole.start < self.listed:
                held[self._rows_of(found)] = 1
            else:
                held |= self._frequencies[found.whole]
        return held > 0

    def postings(self) -> Postings:
        return self

    def places(self, term: int) -> slice:
        """Return the range of a term's frequencies."""
        (found,) = self._ranges(np.array([term]))
        return found.whole

    def frequencies_at(self, places: Places, dtype: DTypeLike = np.uint32) -> NDArray[Any]:
        """Return the frequencies at these places."""
        found = self._frequencies[places].astype(dtype)
        if len(self._wide_places):
            wide = np.flatnonzero(found == WIDE)
            where = wide + places.start if isinstance(places, slice) else places[wide]
            found[wide] = self._wide_values[self._wide_places.searchsorted(where)]
        return found

    def rows_at(self, places: slice) -> NDArray[np.intp]:
        """Return the rows of these postings of lists, which are either all short or all long."""
        if places.start < self.short:
            return self._rows[places].astype(np.intp)
        start, stop = places.start - self.short, places.stop - self.short
        rows = self._low_rows[start:stop].astype(np.intp)
        first = int(self._stretch_ends.searchsorted(start, "right"))
        beyond = int(self._stretch_ends.searchsorted(stop, "left")) + 1
        upper = np.arange(first, beyond) % self._stretches * STRETCH
        if len(upper) > 1:
            ends = np.minimum(self._stretch_ends[first:beyond], stop)
            upper = np.repeat(upper, np.diff(ends, prepend=start))
        rows += upper
        return rows

    def _norms(self, average: float, dtype: np.dtype[Any], chosen: _Chosen | None) -> Floats:
        """Return the norms of the chosen rows (None: all, which are kept for the next search)."""
        of_average, of_dtype, kept = self._kept_norms  # at once: another thread may replace them
        if chosen is None and (of_average, of_dtype) == (average, dtype):
            return kept
        lengths = self.lengths if chosen is None else self.lengths[chosen.rows]
        norms: Floats = np.multiply(lengths, K1 * B / average, dtype=dtype)
        norms += K1 * (1 - B)
        if chosen is None:
            self._kept_norms = (average, dtype, norms)
        return norms

    def _ranges(self, terms: NDArray[np.intp]) -> list[_Found]:
        """Return the postings of each of these terms."""
        size, found = len(self.lengths), []
        for start, count in zip(self.starts[terms].tolist(), self.counts[terms].tolist(), strict=True):
            whole, ends = slice(start, start + (count if start < self.listed else size)), []
            if self._stretches > 1 and self.short <= start < self.listed:
                first = self._stretch_ends.searchsorted(start - self.short, "right")
                first = first // self._stretches * self._stretches
                ends = (self._stretch_ends[first : first + self._stretches] - (start - self.short)).tolist()
            found.append(_Found(whole, count, ends))
        return found

    def _rows_of(self, found: _Found) -> NDArray[np.intp]:
        """Return the rows of a list."""
        if found.whole.start < self.short:
            return self._rows[found.whole].astype(np.intp)
        start, stop = found.whole.start - self.short, found.whole.stop - self.short
        rows = self._low_rows[start:stop].astype(np.intp)
        for number, (begin, end) in enumerate(pairwise(found.ends), 1):
            rows[begin:end] += number * STRETCH
        return rows

    def _find(self, terms: Terms) -> Sequence[tuple[int, _Found]]:
        """Return the places of the terms that occur, and their postings."""
        if (found := terms.found.get(self)) is None:
            each = list(map(self._known.get, terms.texts))
            unknown = [text for text, one in zip(terms.texts, each, strict=True) if one is None]
            new = dict(zip(unknown, self._look_up(unknown), strict=True)) if unknown else {}
            if new:
                if len(self._known) + len(new) > KNOWN_TERMS:
                    self._known.clear()
                self._known |= new
            found = terms.found[self] = [
                (place, one)
                for place, one in enumerate(
                    one or new[text] for text, one in zip(terms.texts, each, strict=True)
                )
                if one.rows
            ]
        return found

    def _look_up(self, texts: Sequence[str]) -> list[_Found]:
        if not len(self.keys):
            return [_ABSENT] * len(texts)
        keys = keys_of(texts)
        numbers = self.keys.searchsorted(keys)
        numbers[numbers == len(self.keys)] = 0
        # Pairs of numbers are compared in a tenth of the time of keys.
        occurs = (self._halves[numbers] == _halves(keys)).all(axis=1).tolist()
        return [one if here else _ABSENT for one, here in zip(self._ranges(numbers), occurs, strict=True)]

    def _count(self, found: _Found, chosen: _Chosen) -> int:
        return sum(int(np.count_nonzero(self._frequencies[at])) for at, _ in self._all(found, chosen))

    def _all(self, found: _Found, chosen: _Chosen | None) -> Iterator[tuple[Places, Places]]:
        """Yield the postings of a term: their places and their distinct rows, or the indexes of
        the chosen rows.

        In a column the frequency may be 0.
        """
        whole = found.whole
        if whole.start >= self.listed:
            if chosen is not None:
                yield whole.start + chosen.rows, chosen.indexes
                return
            for start in range(0, len(self.lengths), ROWS_AT_ONCE):
                end = min(start + ROWS_AT_ONCE, len(self.lengths))
                yield slice(whole.start + start, whole.start + end), slice(start, end)
            return
        rows = self._rows_of(found)
        if chosen is None:
            yield whole, rows
        elif chosen.bisect(len(rows)):
            which, shared = _shared(chosen.rows, rows)
            yield whole.start + shared, which
        else:
            order = chosen.order.take(rows)
            hits = np.flatnonzero(order >= 0)
            yield whole.start + hits, order[hits].astype(np.intp)


class _Chosen:
    """Some rows of a block of `size`, ascending."""

    def __init__(self, rows: Rows, size: int) -> None:
        self.rows = rows.astype(np.intp)
        self.indexes = np.arange(len(rows))
        self._size = size

    def bisect(self, count: int) -> bool:
        """True if a binary search, of the shorter list in the longer one, is faster than a pass over `count`
        postings.
        """
        fewer, more = sorted((len(self.rows), count))
        return len(self.rows) * FEW < self._size or fewer * BISECT < more

    @cached_property
    def order(self) -> NDArray[np.int32]:
        """For each row of the block its index among the chosen rows, or -1."""
        order = np.full(self._size, -1, np.int32)
        order[self.rows] = np.arange(len(self.rows), dtype=np.int32)
        return order


def _shared(first: NDArray[np.intp], second: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the indexes of the common numbers of two ascending arrays, in the first and in the second."""
    if len(first) > len(second):
        return _shared(second, first)[::-1]
    near = second.searchsorted(first)
    near[near == len(second)] = 0
    hits = np.flatnonzero(second[near] == first)
    return hits, near[hits]


def in_memory(
    keys: NDArray[np.bytes_], counts: Counts, rows: Rows, frequencies: Rows, lengths: NDArray[np.float32]
) -> Postings:
    """Return a block with lists only: for each term, by ascending keys, its rows and their frequencies."""
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
        wide_values=frequencies[wide],
        lengths=lengths,
    )


class RecentWords:
    """A growing block: the words of recently added chunks.

    One thread appends the numbers of their terms, which takes a third of the time of a list for each term. A
    reader sorts those of the rows that no earlier reader has sorted. It uses a view of the first rows, which
    ignores later rows and so never changes.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = defaultdict(counter().__next__)
        """The number of each term, in the order in which they first occurred."""
        self.lengths = array("f")
        self._terms = array("I")
        """The numbers of the terms of all rows, with repetitions."""
        self._ends = array("Q")
        self._sorted: list[_Sorted] = []
        self._guard = threading.Lock()

    def append(self, chunks: Iterable[AnalysedChunk]) -> None:
        """Add a row for each chunk."""
        number = self.numbers.__getitem__
        for terms, length in chunks:
            self._terms.extend(map(number, terms))
            self._ends.append(len(self._terms))
            self.lengths.append(length)

    def view(self, size: int) -> RecentView:
        """Return a view of the first rows."""
        return RecentView(self, size)

    def read(self, first: int, beyond: int) -> tuple[Rows, Rows]:
        """Return the numbers of the terms in these rows, and the row of each."""
        # Copies: an array with an exported buffer cannot grow.
        start = self._ends[first - 1] if first else 0
        ends = np.array(self._ends[first:beyond], np.int64)
        terms = np.array(self._terms[start : int(ends[-1]) if len(ends) else 0], np.uint32)
        rows = np.repeat(np.arange(first, beyond, dtype=np.uint32), np.diff(ends, prepend=start))
        return terms, rows

    def sorted(self, size: int) -> list[_Sorted]:
        """Return the postings of the first rows, and possibly of further ones, in few parts."""
        with self._guard:
            first = self._sorted[-1].beyond if self._sorted else 0
            if first < size:
                self._sorted.append(_Sorted(size, *_counted(*self.read(first, size))))
            while len(last := self._sorted[-2:]) > 1 and len(last[0].places) <= 2 * len(last[1].places):
                self._sorted[-2:] = [_Sorted(size, *_in_order(last))]
            return list(self._sorted)


class _Sorted(NamedTuple):
    """Postings of adjacent rows, the last before `beyond`: in ascending order, term in the upper half and row
    in the lower half of a number; and the frequency of each.
    """

    beyond: int
    places: NDArray[np.uint64]
    frequencies: Rows

    def of(self, terms: NDArray[np.uint64]) -> _Sorted:
        """Return the postings of these terms."""
        starts, counts = _bounds(self.places, terms)
        ends = counts.cumsum()
        found = np.arange(ends[-1] if len(ends) else 0)
        found += np.repeat(starts - ends + counts, counts)
        return _Sorted(self.beyond, self.places[found], self.frequencies[found])


def _bounds(places: NDArray[np.uint64], terms: NDArray[np.uint64]) -> tuple[Counts, Counts]:
    """Return the start of the postings of each term, and their number."""
    starts = places.searchsorted(terms << _HALF)
    return starts, places.searchsorted((terms + _NEXT) << _HALF) - starts


def _counted(terms: NDArray[np.integer[Any]], rows: Rows) -> tuple[NDArray[np.uint64], Rows]:
    """Return places and frequencies, see `_Sorted`, from the terms of these rows with repetitions."""
    places = (terms.astype(np.uint64) << _HALF) | rows
    places.sort()
    starts = np.flatnonzero(np.diff(places, prepend=~places[:1]))
    return places[starts], np.diff(starts, append=len(places)).astype(np.uint32)


def _in_order(parts: Sequence[_Sorted]) -> tuple[NDArray[np.uint64], Rows]:
    """Return the places and frequencies of all parts."""
    if len(parts) == 1:
        return parts[0].places, parts[0].frequencies
    places = np.concatenate([np.empty(0, np.uint64), *(part.places for part in parts)])
    frequencies = np.concatenate([np.empty(0, np.uint32), *(part.frequencies for part in parts)])
    order = np.argsort(places, kind="stable")  # linear time: the parts are in order
    return places[order], frequencies[order]


class RecentView:
    """The first rows of a growing block; a `WordBlock`."""

    def __init__(self, words: RecentWords, size: int) -> None:
        self._words, self._size = words, size
        self._searches = 0

    @cached_property
    def lengths(self) -> NDArray[np.float32]:
        return np.array(self._words.lengths[: self._size], np.float32)

    def frequencies(self, terms: Terms, rows: Rows | None = None) -> Counts:
        return self._found(terms).frequencies(terms, rows)

    def add_scores(
        self, terms: Terms, weights: Sequence[float], average: float, scores: Floats, rows: Rows | None = None
    ) -> None:
        self._found(terms).add_scores(terms, weights, average, scores, rows)

    def holding(self, terms: Terms) -> Mask:
        return self._found(terms).holding(terms)

    def postings(self) -> Postings:
        terms, rows = self._words.read(0, self._size)
        # Numbers are in the order of the rows: those of later rows are larger.
        count = int(terms.max()) + 1 if len(terms) else 0
        keys = keys_of(list(self._words.numbers)[:count])
        order = np.argsort(keys)
        ranks = np.empty(count, np.uint32)
        ranks[order] = np.arange(count, dtype=np.uint32)
        places, frequencies = _counted(ranks[terms], rows)
        counts = np.bincount((places >> _HALF).astype(np.intp), minlength=count)
        return in_memory(keys[order], counts, places.astype(np.uint32), frequencies, self.lengths)

    @cached_property
    def _indexed(self) -> Postings:
        return self.postings()

    def _found(self, terms: Terms) -> Postings:
        """Return the postings of these terms, see `Terms.recent`. They are found by their texts, as there is
        no order of keys; unless nothing was added for many searches.
        """
        if (found := terms.recent.get(self)) is None:
            self._searches += 1
            if self._searches > INDEXED_AFTER:
                found = terms.recent[self] = self._indexed
                return found
            known = {
                text: number for text in terms.texts if (number := self._words.numbers.get(text)) is not None
            }
            wanted = np.array(sorted(known.values()), np.uint64)
            parts = [part.of(wanted) for part in self._words.sorted(self._size)]
            places, frequencies = _in_order(parts)
            rows = places.astype(np.uint32)  # the lower half
            if parts and parts[-1].beyond > self._size:
                inside = rows < self._size
                places, rows, frequencies = places[inside], rows[inside], frequencies[inside]
            _, counts = _bounds(places, wanted)
            # Some may occur only in rows beyond this view.
            lists = {number: place for place, number in enumerate(wanted[counts > 0].tolist())}
            no_keys = np.empty(0, KEY_TYPE)
            found = in_memory(no_keys, counts[counts > 0], rows, frequencies, self.lengths)
            terms.recent[self] = found
            at = [place for place, text in enumerate(terms.texts) if known.get(text) in lists]
            numbers = np.array([lists[known[terms.texts[place]]] for place in at], np.intp)
            terms.found[found] = list(zip(at, found._ranges(numbers), strict=True))
        return found
