"""The final score: parts, weights, and the order of results."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.feedback import NO_VOTES, Votes
from kb_contracts.semantics.ranking import (
    DEFAULT_WEIGHTS,
    PLAIN,
    SOURCE_TYPE_WEIGHT,
    RankingDefaults,
    RankingPlan,
    final_score,
    in_final_order,
    pool_size,
    query_kind,
    ranking_plan,
    recency_score,
    reputation_score,
)
from tests.support.contract_objects import (
    chunk_with,
    explanation_with,
    ranking_parts_with,
    result_with,
    summary_with,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
shares = st.floats(0, 1)


def result(number: int, score: float, days: float = 0, **metadata: Any) -> m.SearchResult:
    """A result whose document changed `days` ago."""
    changed = (NOW - timedelta(days=days)).isoformat().replace("+00:00", "Z")
    document = summary_with(id=number, metadata=metadata, updated_at=changed)
    return result_with(chunk_with(id=number), document, score=score)


def ordered(
    *results: m.SearchResult, votes: dict[int, Votes] | None = None, **weights: float
) -> list[tuple[int, float]]:
    plan = ranking_plan("granite", m.Ranking(ranking_weights=m.RankingWeights(**weights)), PLAIN)
    return [(each.document.id, each.score) for each in in_final_order(results, votes or {}, plan, NOW)]


@pytest.mark.requirement("R30")
def test_the_default_weights_are_those_of_the_document() -> None:
    assert m.RankingWeights(semantic=0.7, recency=0.15, reputation=0.10, feedback=0.05) == DEFAULT_WEIGHTS
    assert ranking_plan("granite", m.Ranking(), PLAIN).weights == DEFAULT_WEIGHTS


@pytest.mark.requirement("R27")
def test_a_final_score_is_the_sum_of_its_parts_by_their_weights() -> None:
    parts = ranking_parts_with(semantic=0.5, recency=0.8, reputation=0.4, feedback=0.25)
    assert final_score(parts) == pytest.approx(0.7 * 0.5 + 0.15 * 0.8 + 0.1 * 0.4 + 0.05 * 0.25)


@pytest.mark.requirement("R28")
@pytest.mark.parametrize(
    ("days", "expected"), [(0, 1.0), (0.9, 1.0), (1, math.exp(-0.01)), (100, math.exp(-1))]
)
def test_recency_decays_by_the_days_since_the_last_change(days: float, expected: float) -> None:
    changed = (NOW - timedelta(days=days)).isoformat()
    assert recency_score(changed, NOW, 0.01) == pytest.approx(expected)


def test_a_change_that_lies_ahead_is_of_today() -> None:
    """The clocks of two machines may differ."""
    assert recency_score((NOW + timedelta(days=3)).isoformat(), NOW, 10) == 1


def test_a_very_old_document_keeps_a_score() -> None:
    assert recency_score("0001-01-01T00:00:00Z", NOW, 10) == 0
    assert ordered(result(1, 1.0, days=700_000), semantic=0.5, recency=0.5) == [(1, 0.5)]


@pytest.mark.requirement("R29")
def test_reputation_is_that_of_the_source_type() -> None:
    """Unknown or invalid types count as manual."""
    names = ("confluence", "web", "manual")
    confluence, web, manual = (reputation_score({"source_type": name}, SOURCE_TYPE_WEIGHT) for name in names)
    assert confluence > web > manual
    for metadata in ({}, {"source_type": "mail"}, {"source_type": 7}, {"source_type": ["web"]}):
        assert reputation_score(metadata, SOURCE_TYPE_WEIGHT) == manual


def test_recency_source_type_and_feedback_raise_a_passage() -> None:
    old = result(1, 0.5, days=1000, source_type="confluence")
    new = result(2, 0.45, source_type="manual")
    assert [number for number, _ in ordered(old, new, semantic=1.0)] == [1, 2]
    assert [number for number, _ in ordered(old, new, semantic=0.8, recency=0.2)] == [2, 1]
    assert [number for number, _ in ordered(new, old, semantic=0.8, reputation=0.2)] == [1, 2]
    votes = {2: Votes(voices=9, clicked=9, useful=9)}
    assert [number for number, _ in ordered(old, new, votes=votes, semantic=0.8, feedback=0.2)] == [2, 1]


def test_equals_stay_in_their_order() -> None:
    results = [result(number, 0.5) for number in (3, 1, 2)]
    assert [number for number, _ in ordered(*results, semantic=0.7, recency=0.3)] == [3, 1, 2]


def test_the_parts_stand_in_an_explanation_that_was_wanted() -> None:
    bare, wanted = result(1, 0.5), result(2, 0.4)
    wanted.explain = explanation_with(cosine=0.4)
    plan = ranking_plan("granite", m.Ranking(), PLAIN)
    first, second = in_final_order([bare, wanted], {2: NO_VOTES}, plan, NOW)
    assert first.explain is None
    assert second.explain is not None
    parts = second.explain.ranking
    assert isinstance(parts, m.RankingParts)
    assert (parts.semantic, parts.recency, parts.reputation, parts.feedback) == (0.4, 1.0, 0.4, 0.25)
    assert final_score(parts) == second.score


@given(st.tuples(shares, shares, shares, shares).filter(any), shares, st.floats(0, 700_000))
def test_a_final_score_lies_between_0_and_1(
    given_shares: tuple[float, ...], score: float, days: float
) -> None:
    names, total = m.RankingWeights.__struct_fields__, math.fsum(given_shares)
    weights = m.RankingWeights(
        **{name: share / total for name, share in zip(names, given_shares, strict=True)}
    )
    plan = RankingPlan("keywords", weights, 0.01, SOURCE_TYPE_WEIGHT)
    (only,) = in_final_order([result(1, score, days=days)], {}, plan, NOW)
    assert 0 <= only.score <= 1


@pytest.mark.parametrize(
    "weights", [{"semantic": 0.9}, {"semantic": 1.0, "feedback": 0.01}, {"recency": 0.5}]
)
def test_weights_that_do_not_add_up_to_1_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(EngineError, match="add up to") as refused:
        ranking_plan("x", m.Ranking(ranking_weights=m.RankingWeights(**weights)), PLAIN)
    assert refused.value.code == "invalid_parameter"


@pytest.mark.requirement("R26")
def test_an_engine_may_weigh_by_the_kind_of_query() -> None:
    """The weights of a request take precedence."""
    exact = m.RankingWeights(semantic=1.0)
    defaults = RankingDefaults(weights={"exact": exact})
    assert ranking_plan("E1234", m.Ranking(), defaults).weights == exact
    assert ranking_plan("granite", m.Ranking(), defaults).weights == DEFAULT_WEIGHTS
    named = m.Ranking(ranking_weights=m.RankingWeights(semantic=0.5, recency=0.5))
    assert ranking_plan("E1234", named, defaults).weights == named.ranking_weights


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("pension", "keywords"),
        ("pension revaluation", "keywords"),
        ("well-known people's pensions", "keywords"),
        ("2025", "keywords"),
        ("how are pensions revalued in this country", "question"),
        ("wie?", "question"),
        ("年金はいくらですか？", "question"),
        ("ما هذا؟", "question"),
        ('who wrote "connection reset by peer"', "exact"),
        ('say "" twice', "keywords"),
        ("kb_search", "exact"),
        ("kb_contracts.api.models", "exact"),
        ("std::vector", "exact"),
        ("src/app.py", "exact"),
        ("the error E1234 of the pump", "exact"),
        ("", "keywords"),
    ],
)
def test_the_kind_of_a_query_follows_its_form(query: str, kind: str) -> None:
    assert query_kind(query) == kind


@pytest.mark.parametrize(
    ("part", "kind"), [*((sign, "keywords") for sign in '"“a1_'), ("a1", "exact"), ("a.", "exact")]
)
def test_the_longest_odd_queries_have_a_kind(part: str, kind: str) -> None:
    assert query_kind(part * (4000 // len(part))) == kind
    assert query_kind('"' + part * (3999 // len(part))) in {kind, "exact"}


def test_the_pool_is_larger_than_what_is_answered() -> None:
    assert [pool_size(top) for top in (1, 10, 33, 34, 100)] == [100, 100, 100, 102, 300]
