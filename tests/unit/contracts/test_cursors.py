"""A cursor's content survives a round trip, and any other text is refused."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.cursors import Place, cursor_after, opened, places_after
from tests.support.contract_objects import chunk_with, response_with, result_with

REQUEST = m.SearchRequest(query="granite", pages=True)
ids = st.integers(1, m.MAX_INTEGER)
places = st.builds(
    Place, ids, st.floats(0, 1), st.none(), st.lists(st.tuples(ids, ids), max_size=2).map(list)
)


def cursor_of(content: Any) -> str:
    return urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def content_of(**changes: Any) -> list[Any]:
    cursor = cursor_after(REQUEST, response_with(total=7, mode="fts"), [[Place(1, 0.5)]])
    names = ("version", "request", "total", "exact", "mode", "weak", "reranked", "failure", "places")
    content = dict(zip(names, json.loads(urlsafe_b64decode(cursor + "==")), strict=True))
    return list((content | changes).values())


def with_cursor(cursor: str) -> m.SearchRequest:
    return m.SearchRequest(query="granite", pages=True, cursor=cursor)


@given(st.lists(places, max_size=20), st.booleans())
def test_the_rest_of_a_ranking_comes_back(rest: list[Place], exact: bool) -> None:
    total_exact = UNSET if exact else False
    before = response_with(
        total=7, mode="fts", total_exact=total_exact, reranked=False, rerank_failure="it was away"
    )
    after, found = opened(with_cursor(cursor_after(REQUEST, before, [[place] for place in rest])))
    assert found == rest
    assert (after.total, after.mode, after.weak, after.total_exact) == (7, "fts", False, total_exact)
    assert (after.reranked, after.rerank_failure) == (False, "it was away")


def test_merged_chunks_that_did_not_fit_begin_the_next_page() -> None:
    """The page has all of the first result, one chunk of the second, and nothing of the third."""
    chunk = chunk_with()
    alone = result_with(chunk)
    rows = [[Place(3 * row + place, 0.5) for place in (1, 2, 3)] for row in range(3)]
    page = [msgspec.structs.replace(alone, after=[chunk]), alone]
    assert places_after(rows, page) == [rows[1][1:], rows[2]]
    assert places_after(rows, []) == rows[1:]


def test_a_cursor_is_read_as_it_was_written() -> None:
    """This shows that the refusals below are due to the changes."""
    assert opened(with_cursor(cursor_of(content_of())))[1] == [Place(1, 0.5)]


@pytest.mark.parametrize(
    "content",
    [
        content_of(version=2),
        content_of(version=10**400),
        content_of(request="0" * 16),
        content_of(total=-1),
        content_of(mode="none"),
        content_of(places=[[0, 0.5]]),
        content_of(places=[[-1, 0.5]]),
        content_of(places=[[2**63, 0.5]]),
        content_of(places=[[1, 1.5]]),
        content_of(places=[[1, float("nan")]]),
        content_of(places=[[1, float("inf")]]),
        content_of(places=[[1, 0.5, None, [[1]]]]),
        content_of(places=[[1, 0.5]] * 5_000),
        content_of(places="x"),
        content_of()[:-1],
        {},
        None,
        [[[[[[]]]]]],
    ],
)
def test_a_cursor_that_was_tampered_with_is_refused(content: Any) -> None:
    with pytest.raises(EngineError) as refused:
        opened(with_cursor(cursor_of(content)))
    assert refused.value.code == "page_not_found"


@pytest.mark.parametrize(
    "raw", [b"", b"[" * 150_000, b"\xff" * 9, b"{" * 9, b'"' + b"a" * 190_000, b"1" * 190_000]
)
def test_no_bytes_are_trusted(raw: bytes) -> None:
    with pytest.raises(EngineError):
        opened(with_cursor(urlsafe_b64encode(raw).decode().rstrip("=")))


@given(st.text())
def test_no_text_makes_it_fail(cursor: str) -> None:
    with pytest.raises(EngineError):
        opened(with_cursor(cursor))
