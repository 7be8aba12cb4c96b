"""The final score: relevance of a passage, recency and reputation of its document, and feedback.

    final_score = w1 * semantic + w2 * recency + w3 * reputation + w4 * feedback      the weights add up to 1
    recency     = exp(-decay_rate * days_since_update)
    reputation  = source_type_weight[source_type]
    feedback    = click_rate * 0.5 + rating_avg * 0.5                                 (`feedback.py`)

The formula is RAGler's, and is applied in its phases: passages that do not pass the filters are not scored,
the semantic score selects the candidates, and the other parts only order these. It is off unless a request or
the engine's settings enable it. The weights may depend on the kind of the query.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.ragler import DEFAULT_SOURCE_TYPE
from kb_contracts.semantics.feedback import NO_VOTES, Votes, feedback_score

NO_RERANKER = "This engine has no reranker."
"""Failure message of an engine without a reranker."""

DEFAULT_WEIGHTS = m.RankingWeights(semantic=0.7, recency=0.15, reputation=0.10, feedback=0.05)
DECAY_RATE = 0.01
"""Default decay rate, per day."""
SOURCE_TYPE_WEIGHT: Mapping[str, float] = {"confluence": 1.0, "web": 0.7, "manual": 0.4}

POOL = 100
POOL_A_RESULT = 3

_DECIMALS = 6  # decimals of every score
_TOLERANCE = 1e-6  # tolerance of a sum of weights: 0.7 + 0.15 + 0.1 + 0.05 is not 1 in binary
_SECONDS_A_DAY = 86_400
_LONG = 6  # minimum number of words of a question
# These expressions read a query once, whatever its content: each part begins where the previous one must end.
_PHRASE = re.compile(r'"[^"\w]*\w[^"]*"|“[^“”\w]*\w[^“”]*”')
# A word with a digit among its letters, or with a sign inside: E1234, max_chars, a.b.c, kb::search, src/app.
_IDENTIFIER = re.compile(r"\b(?:(?=\w*\d)(?=\w*[^\W\d_])|(?=\w*?[^\W_]_)|(?=\w+(?:[./\\#@$]|::|->)\w))\w+")
_QUESTION_MARKS = ("?", "？", "؟", "՞", "፧")


@dataclass(frozen=True, slots=True)
class RankingDefaults:
    """An engine's settings for requests that omit parts of the ranking."""

    for_all: m.Ranking | None = None
    """The ranking of requests without one; None: their results have no final score."""
    weights: Mapping[m.QueryKind, m.RankingWeights] = field(default_factory=dict)
    """Missing kinds have DEFAULT_WEIGHTS."""
    decay_rate: float = DECAY_RATE
    source_type_weight: Mapping[str, float] = field(default_factory=lambda: SOURCE_TYPE_WEIGHT)


PLAIN = RankingDefaults()
"""The defaults of the contract."""


@dataclass(frozen=True, slots=True)
class RankingPlan:
    """The ranking of one search, with all defaults filled in."""

    kind: m.QueryKind
    weights: m.RankingWeights
    decay_rate: float
    source_type_weight: Mapping[str, float]


def ranking_plan(query: str, ranking: m.Ranking, defaults: RankingDefaults) -> RankingPlan:
    """Return the ranking of a query's results.
    Raises EngineError: `invalid_parameter` if the requested weights do not add up to 1.
    """
    kind = query_kind(query)
    weights = ranking.ranking_weights
    if weights == m.RankingWeights():
        weights = defaults.weights.get(kind, DEFAULT_WEIGHTS)
    elif (why := misfit(weights)) is not None:
        raise EngineError(
            "invalid_parameter",
            f"The weights in ranking.ranking_weights {why}. Send for example semantic 0.8 and recency 0.2.",
            parameter="ranking.ranking_weights",
        )
    return RankingPlan(
        kind,
        weights,
        defaults.decay_rate if ranking.decay_rate is None else ranking.decay_rate,
        {**defaults.source_type_weight, **ranking.source_type_weight},
    )


