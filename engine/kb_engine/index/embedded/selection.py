"""The best chunks by the exact score, found without computing all scores exactly.

BM25 is exact and computed for every row; cosines are known within an error bound (`vectors`). The score is
monotonic in the cosine, so each row has a lower and an upper bound. Rows with an upper bound below the
`top`-th best lower bound cannot be among the best. For the remaining rows exact scores are computed, the most
promising first, until no row left can reach the `top`-th best exact score. The result equals that of
`score.select` on the float32 cosines of all rows, ties included, for any vectors.

Rows are processed in blocks that fit the processor's cache. Most are ruled out by comparing cosine and BM25
with a constant each, the surviving rows by their score with one error bound for all, then with their own
bounds. A call of numpy for ten rows takes as long as a pass over a block, 2 microseconds, so the steps are
few. Memory is limited: if too many rows may be among the best, these are scored exactly. A second thread
computes the cosines of the blocks, beginning before the words are looked up (`vectors.Scan`).

In a large index usually few rows reach the floor of the cosines. These are processed first, all blocks
together: beside the best of them, hardly another row has enough words.

The number of matches is exact too, unless too many cosines are so close to the floor that only exact values
decide (`RECOUNT_ROWS`); a tighter bound, which the codes give for rows close to it, halves their number.
Otherwise the count includes certain matches only, and is marked as inexact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TypeAlias

import apsw
import numpy as np
from numpy.typing import NDArray

from kb_engine.index.embedded.block import Block
from kb_engine.index.embedded.index import State
from kb_engine.index.embedded.postings import Terms
from kb_engine.index.embedded.vectors import (
    Floats32,
    Mask,
    QuantisedQuery,
    QuantisedVectors,
    Rows,
    Scan,
    ScanBlock,
    Scanned,
    Turn,
    quantise_query,
)
from kb_engine.index.port import Candidate, Candidates, Ids, IndexQuery, Vectors
from kb_engine.index.score import SLACK, Floats, Formula, fused
from kb_engine.index.words import Word, looked_up, weigh_words

Originals = Callable[[Ids], Vectors]
"""Returns the float32 vectors of these chunks, whose ids ascend. Raises `VectorsLost`."""
Words = Callable[[], "WordScores"]
Places: TypeAlias = "slice | Rows | Mask"

POOL_ROWS = 65_536
"""Number of candidate rows above which they are scored exactly."""
RECOUNT_ROWS = 1_000
"""Maximum number of cosines computed exactly for the total."""
LOOK_AGAIN = 4
"""At most `LOOK_AGAIN * RECOUNT_ROWS` rows get the tighter bound, which decides about half of them."""
NEAR_ROWS, NEAR_SHARE = 4_096, 16
"""If at most so many rows, and one in so many, reach the floor of the cosines, they are considered first."""
FEW = 8
"""If at most one row in `FEW` passes the filters, only these rows get a BM25 score."""
_ORIGINALS = (
    # One value instead of rows, each of which would take the interpreter's lock. The ids tell the order,
    # since ORDER BY would copy the vectors into a sorter, for the same time again.
    "SELECT CAST(group_concat(v.vector, '') AS BLOB), group_concat(v.chunk_id) "
    "FROM carray(?) c CROSS JOIN vectors v WHERE v.chunk_id = c.value"
)
_FIRST_BATCH = 24
_LARGEST_BATCH = 4_096


@dataclass(frozen=True, slots=True, eq=False)
class WordScores:
    """The BM25 of each row, by segment (0 for rows without a word of the query), and the query's total
    weight.
    """

    bm25: Sequence[Floats32]
    total_weight: float


class Lookup:
    """A query applied to a state of the index: the filtered rows and the BM25 scores.

    Independent of the query vector, so that it can be computed while the text is embedded.

    `documents` pass the filters (None: all), `readable` are within the access scope (None: all); only their
    words count in the statistics. `words` are those of the query's text. Chunks that lack a word of
    `required`, or do not pass the query's wording, are excluded.
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
        allowed = living(state, documents)
        self._counted = allowed if readable is documents or not words else living(state, readable)
        conditions = [[_holding(terms, part.block) for part in state.parts] for terms in map(Terms, required)]
        if query.among is not None:
            conditions.append([np.isin(part.block.chunk_ids, query.among) for part in state.parts])
        for rows in conditions:
            allowed = _both(rows, allowed)
        self._size = None if query.wording is None else _size(state, allowed)
        if query.wording is not None:
            orders = [part.block.order for part in state.parts if part.block.order is not None]
            assert len(orders) == len(state.parts), "the state finds them"
            allowed = _both([order.passing(query.wording) for order in orders], allowed)
        self.is_whole = all(rows is part.alive for part, rows in zip(state.parts, allowed, strict=True))
        """True if all living rows pass."""
        self._segments = [
            Segment(part.block.chunk_ids, part.block.vectors, rows)
            for part, rows in zip(state.parts, allowed, strict=True)
        ]

    def without(self, chunk_ids: Collection[int]) -> Lookup:
        """Return a copy that excludes these chunks."""
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
        """The BM25 of all rows of each part. If few rows pass the filters, the remaining rows have 0."""
        allowed = [each.allowed for each in self._segments]
        return _word_scores(self.state, self._words, allowed, self._counted)

    def best(
        self,
        query: IndexQuery,
        originals: Originals,
        scanner: Executor | None = None,
        turn: Turn | None = None,
    ) -> Candidates:
        """Return the best chunks by the exact score, best first.

        `originals` reads the vectors of this state of the base. `scanner` runs the vector comparison while
        this thread looks up words, if that is not done yet.
        """
        if not self._words:
            if query.mode == "fts":
                return Candidates((), 0)
            query = replace(query, mode="vector")
        found = select(self._segments, lambda: self.scores, query, originals, scanner, turn=turn)
        return found if self._size is None else replace(found, size=self._size)


