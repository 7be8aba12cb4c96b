"""Parsing of search requests, the budget of a response's text, and RAGler's form of a search."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import Filters, Mode, SearchRequest
from kb_contracts.api.ragler import ENGINE_USER, collection_id
from kb_contracts.semantics.collections import first_collections, source_types, vector_result
from kb_contracts.semantics.search import (
    date_window,
    headings_of,
    longest_prefix,
    mark_without_phrase,
    mode_of,
    query_of,
    relaxed,
    with_header,
    within_budget,
    without_text,
)
from tests.support.contract_objects import chunk_with, result_with, summary_with

GUIDES = collection_id("guides")


@pytest.mark.parametrize(
    ("mode", "fts_only", "expected"),
    [
        (None, None, "hybrid"),
        (None, True, "fts"),
        (None, False, "hybrid"),
        ("fts", True, "fts"),
        ("vector", False, "vector"),
        ("vector", None, "vector"),
        ("fts", None, "fts"),
    ],
)
def test_either_decides_and_both_may_agree(mode: Mode | None, fts_only: bool | None, expected: Mode) -> None:
    assert mode_of(SearchRequest(query="x", mode=mode, fts_only=fts_only)) == expected


@pytest.mark.parametrize(("mode", "fts_only"), [("vector", True), ("hybrid", True), ("fts", False)])
def test_mode_and_fts_only_may_not_contradict(mode: Mode, fts_only: bool) -> None:
    with pytest.raises(EngineError) as refused:
        mode_of(SearchRequest(query="x", mode=mode, fts_only=fts_only))
    assert (refused.value.code, refused.value.members["parameter"]) == ("contradiction", "fts_only")


def test_a_date_is_a_whole_utc_day() -> None:
    assert date_window(Filters(date_from="2025-01-31", date_to="2025-01-31")) == (
        datetime(2025, 1, 31, tzinfo=UTC),
        datetime(2025, 1, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    )


def test_a_time_is_that_moment_wherever_it_was_told() -> None:
    start, end = date_window(Filters(date_from="2025-01-01t01:30:00+02:00", date_to="2025-01-01 00:00:00.5z"))
    assert start == datetime(2024, 12, 31, 23, 30, tzinfo=UTC)
    assert end == datetime(2025, 1, 1, microsecond=500_000, tzinfo=UTC)


@given(
    moment=st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1)),
    offset=st.integers(-23, 23),
)
def test_every_rfc_3339_time_is_understood(moment: datetime, offset: int) -> None:
    aware = moment.replace(tzinfo=timezone(timedelta(hours=offset)))
    start, _ = date_window(Filters(date_from=aware.isoformat()))
    assert start == aware


@given(text=st.text(max_size=30))
def test_a_text_that_is_no_date_is_refused_with_its_parameter(text: str) -> None:
    assume(not text[:4].isdigit())
    with pytest.raises(EngineError) as raised:
        date_window(Filters(date_to=text))
    assert raised.value.code == "invalid_parameter"
    assert raised.value.members["parameter"] == "filters.date_to"


def test_an_end_before_the_start_is_told() -> None:
    """The same moment for both is valid."""
    date_window(Filters(date_from="2025-01-01T00:00:00Z", date_to="2025-01-01T00:00:00Z"))
    with pytest.raises(EngineError, match="before"):
        date_window(Filters(date_from="2025-01-02", date_to="2025-01-01"))


def result(
    length: int = 5,
    before: int = 0,
    after: int = 0,
    *,
    tags: Sequence[str] = (),
    metadata: dict[str, Any] | None = None,
    source_path: str | None = None,
) -> m.SearchResult:
    return result_with(
        chunk_with(text="x" * length),
        summary_with(metadata=metadata or {}, source_path=source_path),
        tags=tags,
        before=[chunk_with(text="x" * before)] if before else [],
        after=[chunk_with(text="x" * after)] if after else [],
    )


def size(one: m.SearchResult) -> int:
    return sum(len(piece.text) for piece in (one.chunk, *one.before, *one.after))


def left_out(found: Sequence[m.SearchResult], kept: Sequence[m.SearchResult]) -> int:
    """The number of dropped results, plus dropped neighbours of kept results."""
    beside = [sum(len(one.before) + len(one.after) for one in some[: len(kept)]) for some in (found, kept)]
    return len(found) - len(kept) + beside[0] - beside[1]


results = st.lists(
    st.builds(result, st.integers(1, 300), st.integers(0, 300), st.integers(0, 300)), max_size=8
)


def test_without_a_budget_nothing_is_left_out() -> None:
    found = [result(1_000), result(2_000)]
    assert within_budget(found, None) == (found, 0)


def test_neighbours_go_before_the_text_itself() -> None:
    """The found text is not cut as long as neighbours can be dropped."""
    (kept,), omitted = within_budget([result(80, before=50, after=50)], 100)
    assert (len(kept.chunk.text), kept.before, kept.after) == (80, [], [])
    assert (kept.truncated, omitted) == (False, 2)


def test_a_truncated_result_stays_marked_as_truncated() -> None:
    cut = msgspec.structs.replace(result(80, before=50), truncated=True)
    (kept,), _ = within_budget([cut], 100)
    assert (len(kept.chunk.text), kept.truncated) == (80, True)


def test_a_first_result_over_the_budget_is_cut_and_not_left_out() -> None:
    """A budget never makes a response empty."""
    (kept,), omitted = within_budget([result(500), result(10)], 100)
    assert (len(kept.chunk.text), kept.truncated, omitted) == (100, True, 1)


@given(found=results, budget=st.integers(100, 1_500))
def test_the_budget_holds_and_nothing_is_cut_in_silence(found: list[m.SearchResult], budget: int) -> None:
    kept, omitted = within_budget(found, budget)
    assert sum(size(one) for one in kept) <= budget
    assert omitted == left_out(found, kept)
    for one, original in zip(kept, found, strict=False):
        assert one.truncated == (one.chunk.text != original.chunk.text)


def tokens_of(text: str) -> int:
    """Count like a tokenizer that adds a mark at both ends."""
    return 2 + -(-len(text) // 3)


@given(found=results, chars=st.none() | st.integers(100, 1_500), tokens=st.integers(50, 500))
def test_both_budgets_hold_and_the_first_result_is_never_left_out(
    found: list[m.SearchResult], chars: int | None, tokens: int
) -> None:
    kept, omitted = within_budget(found, chars, tokens, tokens_of)
    texts = [piece.text for one in kept for piece in (one.chunk, *one.before, *one.after)]
    assert sum(map(tokens_of, texts)) <= tokens
    assert chars is None or sum(map(len, texts)) <= chars
    assert omitted == left_out(found, kept)
    assert bool(kept) == bool(found)
    assert all(one.chunk.text for one in kept)


def test_a_text_is_cut_to_the_token_budget() -> None:
    (kept,), _ = within_budget([result(500)], None, 50, tokens_of)
    assert len(kept.chunk.text) == 48 * 3


def test_tokens_are_counted_only_where_they_are_bounded() -> None:
    def never(_text: str) -> int:
        raise AssertionError

    assert within_budget([result(500)], 1_000, None, never)[1] == 0


def test_a_header_row_stands_above_the_text_and_counts_in_the_budget() -> None:
    """It is left out before the text is cut, and of a location; a phrase may be in it."""
    row = chunk_with(text="| 1 | 2 |", heading="Fees", table_header="| No | Sum |")
    assert headings_of(row) == "Fees\n| No | Sum |"
    assert with_header(row) == "| No | Sum |\n| 1 | 2 |"
    found = result_with(row, summary_with())
    assert within_budget([found], len(with_header(row)))[0] == [found]
    (cut,), _ = within_budget([found], len(with_header(row)) - 1)
    assert (with_header(cut.chunk), cut.truncated) == ("| 1 | 2 |", False)
    assert with_header(without_text([found])[0].chunk) == ""
    mark_without_phrase([found], query_of(SearchRequest(query='"no sum"')))
    assert found.without_phrase is UNSET


def test_a_location_has_no_text_and_keeps_its_place() -> None:
    (bare,) = without_text([result(5, before=1, after=1)])
    assert [chunk.text for chunk in (*bare.before, bare.chunk, *bare.after)] == ["", "", ""]
    assert not bare.truncated
    assert (bare.chunk.start, bare.chunk.end) == (0, 5)


@given(sizes=st.lists(st.integers(0, 50)), budget=st.integers(0, 200))
def test_as_many_are_kept_as_fit_together(sizes: list[int], budget: int) -> None:
    kept = longest_prefix(sizes, lambda size: size, budget)
    assert kept == sizes[: len(kept)]
    assert sum(kept) <= budget
    assert len(kept) == len(sizes) or sum(sizes[: len(kept) + 1]) > budget


def test_unknown_metadata_has_its_default_or_is_absent() -> None:
    bare = result(metadata={"url": 5, "source_type": None}, tags=["x"])
    found = vector_result(bare, {})
    assert (found.source_url, found.metadata.collection_id) == (f"urn:uuid:{bare.document.uid}", None)
    assert (found.metadata.source_type, found.metadata.last_modified_by) == ("manual", ENGINE_USER)
    assert (found.metadata.heading, found.metadata.context_breadcrumbs) == (UNSET, UNSET)


@pytest.mark.parametrize(
    ("metadata", "path", "source"),
    [
        ({"source_url": "s", "url": "u"}, "p", "s"),
        ({"source_url": " ", "url": "u"}, "p", "u"),
        ({}, "p", "p"),
    ],
)
def test_the_source_is_the_first_that_is_known(metadata: dict[str, Any], path: str, source: str) -> None:
    assert vector_result(result(metadata=metadata, source_path=path), {}).source_url == source


def test_the_collection_is_the_first_that_has_an_id_and_no_tag() -> None:
    found = result(tags=["collection:a", "x", "collection:guides"])
    mapped = vector_result(found, {"guides": GUIDES})
    assert (mapped.metadata.collection_id, mapped.metadata.tags) == (GUIDES, ["x"])
    assert first_collections([found, result(tags=["x"])]) == ["a"]


def test_a_document_without_a_source_type_is_manual() -> None:
    assert (source_types(None), source_types("web"), source_types("manual")) == (
        (),
        ("web",),
        ("manual", None),
    )


@pytest.mark.parametrize(
    ("members", "follow"), [({}, True), ({"min_score": 0.2}, False), ({"strict": True}, False)]
)
def test_passages_without_the_phrase_follow_unless_scores_or_phrases_bound_the_answer(
    members: dict[str, Any], follow: bool
) -> None:
    request = SearchRequest(query='"granite quarry" -slate', **members)
    others = relaxed(query_of(request), request)
    assert (others is not None) is follow
    if others is not None:
        assert others.wording is not None
        assert (others.wording.phrases, others.wording.excluded) == ((), ("slate",))
