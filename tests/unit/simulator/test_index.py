"""The inverted index scores what it holds and nothing of what it held."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_simulator.engine.index import Index

WORDS = ("granite", "river", "ledger", "copper", "lantern", "barley")
TEXTS = st.lists(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join), min_size=1, max_size=8
)


def index_of(texts: dict[int, str]) -> Index:
    """An index with these chunks."""
    index = Index()
    for chunk_id, text in texts.items():
        index.add(chunk_id, text)
    return index


def test_what_holds_no_word_has_no_score() -> None:
    """A chunk matches by at least one of the words."""
    index = index_of({1: "granite quarry", 2: "river bank", 3: "granite river"})
    assert set(index.keyword_scores("granite")) == {1, 3}
    assert set(index.keyword_scores("granite river")) == {1, 2, 3}
    assert dict(index.keyword_scores("mountain")) == {}


def test_a_rarer_word_weighs_more() -> None:
    """The sum over words, each by how few chunks hold it."""
    index = index_of({1: "granite", 2: "river", 3: "river", 4: "river"})
    scores = index.keyword_scores("granite river")
    assert scores[1] > scores[2] > 0


def test_a_single_chunk_still_scores() -> None:
    """No word is so frequent that it counts for nothing."""
    assert index_of({1: "granite"}).keyword_scores("granite")[1] > 0


def test_the_cosine_of_the_same_words_is_one() -> None:
    assert index_of({1: "granite by the river"}).cosines("River of granite")[1] == pytest.approx(1.0)


@given(TEXTS, st.sampled_from(WORDS))
def test_cosines_do_not_depend_on_the_neighbours(texts: list[str], query: str) -> None:
    """Two texts have one cosine, as two embeddings have, whatever else the base holds."""
    together = index_of(dict(enumerate(texts)))
    for place, text in enumerate(texts):
        alone = index_of({place: text})
        assert together.cosines(query).get(place) == alone.cosines(query).get(place)


@given(TEXTS, TEXTS, st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join))
def test_what_was_removed_leaves_no_trace(kept: list[str], gone: list[str], query: str) -> None:
    index = index_of({**dict(enumerate(kept)), **{100 + place: text for place, text in enumerate(gone)}})
    index.keyword_scores(query)
    for place in range(len(gone)):
        index.remove(100 + place)
    fresh = index_of(dict(enumerate(kept)))
    assert dict(index.keyword_scores(query)) == dict(fresh.keyword_scores(query))
    assert dict(index.cosines(query)) == dict(fresh.cosines(query))


def test_a_copy_lives_on_by_itself() -> None:
    """Neither sees what becomes of the other."""
    index = index_of({1: "granite"})
    twin = index.copy()
    index.add(2, "granite")
    twin.remove(1)
    assert set(index.keyword_scores("granite")) == {1, 2}
    assert dict(twin.keyword_scores("granite")) == {}
