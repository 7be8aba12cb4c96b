"""The final score: how well a passage answers, how recent and how reputed its document is, what voices say.

    final_score = w1 * semantic + w2 * recency + w3 * reputation + w4 * feedback      the weights add up to 1
    recency     = exp(-decay_rate * days_since_update)
    reputation  = source_type_weight[source_type]
    feedback    = click_rate * 0.5 + rating_avg * 0.5                                 (`feedback.py`)

The formula is RAGler's. It comes in its phases: what does not pass the filters is never scored, the semantic
score decides which passages are candidates at all, and the other parts order these. It is off unless a
request or the engine's settings ask for it. Which weights count may depend on what kind of query it is.
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
"""Why nothing is reranked where there is none."""

DEFAULT_WEIGHTS = m.RankingWeights(semantic=0.7, recency=0.15, reputation=0.10, feedback=0.05)
DECAY_RATE = 0.01
"""Per day."""
SOURCE_TYPE_WEIGHT: Mapping[str, float] = {"confluence": 1.0, "web": 0.7, "manual": 0.4}

POOL = 100
POOL_A_RESULT = 3

_DECIMALS = 6  # of a score, as everywhere
_TOLERANCE = 1e-6  # in a sum of weights: 0.7 + 0.15 + 0.1 + 0.05 is not 1 in binary
_SECONDS_A_DAY = 86_400
_LONG = 6  # words that make a question
# These read a query once, whatever is in it: each part begins where the one before must end.
_PHRASE = re.compile(r'"[^"\w]*\w[^"]*"|“[^“”\w]*\w[^“”]*”')
# A word with a digit among its letters, or with a sign inside: E1234, max_chars, a.b.c, kb::search, src/app.
_IDENTIFIER = re.compile(r"\b(?:(?=\w*\d)(?=\w*[^\W\d_])|(?=\w*?[^\W_]_)|(?=\w+(?:[./\\#@$]|::|->)\w))\w+")
_QUESTION_MARKS = ("?", "？", "؟", "՞", "፧")


@dataclass(frozen=True, slots=True)
class RankingDefaults:
    """How an engine is set: what counts where a request does not say."""

    for_all: m.Ranking | None = None
    """The ranking of requests that name none; None: they are not ranked."""
    weights: Mapping[m.QueryKind, m.RankingWeights] = field(default_factory=dict)
    """Those that are not named are DEFAULT_WEIGHTS."""
    decay_rate: float = DECAY_RATE
    source_type_weight: Mapping[str, float] = field(default_factory=lambda: SOURCE_TYPE_WEIGHT)


PLAIN = RankingDefaults()
"""An engine whose settings are the contract's own."""


@dataclass(frozen=True, slots=True)
class RankingPlan:
    """How the results of one search are ordered."""

    kind: m.QueryKind
    weights: m.RankingWeights
    decay_rate: float
    source_type_weight: Mapping[str, float]


def ranking_plan(query: str, ranking: m.Ranking, defaults: RankingDefaults) -> RankingPlan:
    """How the results of a query are ordered.

    Raises:
        EngineError: `invalid_parameter` where the weights that are asked for do not add up to 1.
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
    """What is wrong with weights; None where they add up to 1."""
    total = math.fsum(msgspec.structs.astuple(weights))
    return None if abs(total - 1) <= _TOLERANCE else f"add up to {total:g}, not to 1"


def query_kind(query: str) -> m.QueryKind:
    """What a query is by its form, in whatever language: no list of words is asked.

    `exact` has a phrase in quotation marks, or a word with a digit or a sign inside; `question` ends in a
    question mark or has six words; the others are `keywords`.
    """
    if _PHRASE.search(query) or _IDENTIFIER.search(query):
        return "exact"
    if query.rstrip().endswith(_QUESTION_MARKS) or len(query.split()) >= _LONG:
        return "question"
    return "keywords"


def pool_size(top: int) -> int:
    """How many of the best by `semantic` are ordered: a passage behind these does not rise."""
    return max(POOL, POOL_A_RESULT * top)


def recency_score(updated_at: str, now: datetime, decay_rate: float) -> float:
    """1 for what changed today, in whole days (so that a score stands still for a day); `now` is aware."""
    days = (now - datetime.fromisoformat(updated_at)).total_seconds() // _SECONDS_A_DAY
    return math.exp(-decay_rate * max(0.0, days))


def reputation_score(metadata: Mapping[str, Any], source_type_weight: Mapping[str, float]) -> float:
    """That of the metadata's `source_type`; what names none, or none that is known, counts as manual."""
    source_type = metadata.get("source_type")
    known = source_type if isinstance(source_type, str) and source_type in source_type_weight else None
    return source_type_weight.get(known or DEFAULT_SOURCE_TYPE, 0.0)


def in_order_of_relevance(
    results: Sequence[m.SearchResult], relevances: Sequence[float]
) -> list[m.SearchResult]:
    """The results with a reranker's scores, best first, equals as they came."""
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
    """The results with their final scores, best first, equals as they came; `votes` are by document id.

    Those with an explanation get the parts of the score into it.
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
    """The parts by their weights, from 0 to 1."""
    weights = parts.weights
    total = (
        weights.semantic * parts.semantic
        + weights.recency * parts.recency
        + weights.reputation * parts.reputation
        + weights.feedback * parts.feedback
    )
    return round(min(1.0, max(0.0, total)), _DECIMALS)