def living(state: State, documents: Ids | None) -> list[Mask | None]:
    """Return for each part a mask of the living rows, restricted to these documents if given; None for all
    rows.
    """
    alive = [part.alive for part in state.parts]
    if documents is None:
        return alive
    ids = [np.empty(0, np.int64), *(part.block.document_ids for part in state.parts)]
    # One call for all parts: for few ids it takes nearly as long as for many.
    _, *found = np.split(np.isin(np.concatenate(ids), documents), np.cumsum(list(map(len, ids)))[:-1])
    counts = (part.block.document_rows for part in state.parts)
    rows = list(map(np.repeat, found, counts))
    return [old if own.all() else _within(old, own) for own, old in zip(rows, alive, strict=True)]


def _both(masks: Sequence[Mask], others: Sequence[Mask | None]) -> list[Mask | None]:
    """Return the rows that are in both masks of each part (None: all)."""
    return [_within(mask, own) for own, mask in zip(masks, others, strict=True)]


def _within(mask: Mask | None, rows: Mask) -> Mask:
    """Return the rows that are in the mask (None: all)."""
    return rows if mask is None else rows & mask


def _size(state: State, masks: Sequence[Mask | None]) -> int:
    """Return the number of rows in these masks of the parts (None: all)."""
    return sum(
        part.size if mask is None else int(np.count_nonzero(mask))
        for part, mask in zip(state.parts, masks, strict=True)
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Statistics:
    """Statistics of the counted rows: number, average length, and number of rows with each term."""

    size: int
    average: float
    counts: NDArray[np.int64]


def _frequencies(terms: Terms, block: Block, rows: NDArray[np.uint32] | None = None) -> NDArray[np.int64]:
    """Return the number of rows with each term, in total or among `rows`."""
    counts = np.zeros(len(terms.texts), np.int64)
    for each in terms.of(block.analyser):
        counts += block.words.frequencies(each, rows)
    return counts


def _holding(terms: Terms, block: Block) -> Mask:
    """Return a mask of the rows with at least one of the terms."""
    held = np.zeros(len(block), np.bool_)
    for each in terms.of(block.analyser):
        held |= block.words.holding(each)
    return held


def _statistics(state: State, terms: Terms, counted: Sequence[Mask | None]) -> _Statistics:
    counts = np.zeros(len(terms.texts), np.int64)
    size, tokens = 0, 0.0
    for part, mask in zip(state.parts, counted, strict=True):
        if mask is None or mask is part.alive:
            size, tokens = size + part.size, tokens + part.tokens
            counts += _frequencies(terms, part.block)
            if len(part.removed):
                counts -= _frequencies(terms, part.block, part.removed)
        else:
            rows = np.flatnonzero(mask).astype(np.uint32)
            size += len(rows)
            tokens += float(part.block.words.lengths[rows].sum(dtype=np.float64))
            counts += _frequencies(terms, part.block, rows)
    return _Statistics(size, tokens / max(size, 1) or 1.0, counts)


def _word_scores(
    state: State,
    words: Sequence[Word],
    allowed: Sequence[Mask | None],
    counted: Sequence[Mask | None],
) -> WordScores:
    """Compute `Lookup.scores`; the statistics come from the rows in `counted` alone."""
    texts = looked_up(words)
    terms = Terms(texts)
    known = _statistics(state, terms, counted)
    counts = dict(zip(texts, known.counts.tolist(), strict=True))
    weights, total_weight = weigh_words(words, counts, known.size)
    of_terms = [weights[text] for text in texts]
    average = known.average
    found = []
    for part, rows in zip(state.parts, allowed, strict=True):
        scores = np.zeros(len(part.block.chunk_ids), np.float32)
        chosen = None if rows is None else np.flatnonzero(rows).astype(np.uint32)
        if chosen is not None and len(chosen) * FEW > len(scores):
            chosen = None
        added = scores if chosen is None else np.zeros(len(chosen), np.float32)
        for each in terms.of(part.block.analyser):
            part.block.words.add_scores(each, of_terms, average, added, chosen)
        if chosen is not None:
            scores[chosen] = added
        found.append(scores)
    return WordScores(found, total_weight)


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Rows of an index, with one element each in both arrays.

    `allowed` is a mask of the living rows that pass the filters (None: all rows).
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
    turn: Turn | None = None,
) -> Candidates:
    """Return the `query.top` best rows of all segments, ties by chunk id.

    The text and filters of the query are not used here: `words` (not called in mode `vector`) and the masks
    of the segments contain their results.
    """
    vector = None
    if query.mode != "fts":
        assert query.vector is not None, "the mode needs one"
        vector = (turn and turn.query) or quantise_query(query.vector)
    with Scan([(each.vectors, each.allowed) for each in segments], vector, scanner, turn) as scan:
        search = _Search(
            segments, vector, None if query.mode == "vector" else words(), query, originals, recount
        )
        if search.takes_all_blocks:
            search.look_at_all(scan)
        else:
            for block in scan:
                search.look_at(block.scanned())
    return search.result()


