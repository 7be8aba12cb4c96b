"""Near duplicates, neighbours, and one document's share of a page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.semantics.diversity import (
    collapse_duplicates,
    diverse,
    in_pages,
    limit_documents,
    merge_neighbors,
    pool_for,
    runs_of,
)
from tests.support.contract_objects import chunk_with, result_with, summary_with

WORDS = [
    "granite",
    "quarry",
    "river",
    "bridge",
    "ledger",
    "copyist",
    "harbour",
    "library",
    "spring",
    "autumn",
    "carts",
    "frozen",
]
TEXT = " ".join(WORDS * 4)


def result(document: int, index: int = 0, *, score: float = 0.5, text: str | None = None) -> m.SearchResult:
    chunk_id = document * 100 + index
    chunk = chunk_with(id=chunk_id, index=index, text=text or f"text{chunk_id}")
    return result_with(chunk, summary_with(id=document), score=score)


def texts_that_stay(*texts: str) -> list[str]:
    return [
        each.chunk.text
        for each in collapse_duplicates([result(at + 1, text=text) for at, text in enumerate(texts)])
    ]


@pytest.mark.parametrize(
    "other",
    [TEXT, TEXT.upper(), TEXT.replace(" ", "\n"), f"{TEXT} so it was", TEXT.replace("library", "archive", 1)],
)
def test_near_duplicate_texts_collapse(other: str) -> None:
    assert texts_that_stay(TEXT, other) == [TEXT]


@pytest.mark.parametrize(
    "other",
    [
        " ".join(reversed(TEXT.split())),
        TEXT + " " + " ".join(f"word{chr(97 + place)}" for place in range(20)),
        "granite quarry",
        f"{TEXT} 17",
    ],
)
def test_texts_with_different_words_order_or_figures_do_not_collapse(other: str) -> None:
    assert texts_that_stay(TEXT, other) == [TEXT, other]


def test_a_script_without_blanks_is_compared_by_its_characters() -> None:
    text = "花崗岩の採石場は春に開かれ秋に閉じられた。記録係が港の台帳を写して図書館へ送った。"
    assert texts_that_stay(text, text + "以上") == [text]
    other = "年金は毎年春に物価指数によって再評価される。"
    assert texts_that_stay(text, other) == [text, other]


def test_a_duplicate_is_named_by_the_first_it_is_like() -> None:
    kept, other = collapse_duplicates(
        [result(1, text=TEXT), result(2, text="granite"), result(3, text=TEXT), result(4, text=f"{TEXT} too")]
    )
    assert kept.duplicates == [
        m.Duplicate(document_id=3, chunk_id=300),
        m.Duplicate(document_id=4, chunk_id=400),
    ]
    assert other.duplicates is UNSET


def test_boilerplate_makes_no_duplicates_and_takes_no_time() -> None:
    """Text shared by hundreds of results does not mark duplicates, and is not compared pairwise."""
    texts = [
        " ".join([*WORDS, *(f"{chr(97 + at % 26)}{chr(97 + at // 26)}{word}" for word in WORDS * 2)])
        for at in range(300)
    ]
    assert texts_that_stay(*texts) == texts


@pytest.mark.parametrize(("new", "gone"), [([], 1), (["other"], 0), (["other"], 1)])
def test_a_near_duplicate_is_found_wherever_it_differs(new: list[str], gone: int) -> None:
    words = [first + second for first in "abcdef" for second in "uvwxyz"]
    others = [" ".join([*words[:at], *new, *words[at + gone :]]) for at in range(len(words))]
    assert [other for other in others if len(texts_that_stay(" ".join(words), other)) > 1] == []


def test_few_words_are_one_run() -> None:
    assert runs_of("Granite Quarry") == runs_of("granite\tquarry")
    assert len(runs_of("Granite Quarry")) == 1
    assert runs_of("a b c d") == runs_of("a b c") | runs_of("b c d")
    assert len(runs_of("a b c d")) == 2


def test_neighbours_go_into_the_best_of_them() -> None:
    found = [
        result(1, 5, score=0.9),
        result(2, 6, score=0.8),
        result(1, 6, score=0.7),
        result(1, 4, score=0.6),
    ]
    one, two = merge_neighbors(found, top=4)
    assert [chunk.index for chunk in one.before] == [4]
    assert [chunk.index for chunk in one.after] == [6]
    assert (two.document.id, two.before, two.after) == (2, [], [])


def test_neighbours_beyond_the_first_page_are_not_merged() -> None:
    found = [result(1, 5, score=0.9), result(1, 6, score=0.8)]
    assert merge_neighbors(found, top=1) == found


def test_a_row_is_merged_up_to_five_on_a_side() -> None:
    found = [result(1, index) for index in range(8)]
    one, two = merge_neighbors(found, top=8)
    assert [chunk.index for chunk in one.after] == [1, 2, 3, 4, 5]
    assert (two.chunk.index, [chunk.index for chunk in two.after]) == (6, [7])


def test_duplicates_of_what_is_merged_stay_named() -> None:
    found = [result(1, 0, text="x"), result(1, 1, text=TEXT), result(2, 0, text=TEXT)]
    (merged,) = diverse(found, m.SearchRequest(query="x", collapse=True))
    assert merged.duplicates == [m.Duplicate(document_id=2, chunk_id=200)]


ranked = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 30), st.floats(0, 1)),
    max_size=30,
    unique_by=lambda each: each[:2],
).map(
    lambda found: [
        result(document, index, score=score)
        for document, index, score in sorted(found, key=lambda each: -each[2])
    ]
)


@given(found=ranked, top=st.integers(1, 8), per_document=st.integers(1, 4))
def test_pages_lose_nothing_and_keep_their_order(
    found: list[m.SearchResult], top: int, per_document: int
) -> None:
    ordered = limit_documents(found, top, per_document)
    assert sorted(each.chunk.id for each in ordered) == sorted(each.chunk.id for each in found)
    for start in range(0, len(ordered), top):
        scores = [each.score for each in ordered[start : start + top]]
        assert scores == sorted(scores, reverse=True)
    assert ordered[:1] == found[:1]


@given(found=ranked, top=st.integers(1, 8), per_document=st.integers(1, 4))
def test_more_of_a_document_than_its_share_are_there_only_where_nothing_else_compares(
    found: list[m.SearchResult], top: int, per_document: int
) -> None:
    page = limit_documents(found, top, per_document)[:top]
    counts = {each.document.id: 0 for each in found}
    for each in page:
        counts[each.document.id] += 1
    if any(count > per_document for count in counts.values()):
        left = [each for each in found if each not in page and each.score >= found[0].score / 2]
        assert all(counts[each.document.id] >= per_document for each in left)


@given(found=ranked, top=st.integers(1, 8), per_document=st.integers(1, 4))
def test_paging_the_remaining_results_gives_the_following_pages(
    found: list[m.SearchResult], top: int, per_document: int
) -> None:
    request = m.SearchRequest(query="x", top=top, per_document=per_document)
    ordered = diverse(found, request)
    assert in_pages(ordered[top:], request) == ordered[top:]


def test_results_that_did_not_fit_a_page_are_ranked_with_the_next() -> None:
    """The first page should have the first chunk of each document, and had one."""
    one, two, three = (
        [result(number, index, score=1 - number / 10) for index in (0, 5)] for number in (1, 2, 3)
    )
    left = [two[0], three[0], one[1], two[1], three[1]]
    request = m.SearchRequest(query="x", top=3, per_document=1)
    assert in_pages(left, request) == [one[1], two[0], three[0], two[1], three[1]]


@given(found=ranked)
def test_without_being_asked_for_nothing_changes(found: list[m.SearchResult]) -> None:
    request = m.SearchRequest(query="x", top=3)
    assert diverse(found, request) == found
    assert pool_for(request) == 3
