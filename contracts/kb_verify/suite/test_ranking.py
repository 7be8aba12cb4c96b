"""Promises on final scores and feedback: RAGler's ranking, if a search requests it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_contracts.api.ragler import USER_ID
from kb_verify.client import Client, fresh_key

DEFAULT = {"semantic": 0.7, "recency": 0.15, "reputation": 0.10, "feedback": 0.05}
REPUTATION = {"ranking_weights": {"semantic": 0.2, "reputation": 0.8}}
FEEDBACK = {"ranking_weights": {"semantic": 0.2, "feedback": 0.8}}


def parts_of(result: m.SearchResult) -> m.RankingParts:
    assert result.explain is not None
    assert isinstance(result.explain.ranking, m.RankingParts)
    return result.explain.ranking


def weights_of(result: m.SearchResult) -> dict[str, float]:
    weights = parts_of(result).weights
    return {name: getattr(weights, name) for name in DEFAULT}


def ranked(kb: Client, query: str, ranking: dict[str, Any], **body: Any) -> list[int]:
    return [result.document.id for result in kb.search(query, ranking=ranking, **body).results]


def given(kb: Client, document: object, signal: str, voice: str = "ann", **more: str) -> m.Feedback:
    headers = {USER_ID: voice, **more}
    return kb.call(ops.GIVE_FEEDBACK, document, json={"signal": signal}, headers=headers)


# --- the final score ------------------------------------------------------------------------------


@pytest.mark.requirement("R27", "R30")
@pytest.mark.parametrize("mode", ["hybrid", "fts", "vector"])
def test_a_final_score_is_its_parts_by_their_weights(kb: Client, mode: str) -> None:
    """By default 0.7, 0.15, 0.10 and 0.05; the best come first."""
    for number, source_type in enumerate(("confluence", "web", "manual", "mail")):
        kb.note(f"granite quarry report {number}", metadata={"source_type": source_type})
    results = kb.search("granite quarry", mode=mode, ranking={}, explain=True).results
    assert len(results) == 4
    for result in results:
        assert weights_of(result) == DEFAULT
        total = sum(weight * getattr(parts_of(result), name) for name, weight in DEFAULT.items())
        assert result.score == pytest.approx(total, abs=1e-5)
    scores = [result.score for result in results]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.requirement("R28")
def test_the_semantic_part_is_the_cosine_of_a_search_by_meaning(kb: Client) -> None:
    """A document changed today has the recency 1, for any decay rate."""
    kb.note("granite quarry")
    ranking = {"decay_rate": 10.0}
    (result,) = kb.search("granite quarry", mode="vector", ranking=ranking, explain=True).results
    assert result.explain is not None
    assert result.explain.cosine is not None
    assert parts_of(result).semantic == pytest.approx(max(0.0, result.explain.cosine), abs=1e-5)
    assert parts_of(result).recency == 1


@pytest.mark.requirement("R29")
def test_confluence_is_reputed_over_the_web_and_that_over_manual(kb: Client) -> None:
    """A document without a known source type counts as manual."""
    names = ("mail", None, "manual", "web", "confluence")
    metadata = [{} if name is None else {"source_type": name} for name in names]
    notes = [kb.note("granite quarry", metadata=each, dedup_scope=str(each)) for each in metadata]
    results = kb.search("granite quarry", ranking=REPUTATION, explain=True).results
    assert [result.document.id for result in results[:2]] == notes[:2:-1]
    by_document = {result.document.id: parts_of(result).reputation for result in results}
    mail, none, manual, web, confluence = (by_document[note] for note in notes)
    assert mail == none == manual < web < confluence
    named = {**REPUTATION, "source_type_weight": {"mail": 1.0, "confluence": 0.0}}
    assert ranked(kb, "granite quarry", named)[0] == notes[0]
    assert ranked(kb, "granite quarry", named)[-1] == notes[-1]


@pytest.mark.requirement("R26")
def test_without_being_asked_for_nothing_is_ranked(kb: Client) -> None:
    """No final score is the default, and a weight of 1 on `semantic` does not change the order."""
    kb.note("granite quarry")
    kb.note("granite among other words", metadata={"source_type": "confluence"})
    plain = kb.search("granite quarry", explain=True)
    assert [each.explain.ranking for each in plain.results if each.explain is not None] == [UNSET, UNSET]
    alone = kb.search("granite quarry", ranking={"ranking_weights": {"semantic": 1.0}})
    assert [each.score for each in alone.results] == [each.score for each in plain.results]
    assert (alone.total, alone.weak) == (plain.total, plain.weak)


@pytest.mark.requirement("R26")
def test_filters_come_before_scores(kb: Client) -> None:
    """A reputation does not bring back a document that a filter has excluded."""
    kept = kb.note("granite quarry", tags=["a"])
    kb.note("granite quarry two", metadata={"source_type": "confluence"})
    assert ranked(kb, "granite quarry", REPUTATION, tags=["a"]) == [kept]


@pytest.mark.requirement("R26")
@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("granite", "keywords"),
        ("granite quarry", "keywords"),
        ("is it granite?", "question"),
        ("where in the quarry is the granite", "question"),
        ("granite max_chars", "exact"),
        ("error E1234 granite", "exact"),
        ('"granite quarry" report', "exact"),
    ],
)
def test_a_query_is_of_a_kind_by_its_form(kb: Client, query: str, kind: str) -> None:
    """An engine may have different weights for each kind."""
    kb.note("granite quarry")
    (result,) = kb.search(query, ranking={}, explain=True).results
    assert parts_of(result).kind == kind


def test_a_passage_from_below_the_first_results_can_rise(kb: Client) -> None:
    """More candidates are ordered than are returned."""
    for number in range(12):
        kb.note(f"granite quarry {number}")
    far = "granite stood beside many other words that say little about it"
    reputed = kb.note(far, metadata={"source_type": "confluence"})
    assert reputed not in kb.found("granite quarry", top=3)
    assert ranked(kb, "granite quarry", REPUTATION, mode="fts", top=1) == [reputed]


@pytest.mark.parametrize(
    ("ranking", "parameter"),
    [
        ({"ranking_weights": {"semantic": 0.7}}, "ranking.ranking_weights"),
        ({"ranking_weights": {"semantic": 1.0, "recency": 0.1}}, "ranking.ranking_weights"),
        ({"ranking_weights": {"semantic": 1.5}}, "ranking.ranking_weights.semantic"),
        ({"decay_rate": -1}, "ranking.decay_rate"),
    ],
)
def test_weights_that_do_not_add_up_are_refused(kb: Client, ranking: dict[str, Any], parameter: str) -> None:
    kb.refused("invalid_parameter", ops.SEARCH, json={"query": "x", "ranking": ranking}, parameter=parameter)


# --- reranking ----------------------------------------------------------------------------------------


def test_a_second_look_is_taken_or_its_lack_explained(kb: Client) -> None:
    """A reranker gives scores from 0 to 1; without one, order and scores are the first ones."""
    for number in range(3):
        kb.note(f"granite quarry report {number}")
    first, answer = (kb.search("granite quarry", rerank=rerank) for rerank in (False, True))
    scores = [result.score for result in answer.results]
    assert len(scores) == 3
    assert [score for score in scores if not 0 <= score <= 1] == []
    assert scores == sorted(scores, reverse=True)
    assert answer.total == first.total
    if not answer.reranked:
        assert answer.reranked is False
        assert answer.rerank_failure
        assert scores == [result.score for result in first.results]
    else:
        assert answer.rerank_failure is UNSET


def test_nobody_has_a_second_look_who_does_not_want_it(kb: Client) -> None:
    kb.note("granite quarry")
    answer = kb.search("granite quarry", rerank=False)
    assert (answer.reranked, answer.rerank_failure) == (UNSET, UNSET)


# --- feedback -------------------------------------------------------------------------------------


@pytest.mark.requirement("R29")
def test_feedback_is_half_clicks_and_half_ratings(kb: Client) -> None:
    """Four neutral voices are added to the counts."""
    document = kb.note("granite quarry")
    given(kb, document, "clicked", "ann")
    given(kb, document, "not_useful", "bob")
    answer = given(kb, document, "useful", "eve")
    assert (answer.document_id, answer.voices) == (document, 3)
    assert (answer.clicked, answer.useful, answer.not_useful) == (2, 1, 1)
    click_rate, rating_avg = 2 / (3 + 4), (1 + 2) / (2 + 4)
    assert answer.score == pytest.approx(click_rate * 0.5 + rating_avg * 0.5, abs=1e-5)
    (result,) = kb.search("granite quarry", ranking={}, explain=True).results
    assert parts_of(result).feedback == answer.score


@pytest.mark.requirement("R29")
def test_what_was_found_useful_comes_first(kb: Client) -> None:
    poor, plain, good = (kb.note("granite quarry", dedup_scope=scope) for scope in "abc")
    for voice in ("ann", "bob"):
        given(kb, good, "useful", voice)
        given(kb, poor, "not_useful", voice)
    assert ranked(kb, "granite quarry", FEEDBACK) == [good, plain, poor]
    assert kb.found("granite quarry") == [poor, plain, good]


def test_a_voice_counts_once_and_its_last_rating_stands(kb: Client) -> None:
    document = kb.note("granite quarry")
    first = given(kb, document, "useful")
    assert [given(kb, document, "useful") for _ in range(3)] == [first] * 3
    assert (first.voices, first.useful, first.not_useful) == (1, 1, 0)
    changed = given(kb, document, "not_useful")
    assert (changed.voices, changed.useful, changed.not_useful, changed.clicked) == (1, 0, 1, 0)
    opened = given(kb, document, "clicked")
    assert (opened.voices, opened.not_useful, opened.clicked) == (1, 1, 1)
    assert given(kb, document, "not_useful").clicked == 1


def test_who_names_no_user_is_the_voice_of_its_key(kb: Client) -> None:
    document = kb.note("granite quarry")
    for _ in range(2):
        answer = kb.call(ops.GIVE_FEEDBACK, document, json={"signal": "useful"})
    assert answer.voices == 1
    assert given(kb, document, "useful", "ann").voices == 2


def test_feedback_changes_no_version_and_goes_with_its_document(kb: Client) -> None:
    """It does not make a document look newer either."""
    document = kb.stored_note("granite quarry", dedup_scope="a")
    assert given(kb, document.uid, "useful").document_id == document.id
    assert kb.document(document.id) == document
    kb.call(ops.DELETE_DOCUMENT, document.id)
    again = kb.note("granite quarry", dedup_scope="a")
    (result,) = kb.search("granite quarry", ranking={}, explain=True).results
    assert (result.document.id, parts_of(result).feedback) == (again, 0.25)


def test_feedback_stays_when_a_note_is_changed(kb: Client) -> None:
    document = kb.note("granite quarry")
    given(kb, document, "useful", "ann")
    kb.patched(document, text="granite quarry, again")
    assert given(kb, document, "useful", "bob").voices == 2


def test_a_retry_of_feedback_answers_as_it_did(kb: Client) -> None:
    document, key = kb.note("granite quarry"), fresh_key()
    first = given(kb, document, "useful", "ann", **key)
    given(kb, document, "useful", "bob")
    assert given(kb, document, "useful", "ann", **key) == first
    kb.refused("idempotency_mismatch", ops.GIVE_FEEDBACK, document, json={"signal": "clicked"}, headers=key)


def test_feedback_that_does_not_fit_is_refused(kb: Client) -> None:
    document = kb.note("granite quarry")
    kb.refused("document_not_found", ops.GIVE_FEEDBACK, 999_999, json={"signal": "useful"})
    kb.refused("invalid_parameter", ops.GIVE_FEEDBACK, document, json={"signal": "great"}, parameter="signal")
    kb.refused("missing_parameter", ops.GIVE_FEEDBACK, document, json={})
    assert given(kb, document, "useful").voices == 1