@dataclass(frozen=True, slots=True, eq=False)
class _Pool:
    """Chunks with their BM25 and with upper bounds of their scores."""

    ids: Ids
    bm25: Floats32
    high: Floats32

    def at(self, places: Places) -> _Pool:
        return _Pool(self.ids[places], self.bm25[places], self.high[places])

    @staticmethod
    def of(pools: Sequence[_Pool]) -> _Pool:
        """Return these pools as one."""
        if len(pools) == 1:
            return pools[0]
        return _Pool(
            np.concatenate([np.empty(0, np.int64), *(pool.ids for pool in pools)]),
            np.concatenate([np.empty(0, np.float32), *(pool.bm25 for pool in pools)]),
            np.concatenate([np.empty(0, np.float32), *(pool.high for pool in pools)]),
        )

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows of a segment, with their cosines and the words' part of the score.

    `cosines` are None in mode `fts`, `holds_word` and `words` in mode `vector`.
    """

    number: int
    rows: Rows
    cosines: Floats32 | None
    holds_word: Mask | None
    words: Floats32 | None

    def at(self, places: NDArray[np.intp]) -> _Rows:
        return _Rows(
            self.number,
            self.rows[places],
            None if self.cosines is None else self.cosines[places],
            None if self.holds_word is None else self.holds_word[places],
            None if self.words is None else self.words[places],
        )

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class _Scored:
    """Rows with exact scores; parts that the mode does not use are 0."""

    ids: Ids
    cosines: Floats
    bm25: Floats
    scores: Floats

    def at(self, places: Places) -> _Scored:
        return _Scored(self.ids[places], self.cosines[places], self.bm25[places], self.scores[places])

    def best_with(self, other: _Scored, top: int) -> _Scored:
        if not len(self.ids):
            return other.at(np.lexsort((other.ids, -other.scores))[:top])
        ids, scores = np.concatenate([self.ids, other.ids]), np.concatenate([self.scores, other.scores])
        cosines, bm25 = np.concatenate([self.cosines, other.cosines]), np.concatenate([self.bm25, other.bm25])
        return _Scored(ids, cosines, bm25, scores).at(np.lexsort((ids, -scores))[:top])


class _Search:
    """A running selection, which processes block by block."""

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
        self._formula = Formula(query.mode, query.scoring, 0.0 if words is None else words.total_weight)
        self._query = query
        self._originals = originals
        self._threshold = query.min_score
        """The best known lower bound of the score that a result needs."""
        self._lows = np.empty(0, np.float32)
        """The `top` best lower bounds."""
        self._pools: list[_Pool] = []
        self._pooled_rows = 0
        empty = np.empty(0)
        self._best = _Scored(np.empty(0, np.int64), empty, empty, empty)
        self._total = 0
        self._size = sum(len(each.chunk_ids) for each in segments)
        self._undecided: list[_Rows] = []
        """Rows that may match; incomplete if there are too many to decide."""
        self._undecided_rows = 0
        self._recount = recount

    @property
    def takes_all_blocks(self) -> bool:
        """True if `look_at_all` may be faster than `look_at` for each block."""
        return self._vector is not None and self._query.min_score == 0 and self._size > NEAR_ROWS

    def look_at_all(self, blocks: Iterable[ScanBlock]) -> None:
        """Process all blocks: if some rows reach the floor of the cosines, these first. Then few of the
        remaining rows have enough words for the scores of these.
        """
        query, formula = self._query, self._formula
        near, found, least = [], 0, math.inf
        for block in blocks:
            cosine = query.scoring.cosine_floor - block.error - 2 * SLACK
            near.append((block, *block.reaching(cosine)))
            found, least = found + len(near[-1][1]), min(least, cosine)
        if not query.top <= found <= self._size // NEAR_SHARE + NEAR_ROWS or least <= 0:
            for block, _, _ in near:
                self.look_at(block.scanned())
            return
        self._consider_some(near)
        others = []
        for block, places, _ in near:
            cosine = query.scoring.cosine_floor - 2 * SLACK
            needed = formula.bm25_needed(cosine, self._threshold - 2 * SLACK)
            bm25 = self._with_words(block.segment, block.rows, block.allowed)
            if bm25 is None and needed > 0:
                continue
            more = np.ones(len(block), np.bool_) if bm25 is None else bm25 >= needed
            if block.allowed is not None:
                more &= block.allowed
            more[places] = False
            places = more.nonzero()[0]
            others.append((block, places, block.cosines_at(places)))
        self._consider_some(others)

    def _consider_some(self, blocks: Sequence[tuple[ScanBlock, Rows, Floats32]]) -> None:
        """Consider the rows at these places of blocks, with these cosines; those of a segment together."""
        for number, group in groupby(sorted(blocks, key=_segment_of), _segment_of):
            of_segment = list(group)
            rows = np.concatenate([_at(block.rows, places) for block, places, _ in of_segment])
            cosines = np.concatenate([cosines for _, _, cosines in of_segment])
            bm25 = None if self._bm25 is None else self._bm25[number][rows]
            if len(rows):
                self._consider(Scanned(number, rows, cosines, of_segment[0][0].error), bm25)

    def _with_words(self, number: int, rows: slice | Rows, allowed: Mask | None) -> Floats32 | None:
        """Return the BM25 of all rows of a block, and count those with a word, which are matches."""
        if self._bm25 is None:
            return None
        bm25 = self._bm25[number][rows]
        if allowed is not None:
            bm25 = bm25 * allowed  # like rows without a word, which are no results without vectors
        if self._query.min_score == 0:  # otherwise words alone do not make a match
            # A BM25 is not negative, and bits are counted faster than numbers are compared.
            self._total += int(np.count_nonzero(bm25.view(np.int32)))
        return bm25

    def look_at(self, scanned: Scanned) -> None:
        """Process a block of a segment."""
        self._consider(scanned, self._with_words(scanned.segment, scanned.rows, scanned.allowed))

    def _consider(self, scanned: Scanned, bm25: Floats32 | None) -> None:
        """Count the matches among these rows, and keep those that may be among the best."""
        number, rows, cosines, error, _ = scanned
        segment, formula = self._segments[number], self._formula
        # A row with a lower cosine than a match, and a lower BM25 than a result then needs, is neither.
        cosine = self._query.scoring.cosine_floor - error - 2 * SLACK
        needed = formula.bm25_needed(cosine + error, (self._query.min_score or self._threshold) - 2 * SLACK)
        if self._vector is not None and (near := _near(scanned, bm25, cosine, needed)) is not None:
            places = near.nonzero()[0]
            rows, cosines = _at(rows, places), cosines[places]
            bm25 = None if bm25 is None else bm25[places]
        words = None if bm25 is None else formula.words(bm25)
        scores = formula.scores(None if self._vector is None else cosines, words)
        self._count(Scanned(number, rows, cosines, error), scores, bm25, words)
        least = self._threshold - fused(formula.weight, error, 0.0) - 2 * SLACK
        places = (scores >= least).nonzero()[0]
        if self._vector is None and bm25 is not None:
            places = places[bm25[places] > 0]  # without vectors only rows with a word are results
        if not len(places):
            return
        found, scores = _at(rows, places), scores[places]
        # A score changes by at most its weight times the change of the cosine.
        errors: Floats32 | float = SLACK
        if self._vector is not None:
            errors = segment.vectors.errors(self._vector, found)
            errors *= np.float32(formula.weight)
            errors += np.float32(SLACK)
        self._lows = _largest(np.concatenate([self._lows, scores - errors]), self._query.top)
        if len(self._lows) == self._query.top:
            self._threshold = max(self._threshold, float(self._lows.min()))
        scores += errors
        kept = scores >= self._threshold
        found = found[kept]
        of_words = np.zeros(len(found), np.float32) if bm25 is None else bm25[places[kept]]
        self._pools.append(_Pool(segment.chunk_ids[found], of_words, scores[kept]))
        self._pooled_rows += len(found)
        if self._pooled_rows > POOL_ROWS:
            self._settle()

    def result(self) -> Candidates:
        """Return the result, after the last block."""
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
        return Candidates(best, self._total, self._formula.total_weight, size, total_exact=total_exact)

    def _cosine_bounds(self, rows: _Rows, *, fine: bool = False) -> tuple[Floats32, Floats32] | None:
        """Return lower and upper bounds of the cosines. `fine` halves their distance at twice the cost."""
        if self._vector is None or rows.cosines is None:
            return None
        vectors = self._segments[rows.number].vectors
        cosines = vectors.cosines(self._vector, rows.rows, fine=True) if fine else rows.cosines
        errors = vectors.errors(self._vector, rows.rows, fine=fine)
        return cosines - errors, cosines + errors

    def _count(
        self, scanned: Scanned, scores: Floats32, bm25: Floats32 | None, words: Floats32 | None
    ) -> None:
        """Count certain matches, besides those by a word alone, and collect possible ones."""
        number, rows, cosines, error, _ = scanned
        query, formula = self._query, self._formula
        if query.min_score == 0:
            if self._vector is None:
                return
            floor, doubt = query.scoring.cosine_floor, error + 2 * SLACK
            places = (cosines >= floor - doubt).nonzero()[0]
            if bm25 is not None and len(places):
                places = places[bm25[places] == 0]
            if len(places) and float(cosines[places].min()) >= floor + doubt:
                self._total += len(places)
                return
        else:
            places = np.flatnonzero(scores >= query.min_score - fused(formula.weight, error, 0.0) - 2 * SLACK)
        if not len(places):
            return
        some = _Rows(
            number,
            _at(rows, places),
            None if self._vector is None else cosines[places],
            None if bm25 is None else bm25[places] > 0,
            None if words is None else words[places],
        )
        undecided = self._count_certain(some, self._cosine_bounds(some))
        self._undecided_rows += len(undecided)
        if len(undecided) and self._undecided_rows <= LOOK_AGAIN * self._recount:
            self._undecided.append(some.at(undecided))

    def _decide(self) -> bool:
        """Count the undecided rows, by tighter bounds and then exactly. Return False if that would cost too
        much.
        """
        if not self._undecided_rows:
            return True
        if self._undecided_rows > LOOK_AGAIN * self._recount:
            return False
        pools, query = [], self._query
        for rows in self._undecided:
            left = rows.at(self._count_certain(rows, self._cosine_bounds(rows, fine=True)))
            ids, zeros = self._segments[rows.number].chunk_ids[left.rows], np.zeros(len(left), np.float32)
            bm25 = zeros if self._bm25 is None else self._bm25[rows.number][left.rows]
            pools.append(_Pool(ids, bm25, high=zeros))  # all are scored, so the bound is not used
        pool = _Pool.of(pools)
        if not len(pool) or len(pool) > self._recount:
            return not len(pool)
        scored = self._exactly(pool)
        matches = scored.bm25 > 0
        if self._vector is not None:
            matches |= scored.cosines >= query.scoring.cosine_floor
        self._total += int(np.count_nonzero(matches & (scored.scores >= query.min_score)))
        return True

    def _count_certain(self, rows: _Rows, cosines: tuple[Floats32, Floats32] | None) -> NDArray[np.intp]:
        """Count the certain matches, given bounds of the cosines; return the places of possible ones."""
        query = self._query
        certain = np.zeros(len(rows), np.bool_) if rows.holds_word is None else rows.holds_word
        possible = certain
        if cosines is not None:
            certain = certain | (cosines[0] >= query.scoring.cosine_floor + SLACK)
            possible = possible | (cosines[1] >= query.scoring.cosine_floor - SLACK)
        if query.min_score > 0:
            low, high = self._formula.bounds(cosines, rows.words)
            certain = certain & (low >= query.min_score)
            possible = possible & (high >= query.min_score)
        self._total += int(np.count_nonzero(certain))
        return np.flatnonzero(possible & ~certain)

    def _settle(self) -> None:
        """Score the pool's rows that may be among the best exactly, the most promising first."""
        pool, self._pools, self._pooled_rows = _Pool.of(self._pools), [], 0
        places = (pool.high >= self._threshold).nonzero()[0]
        pool = pool.at(places[np.argsort(-pool.high[places], kind="stable")])
        start, size, top = 0, max(_FIRST_BATCH, 2 * self._query.top), self._query.top
        while count := int(np.count_nonzero(pool.high[start : start + size] >= self._threshold)):
            scored = self._exactly(pool.at(slice(start, start + count)))
            self._best = self._best.best_with(scored, top)
            if len(self._best.ids) == top:
                self._threshold = max(self._threshold, float(self._best.scores[-1]))
            start, size = start + size, min(2 * size, _LARGEST_BATCH)
        if self._query.min_score > 0:
            self._best = self._best.at(self._best.scores >= self._query.min_score)

    def _exactly(self, pool: _Pool) -> _Scored:
        ids, bm25, cosines = pool.ids, pool.bm25.astype(np.float64), np.zeros(len(pool))
        if self._vector is not None and len(pool):
            order = np.argsort(ids)
            # Its last bits do not depend on the number of rows.
            cosines[order] = np.vecdot(self._originals(ids[order]), self._vector.vector)
        scores = self._formula.exact(
            None if self._vector is None else cosines, None if self._bm25 is None else bm25
        )
        return _Scored(ids, cosines, bm25, scores)


