"""Promises on searches."""

from __future__ import annotations

from typing import Any

import pytest

from kb_contracts.api import operations as ops
from kb_verify.client import Client, problem
from kb_verify.scores import explained

LONG = " ".join(f"quartz sentence number {number} about rivers and ledgers." for number in range(400))


def test_a_note_is_found_by_its_words(kb: Client) -> None:
    """With its text, a score from 0 to 1, its document and its tags."""
    document = kb.note("The zebra crossed the frozen river", title="Zebra", tags=["animals", "ice"])
    kb.note("granite quarry")
    answer = kb.search("zebra river", mode="fts")
    (result,) = answer.results
    assert result.chunk.text == "The zebra crossed the frozen river"
    assert 0 < result.score <= 1
    assert (result.document.id, result.document.title) == (document, "Zebra")
    assert sorted(result.tags) == ["animals", "ice"]
    assert (answer.total, answer.omitted, answer.mode) == (1, 0, "fts")
    assert answer.took_ms >= 0


@pytest.mark.parametrize("mode", ["hybrid", "fts", "vector"])
def test_every_mode_finds_and_says_which_it_was(kb: Client, mode: str) -> None:
    document = kb.note("copper lantern in the harbour office")
    answer = kb.search("copper lantern in the harbour office", mode=mode)
    assert answer.mode == mode
    assert answer.results[0].document.id == document


def test_the_same_words_match_well_by_meaning(kb: Client) -> None:
    kb.note("copper lantern in the harbour office")
    assert not kb.search("copper lantern in the harbour office", mode="vector").weak


def test_a_score_means_the_same_in_a_base_of_one_and_of_forty(kb: Client) -> None:
    """In both, a relevant passage has more than a half, and a passage on another subject less."""
    kb.note("Neural networks learn by adjusting the weights between their neurons.", title="Learning")
    alone = kb.search("neural networks").results[0].score
    for number in range(39):
        kb.note(f"Cart {number} of granite left the quarry in the rain of spring.", title=f"Cart {number}")
    among = kb.search("neural networks").results[0].score
    assert min(alone, among) > 0.5
    assert among == pytest.approx(alone, abs=0.15)
    other = [one.score for one in kb.search("what is the capital of Mongolia").results]
    assert [score for score in other if score >= 0.5] == []


@pytest.mark.parametrize("mode", ["hybrid", "fts", "vector"])
def test_the_best_come_first(kb: Client, mode: str) -> None:
    for number in range(5):
        kb.note(f"granite quarry report {'granite ' * number}{number}")
    scores = [result.score for result in kb.search("granite quarry", mode=mode).results]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)


def test_hybrid_is_the_mode_where_none_is_asked(kb: Client) -> None:
    kb.note("copper lantern")
    assert kb.search("lantern").mode == "hybrid"


def test_fts_only_is_mode_fts(kb: Client) -> None:
    kb.note("copper lantern")
    assert kb.search("lantern", fts_only=True).mode == "fts"
    assert kb.search("lantern", fts_only=True, mode="fts").mode == "fts"


@pytest.mark.parametrize(("fts_only", "mode"), [(True, "vector"), (True, "hybrid"), (False, "fts")])
def test_fts_only_against_mode_is_a_contradiction(kb: Client, fts_only: bool, mode: str) -> None:
    response = kb.request(ops.SEARCH, json={"query": "x", "fts_only": fts_only, "mode": mode})
    assert problem(response, "contradiction").parameter == "fts_only"


def test_an_empty_base_answers_nothing(kb: Client) -> None:
    answer = kb.search("anything")
    assert (answer.results, answer.total, answer.weak) == ([], 0, True)


def test_top_bounds_the_results_and_not_the_total(kb: Client) -> None:
    for number in range(3):
        kb.note(f"granite quarry report {number}")
    answer = kb.search("granite", mode="fts", top=2)
    assert (len(answer.results), answer.total) == (2, 3)


@pytest.mark.parametrize("mode", ["hybrid", "fts", "vector"])
def test_the_total_is_the_same_whatever_top_is(kb: Client, mode: str) -> None:
    """One note matches; by meaning, nine are only the nearest remaining ones."""
    kb.note("copper lantern in the harbour office")
    for number in range(9):
        kb.note(f"granite quarry report {number}")
    query = "copper lantern in the harbour office"
    one, *more = [kb.search(query, mode=mode, top=top).total for top in (1, 6, 100)]
    assert one >= 1
    assert more == [one, one]


def test_tags_are_all_of(kb: Client) -> None:
    """A filter by a collection's tag never leaks documents of another collection."""
    both = kb.note("granite one", tags=["a", "b"])
    only = kb.note("granite two", tags=["a"])
    assert kb.found("granite", tags=["a", "b"]) == [both]
    assert set(kb.found("granite", tags=["a"])) == {both, only}
    assert {result.document.id for result in kb.search("granite", tags=["a", "b"]).results} == {both}