def misfit(weights: m.RankingWeights) -> str | None:
    """Return the fault of the weights, or None if they add up to 1."""
    total = math.fsum(msgspec.structs.astuple(weights))
    return None if abs(total - 1) <= _TOLERANCE else f"add up to {total:g}, not to 1"


def query_kind(query: str) -> m.QueryKind:
    """Return the kind of a query by its form, without a list of words, so that it works in every language.

    `exact` has a phrase in quotation marks, or a word with a digit or a sign inside; `question` ends in a
    question mark or has six words; all remaining queries are `keywords`.
    """
    if _PHRASE.search(query) or _IDENTIFIER.search(query):
        return "exact"
    if query.rstrip().endswith(_QUESTION_MARKS) or len(query.split()) >= _LONG:
        return "question"
    return "keywords"


def pool_size(top: int) -> int:
    """Return the number of best results by `semantic` that are ordered: passages after these never rise."""
    return max(POOL, POOL_A_RESULT * top)


def recency_score(updated_at: str, now: datetime, decay_rate: float) -> float:
    """Return 1 for a document changed today, in whole days (so that a score is constant for a day); `now` is
    aware.
    """
    days = (now - datetime.fromisoformat(updated_at)).total_seconds() // _SECONDS_A_DAY
    return math.exp(-decay_rate * max(0.0, days))


def reputation_score(metadata: Mapping[str, Any], source_type_weight: Mapping[str, float]) -> float:
    """Return the reputation of the metadata's `source_type`; without a known one, that of `manual`."""
    source_type = metadata.get("source_type")
    known = source_type if isinstance(source_type, str) and source_type in source_type_weight else None
    return source_type_weight.get(known or DEFAULT_SOURCE_TYPE, 0.0)


def in_order_of_relevance(
    results: Sequence[m.SearchResult], relevances: Sequence[float]
) -> list[m.SearchResult]:
    """Return the results with a reranker's scores, best first; ties keep their order."""
    reranked = []
    for result, relevance in zip(results, relevances, strict=True):
        score, explain = round(relevance, _DECIMALS), result.explain
        if explain is not None:
            explain = msgspec.structs.replace(explain, relevance=score)
        reranked.append(msgspec.structs.replace(result, score=score, explain=explain))
    return sorted(reranked, key=lambda result: -result.score)


def in_final_order(
    results: Sequence[m.SearchResult], votes: Mapping[int, Votes], plan: RankingPlan, now: datetime
) -> list[m.SearchResult]:
    """Return the results with their final scores, best first; ties keep their order.

    `votes` are by document id. Explanations, where present, get the parts of the score.
    """
    scored = [_scored(result, votes.get(result.document.id, NO_VOTES), plan, now) for result in results]
    return sorted(scored, key=lambda result: -result.score)


def _scored(result: m.SearchResult, votes: Votes, plan: RankingPlan, now: datetime) -> m.SearchResult:
    document = result.document
    parts = m.RankingParts(
        semantic=result.score,
        recency=round(recency_score(document.updated_at, now, plan.decay_rate), _DECIMALS),
        reputation=reputation_score(document.metadata, plan.source_type_weight),
        feedback=feedback_score(votes),
        weights=plan.weights,
        kind=plan.kind,
    )
    explain = result.explain
    if explain is not None:
        explain = msgspec.structs.replace(explain, ranking=parts)
    return msgspec.structs.replace(result, score=final_score(parts), explain=explain)


def final_score(parts: m.RankingParts) -> float:
    """Return the weighted sum of the parts, from 0 to 1."""
    weights = parts.weights
    total = (
        weights.semantic * parts.semantic
        + weights.recency * parts.recency
        + weights.reputation * parts.reputation
        + weights.feedback * parts.feedback
    )
    return round(min(1.0, max(0.0, total)), _DECIMALS)
