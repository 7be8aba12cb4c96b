"""Search is deterministic, filtered as asked, and says what it left out."""

from __future__ import annotations

from typing import Any

import pytest

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_simulator.engine.search import FLOOR, SATURATION, WEIGHT
from tests.unit.simulator.states import Base


@pytest.fixture
def base() -> Base:
    """Four documents about three things."""
    base = Base()
    base.note("The granite quarry by the river", title="Stone", tags=["a", "x"], source_path="p/one")
    base.clock.advance(86_400)
    base.note(
        "Granite and basalt, granite again", title="More", tags=["a", "y"], metadata={"source_type": "web"}
    )
    base.clock.advance(86_400)
    base.file(
        "c.md", "A copper mine up the hill", tags=["b"], source_path="p/two", metadata={"source_type": 3}
    )
    base.file("d.txt", "The winter market closed early", tags=["b", "x"])
    return base


def search(base: Base, query: str, **fields: Any) -> m.SearchResponse:
    """The answer of a search."""
    return base.state.search(m.SearchRequest(query=query, **fields))


@pytest.mark.parametrize("mode", ["hybrid", "fts", "vector"])
def test_the_best_comes_first_in_every_mode(base: Base, mode: m.Mode) -> None:
    """With a score from 0 to 1, as the mode makes it."""
    answer = search(base, "copper mine", mode=mode, explain=True)
    best = answer.results[0]
    assert (best.document.id, answer.mode, answer.weak) == (3, mode, False)
    assert 0 < best.score <= 1
    scores = [result.score for result in answer.results]
    assert scores == sorted(scores, reverse=True)


def test_an_explanation_adds_up(base: Base) -> None:
    """From cosine and BM25 to the score, by the constants it names."""
    for result in search(base, "granite river", explain=True).results:
        why = result.explain
        assert why is not None
        assert (why.weight, why.saturation) == (WEIGHT, SATURATION)
        words = (why.bm25 or 0) / ((why.bm25 or 0) + SATURATION)
        assert result.score == pytest.approx(WEIGHT * (why.cosine or 0) + (1 - WEIGHT) * words, abs=1e-6)


def test_by_words_only_what_holds_a_word_answers(base: Base) -> None:
    assert search(base, "submarine", mode="fts").results == []
    by_meaning = search(base, "submarine", mode="vector")
    assert ([result.score for result in by_meaning.results], by_meaning.weak) == ([0.0] * 4, True)


def test_equals_come_in_the_order_of_their_ids() -> None:
    base = Base()
    for number in range(30):
        base.note("granite", dedup_scope=str(number))
    assert base.found("granite", top=20) == list(range(1, 21))
    assert base.found("granite", mode="hybrid", top=20) == list(range(1, 21))


def test_top_bounds_the_results_and_not_the_total(base: Base) -> None:
    """Two hold the word."""
    answer = search(base, "granite", mode="fts", top=1)
    assert (len(answer.results), answer.total) == (1, 2)


@pytest.mark.parametrize("mode", ["hybrid", "fts", "vector"])
def test_what_merely_is_nearest_is_not_in_the_total(base: Base, mode: m.Mode) -> None:
    """Two hold the word, and the others may follow them."""
    assert [search(base, "granite", mode=mode, top=top).total for top in (1, 3, 100)] == [2, 2, 2]


def test_a_least_score_is_kept_in_results_and_total(base: Base) -> None:
    """What lies below does not answer."""
    best = search(base, "granite", mode="fts").results[0].score
    answer = search(base, "granite", mode="fts", min_score=best)
    assert [result.score for result in answer.results] == [best]
    assert answer.total == 1


def test_an_empty_base_is_weak() -> None:
    """No result is no error."""
    answer = search(Base(), "anything")
    assert (answer.results, answer.total, answer.weak) == ([], 0, True)


