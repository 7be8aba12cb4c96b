"""The OpenAI embedder with an endpoint that answers wrongly, late, too much or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from numpy.typing import NDArray

from kb_engine.embed.hashing import HashEmbedder
from kb_engine.embed.openai.embedder import estimated_tokens
from kb_engine.embed.protocol import EmbedderUnavailable, TextRefused
from tests.support.embedding_endpoint import (
    EmbeddingEndpoint,
    Fault,
    Json,
    always,
    asking,
    containing,
    hanging,
    longer_than,
    told,
)
from tests.support.loop_clock import advance_new_loops
from tests.support.patience import ANSWER_SECONDS


def test_an_answer_that_is_no_vectors_is_told(served: EmbeddingEndpoint) -> None:
    with asking(served) as embedder:
        embedder.load()
        served.shape = lambda answer: {**answer, "data": answer["data"] * 2}
        with pytest.raises(EmbedderUnavailable, match="2 embeddings for 1 texts"):
            embedder.embed(["honey", "bees"])
        served.shape = lambda answer: answer
        assert len(embedder.embed(["honey", "bees"])) == 2


def answering(body: bytes, **headers: str) -> Fault:
    async def fault(_request: web.Request, _asked: Json) -> web.StreamResponse:
        return web.Response(body=body, headers=headers)

    return fault


half = answering(b'{"data":[{"embedding":[0.1,')


async def truncated(request: web.Request, _asked: Json) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"data":[{"embedding":[0.1')
    assert request.transport is not None
    request.transport.close()
    return response


async def endless(request: web.Request, _asked: Json) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b'{"data":[{"embedding":[')
    while True:
        await response.write(b"0.1," * 16_384)


def raw(answer: bytes) -> Fault:
    async def fault(request: web.Request, _asked: Json) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(answer)
        request.transport.close()
        return web.Response()

    return fault


cut_off = raw(b"")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n"), "broke off|no HTTP"),
        (raw(HEAD + b"Content-Length: -1\r\n\r\n{}"), "no HTTP"),
        (raw(HEAD + b"Content-Length: two\r\n\r\n{}"), "no HTTP"),
        (raw(HEAD + b"X: \x00\r\n\r\n"), "no HTTP"),
        (raw(HEAD + b"X: " + b"x" * 100_000 + b"\r\n\r\n"), "no HTTP"),
        (raw(b"HTTP/1.1 999 \xff\r\n\r\n"), "HTTP"),
        (raw(HEAD[:20]), "closed the connection"),
        (answering(b"\xff\xfe<html>"), "no list of embeddings"),
        (answering(b'{"data":' + b"[" * 100_000), "no list of embeddings"),
        (answering(b'{"object":"list","model":"hashing"}'), "no list of embeddings"),
        (truncated, "broke off in the middle"),
        (half, "no list of embeddings"),
        (endless, "more than .* bytes"),
        (answering(b"\x1f\x8b", **{"Content-Encoding": "gzip"}), "compression"),
        (cut_off, "closed the connection"),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "no HTTP"),
    ],
)
def test_an_endpoint_that_breaks_is_told_and_asked_again(
    served: EmbeddingEndpoint, fault: Any, words: str
) -> None:
    with asking(served) as embedder:
        embedder.load()
        served.fault = fault
        with pytest.raises(EmbedderUnavailable, match=words):
            embedder.embed(["bees"])
        served.fault = None
        assert len(embedder.embed(["bees"])) == 1


async def dripping(request: web.Request, _asked: Json) -> web.StreamResponse:
    """Send single bytes without end, so that the connection is never silent for long."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0)


