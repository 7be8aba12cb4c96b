"""What a search promises."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.caller import Caller, problem

LONG = " ".join(f"quartz sentence number {number} about rivers and ledgers." for number in range(400))


async def test_a_note_is_found_by_its_words(kb: Caller) -> None:
    """With its text, a score from 0 to 1, its document and its tags."""
    document = await kb.note("The zebra crossed the frozen river", title="Zebra", tags=["animals", "ice"])
    answer = await kb.search("zebra river")
    (result,) = answer["results"]
    assert result["chunk"]["text"] == "The zebra crossed the frozen river"
    assert 0 < result["score"] <= 1
    assert (result["document"]["id"], result["document"]["title"]) == (document, "Zebra")
    assert result["tags"] == ["animals", "ice"]
    assert (answer["total"], answer["omitted"], answer["mode"]) == (1, 0, "hybrid")
    assert answer["took_ms"] > 0


@pytest.mark.parametrize("mode", ["hybrid", "fts", "vector"])
async def test_every_mode_finds_and_says_which_it_was(kb: Caller, mode: str) -> None:
    """The mode asked for is the mode answered."""
    document = await kb.note("copper lantern in the harbour office")
    answer = await kb.search("copper lantern", mode=mode)
    assert answer["mode"] == mode
    assert answer["results"][0]["document"]["id"] == document


async def test_fts_only_is_mode_fts(kb: Caller) -> None:
    """And `mode` need not be sent."""
    await kb.note("copper lantern")
    assert (await kb.search("lantern", fts_only=True))["mode"] == "fts"
    assert (await kb.search("lantern", fts_only=True, mode="fts"))["mode"] == "fts"


@pytest.mark.parametrize(("fts_only", "mode"), [(True, "vector"), (True, "hybrid"), (False, "fts")])
async def test_fts_only_against_mode_is_a_contradiction(kb: Caller, fts_only: bool, mode: str) -> None:
    """The error says to send one of the two."""
    response = await kb.http.post("/api/v1/search", json={"query": "x", "fts_only": fts_only, "mode": mode})
    assert problem(response, "contradiction")["parameter"] == "fts_only"


async def test_an_empty_base_answers_nothing(kb: Caller) -> None:
    """No result is no error, and nothing matches well."""
    answer = await kb.search("anything")
    assert (answer["results"], answer["total"], answer["weak"]) == ([], 0, True)


async def test_top_bounds_the_results_and_not_the_total(kb: Caller) -> None:
    """Three match, two are wanted."""
    for number in range(3):
        await kb.note(f"granite quarry report {number}")
    answer = await kb.search("granite", mode="fts", top=2)
    assert (len(answer["results"]), answer["total"]) == (2, 3)


async def test_tags_are_all_of_and_tags_any_one_of(kb: Caller) -> None:
    """A collection's tag therefore never leaks another collection's documents."""
    both = await kb.note("granite one", tags=["a", "b"])
    only = await kb.note("granite two", tags=["a"])
    assert await kb.found("granite", tags=["a", "b"]) == [both]
    assert set(await kb.found("granite", tags_any=["b", "a"])) == {both, only}
    assert await kb.found("granite", tags_any=["c"]) == []


async def test_a_search_is_filtered_by_type_format_and_source(kb: Caller) -> None:
    """Of a note and a Markdown file with the same words."""
    note = await kb.note("granite", metadata={"source_type": "web"}, source_path="memory/a.md")
    file = await kb.file("b.md", b"# Granite", source_path="books/b.md")
    assert await kb.found("granite", doc_type="note") == [note]
    assert await kb.found("granite", filters={"format": ["md"]}) == [file]
    assert await kb.found("granite", filters={"source_type": ["web", "manual"]}) == [note]
    assert await kb.found("granite", filters={"source_path_prefix": "books/"}) == [file]


async def test_dates_are_inclusive_and_a_last_day_counts_whole(kb: Caller) -> None:
    """Today's note is between today and today, and neither before nor after."""
    document = await kb.note("granite")
    today = (await kb.document(document))["created_at"][:10]
    assert await kb.found("granite", filters={"date_from": today, "date_to": today}) == [document]
    assert await kb.found("granite", filters={"date_to": f"{today}T00:00:00Z"}) == []
    assert await kb.found("granite", filters={"date_from": "2999-01-01"}) == []


