"""Promises on pages: page two continues page one, regardless of changes after page one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_verify.client import Client, problem

TEXTS = [" ".join(["granite"] * (number + 1) + ["quarry"] * 12) for number in range(12)]


def pages(kb: Client, query: str, **body: Any) -> list[m.SearchResponse]:
    """Return all pages, the first one first."""
    body = {"mode": "fts", "pages": True, **body}
    answers = [kb.search(query, **body)]
    while (cursor := answers[-1].next_cursor) is not UNSET:
        assert len(answers) < 50, "the pages have no end"
        answers.append(kb.search(query, cursor=cursor, **body))
    return answers


def chunks(answers: list[m.SearchResponse]) -> list[int]:
    """Return the chunks of all results and of the results merged into them, in the order of the pages."""
    results = [result for answer in answers for result in answer.results]
    return [chunk.id for one in results for chunk in (*one.before, one.chunk, *one.after)]


def test_pages_have_each_result_once_in_the_order_of_one_ranking(kb: Client) -> None:
    for text in TEXTS:
        kb.note(text)
    whole = kb.search("granite", mode="fts", top=100, explain=True)
    answers = pages(kb, "granite", top=5, explain=True)
    assert [len(answer.results) for answer in answers] == [5, 5, 2]
    assert [result for answer in answers for result in answer.results] == whole.results
    for answer in answers:
        assert (answer.total, answer.weak, answer.mode) == (whole.total, whole.weak, whole.mode)
    assert kb.search("granite", mode="fts", top=5).next_cursor is UNSET


def test_the_next_page_is_of_the_same_ranking_whatever_happened_since(kb: Client) -> None:
    """New documents are on no page; removed or changed ones are left out; a page can be requested again."""
    for text in TEXTS:
        kb.note(text)
    body = {"mode": "fts", "pages": True, "top": 4}
    ranked = kb.search("granite", mode="fts", top=100).results
    first = kb.search("granite", **body)
    kb.note("granite " * 40)
    kb.call(ops.DELETE_DOCUMENT, ranked[5].document.id)
    kb.patched(ranked[6].document.id, text="basalt columns")
    second = kb.search("granite", cursor=first.next_cursor, **body)
    left = [result.chunk.id for result in ranked[4:] if result not in ranked[5:7]]
    assert chunks([first]) == [result.chunk.id for result in ranked[:4]]
    assert chunks([second]) == left[:4]
    assert chunks([kb.search("granite", cursor=second.next_cursor, **body)]) == left[4:8]
    assert chunks([kb.search("granite", cursor=first.next_cursor, **body)]) == left[:4]


@pytest.mark.parametrize("filters", [{"tags": ["draft"]}, {"tags_any": ["draft", "x"]}])
def test_what_no_longer_passes_the_filters_is_left_out(kb: Client, filters: dict[str, Any]) -> None:
    for text in TEXTS[:6]:
        kb.note(text, tags=["draft"])
    body = {"mode": "fts", "pages": True, "top": 2, **filters}
    ranked = kb.search("granite", mode="fts", top=100).results
    first = kb.search("granite", **body)
    kb.call(ops.REMOVE_TAG, ranked[3].document.id, "draft")
    second = kb.search("granite", cursor=first.next_cursor, **body)
    assert chunks([second]) == [ranked[place].chunk.id for place in (2, 4)]


def test_what_had_no_room_on_a_page_is_on_the_next(kb: Client) -> None:
    notes = {kb.note(f"Granite of quarry {number}: {'x' * 60}") for number in range(5)}
    answers = pages(kb, "granite", top=5, max_chars=200)
    assert len(answers) > 1
    assert [answer.omitted > 0 for answer in answers[:-1]] == [True] * (len(answers) - 1)
    documents = [result.document.id for answer in answers for result in answer.results]
    assert (len(documents), set(documents)) == (5, notes)


def test_what_had_no_room_beside_a_result_is_on_a_later_page(kb: Client) -> None:
    """A merged passage is found too, and a result that lost only its neighbours is not truncated."""
    kb.note("\n\n".join(f"Granite ledger {number} was copied by the archivist." for number in range(90)))
    texts = {
        result.chunk.id: result.chunk.text for result in kb.search("granite", mode="fts", top=100).results
    }
    assert len(texts) > 1
    answers = pages(kb, "granite", top=5, collapse=True, max_chars=max(map(len, texts.values())))
    assert sorted(chunks(answers)) == sorted(texts)
    for result in (result for answer in answers for result in answer.results):
        assert result.truncated == (result.chunk.text != texts[result.chunk.id])


def test_documents_share_pages_that_were_cut(kb: Client) -> None:
    """Results without room on a page are ranked with the rest, and no document fills a page."""
    for often in (1, 2, 3):
        stone = " ".join(often * ["granite"])
        kb.note("\n\n".join(f"{stone} {number} was cut in the quarry by the river." for number in range(90)))
    length = len(kb.search("granite", mode="fts", top=1).results[0].chunk.text)
    answers = pages(kb, "granite", top=3, collapse=True, per_document=1, max_chars=100 + length)
    assert any(answer.omitted for answer in answers)
    rows = [[result.document.id for result in answer.results] for answer in answers]
    for page, answer in enumerate(answers):
        scores = [result.score for result in answer.results]
        assert scores == sorted(scores, reverse=True)
        if len(set().union(*rows[page:])) == 3:
            assert len(set(rows[page])) == len(rows[page])


def test_pages_say_much_each(kb: Client) -> None:
    """Near duplicates are on no page, and the results of one document are limited on each."""
    report = (
        "The granite quarry by the frozen river was closed when the carts could no longer pass the bridge."
    )
    twins = {kb.note(report), kb.note(f"{report} So it is.")}
    kb.note("\n\n".join(f"Granite ledger {number} was copied by the archivist." for number in range(90)))
    others = [kb.note(text) for text in TEXTS[:3]]
    answers = pages(kb, "granite", top=3, collapse=True, per_document=2)
    given = [result.document.id for answer in answers for result in answer.results]
    assert len(twins & set(given)) == 1
    assert set(others) <= set(given)
    found = chunks(answers)
    assert len(found) == len(set(found))
    named = [each for answer in answers for one in answer.results for each in one.duplicates or ()]
    assert {each.document_id for each in named} == twins - set(given)


@pytest.mark.parametrize("change", [{"query": "quarry"}, {"top": 3}, {"tags": ["x"]}, {"collapse": True}])
def test_a_cursor_goes_with_its_own_request(kb: Client, change: dict[str, Any]) -> None:
    for text in TEXTS[:4]:
        kb.note(text)
    body: dict[str, Any] = {"query": "granite", "mode": "fts", "pages": True, "top": 2}
    cursor = kb.search(**body).next_cursor
    kb.refused("page_not_found", ops.SEARCH, json={**body, **change, "cursor": cursor})


@pytest.mark.parametrize("cursor", ["x", "AAAA", "kg", "_" * 10_000])
def test_what_was_no_answers_cursor_leads_to_no_page(kb: Client, cursor: str) -> None:
    kb.note(TEXTS[0])
    kb.refused("page_not_found", ops.SEARCH, json={"query": "granite", "pages": True, "cursor": cursor})


@pytest.mark.parametrize("cursor", ["", "ä", "a b", "../x", 5, ["x"]])
def test_what_is_no_cursor_is_refused(kb: Client, cursor: Any) -> None:
    kb.note(TEXTS[0])
    response = kb.request(ops.SEARCH, json={"query": "granite", "pages": True, "cursor": cursor})
    assert (problem(response, "invalid_parameter").parameter or "").startswith("cursor")
