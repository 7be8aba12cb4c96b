"""The engine's search beyond the API contract: its reranker, and its ranking settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from kb_engine.ranking_settings import RankingSettings
from kb_engine.rerank.rerank_settings import RerankSettings
from tests.contract.conftest import Start
from tests.support.engine_http import Caller, Json
from tests.support.loop_clock import advance_loop
from tests.support.rerank_endpoint import Fault, RerankEndpoint, answering, hanging, rerank_endpoint

GIVEN_UP_AFTER = 30
"""Time that the engine waits for its reranker, in seconds."""
TEXTS = ["granite and basalt", "a quarry by the river", "a lantern in the harbour office"]


@pytest.fixture
async def served() -> AsyncIterator[RerankEndpoint]:
    async with rerank_endpoint() as endpoint:
        yield endpoint


def texts_of(answer: Json) -> list[str]:
    return [result["chunk"]["text"] for result in answer["results"]]


async def filled(start: Start, served: RerankEndpoint, **rerank: Any) -> Caller:
    """Start an engine with this reranker and three notes."""
    kb = await start(parts=(RerankSettings(**{"url": served.url, **rerank}),))
    for text in TEXTS:
        await kb.note(text)
    return kb


async def test_a_reranker_has_the_last_word(start: Start, served: RerankEndpoint) -> None:
    """The answer has its scores, from 0 to 1; the set of hits does not change."""
    served.relevance = lambda _query, text: {TEXTS[0]: 0.1, TEXTS[1]: 0.25, TEXTS[2]: 0.875}[text]
    kb = await filled(start, served)
    first = await kb.search("granite", rerank=False)
    answer = await kb.search("granite", explain=True)
    assert (answer["reranked"], "rerank_failure" in answer) == (True, False)
    assert texts_of(answer) == TEXTS[::-1]
    assert [result["score"] for result in answer["results"]] == [0.875, 0.25, 0.1]
    assert [result["explain"]["relevance"] for result in answer["results"]] == [0.875, 0.25, 0.1]
    assert (answer["total"], answer["weak"]) == (first["total"], first["weak"])
    assert "reranked" not in first
    assert texts_of(first)[0] == TEXTS[0]
    assert [asked["query"] for asked in served.requests] == ["granite"]


async def test_it_looks_at_more_than_is_answered(start: Start, served: RerankEndpoint) -> None:
    served.relevance = lambda _query, text: 1.0 if "harbour" in text else 0.0
    kb = await filled(start, served, candidates=3)
    answer = await kb.search("granite", top=1, neighbors=1)
    assert texts_of(answer) == TEXTS[2:]
    assert sorted(served.texts()) == sorted(TEXTS)
    await kb.search("granite", top=100, mode="fts")
    assert len(served.requests[-1]["texts"]) == 1


async def test_a_final_score_is_made_of_what_the_reranker_gave(start: Start, served: RerankEndpoint) -> None:
    served.relevance = lambda _query, text: 0.6 if "harbour" in text else 0.2
    kb = await filled(start, served)
    ranking = {"ranking_weights": {"semantic": 0.5, "recency": 0.5}}
    answer = await kb.search("granite", ranking=ranking, explain=True)
    best = answer["results"][0]
    assert (best["score"], best["explain"]["ranking"]["semantic"]) == (0.8, 0.6)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (hanging, "did not answer within 30 s"),
        (answering(b"no", 503), "HTTP 503"),
        (answering(b"[]"), "0 scores for 3 passages"),
        (answering(b"", 307, {"Location": "http://127.0.0.1:1/rerank"}), "redirects"),
    ],
)
async def test_a_search_is_answered_in_its_first_order_where_the_reranker_fails(
    start: Start, served: RerankEndpoint, fault: Fault, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = advance_loop(monkeypatch)
    kb = await filled(start, served, timeout=GIVEN_UP_AFTER)
    first = await kb.search("granite", rerank=False)

    async def failing(request: web.Request) -> web.StreamResponse:
        if fault is hanging:
            advance(GIVEN_UP_AFTER)
        return await fault(request)

    served.fault = failing
    answer = await kb.search("granite")
    assert answer["reranked"] is False
    assert why in answer["rerank_failure"]
    assert "127.0.0.1" not in answer["rerank_failure"]
    assert answer["results"] == first["results"]


async def test_an_engine_can_rank_every_search(start: Start) -> None:
    """With the weights of the kind of query; a request overrides them."""
    settings = RankingSettings(always=True, weights="semantic=0.5,reputation=0.5", weights_exact="semantic=1")
    kb = await start(ranking=settings)
    await kb.note("granite quarry report_1")
    reputed = await kb.note("granite beside other words", metadata={"source_type": "confluence"})
    kinds = {}
    for query in ("granite quarry", "granite report_1"):
        answer = await kb.search(query, explain=True)
        parts = answer["results"][0]["explain"]["ranking"]
        kinds[parts["kind"]] = (parts["weights"], answer["results"][0]["document"]["id"] == reputed)
    assert kinds == {
        "keywords": ({"semantic": 0.5, "reputation": 0.5}, True),
        "exact": ({"semantic": 1.0}, False),
    }
    plain = await kb.search("granite quarry", ranking={"ranking_weights": {"semantic": 1.0}})
    assert plain["results"][0]["document"]["id"] != reputed
    vector = await kb.http.post("/vector/search", json={"query": "granite quarry"})
    assert vector.json()["results"][0]["metadata"]["source_type"] == "confluence"


async def test_neighbors_come_with_what_has_risen(start: Start) -> None:
    """They are read after the order is final."""
    kb = await start()
    words = " ".join(f"granite{number}" for number in range(2_000))
    await kb.note(words, metadata={"source_type": "confluence"})
    answer = await kb.search("granite5 granite6", top=1, neighbors=1, ranking={})
    (result,) = answer["results"]
    index = result["chunk"]["index"]
    beside = [chunk["index"] for chunk in (*result["before"], *result["after"])]
    assert beside == [place for place in (index - 1, index + 1) if place >= 0][: len(beside)]
    assert beside