def test_weak_says_that_the_best_is_under_the_floor(base: Base) -> None:
    answer = search(base, "granite river market hill winter")
    assert answer.weak == (answer.results[0].score < FLOOR)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"tags": ["a"]}, {1, 2}),
        ({"tags": ["a", "x"]}, {1}),
        ({"tags": ["a", "b"]}, set()),
        ({"tags_any": ["y", "b"]}, {2, 3, 4}),
        ({"tags": ["x"], "tags_any": ["b"]}, {4}),
        ({"doc_type": "markdown"}, {3}),
        ({"filters": m.Filters(format=["txt", "md"])}, {3, 4}),
        ({"filters": m.Filters(source_type=["web"])}, {2}),
        ({"filters": m.Filters(source_path_prefix="p/")}, {1, 3}),
        ({"filters": m.Filters(date_to="2026-01-01")}, {1}),
        ({"filters": m.Filters(date_from="2026-01-02", date_to="2026-01-02")}, {2}),
        ({"filters": m.Filters(date_from="2026-01-03T00:00:00Z")}, {3, 4}),
        ({"filters": m.Filters(date_from="2026-01-02T23:00:00-01:00")}, {3, 4}),
        ({"filters": m.Filters(date_from="2026-01-03", date_field="updated_at")}, {3, 4}),
    ],
)
def test_filters_leave_what_they_should(base: Base, fields: dict[str, Any], wanted: set[int]) -> None:
    answer = search(base, "granite", mode="vector", **fields)
    assert {result.document.id for result in answer.results} == wanted
    assert answer.total == sum("granite" in result.chunk.text.lower() for result in answer.results)


def test_updated_at_follows_changes(base: Base) -> None:
    """Where `created_at` does not."""
    base.state.add_tags(1, ["new"], None)
    found = search(
        base, "x", mode="vector", filters=m.Filters(date_from="2026-01-03", date_field="updated_at")
    )
    assert 1 in {result.document.id for result in found.results}


@pytest.mark.parametrize(
    ("filters", "code", "parameter"),
    [
        (m.Filters(date_from="yesterday"), "invalid_parameter", "filters.date_from"),
        (m.Filters(date_to="2026-02-30"), "invalid_parameter", "filters.date_to"),
        (m.Filters(date_from="0001-01-01T00:00:00+23:00"), "invalid_parameter", "filters.date_from"),
        (m.Filters(date_from="2026-01-02", date_to="2026-01-01"), "contradiction", "filters.date_to"),
    ],
)
def test_dates_that_are_none_are_refused_by_name(
    base: Base, filters: m.Filters, code: str, parameter: str
) -> None:
    with pytest.raises(EngineError) as caught:
        search(base, "x", filters=filters)
    assert (caught.value.code, caught.value.members["parameter"]) == (code, parameter)


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, "hybrid"),
        ({"fts_only": True}, "fts"),
        ({"fts_only": False}, "hybrid"),
        ({"fts_only": True, "mode": "fts"}, "fts"),
        ({"fts_only": False, "mode": "vector"}, "vector"),
    ],
)
def test_mode_and_fts_only_go_together(base: Base, fields: dict[str, Any], mode: str) -> None:
    """The answer names the mode."""
    assert search(base, "x", **fields).mode == mode


@pytest.mark.parametrize(("fts_only", "mode"), [(True, "vector"), (True, "hybrid"), (False, "fts")])
def test_mode_against_fts_only_is_a_contradiction(base: Base, fts_only: bool, mode: m.Mode) -> None:
    """The error names `fts_only`."""
    with pytest.raises(EngineError) as caught:
        search(base, "x", fts_only=fts_only, mode=mode)
    assert caught.value.code == "contradiction"


def test_neighbours_stand_before_and_after() -> None:
    base = Base()
    base.note("\n\n".join(f"word{number} " + "x" * 900 for number in range(5)))
    (result,) = search(base, "word1", mode="fts", neighbors=2).results
    assert [chunk.index for chunk in result.before] == [0]
    assert [chunk.index for chunk in result.after] == [2, 3]


def test_a_bound_on_characters_cuts_at_the_edge_and_counts_the_rest(base: Base) -> None:
    """The best take what they need; the one at the edge is cut and says so."""
    base.state.clear()
    for number in range(3):
        base.note("granite " * 12 + f"number {number}")
    answer = search(base, "granite", mode="fts", max_chars=150)
    sizes = [len(result.chunk.text) for result in answer.results]
    assert sum(sizes) == 150
    assert [result.truncated for result in answer.results] == [False, True]
    assert (answer.omitted, answer.total) == (1, 3)
