"""The budget of characters of a search's answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.api import models as m
from kb_contracts.semantics.search import longest_prefix, within_budget

DOCUMENT = m.DocumentSummary(
    id=1,
    uid="u",
    title="t",
    doc_type="note",
    format=None,
    filename=None,
    source_path=None,
    metadata={},
    version=1,
    created_at="",
    updated_at="",
)


def chunk(length: int) -> m.Chunk:
    """A chunk of that many characters."""
    return m.Chunk(id=1, uid="u", index=0, text="x" * length, page=None, heading=None, start=0, end=length)


def result(length: int, before: int = 0, after: int = 0) -> m.SearchResult:
    """A result with neighbours of these lengths."""
    return m.SearchResult(
        chunk=chunk(length),
        score=0.5,
        document=DOCUMENT,
        tags=[],
        before=[chunk(before)] if before else [],
        after=[chunk(after)] if after else [],
    )


def size(one: m.SearchResult) -> int:
    """Characters of text that a result carries."""
    return sum(len(piece.text) for piece in (one.chunk, *one.before, *one.after))


results = st.lists(
    st.builds(result, st.integers(1, 300), st.integers(0, 300), st.integers(0, 300)), max_size=8
)


def test_without_a_budget_nothing_is_left_out() -> None:
    """The results are those that were found."""
    found = [result(1_000), result(2_000)]
    assert within_budget(found, None) == (found, 0)


def test_neighbours_go_before_the_text_itself() -> None:
    """The passage that was found is what counts."""
    (kept,), omitted = within_budget([result(80, before=50)], 100)
    assert (len(kept.chunk.text), kept.before, kept.truncated, omitted) == (80, [], True, 0)


def test_a_first_result_over_the_budget_is_cut_and_not_left_out() -> None:
    """A budget never makes an answer empty."""
    (kept,), omitted = within_budget([result(500), result(10)], 100)
    assert (len(kept.chunk.text), kept.truncated, omitted) == (100, True, 1)


@given(found=results, budget=st.integers(100, 1_500))
def test_the_budget_holds_and_nothing_is_cut_in_silence(found: list[m.SearchResult], budget: int) -> None:
    """What is whole is not marked, what is cut is, and what is missing is counted."""
    kept, omitted = within_budget(found, budget)
    assert sum(size(one) for one in kept) <= budget
    assert len(kept) + omitted == len(found)
    for one, original in zip(kept, found, strict=False):
        assert one.truncated == (size(one) < size(original))


@given(sizes=st.lists(st.integers(0, 50)), budget=st.integers(0, 200))
def test_as_many_are_kept_as_fit_together(sizes: list[int], budget: int) -> None:
    """One more would not fit."""
    kept = longest_prefix(sizes, lambda size: size, budget)
    assert kept == sizes[: len(kept)]
    assert sum(kept) <= budget
    assert len(kept) == len(sizes) or sum(sizes[: len(kept) + 1]) > budget
