"""The words of chunks that were just added: in memory, appended to, and read at the same time.

One thread appends. Whoever reads has a view of the first n rows, which never change; a view needs no lock and
cannot be torn, for what is behind its rows is cut off.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from kb_engine.index.analyser import AnalysedChunk
from kb_engine.index.embedded.words import Counts, Floats, Postings, Rows, Terms
from kb_engine.index.embedded.words_merging import in_memory, sorted_keys


class RecentWords:
    """A block that grows."""

    def __init__(self) -> None:
        self._postings: dict[str, array[int]] = defaultdict(partial(array, "Q"))
        """By term: the row in the upper half of each number, the frequency in the lower."""
        self._lengths = array("f")

    def append(self, chunks: Iterable[AnalysedChunk]) -> None:
        """Add a row for each chunk."""
        postings = self._postings
        for terms, length in chunks:
            row = len(self._lengths) << 32
            self._lengths.append(length)
            for term, frequency in Counter(terms).items():
                postings[term].append(row | frequency)

    def view(self, size: int) -> RecentView:
        """The first rows."""
        return RecentView(self._postings, self._lengths, size)


class RecentView:
    """The first rows of a block that grows; a `WordBlock`."""

    def __init__(self, postings: Mapping[str, array[int]], lengths: array[float], size: int) -> None:
        self._postings, self._all_lengths, self._size = postings, lengths, size
        self._last: tuple[Terms, Postings] | None = None

    @cached_property
    def lengths(self) -> NDArray[np.float32]:
        return np.array(self._all_lengths[: self._size], np.float32)

    def frequencies(self, terms: Terms, rows: Rows | None = None) -> Counts:
        return self._found(terms).frequencies(terms, rows)

    def add_scores(
        self, terms: Terms, weights: Sequence[float], average: float, scores: Floats, rows: Rows | None = None
    ) -> None:
        self._found(terms).add_scores(terms, weights, average, scores, rows)

    def postings(self) -> Postings:
        return self._block(list(self._postings))

    def _found(self, terms: Terms) -> Postings:
        """The postings of these terms: a search wants them twice."""
        last = self._last
        if last is None or last[0] is not terms:
            known = [term for term in set(terms.texts) if term in self._postings]
            self._last = last = terms, self._block(known)
        return last[1]

    def _block(self, terms: Sequence[str]) -> Postings:
        keys, order = sorted_keys(terms)
        # Copies: an array that somebody looks into cannot grow.
        lists = [self._postings[terms[number]].tobytes() for number in order]
        found = np.frombuffer(b"".join(lists), np.uint64)
        rows = (found >> np.uint64(32)).astype(np.uint32)
        inside = rows < self._size
        ends = np.cumsum([len(each) // found.itemsize for each in lists], dtype=np.int64)
        counts = np.diff(np.concatenate([[0], np.cumsum(inside)])[np.concatenate([[0], ends])])
        frequencies = (found[inside] & np.uint64(0xFFFFFFFF)).astype(np.int64)
        return in_memory(keys[counts > 0], counts[counts > 0], rows[inside], frequencies, self.lengths)
