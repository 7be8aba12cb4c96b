"""The ranking, shared by all indexes: the score of a candidate from its two parts, and the order.

    score = weight * max(0, cosine) + (1 - weight) * bm25 / (bm25 + saturation * reach)

Both constants belong to the embedder. `total_weight` is the total weight of the query's words (`words.py`),
so that a score means the same for every query and in every base. Within a query the score is monotonic in
both parts and depends on nothing more. It is between 0 and 1.

All functions work on arrays with one element per candidate; a part is None if the mode of the query does not
use it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kb_contracts.api import models as m
from kb_engine.index.port import Candidate, Candidates, Ids, IndexQuery, Scoring

Floats = NDArray[np.float64]

FLOOR_SIZE = 30
FLOOR_STEP = 0.05
LARGEST_SIZE = 10_000
"""The best of many unrelated passages is closer by chance than the best of few, so the floor rises by
`FLOOR_STEP` with every tenfold. Beyond the largest size it stays constant, because good results would be
called weak.
"""

DECIMALS = 6
"""Decimals of a score: further ones are noise of single precision and would order equal scores by chance."""


def fuse(cosines: Floats | None, bm25: Floats | None, scoring: Scoring, total_weight: float) -> Floats:
    """Return the scores. If one part is None, the score is the remaining part alone."""
    meaning = np.clip(cosines, 0.0, 1.0) if cosines is not None else None
    wording = bm25 / (bm25 + scoring.saturation * total_weight) if bm25 is not None else None
    if meaning is None or wording is None:
        only = meaning if meaning is not None else wording
        assert only is not None, "a mode asks for one part at least"
        return np.asarray(np.round(only, DECIMALS), np.float64)
    mixed = scoring.weight * meaning + (1.0 - scoring.weight) * wording
    return np.asarray(np.round(np.clip(mixed, 0.0, 1.0), DECIMALS), np.float64)


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
    scores = fuse(cosines, bm25, query.scoring, total_weight)
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


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate with its score."""

    chunk_id: int
    score: float
    explanation: m.Explanation


def scores_of(candidates: Sequence[Candidate], scoring: Scoring, total_weight: float) -> list[float]:
    """Return the scores of candidates with the same parts, in their order."""
    cosines = _part([candidate.cosine for candidate in candidates])
    bm25 = _part([candidate.bm25 for candidate in candidates])
    found: list[float] = fuse(cosines, bm25, scoring, total_weight).tolist()
    return found


def rank(candidates: Candidates, query: IndexQuery) -> tuple[list[Ranked], bool]:
    """Return the candidates by descending score, ties by chunk id; and True if the best match is weak."""
    if not candidates.best:
        return [], True
    scoring, total_weight = query.scoring, candidates.total_weight
    weight = 0.0 if query.mode == "fts" else scoring.weight if total_weight else 1.0
    ranked = [
        Ranked(
            candidate.chunk_id,
            score,
            m.Explanation(
                cosine=candidate.cosine,
                bm25=candidate.bm25 or None,
                weight=weight,
                saturation=scoring.saturation * (total_weight or 1.0),
            ),
        )
        for candidate, score in zip(
            candidates.best, scores_of(candidates.best, scoring, total_weight), strict=True
        )
    ]
    ranked.sort(key=lambda each: (-each.score, each.chunk_id))
    return ranked, ranked[0].score < floor(query, candidates)


def floor(query: IndexQuery, candidates: Candidates) -> float:
    """Return the score below which the best of these candidates is a weak match.

    In mode `fts` it is the words' contribution at the floor of `hybrid`, if words contribute at all.
    """
    scoring = query.scoring
    if query.mode == "vector" or not candidates.total_weight:
        least = scoring.cosine_floor
    elif query.mode == "hybrid" or scoring.weight == 1:
        least = scoring.floor
    else:
        least = (scoring.floor - scoring.weight * scoring.cosine_floor) / (1.0 - scoring.weight)
    size = min(max(candidates.size, 1), LARGEST_SIZE)
    return least + FLOOR_STEP * math.log10(size / FLOOR_SIZE)


def _part(values: Sequence[float | None]) -> Floats | None:
    known = [value for value in values if value is not None]
    return np.array(known) if len(known) == len(values) else None
