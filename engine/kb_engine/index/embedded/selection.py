"""The best chunks by the exact score, found without scoring all of them exactly.

Words are exact and dense, cosines are known within a bound (`vectors`). The score grows with the cosine, so
the score of each row lies between two that are known. Rows whose upper bound is below the `top`-th best
lower bound cannot be among the best. Of the others the exact scores are computed, the most promising first,
until none that remains can reach the `top`-th best of these. What comes out is what `ranking.select` makes
of the float32 cosines of all rows, ties included, whatever the vectors are.

The rows are looked at in blocks that fit the processor's cache. What must be remembered of them is bounded:
rows that may still be among the best are scored when they become too many.

How many chunks match is exact too, as long as few cosines lie so near the floor that only the exact ones
could tell (`RECOUNT_ROWS`); a finer bound, which the codes give for those near it, halves their number. Else
the count is of those that match for certain, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kb_engine.index.embedded.block import Mask
from kb_engine.index.embedded.index import State
from kb_engine.index.embedded.vectors import Floats32, QuantisedQuery, QuantisedVectors, Rows, quantise_query
from kb_engine.index.embedded.words import Terms, weigh
from kb_engine.index.port import Candidate, Candidates, Ids, IndexQuery, Vectors
from kb_engine.index.ranking import Floats, fuse

Originals = Callable[[Ids], Vectors]
"""The float32 vectors of these chunks, whose ids ascend."""

BLOCK_ROWS = 32_768
_FIRST_ROWS = 2_048
"""Of the first block, of which all rows must be compared with one another."""
GATHER_BELOW = 0.5
"""Share of a block's rows under which copying them out beats a pass over the block."""
POOL_ROWS = 65_536
"""Rows that may be among the best are scored exactly when there are more."""
RECOUNT_ROWS = 1_000
"""So many cosines are computed exactly for the sake of the total."""
FEW = 8
"""Where one row in so many may answer, or fewer, the words of these alone are scored."""
_FIRST_BATCH = 64
_LARGEST_BATCH = 4_096
_SLACK = 2e-6
"""Half a unit of the last decimal that a score is rounded to, and the roundings of float32 before it."""


def search(
    state: State, terms: Sequence[str], documents: Ids | None, query: IndexQuery, originals: Originals
) -> Candidates:
    """The best chunks of these documents (None: of all) by the exact score, best first.

    `terms` are those of the query's text, `originals` reads vectors of this state of the base.
    """
    allowed = [part.allowed(documents) for part in state.parts]
    bm25: Sequence[Floats | None] = [None] * len(allowed)
    if query.mode != "vector":
        bm25 = _bm25(state, terms, allowed)
    segments = [
        Segment(part.block.chunk_ids, part.block.vectors, scores, rows)
        for part, scores, rows in zip(state.parts, bm25, allowed, strict=True)
    ]
    return select(segments, query, originals)


