"""The reranker with an endpoint: its requests, responses, and missing responses."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from kb_engine.api.reranking import RerankFailed
from kb_engine.rerank.endpoint import REST_SECONDS, BadAnswer, EndpointReranker, relevances
from kb_engine.rerank.rerank_settings import RerankSettings
from tests.support.eventually import eventually_async
from tests.support.loop_clock import advance_loop
from tests.support.rerank_endpoint import Fault, RerankEndpoint, answering, cutting_off, hanging

KEY = "a-key-that-nobody-may-see"
TEXTS = ["a copper lantern", "granite", "the granite quarry"]
MODELS: dict[str, dict[str, Any]] = {
    "tei": {},
    "jina": {"model": "jina-reranker-v2"},
    "cohere": {"model": "rerank-v3.5"},
}


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def asking(
    served: RerankEndpoint, *, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[EndpointReranker]:
    reranker = EndpointReranker(
        RerankSettings(**{"url": served.url, "timeout": 60.0, **settings}), clock=clock or Clock()
    )
    try:
        yield reranker
    finally:
        await reranker.close()


@pytest.mark.parametrize("api", MODELS)
async def test_texts_are_scored_in_their_order(served: RerankEndpoint, api: str) -> None:
    async with asking(served, api=api, **MODELS[api]) as reranker:
        assert await reranker.scores("granite quarry", TEXTS) == [0.0, 0.5, 1.0]


async def test_each_api_is_asked_in_its_own_form(served: RerankEndpoint) -> None:
    for api, model in MODELS.items():
        async with asking(served, api=api, **model) as reranker:
            await reranker.scores("granite", TEXTS)
    tei, jina, cohere = served.requests
    assert tei == {"query": "granite", "texts": TEXTS, "truncate": True, "raw_scores": False}
    common = {"query": "granite", "documents": TEXTS, "top_n": 3}
    assert jina == {**common, "model": "jina-reranker-v2", "return_documents": False}
    assert cohere == {**common, "model": "rerank-v3.5"}


@pytest.mark.parametrize("api", MODELS)
async def test_many_texts_are_sent_in_batches(served: RerankEndpoint, api: str) -> None:
    texts = [f"granite {number} {'quarry' if number % 3 == 0 else ''}" for number in range(10)]
    async with asking(served, api=api, batch=4, **MODELS[api]) as reranker:
        scores = await reranker.scores("granite quarry", texts)
    assert scores == [1.0 if number % 3 == 0 else 0.5 for number in range(10)]
    assert sorted(served.texts()) == sorted(texts)
    assert sorted(len(each.get("texts") or each["documents"]) for each in served.requests) == [2, 4, 4]


async def test_reranking_no_texts_sends_no_request(served: RerankEndpoint) -> None:
    async with asking(served) as reranker:
        assert await reranker.scores("granite", []) == []
    assert served.requests == []


async def test_the_key_goes_into_a_header_and_nowhere_else(
    served: RerankEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    served.key = KEY
    async with asking(served, key=KEY) as reranker:
        assert await reranker.scores("granite", ["granite"]) == [1.0]
    assert KEY not in json.dumps(served.requests)
    async with asking(served, key=f"not {KEY}") as reranker:
        with pytest.raises(RerankFailed, match="HTTP 401; set KB_RERANK_KEY"):
            await reranker.scores("granite", ["granite"])
    assert KEY not in caplog.text
    assert all(KEY not in str(vars(record)) for record in caplog.records)


async def test_logits_become_relevances(served: RerankEndpoint) -> None:
    served.relevance = lambda _query, text: {"low": -800.0, "middle": 0.0, "high": 800.0}[text]
    async with asking(served, logits=True) as reranker:
        assert await reranker.scores("x", ["high", "low", "middle"]) == [1.0, 0.0, 0.5]
    assert served.requests[0]["raw_scores"] is True
    async with asking(served) as reranker:
        with pytest.raises(RerankFailed, match="KB_RERANK_LOGITS"):
            await reranker.scores("x", ["high"])


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (answering(b"<html>"), "no list of scores"),
        (answering(b"\xff\xfe"), "no list of scores"),
        (answering(b"[" * 100_000), "no list of scores"),
        (answering(b'{"results": []}'), "no list of scores"),
        (answering(b'[{"index": 0, "score": NaN}]'), "no list of scores"),
        (answering(b'[{"index": 0, "score": null}]'), "no list of scores"),
        (answering(b'[{"index": "0", "score": 1}]'), "no list of scores"),
        (answering(b'[{"index": 0, "score": 1e999}]'), "no list of scores|not finite"),
        (answering(b"[]"), "0 scores for 1 passages"),
        (answering(b'[{"index": 0, "score": 1}, {"index": 1, "score": 1}]'), "2 scores for 1 passages"),
        (answering(b'[{"index": 0, "score": 1}, {"index": 0, "score": 0}]'), "2 scores for 1 passages"),
        (answering(b'[{"index": 1, "score": 1}]'), "index is missing or comes twice"),
        (answering(b'[{"index": -1, "score": 1}]'), "index is missing or comes twice"),
        (answering(b'[{"index": 0, "score": 1.5}]'), "not from 0 to 1"),
        (answering(b'[{"index": 0, "score": -0.5}]'), "not from 0 to 1"),
        (answering(b"no", 500), "HTTP 500"),
        (answering(b"no", 404), "HTTP 404; check KB_RERANK_URL"),
        (answering(b"no", 413), "lower KB_RERANK_BATCH"),
        (answering(b"", 302, {"Location": "http://169.254.169.254/"}), "redirects"),
        (answering(b"", 204), "HTTP 204"),
        (answering(b" " * (1 << 21)), "more than 1048576 bytes"),
        (cutting_off, "closed the connection"),
    ],
)
async def test_an_invalid_response_of_the_reranker_fails_with_a_reason(
    served: RerankEndpoint, fault: Fault, words: str
) -> None:
    """The message has no address, and the next request is sent again."""
    clock = Clock()
    async with asking(served, clock=clock) as reranker:
        served.fault = fault
        with pytest.raises(RerankFailed, match=words) as failed:
            await reranker.scores("granite", ["granite"])
        assert "127.0.0.1" not in str(failed.value)
        served.fault = None
        clock.now += 60
        assert await reranker.scores("granite", ["granite"]) == [1.0]


async def test_one_that_hangs_is_given_up_in_time_and_left_alone(
    served: RerankEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next searches do not wait."""
    clock, advance = Clock(), advance_loop(monkeypatch)

    async def late(request: web.Request) -> web.StreamResponse:
        advance(60)
        return await hanging(request)

    async with asking(served, clock=clock, batch=1) as reranker:
        served.fault = late
        with pytest.raises(RerankFailed, match=r"did not answer within 60 s"):
            await reranker.scores("granite", TEXTS)
        asked = len(served.requests)
        clock.now += REST_SECONDS - 1
        with pytest.raises(RerankFailed, match="asked again in 1 s"):
            await reranker.scores("granite", TEXTS)
        assert len(served.requests) == asked
        served.fault = None
        clock.now += 1
        assert len(await reranker.scores("granite", TEXTS)) == 3