@pytest.mark.parametrize(
    "text", ["yesterday", "2025-02-30", "20250101", "2025-01-01T10:00:00", "0001-01-01T00:00:00+14:00", ""]
)
@pytest.mark.parametrize("member", ["date_from", "date_to"])
async def test_what_is_no_date_is_refused_by_name(kb: Caller, member: str, text: str) -> None:
    """The error names the member and shows how a date is written."""
    response = await kb.http.post("/api/v1/search", json={"query": "x", "filters": {member: text}})
    assert problem(response, "invalid_parameter")["parameter"] == f"filters.{member}"


async def test_an_end_before_the_start_is_a_contradiction(kb: Caller) -> None:
    """Rather than an empty answer that looks like there is nothing."""
    response = await kb.http.post(
        "/api/v1/search",
        json={"query": "x", "filters": {"date_from": "2025-02-01", "date_to": "2025-01-31"}},
    )
    problem(response, "contradiction")


async def test_max_chars_bounds_the_text_and_says_what_is_missing(kb: Caller) -> None:
    """Nothing is cut in silence: `truncated` on the one at the edge, `omitted` for the rest."""
    await kb.note(LONG)
    whole = await kb.search("quartz", mode="fts", top=5)
    lengths = [len(result["chunk"]["text"]) for result in whole["results"]]
    assert len(lengths) == 5
    budget = lengths[0] + 10
    cut = await kb.search("quartz", mode="fts", top=5, max_chars=budget)
    assert [len(result["chunk"]["text"]) for result in cut["results"]] == [lengths[0], 10]
    assert [result["truncated"] for result in cut["results"]] == [False, True]
    assert (cut["omitted"], cut["total"]) == (3, whole["total"])


async def test_neighbors_come_in_order_around_a_result(kb: Caller) -> None:
    """One chunk before, one after."""
    await kb.note(LONG + " The only walrus. " + LONG)
    (result,) = (await kb.search("walrus", mode="fts", neighbors=1))["results"]
    index = result["chunk"]["index"]
    assert [chunk["index"] for chunk in result["before"]] == [index - 1]
    assert [chunk["index"] for chunk in result["after"]] == [index + 1]


async def test_explain_gives_the_parts_of_the_score(kb: Caller) -> None:
    """The formula of the contract, from the parts, is the score."""
    await kb.note("granite quarry")
    (result,) = (await kb.search("granite quarry", explain=True))["results"]
    parts = result["explain"]
    words = parts["bm25"] / (parts["bm25"] + parts["saturation"])
    score = parts["weight"] * max(0.0, parts["cosine"]) + (1 - parts["weight"]) * words
    assert result["score"] == pytest.approx(score, abs=1e-6)


async def test_min_score_drops_what_is_below(kb: Caller) -> None:
    """A threshold just over the only score leaves nothing."""
    await kb.note("granite quarry")
    (result,) = (await kb.search("granite"))["results"]
    assert (await kb.search("granite", min_score=min(1.0, result["score"] + 1e-6)))["results"] == []


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"query": ""}, "query"),
        ({"query": "x" * 4_001}, "query"),
        ({"query": "x", "top": 0}, "top"),
        ({"query": "x", "top": 101}, "top"),
        ({"query": "x", "top": "5"}, "top"),
        ({"query": "x", "mode": "semantic"}, "mode"),
        ({"query": "x", "min_score": 1.5}, "min_score"),
        ({"query": "x", "neighbors": 6}, "neighbors"),
        ({"query": "x", "max_chars": 99}, "max_chars"),
        ({"query": "x", "tags": [""]}, "tags[0]"),
        ({"query": "x", "filters": {"date_field": "read_at"}}, "filters.date_field"),
    ],
)
async def test_a_value_out_of_range_is_refused_by_name(
    kb: Caller, body: dict[str, Any], parameter: str
) -> None:
    """Refused, not clamped."""
    response = await kb.http.post("/api/v1/search", json=body)
    assert problem(response, "invalid_parameter")["parameter"] == parameter


@pytest.mark.parametrize(
    "query", ['"', "AND", "NEAR(", "a* OR", "col:x", "-", "()", "\u0000", "🦓", "日本語", "'; DROP TABLE x"]
)
async def test_no_query_is_taken_for_a_language(kb: Caller, query: str) -> None:
    """Operators, quotes and odd characters are words like any other."""
    await kb.note("granite quarry")
    assert (await kb.search(query))["mode"] == "hybrid"
