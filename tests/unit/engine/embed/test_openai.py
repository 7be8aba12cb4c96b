"""The embedder behind an endpoint, against one on loopback that answers well, badly, late or not at all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kb_engine.embed.hashing import HashEmbedder
from kb_engine.embed.minilm import MiniLM
from kb_engine.embed.openai.embedder import OpenAIEmbedder, estimated_tokens
from kb_engine.embed.openai.settings import OpenAISettings
from kb_engine.embed.own_model import QUESTIONS, weights_for
from kb_engine.embed.protocol import EmbedderUnavailable
from tests.support.embedding_endpoint import (
    MODEL,
    EmbeddingEndpoint,
    Json,
    always,
    endpoint,
)

KEY = "sk-a-key-that-nobody-may-see"


@pytest.fixture
def served() -> Iterator[EmbeddingEndpoint]:
    """An endpoint with the vectors of hashing."""
    with endpoint() as serving:
        yield serving


@contextmanager
def asking(served: EmbeddingEndpoint, **settings: Any) -> Iterator[OpenAIEmbedder]:
    """An embedder that asks it."""
    chosen = {"embedding_url": served.url, "embedding_model": MODEL, "embedding_timeout": 5.0, **settings}
    with closing(OpenAIEmbedder(OpenAISettings(**chosen))) as embedder:
        yield embedder


def test_vectors_come_from_the_endpoint(served: EmbeddingEndpoint) -> None:
    """In the order of the texts, of length 1; the model and its dimensions are told and learned."""
    with asking(served) as embedder:
        assert (embedder.dimensions, embedder.loaded, served.requests) == (0, False, [])
        vectors = embedder.embed(["honey bees", "a hive", "honey bees"])
        assert (embedder.dimensions, embedder.loaded, embedder.name) == (256, True, "openai:hashing")
        assert np.allclose(vectors, HashEmbedder().embed(["honey bees", "a hive", "honey bees"]), atol=1e-6)
        assert np.allclose(embedder.embed_query("a hive"), vectors[1])
        assert embedder.embed([]).shape == (0, 256)
    assert {request["model"] for request in served.requests} == {MODEL}


@pytest.mark.parametrize("path", ["", "/", "/embeddings"])
def test_the_url_may_be_written_in_either_way(served: EmbeddingEndpoint, path: str) -> None:
    with asking(served, embedding_url=served.url + path) as embedder:
        embedder.load()


def test_answers_are_put_in_the_order_of_their_index(served: EmbeddingEndpoint) -> None:
    """Not in that of arrival; and a vector of any length is brought to 1."""

    def shuffled(answer: Json) -> Json:
        for item in answer["data"]:
            item["embedding"] = [17.0 * number for number in item["embedding"]]
        return {**answer, "data": answer["data"][::-1]}

    served.shape = shuffled
    with asking(served) as embedder:
        vectors = embedder.embed(["one", "two", "three"])
    assert np.allclose(vectors, HashEmbedder().embed(["one", "two", "three"]), atol=1e-6)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_requests_are_bounded_in_texts_and_characters(served: EmbeddingEndpoint) -> None:
    """By the setting, and at 100,000 characters; a text goes whole or not at all into one of them."""
    with asking(served, embedding_batch=3, embedding_max_tokens=1_000_000) as embedder:
        embedder.load()
        del served.requests[:]
        embedder.embed([f"text {number}" for number in range(7)])
        assert [len(request["input"]) for request in served.requests] == [3, 3, 1]
        del served.requests[:]
        vectors = embedder.embed(["x" * 60_000, "y" * 60_000, "z" * 150_000])
        assert [len(request["input"]) for request in served.requests] == [1, 1, 1]
        assert vectors.shape == (3, 256)


def test_prefixes_stand_before_passages_and_questions(served: EmbeddingEndpoint) -> None:
    """Each its own; that of passages changes their vectors, so it is part of the name."""
    settings = {"embedding_document_prefix": "passage: ", "embedding_query_prefix": "query: "}
    with asking(served, **settings) as embedder:
        embedder.load()
        del served.requests[:]
        embedder.embed(["bees"])
        embedder.embed_query("bees")
        assert served.texts() == ["passage: bees", "query: bees"]
        assert embedder.name == "openai:hashing with 'passage: '"
        assert embedder.count_tokens("bees") > estimated_tokens("bees")


def test_the_length_of_vectors_can_be_asked_for(served: EmbeddingEndpoint) -> None:
    """It is in the request; an endpoint that knows one length only is told with the setting's name."""
    with asking(served, embedding_dimensions=256) as embedder:
        embedder.load()
    assert {request["dimensions"] for request in served.requests} == {256}
    with (
        asking(served, embedding_dimensions=128) as embedder,
        pytest.raises(EmbedderUnavailable, match=r"256 dimensions where 128 .*KB_EMBEDDING_DIMENSIONS"),
    ):
        embedder.load()
    del served.requests[:]
    with asking(served) as embedder:
        embedder.load()
    assert not any("dimensions" in request for request in served.requests)


def test_vectors_of_another_length_than_the_base_holds_are_refused(served: EmbeddingEndpoint) -> None:
    """At loading and at any time later: the model behind a name may be another after a restart."""
    with asking(served) as embedder:
        embedder.expect(384)
        with pytest.raises(EmbedderUnavailable, match=r"256 dimensions where 384 .*kb reindex"):
            embedder.load()
    with asking(served) as embedder:
        embedder.load()
        served.embed = lambda texts: HashEmbedder().embed(texts)[:, :100]
        with pytest.raises(EmbedderUnavailable, match="100 dimensions where 256"):
            embedder.embed(["bees"])


