"""Texts become chunks and words; the inverted index scores its current content only."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_readers.model import Page
from kb_simulator.engine.index import (
    MAX_CHARS,
    Index,
    content_words,
    passages,
    text_of,
    words_of_query,
    words_of_text,
)

PARAGRAPH = st.one_of(
    st.text(max_size=80),
    st.sampled_from(["# Heading", "## Another #", "word " * 400, "x" * 2_500, "A sentence. " * 200]),
    st.sampled_from(["\n\n", "日本" * 700]),
)
PAGES = st.lists(st.lists(PARAGRAPH, max_size=5).map("\n\n".join), min_size=1, max_size=3)


@given(PAGES, st.booleans())
def test_passages_are_cut_from_one_page_each_in_order_and_leave_out_white_space_alone(
    texts: list[str], headings: bool
) -> None:
    pages = [Page(number, text) for number, text in enumerate(texts, start=1)]
    whole = text_of(pages)
    end = 0
    for passage in passages(pages, headings=headings):
        assert passage.start >= end
        assert not whole[end : passage.start].strip()
        assert whole[passage.start : passage.end] == passage.text
        assert 0 < len(passage.text) <= MAX_CHARS
        assert passage.page is not None
        assert passage.text in texts[passage.page - 1]
        end = passage.end
    assert not whole[end:].strip()


def test_a_heading_begins_a_passage_and_names_those_after_it() -> None:
    pages = [Page(None, "before\n\n# One #\nfirst\n\nsecond"), Page(None, "third\n\n## Two\nfourth")]
    found = [(passage.heading, passage.text) for passage in passages(pages, headings=True)]
    assert found == [
        (None, "before"),
        ("One", "# One #\nfirst\n\nsecond"),
        ("One", "third"),
        ("Two", "## Two\nfourth"),
    ]


def test_a_passage_within_a_table_has_its_header_row() -> None:
    pages = [Page(None, "# One\n\n| a | b |\n| - | - |\n" + "| 1 | 2 |\n" * 200)]
    assert [p.table_header for p in passages(pages, headings=True)] == ["", "", *["| a | b |"] * 2]


def test_plain_text_has_no_headings() -> None:
    assert [p.heading for p in passages([Page(None, "# One\n\ntext")], headings=False)] == [None]


def test_paragraphs_are_put_together_while_they_fit() -> None:
    text = "\n\n".join(["a" * 400, "b" * 400, "c" * 400])
    assert [len(passage.text) for passage in passages([Page(None, text)], headings=False)] == [802, 400]


def test_a_long_paragraph_is_cut_after_a_sentence() -> None:
    text = "The winter market closed early. " * 60
    found = passages([Page(None, text)], headings=False)
    assert all(passage.text.endswith("early.") for passage in found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Running to the nationalized ponies", ["run", "to", "the", "nation", "poni"]),
        ("\u00c5ngstr\u00f6m na\u00efve caf\u00e9 e\u0301te", ["angstrom", "naiv", "cafe", "et"]),
        ("a_b-c\0d \ud800 e", ["a", "b", "c", "d", "e"]),
    ],
)
def test_words_are_cut_folded_and_stemmed(text: str, words: list[str]) -> None:
    assert words_of_text(text) == words


def test_text_without_spaces_is_found_by_its_pairs() -> None:
    assert words_of_text("\u65e5\u672c\u8a9e") == [*"\u65e5\u672c\u8a9e", "\u65e5\u672c", "\u672c\u8a9e"]
    assert words_of_query("\u65e5\u672c\u8a9e \u30c6") == ["\u65e5\u672c", "\u672c\u8a9e", "\u30c6"]


def test_a_query_asks_for_each_word_once() -> None:
    assert words_of_query("rivers and river AND river") == ["river", "and"]


def test_stop_words_have_no_say_in_meaning() -> None:
    assert content_words(words_of_text("the price of barley")) == ["price", "barlei"]
    assert content_words(["the", "of"]) == ["the", "of"]


@given(text=st.text(max_size=80))
def test_any_text_has_words_and_leaves_nothing_behind(text: str) -> None:
    assert words_of_text(text) == words_of_text(text)
    assert words_of_text("") == []


def test_threads_do_not_meet_in_the_tokenizer() -> None:
    texts = [f"word{number} rivers" for number in range(200)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(words_of_text, texts)) == [[f"word{number}", "river"] for number in range(200)]


WORDS = ("granite", "river", "ledger", "copper", "lantern", "barley")
TEXTS = st.lists(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join), min_size=1, max_size=8
)


def index_of(texts: dict[int, str]) -> Index:
    index = Index()
    for chunk_id, text in texts.items():
        index.add(chunk_id, text)
    return index


def test_documents_without_a_query_word_have_no_score() -> None:
    index = index_of({1: "granite quarry", 2: "river bank", 3: "granite river"})
    assert set(index.keyword_scores("granite")) == {1, 3}
    assert set(index.keyword_scores("granite river")) == {1, 2, 3}
    assert dict(index.keyword_scores("mountain")) == {}


def test_a_rarer_word_weighs_more() -> None:
    index = index_of({1: "granite", 2: "river", 3: "river", 4: "river"})
    scores = index.keyword_scores("granite river")
    assert scores[1] > scores[2] > 0


def test_a_single_chunk_still_scores() -> None:
    assert index_of({1: "granite"}).keyword_scores("granite")[1] > 0


def test_the_cosine_of_the_same_words_is_one() -> None:
    assert index_of({1: "granite by the river"}).cosines("River of granite")[1] == pytest.approx(1.0)


@given(TEXTS, st.sampled_from(WORDS))
def test_cosines_do_not_depend_on_the_neighbours(texts: list[str], query: str) -> None:
    together = index_of(dict(enumerate(texts)))
    for place, text in enumerate(texts):
        alone = index_of({place: text})
        assert together.cosines(query).get(place) == alone.cosines(query).get(place)


@given(TEXTS, TEXTS, st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join))
def test_removed_documents_do_not_affect_scores(kept: list[str], gone: list[str], query: str) -> None:
    index = index_of({**dict(enumerate(kept)), **{100 + place: text for place, text in enumerate(gone)}})
    index.keyword_scores(query)
    for place in range(len(gone)):
        index.remove(100 + place)
    fresh = index_of(dict(enumerate(kept)))
    assert dict(index.keyword_scores(query)) == dict(fresh.keyword_scores(query))
    assert dict(index.cosines(query)) == dict(fresh.cosines(query))


def test_a_copy_lives_on_by_itself() -> None:
    index = index_of({1: "granite"})
    twin = index.copy()
    index.add(2, "granite")
    twin.remove(1)
    assert set(index.keyword_scores("granite")) == {1, 2}
    assert dict(twin.keyword_scores("granite")) == {}
