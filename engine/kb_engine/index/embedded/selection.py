"""The best chunks by the exact score, found without scoring all of them exactly.

Words are exact and dense, cosines are known within a bound (`vectors`). The score grows with the cosine, so
the score of each row lies between two that are known. Rows whose upper bound is below the `top`-th best
lower bound cannot be among the best. Of the others the exact scores are computed, the most promising first,
until none that remains can reach the `top`-th best of these. What comes out is what `ranking.select` makes
of the float32 cosines of all rows, ties included, whatever the vectors are.

The rows are looked at in blocks that fit the processor's cache, first with one bound for all rows of a block,
and those that are left with their own. What must be remembered of them is bounded:
rows that may still be among the best are scored when they become too many. The cosines of the blocks are
computed on another thread meanwhile, from before the words are looked up (`vectors.Scan`).

How many chunks match is exact too, as long as few cosines lie so near the floor that only the exact ones
could tell (`RECOUNT_ROWS`); a finer bound, which the codes give for those near it, halves their number. Else
the count is of those that match for certain, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kb_engine.index.embedded.index import State
from kb_engine.index.embedded.vectors import (
    Floats32,
    Mask,
    QuantisedQuery,
    QuantisedVectors,
    Rows,
    Scan,
    Scanned,
    quantise_query,
)
from kb_engine.index.embedded.words import Terms
from kb_engine.index.port import Candidate, Candidates, Ids, IndexQuery, Vectors
from kb_engine.index.ranking import Floats, fuse
from kb_engine.index.words import Word, weigh_words

Originals = Callable[[Ids], Vectors]
"""The float32 vectors of these chunks, whose ids ascend. Raises `VectorsLost`."""
Words = Callable[[], "WordScores"]
Places: TypeAlias = "slice | Rows | Mask"

POOL_ROWS = 65_536
"""Rows that may be among the best are scored exactly when there are more."""
RECOUNT_ROWS = 1_000
"""So many cosines are computed exactly for the sake of the total."""
LOOK_AGAIN = 4
"""The finer bound is computed for so many times as many: it leaves about half of them."""
FEW = 8
"""Where one row in so many may answer, or fewer, the words of these alone are scored."""
_FIRST_BATCH = 64
_LARGEST_BATCH = 4_096
_SLACK = 2e-6
"""Half a unit of the last decimal that a score is rounded to, and the roundings of float32 before it."""


@dataclass(frozen=True, slots=True, eq=False)
class WordScores:
    """For each segment the BM25 of its rows, 0 where a row holds no word of the query; and the query's
    reach."""

    bm25: Sequence[Floats32]
    reach: float


class Lookup:
    """What may answer a query in a state of the index, and what its words come to there.

    The vector of the query has no say in it, so it can be made while the vector is.

    `documents` are those that may answer (None: all), `readable` those that there are for the caller (None:
    all), whose words alone are counted. `words` are those of the query's text. Chunks that lack one of the
    words in `required` are left out.
    """

    def __init__(
        self,
        state: State,
        words: Sequence[Word],
        documents: Ids | None,
        query: IndexQuery,
        required: Sequence[Word] = (),
        readable: Ids | None = None,
    ) -> None:
        self.state = state
        self._words = words
        self._readable = readable
        allowed = [part.allowed(documents) for part in state.parts]
        self._counted = allowed if readable is documents else None
        conditions = [
            [part.block.words.holding(word) for part in state.parts] for word in map(Terms, required)
        ]
        if query.among is not None:
            conditions.append([np.isin(part.block.chunk_ids, query.among) for part in state.parts])
        for rows in conditions:
            allowed = [own if mask is None else own & mask for own, mask in zip(rows, allowed, strict=True)]
        self._segments = [
            Segment(part.block.chunk_ids, part.block.vectors, rows)
            for part, rows in zip(state.parts, allowed, strict=True)
        ]

    def without(self, chunk_ids: Collection[int]) -> Lookup:
        """It, where these chunks may not answer."""
        if not chunk_ids:
            return self
        gone, other = np.array(sorted(chunk_ids), np.int64), copy(self)
        other._segments = [
            replace(each, allowed=here if each.allowed is None else each.allowed & here)
            for each in self._segments
            for here in [np.isin(each.chunk_ids, gone, invert=True)]
        ]
        return other

    @cached_property
    def scores(self) -> WordScores:
        """The BM25 of all rows of each part; 0 of those that may not answer, where these are most."""
        counted = self._counted
        if counted is None:
            counted = [part.allowed(self._readable) for part in self.state.parts]
        return _word_scores(self.state, self._words, [each.allowed for each in self._segments], counted)

    def best(self, query: IndexQuery, originals: Originals, scanner: Executor | None = None) -> Candidates:
        """The best chunks by the exact score, best first.

        `originals` reads vectors of this state of the base. On the threads of `scanner` vectors are compared,
        while this one looks words up unless that is done.
        """
        if not self._words:
            if query.mode == "fts":
                return Candidates((), 0)
            query = replace(query, mode="vector")
        return select(self._segments, lambda: self.scores, query, originals, scanner)


@dataclass(frozen=True, slots=True, eq=False)
class _Statistics:
    """Of the rows that are counted: how many there are, their mean length, in how many each term stands."""

    size: int
    average: float
    counts: NDArray[np.int64]


def _statistics(state: State, terms: Terms, counted: Sequence[Mask | None]) -> _Statistics:
    counts = np.zeros(len(terms.texts), np.int64)
    size, tokens = 0, 0.0
    for part, mask in zip(state.parts, counted, strict=True):
        if mask is None or mask is part.alive:
            size, tokens = size + part.size, tokens + part.tokens
            counts += part.block.words.frequencies(terms)
            if len(part.removed):
                counts -= part.block.words.frequencies(terms, part.removed)
        else:
            rows = np.flatnonzero(mask).astype(np.uint32)
            size += len(rows)
            tokens += float(part.block.words.lengths[rows].sum(dtype=np.float64))
            counts += part.block.words.frequencies(terms, rows)
    return _Statistics(size, tokens / max(size, 1) or 1.0, counts)


def _word_scores(
    state: State,
    words: Sequence[Word],
    allowed: Sequence[Mask | None],
    counted: Sequence[Mask | None],
) -> WordScores:
    """As `Lookup.scores`; of `counted` alone, in each part, it is learned how rare a word is."""
    texts = list(dict.fromkeys(chain.from_iterable(words)))
    terms = Terms(texts)
    known = _statistics(state, terms, counted)
    weights, reach = weigh_words(words, dict(zip(texts, known.counts.tolist(), strict=True)), known.size)
    of_terms = [weights[text] for text in texts]
    average = known.average
    found = []
    for part, rows in zip(state.parts, allowed, strict=True):
        scores = np.zeros(len(part.block.chunk_ids), np.float32)
        chosen = None if rows is None else np.flatnonzero(rows).astype(np.uint32)
        if chosen is None or len(chosen) * FEW > len(scores):
            part.block.words.add_scores(terms, of_terms, average, scores)
        else:
            of_chosen = np.zeros(len(chosen), np.float32)
            part.block.words.add_scores(terms, of_terms, average, of_chosen, chosen)
            scores[chosen] = of_chosen
        found.append(scores)
    return WordScores(found, reach)


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Rows of an index, one place for each in both arrays.

    `allowed` (None: all): those that are not removed and pass the filters.
    """

    chunk_ids: Ids
    vectors: QuantisedVectors
    allowed: Mask | None = None