def test_tags_any_is_one_of(kb: Client) -> None:
    both = kb.note("granite one", tags=["a", "b"])
    only = kb.note("granite two", tags=["a"])
    assert set(kb.found("granite", tags_any=["b", "a"])) == {both, only}
    assert kb.found("granite", tags_any=["b", "c"], tags=["a"]) == [both]
    assert kb.found("granite", tags_any=["c"]) == []


def test_a_search_is_filtered_by_type_format_and_source(kb: Client) -> None:
    note = kb.note("granite", metadata={"source_type": "web"}, source_path="memory/a.md")
    file = kb.file("b.md", b"# Granite", source_path="books/b.md")
    assert kb.found("granite", doc_type="note") == [note]
    assert kb.found("granite", filters={"format": ["md"]}) == [file]
    assert kb.found("granite", filters={"format": ["PDF", "MD"]}) == [file]
    assert kb.found("granite", filters={"source_type": ["web", "manual"]}) == [note]
    assert kb.found("granite", filters={"source_path_prefix": "books/"}) == [file]


def test_the_total_counts_what_the_filters_leave(kb: Client) -> None:
    wanted = kb.note("granite one", tags=["a"])
    for number in range(3):
        kb.note(f"granite other {number}")
    for mode in ("hybrid", "fts", "vector"):
        answer = kb.search("granite one", mode=mode, tags=["a"])
        assert ([result.document.id for result in answer.results], answer.total) == ([wanted], 1)


def test_dates_are_inclusive_and_a_last_day_counts_whole(kb: Client) -> None:
    document = kb.note("granite")
    today = kb.document(document).created_at[:10]
    assert kb.found("granite", filters={"date_from": today, "date_to": today}) == [document]
    assert kb.found("granite", filters={"date_to": "2000-01-01"}) == []
    assert kb.found("granite", filters={"date_from": "2999-01-01"}) == []


def test_a_moment_is_inclusive_at_both_ends(kb: Client) -> None:
    """By the note's own time, to its last digit."""
    document = kb.note("granite")
    moment = kb.document(document).created_at
    assert kb.found("granite", filters={"date_from": moment, "date_to": moment}) == [document]


def test_dates_can_be_those_of_the_last_change(kb: Client) -> None:
    """`date_field` selects them; a change of the document affects only the time of the last change."""
    document = kb.stored_note("granite")
    changed = kb.patched(document.id, text="granite again").updated_at
    assert kb.found("granite", filters={"date_from": changed, "date_field": "updated_at"}) == [document.id]
    assert kb.found("granite", filters={"date_from": changed}) == []


@pytest.mark.parametrize(
    "text", ["yesterday", "2025-02-30", "20250101", "2025-01-01T10:00:00", "0001-01-01T00:00:00+14:00", ""]
)
@pytest.mark.parametrize("member", ["date_from", "date_to"])
def test_what_is_no_date_is_refused_by_name(kb: Client, member: str, text: str) -> None:
    response = kb.request(ops.SEARCH, json={"query": "x", "filters": {member: text}})
    assert problem(response, "invalid_parameter").parameter == f"filters.{member}"


def test_an_end_before_the_start_is_a_contradiction(kb: Client) -> None:
    """Instead of an empty response that looks as if no document existed."""
    filters = {"date_from": "2025-02-01", "date_to": "2025-01-31"}
    kb.refused("contradiction", ops.SEARCH, json={"query": "x", "filters": filters})


def test_max_chars_bounds_the_text_and_says_what_is_missing(kb: Client) -> None:
    """Every cut is reported: `truncated` on the last result, `omitted` for the rest."""
    kb.note(LONG)
    whole = kb.search("quartz", mode="fts", top=5)
    lengths = [len(result.chunk.text) for result in whole.results]
    assert len(lengths) == 5
    assert [result.truncated for result in whole.results] == [False] * len(whole.results)
    cut = kb.search("quartz", mode="fts", top=5, max_chars=lengths[0] + 10)
    assert sum(len(result.chunk.text) for result in cut.results) <= lengths[0] + 10
    assert len(cut.results) + cut.omitted == 5
    assert cut.omitted > 0
    assert cut.total == whole.total
    for result, uncut in zip(cut.results, whole.results, strict=False):
        assert result.truncated == (len(result.chunk.text) < len(uncut.chunk.text))


def test_max_tokens_bounds_the_text_too(kb: Client) -> None:
    """By the engine's own estimate."""
    kb.note(LONG)
    whole = kb.search("quartz", mode="fts", top=5)
    texts = []
    for most in (50, 200, 1_000_000):
        cut = kb.search("quartz", mode="fts", top=5, max_tokens=most)
        assert (len(cut.results) + cut.omitted, cut.total) == (5, whole.total)
        for result, uncut in zip(cut.results, whole.results, strict=False):
            assert uncut.chunk.text.startswith(result.chunk.text)
            assert result.truncated == (len(result.chunk.text) < len(uncut.chunk.text))
        texts.append("".join(result.chunk.text for result in cut.results))
    small, middle, all_of_it = map(len, texts)
    assert 0 < small < middle < all_of_it == sum(len(result.chunk.text) for result in whole.results)