async def test_one_batch_that_fails_fails_all(served: RerankEndpoint) -> None:
    served.shape = lambda scores: scores if len(scores) == 2 else []
    async with asking(served, batch=2) as reranker:
        with pytest.raises(RerankFailed, match="0 scores for 1 passages"):
            await reranker.scores("granite", TEXTS)


async def test_it_rests_as_long_as_it_asks_for_but_no_longer_than_a_minute(served: RerankEndpoint) -> None:
    clock = Clock()
    served.fault = answering(b"", 429, {"Retry-After": "3600"})
    async with asking(served, clock=clock) as reranker:
        with pytest.raises(RerankFailed, match="HTTP 429"):
            await reranker.scores("granite", TEXTS)
        with pytest.raises(RerankFailed, match="asked again in 60 s"):
            await reranker.scores("granite", TEXTS)


async def test_texts_that_are_refused_do_not_keep_others_away(served: RerankEndpoint) -> None:
    served.fault = answering(b"too long: granite", 422)
    async with asking(served) as reranker:
        for _ in range(2):
            with pytest.raises(RerankFailed, match="refuses these passages") as failed:
                await reranker.scores("granite", TEXTS)
            assert "granite" not in str(failed.value)
    assert len(served.requests) == 2


async def test_one_that_is_not_there_fails_at_once() -> None:
    async with asking(RerankEndpoint("http://127.0.0.1:1/rerank")) as reranker:
        with pytest.raises(RerankFailed, match="cannot be reached"):
            await reranker.scores("granite", TEXTS)


async def test_why_it_failed_stands_in_the_log(
    served: RerankEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the address, but neither query nor texts."""
    served.fault = answering(b"granite", 500)
    with caplog.at_level(logging.WARNING, "kb_engine.rerank"):
        async with asking(served) as reranker:
            with pytest.raises(RerankFailed):
                await reranker.scores("granite", TEXTS)
    (record,) = caplog.records
    assert (vars(record)["url"], vars(record)["why"]) == (served.url, "answers HTTP 500")
    assert "granite" not in str(vars(record))


async def test_a_caller_that_goes_away_ends_the_call(served: RerankEndpoint) -> None:
    served.fault = hanging
    async with asking(served) as reranker:
        call = asyncio.create_task(reranker.scores("granite", TEXTS))
        await eventually_async(lambda: served.requests, what="the request")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


def test_scores_belong_to_their_indexes() -> None:
    body = b'[{"index": 2, "score": 0.1}, {"index": 0, "score": 0.9}, {"index": 1, "score": 0.5, "text": ""}]'
    assert relevances(body, api="tei", count=3, logits=False) == [0.9, 0.5, 0.1]
    with pytest.raises(BadAnswer):
        relevances(body, api="jina", count=3, logits=False)