@pytest.mark.parametrize("fault", [hanging, dripping])
def test_an_endpoint_that_hangs_is_given_up_in_time(
    served: EmbeddingEndpoint, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The total time counts, even if bytes arrive; queries are then refused for a while."""
    advance = advance_new_loops(monkeypatch)

    async def late(request: web.Request, asked: Json) -> web.StreamResponse:
        advance(ANSWER_SECONDS)
        response: web.StreamResponse = await fault(request, asked)
        return response

    with asking(served) as embedder:
        embedder.load()
        served.fault = late
        with pytest.raises(EmbedderUnavailable, match=r"within \d+ s") as failed:
            embedder.embed(["bees"])
        assert failed.value.retry_after == 0
        with pytest.raises(EmbedderUnavailable, match=r"within \d+ s") as failed:
            embedder.embed_query("bees")
        assert failed.value.retry_after > 0


def test_an_endpoint_that_is_not_there_is_told(served: EmbeddingEndpoint) -> None:
    served.stop()
    with asking(served) as embedder:
        with pytest.raises(EmbedderUnavailable, match="cannot be reached") as failed:
            embedder.load()
        assert failed.value.retry_after > 0
        served.start()
        embedder.load()
        served.stop()
        served.start()
        assert len(embedder.embed(["bees"])) == 1


def test_closing_ends_what_hangs(served: EmbeddingEndpoint) -> None:
    entered = threading.Event()

    async def held(request: web.Request, asked: Json) -> web.StreamResponse:
        entered.set()
        return await hanging(request, asked)

    with asking(served, embedding_timeout=ANSWER_SECONDS) as embedder, ThreadPoolExecutor(1) as pool:
        embedder.load()
        served.fault = held
        asked = pool.submit(embedder.embed, ["bees"])
        assert entered.wait(ANSWER_SECONDS)
        embedder.close()
        with pytest.raises(EmbedderUnavailable, match="stopping"):
            asked.result(ANSWER_SECONDS)
        with pytest.raises(EmbedderUnavailable, match="stopping"):
            embedder.embed(["bees"])
        embedder.close()


def test_threads_may_share_it(served: EmbeddingEndpoint) -> None:
    texts = [f"text number {number}" for number in range(40)]
    with asking(served) as embedder, ThreadPoolExecutor(8) as pool:
        vectors = list(pool.map(embedder.embed_query, texts))
    assert np.allclose(np.array(vectors), HashEmbedder().embed(texts), atol=1e-6)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "no"),
        (413, "no"),
        (422, "no"),
        (500, "input is too large"),
        (500, "json: unsupported value: NaN"),
    ],
)
def test_a_text_that_is_too_long_is_embedded_by_its_beginning(
    served: EmbeddingEndpoint, caplog: pytest.LogCaptureFixture, status: int, words: str
) -> None:
    """Some models truncate by themselves; here the batch's other texts stay whole, with a log warning."""
    with asking(served) as embedder:
        embedder.load()
        served.fault = longer_than(300, status, words)
        long = "".join(chr(97 + number % 26) for number in range(1000))
        vectors = embedder.embed(["bees", long, "hive"])
    expected = HashEmbedder().embed(["bees", long[:250], "hive"])
    assert np.allclose(vectors, expected, atol=1e-6)
    assert "KB_EMBEDDING_MAX_TOKENS" in caplog.text
    assert long[:20] not in caplog.text


def test_a_text_that_the_model_makes_nothing_of_is_embedded_by_its_beginning(
    served: EmbeddingEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """This happens if a number overflows in the model; the other texts stay whole."""
    whole = HashEmbedder().embed

    def overflowing(texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = whole(texts)
        vectors[["overflow" in text for text in texts]] = 0.0
        return vectors

    text = "honey bees " * 20 + "overflow"
    with asking(served) as embedder:
        embedder.load()
        served.embed = overflowing
        assert np.allclose(embedder.embed(["bees", text]), whole(["bees", text[: len(text) // 2]]), atol=1e-6)
        with pytest.raises(TextRefused, match="zeros"):
            embedder.embed(["bees", "overflow"])
    assert "only in part" in caplog.text


@pytest.mark.parametrize("fault", [half, cut_off])
def test_a_text_is_not_cut_for_a_fault_that_passes(served: EmbeddingEndpoint, fault: Any) -> None:
    """A pooled connection that the endpoint has closed meanwhile is not an error."""
    turns = iter([True])

    async def once(request: web.Request, asked: Json) -> web.StreamResponse | None:
        return await fault(request, asked) if next(turns, False) else None

    text = "honey bees " * 20
    with asking(served) as embedder:
        embedder.load()
        served.fault = once
        assert np.allclose(embedder.embed_query(text), HashEmbedder().embed([text])[0], atol=1e-6)


def test_a_text_that_is_refused_in_any_length_is_told_apart(served: EmbeddingEndpoint) -> None:
    with asking(served) as embedder:
        embedder.load()
        served.fault = containing("poison", 400)
        with pytest.raises(TextRefused, match="answers HTTP 400 for one text") as refused:
            embedder.embed(["bees", "poison " * 100])
        served.fault = always(400, "the model does not embed")
        with pytest.raises(EmbedderUnavailable, match="does not embed"):
            embedder.embed(["bees", "poison " * 100])
    assert "poison" not in str(refused.value)


def test_texts_are_cut_to_the_window_before_they_are_sent(served: EmbeddingEndpoint) -> None:
    with asking(served, embedding_max_tokens=64, embedding_document_prefix="p: ") as embedder:
        embedder.load()
        del served.requests[:]
        embedder.embed(["word " * 1000, "天" * 500, " ", ""])
        sent = served.texts()
    assert all(estimated_tokens(text) <= 64 for text in sent)
    assert min(len(sent[0]), 8 * len(sent[1])) > 100
    assert sent[2:] == ["p: .", "p: ."]


def test_a_batch_that_takes_too_long_is_asked_for_in_smaller_parts(
    served: EmbeddingEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, advance = 2, advance_new_loops(monkeypatch)

    async def slow(request: web.Request, asked: Json) -> web.StreamResponse | None:
        if len(asked["input"]) <= most:
            return None
        advance(ANSWER_SECONDS)
        return await hanging(request, asked)

    texts = [f"text {number}" for number in range(16)]
    with asking(served, embedding_batch=16) as embedder:
        embedder.load()
        served.fault = slow
        for _ in range(2):
            with pytest.raises(EmbedderUnavailable, match=f"within {ANSWER_SECONDS:g} s"):
                embedder.embed(texts)
        assert np.allclose(embedder.embed(texts), HashEmbedder().embed(texts), atol=1e-6)
        most = 16
        del served.requests[:]
        for _ in range(4):
            embedder.embed(texts)
    assert len(served.requests[-1]["input"]) == 16


@pytest.mark.parametrize("status", [413, 422])
def test_an_endpoint_that_takes_few_texts_at_once_is_given_few(
    served: EmbeddingEndpoint, status: int
) -> None:
    async def few(_request: web.Request, asked: Json) -> web.StreamResponse | None:
        return told(status, "batch size 16 > maximum 4") if len(asked["input"]) > 4 else None

    texts = [f"text {number}" for number in range(16)]
    served.fault = few
    with asking(served, embedding_batch=16) as embedder:
        assert np.allclose(embedder.embed(texts), HashEmbedder().embed(texts), atol=1e-6)
