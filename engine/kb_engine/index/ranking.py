"""The ranking, the same for all indexes: the score of a candidate from its two parts, and the order.

    score = weight * max(0, cosine) + (1 - weight) * bm25 / (bm25 + saturation)

All functions work on arrays with one place for each candidate; a part that the mode of the query does not ask
for is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kb_contracts.api import models as m
from kb_engine.index.port import Candidate, Candidates, Ids, IndexQuery, Scoring

Floats = NDArray[np.float64]

DECIMALS = 6
"""Of a score: what lies beyond is noise of single precision and would order equals by chance."""


def fuse(cosines: Floats | None, bm25: Floats | None, scoring: Scoring) -> Floats:
    """The scores, between 0 and 1."""
    meaning = np.clip(cosines, 0.0, 1.0) if cosines is not None else None
    wording = bm25 / (bm25 + scoring.saturation) if bm25 is not None else None
    if meaning is None or wording is None:
        only = meaning if meaning is not None else wording
        assert only is not None, "a mode asks for one part at least"
        return np.asarray(np.round(only, DECIMALS), np.float64)
    mixed = scoring.weight * meaning + (1.0 - scoring.weight) * wording
    return np.asarray(np.round(np.clip(mixed, 0.0, 1.0), DECIMALS), np.float64)


def select(chunk_ids: Ids, cosines: Floats | None, bm25: Floats | None, query: IndexQuery) -> Candidates:
    """The best of all chunks that the filters leave, of which both parts are known.

    `chunk_ids` ascend: of equal scores the earlier chunk is the better one.
    """
    scores = fuse(cosines, bm25, query.scoring)
    matches = bm25 > 0 if bm25 is not None else np.zeros(len(scores), np.bool_)
    if cosines is not None:
        matches = matches | (cosines >= query.scoring.cosine_floor)
    passing = scores >= query.min_score
    total = int(np.count_nonzero(matches & passing))
    # Without vectors nothing is near: only what holds a word can answer.
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
    )


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate with its score."""

    chunk_id: int
    score: float
    explanation: m.Explanation


def rank(candidates: Sequence[Candidate], scoring: Scoring) -> tuple[list[Ranked], bool]:
    """The candidates with their scores, best first, ties by chunk id; and whether none matches well."""
    if not candidates:
        return [], True
    scores = fuse(
        _part([candidate.cosine for candidate in candidates]),
        _part([candidate.bm25 for candidate in candidates]),
        scoring,
    )
    ranked = [
        Ranked(
            candidate.chunk_id,
            score,
            m.Explanation(
                cosine=candidate.cosine,
                bm25=candidate.bm25 or None,
                weight=scoring.weight,
                saturation=scoring.saturation,
            ),
        )
        for candidate, score in zip(candidates, scores.tolist(), strict=True)
    ]
    ranked.sort(key=lambda each: (-each.score, each.chunk_id))
    near = any(one.cosine is not None and one.cosine >= scoring.cosine_floor for one in candidates)
    return ranked, not near and ranked[0].score < scoring.floor


def _part(values: Sequence[float | None]) -> Floats | None:
    known = [value for value in values if value is not None]
    return np.array(known) if len(known) == len(values) else None
