"""The score, shared by all indexes: its formula, its bounds, its SQL, and the order of results.

    score = weight * min(max(0, cosine), 1) + (1 - weight) * bm25 / (bm25 + saturation)

`fused` and `Formula.words` are the formula, for arrays of both precisions. The bounds follow from them, and
`Formula.sql` writes the same for PostgreSQL, with their coefficients.

The constants belong to the embedder (`Scoring`). The saturation is proportional to the total weight of the
query's words (`words.py`), so that a score means the same for every query and in every base.

Within a query the score is monotonic in both parts and depends on nothing more. So bounds of the cosine give
bounds of the score, and no unseen chunk exceeds the score of the best unseen parts. It is between 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kb_contracts.api import models as m
from kb_engine.index.port import Candidate, Candidates, Ids, IndexQuery, Scoring

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Array = TypeVar("Array", Floats, Floats32)
Number = TypeVar("Number", float, Floats, Floats32)

WORDS_FLOOR = 0.52
"""In mode `fts` a result from thirty passages is weak if its BM25 is below this share of the query's total
weight.
"""
FLOOR_SIZE = 30
FLOOR_STEP = 0.05
DOUBT = 0.4
"""Distance from the floor within which a cosine alone does not show a weak match, as a share of the distance
between the floor and `Scoring.similar_floor`.
"""
LARGEST_SIZE = 10_000
"""The best of many unrelated passages is closer by chance than the best of few, so the floor rises by
`FLOOR_STEP` with every tenfold. Beyond the largest size it stays constant, because good results would be
called weak.
"""

K1, B = 1.5, 0.75
"""The constants of BM25. FTS5 has a `K1` of 1.2, by which words that a passage repeats count for less
(docs/search-quality.md).
"""
DECIMALS = 6
"""Decimals of a score: further ones are noise of single precision and would order equal scores by chance."""
SLACK = 2e-6
"""Half a unit of the last decimal of a rounded score, plus the preceding rounding errors of float32."""


def fused(weight: float, meaning: Number, words: Number) -> Number:
    """Return the score of a meaning and of words that are each between 0 and 1; linear in both."""
    return weight * meaning + (1.0 - weight) * words


def words_at_floor(scoring: Scoring) -> float:
    """Return the words' part, between 0 and 1, of a score at both floors: the inverse of `fused`."""
    meaning = fused(scoring.weight, scoring.cosine_floor, 0.0)
    return (scoring.floor - meaning) / fused(scoring.weight, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Formula:
    """The score of a query's chunks.

    `total_weight` is the total weight of the query's words; if it is 0, words do not count. Arrays have one
    element per chunk. Cosines are None in mode `fts`, and the words' part in mode `vector` or without words.
    """

    mode: m.Mode
    scoring: Scoring
    total_weight: float

    @property
    def weight(self) -> float:
        """The share of the cosine, 0 to 1."""
        if self.mode == "fts":
            return 0.0
        return self.scoring.weight if self.mode == "hybrid" and self.total_weight else 1.0

    @property
    def saturation(self) -> float:
        """The BM25 at which the words' part is one half, above 0."""
        return float(self.scoring.saturation * (self.total_weight or 1.0))

    def words(self, bm25: Array) -> Array:
        """Return the words' part of each chunk, between 0 and 1."""
        return bm25 / (bm25 + self.saturation)

    def bm25_needed(self, cosine: float, score: float) -> float:
        """Return the BM25 that a chunk with this cosine needs for a score: 0 if the cosine alone suffices,
        infinite if no BM25 does.
        """
        words, share = score - fused(self.weight, cosine, 0.0), fused(self.weight, 0.0, 1.0)
        if words <= 0:
            return 0.0
        return self.saturation * words / (share - words) if words < share else math.inf

    def scores(self, cosines: Array | None, words: Array | None) -> Array:
        """Return the scores before rounding, in the precision of the parts."""
        if cosines is None:
            assert words is not None, "a mode asks for one part at least"
            return words
        meaning = np.minimum(np.maximum(cosines, 0), 1)
        return meaning if words is None else fused(self.weight, meaning, words)

    def exact(self, cosines: Floats | None, bm25: Floats | None) -> Floats:
        """Return the scores as they are compared and returned."""
        words = None if bm25 is None else self.words(bm25)
        return np.asarray(self.scores(cosines, words).round(DECIMALS), np.float64)

    def bounds(
        self, cosines: tuple[Floats32, Floats32] | None, words: Floats32 | None
    ) -> tuple[Floats32, Floats32]:
        """Return lower and upper bounds of the exact scores, given bounds of the cosines."""
        low, high = cosines or (None, None)
        slack = np.float32(SLACK)
        return self.scores(low, words) - slack, self.scores(high, words) + slack

    def sql(self) -> tuple[str, list[float]]:
        """Return the exact score as a PostgreSQL expression of the columns `cosine` and `bm25`, and the
        values of its placeholders.
        """
        weight = self.weight
        meaning, words = "least(greatest(cosine, 0.0), 1.0)", "bm25 / (bm25 + ?::float8)"
        if weight == 0:
            score, values = words, [self.saturation]
        elif weight == 1:
            score, values = meaning, []
        else:
            score = f"?::float8 * {meaning} + ?::float8 * ({words})"
            values = [fused(weight, 1.0, 0.0), fused(weight, 0.0, 1.0), self.saturation]
        return f"round(({score}) * 1e{DECIMALS}) / 1e{DECIMALS}", values

    def explained(self, candidate: Candidate) -> m.Explanation:
        """Return the parts of a candidate's score."""
        return m.Explanation(
            cosine=candidate.cosine,
            bm25=candidate.bm25 or None,
            weight=self.weight,
            saturation=self.saturation,
        )

    def of(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return the exact scores of candidates, in their order; a part that is None counts as 0."""
        # As `exact`, which takes longer for few.
        scale, weight, saturation = 10.0**DECIMALS, self.weight, self.saturation
        return [
            round(
                fused(
                    weight,
                    min(max(candidate.cosine or 0.0, 0.0), 1.0),
                    0.0 if weight == 1 else bm25 / (bm25 + saturation),
                )
                * scale
            )
            / scale
            for candidate in candidates
            for bm25 in [candidate.bm25 or 0.0]
        ]


def select(
    chunk_ids: Ids, cosines: Floats | None, bm25: Floats | None, query: IndexQuery, total_weight: float
) -> Candidates:
    """Return the best of all chunks that pass the filters, given both parts of each.

    `total_weight` is the total weight of the query; if it is 0, words do not count. `chunk_ids` are in
    ascending order: of equal scores the lower id comes first.
    """
    if not total_weight:
        bm25 = None
    if cosines is None and bm25 is None:
        return Candidates((), 0)
    scores = Formula(query.mode, query.scoring, total_weight).exact(cosines, bm25)
    matches = bm25 > 0 if bm25 is not None else np.zeros(len(scores), np.bool_)
    if cosines is not None:
        matches = matches | (cosines >= query.scoring.cosine_floor)
    passing = scores >= query.min_score
    total = int(np.count_nonzero(matches & passing))
    # Without vectors there is no similarity: only chunks with a word of the query are results.
    answering = np.flatnonzero(passing if cosines is not None else passing & matches)
    values = scores[answering]
    if len(values) > query.top:
        worst = np.partition(values, len(values) - query.top)[len(values) - query.top]
        answering = answering[values >= worst]
    best = answering[np.argsort(-scores[answering], kind="stable")[: query.top]]
    return Candidates(
        [
            Candidate(
                int(chunk_ids[place]),
                None if cosines is None else float(cosines[place]),
                None if bm25 is None else float(bm25[place]),
            )
            for place in best
        ],
        total,
        total_weight,
        len(scores),
    )


class Ranked(NamedTuple):
    """A candidate with its score."""

    chunk_id: int
    score: float
    candidate: Candidate


def rank(candidates: Candidates, query: IndexQuery) -> list[Ranked]:
    """Return the candidates by descending score, ties by chunk id."""
    if not candidates.best:
        return []
    scores = Formula(query.mode, query.scoring, candidates.total_weight).of(candidates.best)
    ranked = [Ranked(each.chunk_id, score, each) for each, score in zip(candidates.best, scores, strict=True)]
    ranked.sort(key=lambda each: (-each.score, each.chunk_id))
    return ranked


def above_floor(query: IndexQuery, candidates: Candidates, ranked: Sequence[Ranked]) -> float:
    """Return the distance of the best score from the floor, below 0 for a weak match; 0 if the mode needs
    words and the query has none.
    """
    if ranked:
        return ranked[0].score - floor(query, candidates)
    return -1.0 if candidates.total_weight or query.mode != "fts" else 0.0


def is_doubtful(scoring: Scoring, above: float) -> bool:
    """True if a best cosine at this distance from the floor does not decide by itself."""
    return abs(above) < DOUBT * (scoring.similar_floor - scoring.cosine_floor)


def floor(query: IndexQuery, candidates: Candidates) -> float:
    """Return the score below which the best of these candidates is a weak match.

    In mode `fts` it is the same for every embedder, if words contribute at all.
    """
    scoring = query.scoring
    if query.mode == "vector" or not candidates.total_weight:
        least = scoring.cosine_floor
    elif query.mode == "hybrid" or scoring.weight == 1:
        least = scoring.floor
    else:
        least = WORDS_FLOOR / (WORDS_FLOOR + scoring.saturation)
    size = min(max(candidates.size, 1), LARGEST_SIZE)
    return least + FLOOR_STEP * math.log10(size / FLOOR_SIZE)