def test_of_two_bounds_the_tighter_one_rules(kb: Client) -> None:
    kb.note(LONG)
    chars, tokens = {"max_chars": 300}, {"max_tokens": 50}
    answers = [
        kb.search("quartz", mode="fts", top=5, **bounds).results
        for bounds in (chars, {**chars, "max_tokens": 1_000_000}, tokens, {**tokens, "max_chars": 1_000_000})
    ]
    texts = [[result.chunk.text for result in results] for results in answers]
    assert texts[0] == texts[1] != texts[2] == texts[3]


def test_locations_are_results_without_text(kb: Client) -> None:
    """Regardless of bounds on the text, and of requested neighbours."""
    kb.note(LONG)
    whole = kb.search("quartz", mode="fts", top=5)
    bounds = {"max_chars": 100, "max_tokens": 50, "neighbors": 1}
    bare = kb.search("quartz", mode="fts", top=5, detail="locations", **bounds)
    assert {result.chunk.text for result in bare.results} == {""}
    assert [each for each in bare.results if each.before or each.after or each.truncated] == []
    assert (bare.total, bare.omitted) == (whole.total, 0)
    for result in whole.results:
        result.chunk.text = ""
    assert bare.results == whole.results


def test_neighbors_come_in_order_around_a_result(kb: Client) -> None:
    kb.note(LONG)
    wanted = "quartz sentence number 200"
    (result,) = kb.search(wanted, mode="fts", top=1, neighbors=1).results
    index = result.chunk.index
    assert [chunk.index for chunk in result.before] == ([index - 1] if index else [])
    assert [chunk.index for chunk in result.after][:1] in ([index + 1], [])
    assert result.before or result.after


def test_explain_gives_the_parts_of_the_score(kb: Client) -> None:
    kb.note("granite quarry")
    (result,) = kb.search("granite quarry", explain=True).results
    parts = result.explain
    assert parts is not None
    assert parts.bm25 is not None
    assert parts.cosine is not None
    assert result.score == pytest.approx(explained(parts), abs=1e-5)


def test_nothing_is_explained_unasked(kb: Client) -> None:
    """`explain` is null, and so is a part of the score that does not count."""
    kb.note("granite quarry")
    assert kb.search("granite quarry").results[0].explain is None
    (by_words,) = kb.search("granite quarry", mode="fts", explain=True).results
    assert by_words.explain is not None
    assert by_words.explain.cosine is None


def test_min_score_drops_what_is_below(kb: Client) -> None:
    better = kb.note("granite quarry granite quarry")
    kb.note("granite stood beside a very long list of other words that say little about it")
    first, second = kb.search("granite quarry", mode="fts").results
    middle = (first.score + second.score) / 2
    kept = kb.search("granite quarry", mode="fts", min_score=middle)
    assert [result.document.id for result in kept.results] == [better]
    assert kb.search("granite quarry", mode="fts", min_score=min(1.0, first.score + 1e-3)).results == []


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"query": ""}, "query"),
        ({"query": " \n\u3000"}, "query"),
        ({"query": "x" * 4_001}, "query"),
        ({"query": "x", "top": 0}, "top"),
        ({"query": "x", "top": 101}, "top"),
        ({"query": "x", "top": "5"}, "top"),
        ({"query": "x", "mode": "semantic"}, "mode"),
        ({"query": "x", "min_score": 1.5}, "min_score"),
        ({"query": "x", "neighbors": 6}, "neighbors"),
        ({"query": "x", "max_chars": 99}, "max_chars"),
        ({"query": "x", "max_tokens": 49}, "max_tokens"),
        ({"query": "x", "max_tokens": 10**30}, "max_tokens"),
        ({"query": "x", "detail": "titles"}, "detail"),
        ({"query": "x", "tags": [""]}, "tags[0]"),
        ({"query": "x", "filters": {"date_field": "read_at"}}, "filters.date_field"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(kb: Client, body: dict[str, Any], parameter: str) -> None:
    assert kb.refused("invalid_parameter", ops.SEARCH, json=body).parameter == parameter


@pytest.mark.parametrize(
    "query", ['"', "AND", "NEAR(", "a* OR", "col:x", "-", "()", "\u0000", "🦓", "日本語", "'; DROP TABLE x"]
)
def test_no_query_is_taken_for_a_language(kb: Client, query: str) -> None:
    """Operators, quotes and unusual characters are ordinary words."""
    kb.note("granite quarry")
    assert kb.search(query).mode == "hybrid"