def test_the_key_goes_into_the_header_alone(
    served: EmbeddingEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """Without one there is no header; a wrong one is told without showing it, also where it is echoed."""
    served.key = KEY
    with caplog.at_level(logging.DEBUG), asking(served, embedding_key=KEY) as embedder:
        embedder.embed(["bees"])
        served.fault = always(401, f"no such key: {KEY}")
        with pytest.raises(EmbedderUnavailable, match="OPENAI_API_KEY") as refused:
            embedder.embed(["bees"])
    assert KEY not in str(refused.value) + caplog.text
    with (
        asking(served, embedding_key="sk-another-one") as embedder,
        pytest.raises(EmbedderUnavailable, match=r"HTTP 401.*Incorrect API key") as refused,
    ):
        embedder.load()
    assert "sk-another-one" not in str(refused.value)
    served.key, served.fault = "", None
    with asking(served) as embedder:
        embedder.load()
    assert "Authorization" not in served.headers[-1]


def test_a_redirect_is_not_followed(served: EmbeddingEndpoint) -> None:
    """The key and the texts are for the host of the setting, and for no other."""
    with endpoint() as elsewhere:
        for status in (301, 302, 307, 308):
            served.fault = always(status, Location=f"{elsewhere.url}/embeddings")
            with (
                asking(served, embedding_key=KEY) as embedder,
                pytest.raises(EmbedderUnavailable, match=f"HTTP {status}: it redirects"),
            ):
                embedder.load()
        assert elsewhere.requests == []


@pytest.mark.parametrize(
    ("status", "headers", "words", "rest"),
    [
        (401, {}, "OPENAI_API_KEY", 5.0),
        (403, {}, "OPENAI_API_KEY", 5.0),
        (404, {}, "KB_EMBEDDING_MODEL", 5.0),
        (429, {}, "asked again", 5.0),
        (429, {"Retry-After": "7"}, "asked again", 7.0),
        (429, {"Retry-After": "86400"}, "asked again", 300.0),
        (429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, "asked again", 0.0),
        (429, {"Retry-After": "soon"}, "asked again", 5.0),
        (429, {"Retry-After": "nan"}, "asked again", 0.0),
        (500, {}, "asked again", 0.0),
        (503, {"Retry-After": "2"}, "asked again", 2.0),
    ],
)
def test_a_fault_says_what_to_do_and_when_to_ask_again(
    served: EmbeddingEndpoint, status: int, headers: dict[str, str], words: str, rest: float
) -> None:
    """One request was sent, and none of its text is quoted."""
    with asking(served) as embedder:
        embedder.load()
        del served.requests[:]
        served.fault = always(status, "cannot embed: a secret text", **headers)
        with pytest.raises(EmbedderUnavailable, match=words) as failed:
            embedder.embed(["a secret text"])
    assert (failed.value.retry_after, len(served.requests)) == (rest, 1)
    assert "secret" not in str(failed.value)


def test_what_the_endpoint_says_is_passed_on_about_our_own_texts(served: EmbeddingEndpoint) -> None:
    """As at loading: it mostly names what is wrong with the settings."""
    served.fault = always(404, 'model "hashing" not found, try pulling it first')
    with asking(served) as embedder, pytest.raises(EmbedderUnavailable, match="try pulling it first"):
        embedder.load()


def shifted(by: float) -> Callable[[Sequence[str]], NDArray[np.float32]]:
    """MiniLM's vectors, moved aside together: all of them near to one another, as those of some models."""
    model = MiniLM()

    def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = model.embed(texts)
        vectors[:, 0] += by
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)

    return embed


def test_constants_of_the_score_are_measured(served: EmbeddingEndpoint) -> None:
    """MiniLM behind an endpoint gets its own; a model whose cosines are all high gets higher floors."""
    served.embed = shifted(0.0)
    with asking(served) as embedder:
        before = embedder.weights
        embedder.load()
        same = embedder.weights
    assert before == MiniLM.weights
    assert (same.w, same.k) == (pytest.approx(0.5, abs=0.02), 4.0)
    assert same.cosine_floor == pytest.approx(0.3, abs=0.02)
    assert same.floor == pytest.approx(0.35, abs=0.02)
    served.embed = shifted(1.5)
    with asking(served) as embedder:
        embedder.load()
        high = embedder.weights
        related, unrelated = (
            float(embedder.embed_query(question) @ embedder.embed(["Overwintering a honey bee colony"])[0])
            for question in ("How do I keep bees over the winter?", "How do I keep my car clean?")
        )
    assert related > high.cosine_floor > unrelated > same.cosine_floor
    assert high.w > same.w
    assert high.floor > same.floor


def test_constants_that_are_set_stand_over_those_measured(served: EmbeddingEndpoint) -> None:
    """One by one; the floor of the score follows where it is not set itself."""
    with asking(served, embedding_scoring="cosine_floor=0.7, w=0.6") as embedder:
        embedder.load()
        assert (embedder.weights.cosine_floor, embedder.weights.w) == (0.7, 0.6)
        assert embedder.weights.floor == pytest.approx(0.6 * 0.7 + 0.4 * 0.4)
    with asking(served, embedding_scoring="floor=0.2,k=9") as embedder:
        embedder.load()
        assert (embedder.weights.floor, embedder.weights.k) == (0.2, 9.0)


def test_a_model_that_tells_nothing_apart_keeps_the_constants_of_another() -> None:
    alike = np.ones((len(QUESTIONS), len(QUESTIONS)), np.float32)
    assert weights_for(alike, {}) == MiniLM.weights