def _bm25(state: State, texts: Sequence[str], allowed: Sequence[Mask | None]) -> list[Floats]:
    """The BM25 of all rows of each part; 0 of those that may not answer, where these are most."""
    terms = Terms(texts)
    counts = np.zeros(len(texts), np.int64)
    for part in state.parts:
        counts += part.block.words.frequencies(terms)
        if len(part.removed):
            counts -= part.block.words.frequencies(terms, part.removed)
    weights = weigh(counts, state.size).tolist()
    average = sum(part.tokens for part in state.parts) / max(state.size, 1) or 1.0
    found = []
    for part, rows in zip(state.parts, allowed, strict=True):
        scores = np.zeros(len(part.block.chunk_ids))
        chosen = None if rows is None else np.flatnonzero(rows).astype(np.uint32)
        if chosen is None or len(chosen) * FEW > len(scores):
            part.block.words.add_scores(terms, weights, average, scores)
        else:
            of_chosen = np.zeros(len(chosen))
            part.block.words.add_scores(terms, weights, average, of_chosen, chosen)
            scores[chosen] = of_chosen
        found.append(scores)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Rows of an index, one place for each in all arrays.

    `bm25` (None in mode `vector`): 0 where a row holds no word of the query. `allowed` (None: all): those
    that are not removed and pass the filters.
    """

    chunk_ids: Ids
    vectors: QuantisedVectors
    bm25: Floats | None = None
    allowed: Mask | None = None


def select(
    segments: Sequence[Segment], query: IndexQuery, originals: Originals, recount: int = RECOUNT_ROWS
) -> Candidates:
    """The `query.top` best rows of all segments, of equal scores those with the smaller chunk ids.

    Text and selection of the query have no say here: they are in the segments' `bm25` and `allowed`.
    """
    search = _Search(segments, query, originals, recount)
    size = min(_FIRST_ROWS, BLOCK_ROWS)
    for number, segment in enumerate(segments):
        start = 0
        while start < len(segment.chunk_ids):
            search.look_at(number, start, min(start + size, len(segment.chunk_ids)))
            start, size = start + size, min(4 * size, BLOCK_ROWS)
    return search.result()


@dataclass(frozen=True, slots=True, eq=False)
class _Pool:
    """Rows of segments, with the upper bounds of their scores."""

    numbers: NDArray[np.int32]
    rows: Rows
    high: Floats32

    @classmethod
    def of(cls, number: int, rows: Rows, high: Floats32) -> _Pool:
        return cls(np.full(len(rows), number, np.int32), rows, high)

    def at(self, places: slice | Rows | Mask) -> _Pool:
        return _Pool(self.numbers[places], self.rows[places], self.high[places])

    def __add__(self, other: _Pool) -> _Pool:
        return _Pool(
            np.concatenate([self.numbers, other.numbers]),
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.high, other.high]),
        )

    def __len__(self) -> int:
        return len(self.rows)


def _nothing() -> _Pool:
    return _Pool.of(0, np.empty(0, np.intp), np.empty(0, np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class _Bounds:
    """Of some rows the cosines, by how much they may be off, and the bounds of the scores."""

    cosines: Floats32
    errors: Floats32
    bm25: Floats32 | None
    low: Floats32
    high: Floats32


@dataclass(frozen=True, slots=True, eq=False)
class _Scored:
    """Rows with their exact scores; the parts are 0 where the mode does not ask for them."""

    ids: Ids
    cosines: Floats
    bm25: Floats
    scores: Floats

    def best_with(self, other: _Scored, top: int) -> _Scored:
        ids = np.concatenate([self.ids, other.ids])
        scores = np.concatenate([self.scores, other.scores])
        order = np.lexsort((ids, -scores))[:top]
        return _Scored(
            ids[order],
            np.concatenate([self.cosines, other.cosines])[order],
            np.concatenate([self.bm25, other.bm25])[order],
            scores[order],
        )


class _Search:
    """A selection while the blocks pass."""

    def __init__(
        self, segments: Sequence[Segment], query: IndexQuery, originals: Originals, recount: int
    ) -> None:
        self._segments = segments
        self._originals = originals
        self._query = query
        self._vector: QuantisedQuery | None = None
        if query.mode != "fts":
            assert query.vector is not None, "the mode needs one"
            self._vector = quantise_query(query.vector)
        self._by_words = query.mode != "vector"
        self._threshold = query.min_score
        """What a row must reach to be among the best, as far as it is known."""
        self._lows = np.empty(0, np.float32)
        """The `top` best lower bounds."""
        self._pool = _nothing()
        empty = np.empty(0)
        self._best = _Scored(np.empty(0, np.int64), empty, empty, empty)
        self._total = 0
        self._undecided = _nothing()
        self._recount = recount
        self._total_exact = True

    def look_at(self, number: int, start: int, stop: int) -> None:
        """The rows of a segment from `start` to before `stop`."""
        segment = self._segments[number]
        rows = np.arange(start, stop, dtype=np.intp)
        if segment.allowed is not None:
            rows = rows[segment.allowed[start:stop]]
        if not len(rows):
            return
        cosines, errors = self._cosines(segment, rows, slice(start, stop))
        bm25 = self._words(segment, rows, slice(start, stop))
        bounds = self._bounds(cosines, errors, bm25)
        self._count(number, rows, bounds)
        low, high = bounds.low, bounds.high
        if self._vector is None:
            assert bm25 is not None
            high[bm25 <= 0] = -1  # without vectors only what holds a word can answer
        kept = np.flatnonzero(high >= self._threshold)
        self._lows = _largest(np.concatenate([self._lows, low[kept]]), self._query.top)
        if len(self._lows) == self._query.top:
            self._threshold = max(self._threshold, float(self._lows.min()))
        kept = kept[high[kept] >= self._threshold]
        self._pool = self._pool + _Pool.of(number, rows[kept], high[kept])
        if len(self._pool) > POOL_ROWS:
            self._settle()

    def result(self) -> Candidates:
        """What was found, after the last block."""
        self._settle()
        query = self._query
        if self._total_exact:
            for start in range(0, len(self._undecided), _LARGEST_BATCH):
                scored = self._exactly(self._undecided.at(slice(start, start + _LARGEST_BATCH)))
                matches = scored.bm25 > 0
                if self._vector is not None:
                    matches |= scored.cosines >= query.scoring.cosine_floor
                self._total += int(np.count_nonzero(matches & (scored.scores >= query.min_score)))
        best = [
            Candidate(
                chunk_id,
                None if self._vector is None else cosine,
                bm25 if self._by_words else None,
            )
            for chunk_id, cosine, bm25 in zip(
                self._best.ids.tolist(), self._best.cosines.tolist(), self._best.bm25.tolist(), strict=True
            )
        ]
        return Candidates(best, self._total, total_exact=self._total_exact)

    def _cosines(self, segment: Segment, rows: Rows, block: slice) -> tuple[Floats32, Floats32]:
        if self._vector is None:
            nothing = np.zeros(len(rows), np.float32)
            return nothing, nothing
        whole = block.stop - block.start
        if len(rows) < whole * GATHER_BELOW:
            return segment.vectors.cosines(self._vector, rows)
        cosines, errors = segment.vectors.cosines(self._vector, block)
        if len(rows) == whole:
            return cosines, errors
        return cosines[rows - block.start], errors[rows - block.start]

    def _words(self, segment: Segment, rows: Rows, block: slice) -> Floats32 | None:
        if not self._by_words:
            return None
        assert segment.bm25 is not None, "the mode needs it"
        return segment.bm25[block if len(rows) == block.stop - block.start else rows].astype(np.float32)

    def _bounds(self, cosines: Floats32, errors: Floats32, bm25: Floats32 | None) -> _Bounds:
        """Between which scores the exact ones lie; `ranking.fuse` in float32."""
        scoring = self._query.scoring
        if bm25 is None:
            low, high = _clipped(cosines - errors), _clipped(cosines + errors)
        else:
            wording = bm25 + np.float32(scoring.saturation)
            np.divide(bm25, wording, out=wording)
            if self._vector is None:
                low, high = wording, wording.copy()
            else:
                wording *= np.float32(1.0 - scoring.weight)
                low, high = _clipped(cosines - errors), _clipped(cosines + errors)
                for each in (low, high):
                    each *= np.float32(scoring.weight)
                    each += wording
        low -= np.float32(_SLACK)
        high += np.float32(_SLACK)
        return _Bounds(cosines, errors, bm25, low, high)

    def _count(self, number: int, rows: Rows, bounds: _Bounds) -> None:
        """Count what matches for certain, and note what may match."""
        undecided = self._count_certain(bounds)
        if not self._total_exact or not len(undecided):
            return
        rows = rows[undecided]
        if self._vector is not None:
            segment, bm25 = self._segments[number], bounds.bm25
            cosines, errors = segment.vectors.cosines(self._vector, rows, fine=True)
            bounds = self._bounds(cosines, errors, None if bm25 is None else bm25[undecided])
            undecided = self._count_certain(bounds)
            rows = rows[undecided]
        if len(self._undecided) + len(rows) > self._recount:
            self._total_exact = False
            self._undecided = _nothing()
        else:
            self._undecided += _Pool.of(number, rows, bounds.high[undecided])

    def _count_certain(self, bounds: _Bounds) -> NDArray[np.intp]:
        """Count what matches for certain; the places of those that may match."""
        query = self._query
        certain = np.zeros(len(bounds.low), np.bool_) if bounds.bm25 is None else bounds.bm25 > 0
        possible = certain.copy()
        if self._vector is not None:
            certain |= bounds.cosines - bounds.errors >= query.scoring.cosine_floor + _SLACK
            possible |= bounds.cosines + bounds.errors >= query.scoring.cosine_floor - _SLACK
        if query.min_score > 0:
            certain &= bounds.low >= query.min_score
            possible &= bounds.high >= query.min_score
        self._total += int(np.count_nonzero(certain))
        return np.flatnonzero(possible & ~certain)

    def _settle(self) -> None:
        """Score the rows of the pool that may be among the best exactly, the most promising first."""
        pool, self._pool = self._pool, _nothing()
        pool = pool.at(np.argsort(-pool.high, kind="stable"))
        start, size, top = 0, max(_FIRST_BATCH, 2 * self._query.top), self._query.top
        while start < len(pool) and pool.high[start] >= self._threshold:
            batch = pool.at(slice(start, start + size))
            scored = self._exactly(batch.at(batch.high >= self._threshold))
            self._best = self._best.best_with(scored, top)
            if len(self._best.ids) == top:
                self._threshold = max(self._threshold, float(self._best.scores[-1]))
            start, size = start + size, min(2 * size, _LARGEST_BATCH)
        kept = self._best.scores >= self._query.min_score
        if not kept.all():
            best = self._best
            self._best = _Scored(best.ids[kept], best.cosines[kept], best.bm25[kept], best.scores[kept])

    def _exactly(self, pool: _Pool) -> _Scored:
        ids = np.empty(len(pool), np.int64)
        cosines, bm25 = np.zeros(len(pool)), np.zeros(len(pool))
        for number in np.unique(pool.numbers).tolist():
            segment, places = self._segments[number], np.flatnonzero(pool.numbers == number)
            ids[places] = segment.chunk_ids[pool.rows[places]]
            if self._by_words:
                assert segment.bm25 is not None, "the mode needs it"
                bm25[places] = segment.bm25[pool.rows[places]]
        if self._vector is not None and len(pool):
            order = np.argsort(ids)
            cosines[order] = self._vector.exact(self._originals(ids[order]))
        scores = fuse(
            None if self._vector is None else cosines,
            bm25 if self._by_words else None,
            self._query.scoring,
        )
        return _Scored(ids, cosines, bm25, scores)


def _largest(values: Floats32, count: int) -> Floats32:
    return values if len(values) <= count else np.partition(values, len(values) - count)[-count:]


def _clipped(cosines: Floats32) -> Floats32:
    return np.clip(cosines, 0, 1, out=cosines)