def _near(scanned: Scanned, bm25: Floats32 | None, cosine: float, needed: float) -> Mask | None:
    """Return a mask of the filtered rows with at least this cosine, or the BM25 that is needed below it; None
    for all rows.
    """
    if cosine <= 0 or needed <= 0:
        return scanned.allowed
    near = scanned.cosines >= cosine
    if bm25 is not None and needed < math.inf:
        near |= bm25 >= needed
    if scanned.allowed is not None:
        return scanned.allowed & near
    return near if np.count_nonzero(near) * 2 < len(near) else None


def _segment_of(some: tuple[ScanBlock, Rows, Floats32]) -> int:
    return some[0].segment


def _at(rows: slice | Rows, places: Rows) -> Rows:
    return places + rows.start if isinstance(rows, slice) else rows[places]


def _largest(values: Floats32, count: int) -> Floats32:
    return values if len(values) <= count else np.partition(values, len(values) - count)[-count:]


class VectorsLost(Exception):
    """Chunks have no vector, or a damaged one: `lost` returns their ids."""


def originals(db: apsw.Connection, dimensions: int, chunk_ids: Ids) -> Vectors:
    """Return the vectors of these chunks, whose ids ascend, as stored in the base.
    Raises VectorsLost: one is missing or damaged.
    """
    raw, read = db.execute(_ORIGINALS, (apsw.carray(chunk_ids),)).get
    order = np.fromstring(read or "", np.int64, sep=",").argsort()
    if len(order) != len(chunk_ids) or len(raw or b"") != 4 * dimensions * len(chunk_ids):
        raise VectorsLost
    return np.frombuffer(raw, "<f4").reshape(len(chunk_ids), dimensions)[order]


def lost(db: apsw.Connection, dimensions: int) -> list[int]:
    """Return the chunks without a vector, or with one of a wrong length. Reads the whole table."""
    sql = (
        "SELECT c.id FROM chunks c LEFT JOIN vectors v ON v.chunk_id = c.id "
        "WHERE v.chunk_id IS NULL OR length(v.vector) <> ?"
    )
    return [chunk_id for (chunk_id,) in db.execute(sql, (4 * dimensions,))]