def select(
    segments: Sequence[Segment],
    words: Words,
    query: IndexQuery,
    originals: Originals,
    scanner: Executor | None = None,
    recount: int = RECOUNT_ROWS,
) -> Candidates:
    """The `query.top` best rows of all segments, of equal scores those with the smaller chunk ids.

    Text and selection of the query have no say here: they are in `words`, which mode `vector` does not ask
    for, and in what the segments allow.
    """
    vector = None
    if query.mode != "fts":
        assert query.vector is not None, "the mode needs one"
        vector = quantise_query(query.vector)
    with Scan([(each.vectors, each.allowed) for each in segments], vector, scanner) as scan:
        search = _Search(
            segments, vector, None if query.mode == "vector" else words(), query, originals, recount
        )
        for found in scan:
            search.look_at(found)
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

    def at(self, places: Places) -> _Pool:
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
class _Rows:
    """Rows of a segment, with their cosines and their words' share of the score.

    `holds_word` and `wording` are None in mode `vector`.
    """

    number: int
    rows: Rows
    cosines: Floats32
    holds_word: Mask | None
    wording: Floats32 | None

    def at(self, places: Places) -> _Rows:
        return _Rows(
            self.number,
            self.rows[places],
            self.cosines[places],
            None if self.holds_word is None else self.holds_word[places],
            None if self.wording is None else self.wording[places],
        )

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class _Bounds:
    """Between which cosines and which scores the exact ones lie, for each row."""

    cosines: tuple[Floats32, Floats32]
    scores: tuple[Floats32, Floats32]


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
        self,
        segments: Sequence[Segment],
        vector: QuantisedQuery | None,
        words: WordScores | None,
        query: IndexQuery,
        originals: Originals,
        recount: int,
    ) -> None:
        self._segments = segments
        self._vector = vector
        self._bm25 = None if words is None else words.bm25
        self._reach = 0.0 if words is None else words.reach
        self._query = query
        self._originals = originals
        self._threshold = query.min_score
        """What a row must reach to be among the best, as far as it is known."""
        self._lows = np.empty(0, np.float32)
        """The `top` best lower bounds."""
        self._pool = _nothing()
        empty = np.empty(0)
        self._best = _Scored(np.empty(0, np.int64), empty, empty, empty)
        self._total = 0
        self._undecided: list[_Rows] = []
        """Rows that may match, unless there are too many to look at them again."""
        self._undecided_rows = 0
        self._recount = recount

    def look_at(self, scanned: Scanned) -> None:
        """A block of a segment."""
        number, block, rows, cosines, error = scanned
        if not len(rows):
            return
        holds_word = wording = None
        if self._bm25 is not None:
            bm25 = self._bm25[number][block if len(rows) == block.stop - block.start else rows]
            holds_word, wording = bm25 > 0, self._wording(bm25)
        all_rows = _Rows(number, rows, cosines, holds_word, wording)
        self._count(all_rows, error)
        rest = all_rows.at(self._promising(all_rows, error))
        if not len(rest):
            return
        low, high = self._bounds(rest).scores
        self._lows = _largest(np.concatenate([self._lows, low]), self._query.top)
        if len(self._lows) == self._query.top:
            self._threshold = max(self._threshold, float(self._lows.min()))
        kept = np.flatnonzero(high >= self._threshold)
        self._pool = self._pool + _Pool.of(number, rest.rows[kept], high[kept])
        if len(self._pool) > POOL_ROWS:
            self._settle()

    def result(self) -> Candidates:
        """What was found, after the last block."""
        self._settle()
        total_exact = self._decide()
        best = [
            Candidate(
                chunk_id,
                None if self._vector is None else cosine,
                None if self._bm25 is None else bm25,
            )
            for chunk_id, cosine, bm25 in zip(
                self._best.ids.tolist(), self._best.cosines.tolist(), self._best.bm25.tolist(), strict=True
            )
        ]
        size = sum(
            len(each.chunk_ids) if each.allowed is None else int(np.count_nonzero(each.allowed))
            for each in self._segments
        )
        return Candidates(best, self._total, self._reach, size, total_exact=total_exact)

    def _wording(self, bm25: Floats32) -> Floats32:
        """The words' share of the scores."""
        wording = bm25 / (bm25 + np.float32(self._query.scoring.saturation * self._reach))
        if self._vector is not None:
            wording *= np.float32(1.0 - self._query.scoring.weight)
        return wording

    def _scores(self, cosines: Floats32, wording: Floats32 | None) -> Floats32:
        """`ranking.fuse` in float32."""
        if self._vector is None:
            assert wording is not None, "a mode asks for one part at least"
            return wording
        scores = np.minimum(np.maximum(cosines, 0), 1)
        if wording is not None:
            scores *= np.float32(self._query.scoring.weight)
            scores += wording
        return scores

    def _bounds(self, rows: _Rows, *, fine: bool = False) -> _Bounds:
        """With `fine` at twice the cost half as far apart."""
        low = high = rows.cosines
        if self._vector is not None:
            vectors = self._segments[rows.number].vectors
            cosines = vectors.cosines(self._vector, rows.rows, fine=True) if fine else rows.cosines
            errors = vectors.errors(self._vector, rows.rows, fine=fine)
            low, high = cosines - errors, cosines + errors
        scores = self._scores(low, rows.wording), self._scores(high, rows.wording)
        return _Bounds((low, high), (scores[0] - np.float32(_SLACK), scores[1] + np.float32(_SLACK)))

    def _promising(self, rows: _Rows, error: float) -> NDArray[np.intp]:
        """Where the score may reach the threshold; the cosines are off by `error` at most."""
        weight = 1.0 if rows.wording is None else self._query.scoring.weight
        scores = self._scores(rows.cosines, rows.wording)
        may_reach = scores >= self._threshold - weight * error - 2 * _SLACK
        if self._vector is None:
            assert rows.holds_word is not None, "a mode asks for one part at least"
            may_reach &= rows.holds_word  # without vectors only what holds a word can answer
        return np.flatnonzero(may_reach)

    def _count(self, rows: _Rows, error: float) -> None:
        """Count what matches for certain, and note what may match; the cosines are off by `error` at most."""
        query = self._query
        if query.min_score == 0:  # else the words alone do not decide
            possible = np.zeros(len(rows), np.bool_)
            if self._vector is not None:
                possible = rows.cosines >= query.scoring.cosine_floor - error - 2 * _SLACK
            if rows.holds_word is not None:
                self._total += int(np.count_nonzero(rows.holds_word))
                possible &= ~rows.holds_word
            rows = rows.at(np.flatnonzero(possible))
        if not len(rows):
            return
        undecided = self._count_certain(rows, self._bounds(rows))
        self._undecided_rows += len(undecided)
        if self._undecided_rows <= LOOK_AGAIN * self._recount:
            self._undecided.append(rows.at(undecided))

    def _decide(self) -> bool:
        """Count those that may match, by finer bounds and then exactly; False: that would cost too much."""
        if self._undecided_rows > LOOK_AGAIN * self._recount:
            return False
        pool, query = _nothing(), self._query
        for rows in self._undecided:
            bounds = self._bounds(rows, fine=True)
            places = self._count_certain(rows, bounds)
            pool += _Pool.of(rows.number, rows.rows[places], bounds.scores[1][places])
        if len(pool) > self._recount:
            return False
        scored = self._exactly(pool)
        matches = scored.bm25 > 0
        if self._vector is not None:
            matches |= scored.cosines >= query.scoring.cosine_floor
        self._total += int(np.count_nonzero(matches & (scored.scores >= query.min_score)))
        return True

    def _count_certain(self, rows: _Rows, bounds: _Bounds) -> NDArray[np.intp]:
        """Count what matches for certain; the places of those that may match."""
        query = self._query
        certain = np.zeros(len(rows), np.bool_) if rows.holds_word is None else rows.holds_word
        possible = certain
        if self._vector is not None:
            certain = certain | (bounds.cosines[0] >= query.scoring.cosine_floor + _SLACK)
            possible = possible | (bounds.cosines[1] >= query.scoring.cosine_floor - _SLACK)
        if query.min_score > 0:
            certain = certain & (bounds.scores[0] >= query.min_score)
            possible = possible & (bounds.scores[1] >= query.min_score)
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
            if self._bm25 is not None:
                bm25[places] = self._bm25[number][pool.rows[places]]
        if self._vector is not None and len(pool):
            order = np.argsort(ids)
            cosines[order] = self._vector.exact(self._originals(ids[order]))
        scores = fuse(
            None if self._vector is None else cosines,
            None if self._bm25 is None else bm25,
            self._query.scoring,
            self._reach,
        )
        return _Scored(ids, cosines, bm25, scores)


def _largest(values: Floats32, count: int) -> Floats32:
    return values if len(values) <= count else np.partition(values, len(values) - count)[-count:]
