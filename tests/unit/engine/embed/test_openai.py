"""The OpenAI embedder with a correct endpoint, its settings, and the parser of responses."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from email.utils import format_datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kb_config.settings import SettingsError
from kb_engine.embed.hashing import HashEmbedder
from kb_engine.embed.minilm import MiniLM
from kb_engine.embed.openai.answer import BadAnswer, vectors_of
from kb_engine.embed.openai.embedder import OpenAIEmbedder, cut, estimated_tokens
from kb_engine.embed.openai.openai_settings import OpenAISettings
from kb_engine.embed.own_model import QUESTIONS, scoring_for
from kb_engine.embed.protocol import EmbedderUnavailable
from kb_engine.embed.registry import embedder_from
from kb_engine.endpoint.client import MOST_RETRY_AFTER, seconds_of, words_of
from kb_engine.index.score import fused, words_at_floor
from kb_engine.settings import EngineSettings
from tests.support.certificates import self_signed
from tests.support.embedding_endpoint import MODEL, EmbeddingEndpoint, Json, always, asking, endpoint
from tests.support.patience import ANSWER_SECONDS


def test_vectors_come_from_the_endpoint(served: EmbeddingEndpoint) -> None:
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
    """Each has its own prefix; that of passages changes stored vectors, so it is part of the name."""
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
    """At loading and later: after a restart, another model may have the same name."""
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
    """The key and the texts are for the configured host only."""
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
    with asking(served) as embedder:
        embedder.load()
        del served.requests[:]
        served.fault = always(status, "cannot embed: a secret text", **headers)
        with pytest.raises(EmbedderUnavailable, match=words) as failed:
            embedder.embed(["a secret text"])
    assert (failed.value.retry_after, len(served.requests)) == (rest, 1)
    assert "secret" not in str(failed.value)


def test_the_error_message_of_the_endpoint_is_reported_at_loading(served: EmbeddingEndpoint) -> None:
    """At loading, for example: the message usually names an error of the settings."""
    served.fault = always(404, 'model "hashing" not found, try pulling it first')
    with asking(served) as embedder, pytest.raises(EmbedderUnavailable, match="try pulling it first"):
        embedder.load()


def shifted(by: float) -> Callable[[Sequence[str]], NDArray[np.float32]]:
    model = MiniLM()

    def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = model.embed(texts)
        vectors[:, 0] += by
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)

    return embed


@pytest.mark.process
def test_constants_of_the_score_are_measured(served: EmbeddingEndpoint) -> None:
    served.embed = shifted(0.0)
    with asking(served) as embedder:
        before = embedder.scoring
        embedder.load()
        same = embedder.scoring
    assert before == MiniLM.scoring
    assert (same.weight, same.saturation) == (
        pytest.approx(MiniLM.scoring.weight, abs=0.02),
        MiniLM.scoring.saturation,
    )
    assert same.cosine_floor == pytest.approx(MiniLM.scoring.cosine_floor, abs=0.02)
    assert same.floor == pytest.approx(MiniLM.scoring.floor, abs=0.02)
    served.embed = shifted(1.5)
    with asking(served) as embedder:
        embedder.load()
        high = embedder.scoring
        related, unrelated = (
            float(embedder.embed_query(question) @ embedder.embed(["Overwintering a honey bee colony"])[0])
            for question in ("How do I keep bees over the winter?", "How do I keep my car clean?")
        )
    assert related > high.cosine_floor > unrelated > same.cosine_floor
    assert high.weight > same.weight
    assert high.floor > same.floor


def test_constants_that_are_set_stand_over_those_measured(served: EmbeddingEndpoint) -> None:
    with asking(served, embedding_scoring="cosine_floor=0.7, w=0.6") as embedder:
        embedder.load()
        assert (embedder.scoring.cosine_floor, embedder.scoring.weight) == (0.7, 0.6)
        floor = fused(0.6, 0.7, words_at_floor(MiniLM.scoring))
        assert embedder.scoring.floor == pytest.approx(floor, abs=0.01)
    with asking(served, embedding_scoring="floor=0.2,k=1.5") as embedder:
        embedder.load()
        assert (embedder.scoring.floor, embedder.scoring.saturation) == (0.2, 1.5)


def test_a_model_that_tells_nothing_apart_keeps_the_constants_of_another() -> None:
    alike = np.ones((len(QUESTIONS), len(QUESTIONS)), np.float32)
    assert scoring_for(alike, {}) == MiniLM.scoring


ENDPOINT = {
    "KB_EMBEDDER": "openai",
    "KB_EMBEDDING_URL": "http://127.0.0.1:11434/v1",
    "KB_EMBEDDING_MODEL": "nomic-embed-text",
}


def test_an_endpoint_is_a_url_and_a_model() -> None:
    """The other settings have defaults; trailing spaces of a prefix are kept."""
    settings = EngineSettings.read({**ENDPOINT, "KB_EMBEDDING_QUERY_PREFIX": "search_query: "})
    assert settings.openai.embeddings_url == "http://127.0.0.1:11434/v1/embeddings"
    assert settings.openai.embedding_query_prefix == "search_query: "
    assert embedder_from(settings.embedder, settings).name == "openai:nomic-embed-text"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"KB_EMBEDDING_URL": ""}, "needs KB_EMBEDDING_URL, for example http://127.0.0.1:11434/v1"),
        ({"KB_EMBEDDING_MODEL": " "}, "needs KB_EMBEDDING_MODEL"),
        ({"KB_EMBEDDING_MODEL": "a\nb"}, "KB_EMBEDDING_MODEL"),
        ({"KB_EMBEDDING_URL": "127.0.0.1:11434"}, "KB_EMBEDDING_URL.*http"),
        ({"KB_EMBEDDING_URL": "file:///v1"}, "KB_EMBEDDING_URL.*http"),
        ({"KB_EMBEDDING_URL": "http://host:port/v1"}, "KB_EMBEDDING_URL"),
        ({"KB_EMBEDDING_URL": "http://[::1/v1"}, "KB_EMBEDDING_URL"),
        ({"KB_EMBEDDING_URL": "http://a host/v1"}, "KB_EMBEDDING_URL"),
        ({"KB_EMBEDDING_URL": "http://host/v1?x=1"}, "query"),
        ({"KB_EMBEDDING_URL": "http://host/v1#x"}, "fragment"),
        ({"KB_EMBEDDING_URL": "http://me:sk-secret@host/v1"}, "OPENAI_API_KEY"),
        ({"OPENAI_API_KEY": "sk-secret\nX-Other: 1"}, "OPENAI_API_KEY"),
        ({"OPENAI_API_KEY": "sk-secreté"}, "OPENAI_API_KEY"),
        ({"KB_EMBEDDING_DIMENSIONS": "-1"}, "KB_EMBEDDING_DIMENSIONS"),
        ({"KB_EMBEDDING_DIMENSIONS": "many"}, "KB_EMBEDDING_DIMENSIONS"),
        ({"KB_EMBEDDING_MAX_TOKENS": "10"}, "KB_EMBEDDING_MAX_TOKENS"),
        ({"KB_EMBEDDING_BATCH": "0"}, "KB_EMBEDDING_BATCH"),
        ({"KB_EMBEDDING_TIMEOUT": "0"}, "KB_EMBEDDING_TIMEOUT"),
        ({"KB_EMBEDDING_DOCUMENT_PREFIX": "x" * 201}, "KB_EMBEDDING_DOCUMENT_PREFIX"),
        ({"KB_EMBEDDING_SCORING": "0.7"}, "KB_EMBEDDING_SCORING.*cosine_floor"),
        ({"KB_EMBEDDING_SCORING": "w=two"}, "KB_EMBEDDING_SCORING.*number"),
        ({"KB_EMBEDDING_SCORING": "w=1.5"}, "KB_EMBEDDING_SCORING.*0 to 1"),
        ({"KB_EMBEDDING_SCORING": "w=nan"}, "KB_EMBEDDING_SCORING.*0 to 1"),
        ({"KB_EMBEDDING_SCORING": "k=0"}, "KB_EMBEDDING_SCORING.*above 0"),
        ({"KB_EMBEDDING_SCORING": "k=inf"}, "KB_EMBEDDING_SCORING.*above 0"),
        ({"KB_EMBEDDING_SCORING": "k=4"}, "KB_EMBEDDING_SCORING.*above 0 to 3"),
    ],
)
def test_an_invalid_endpoint_setting_is_refused_with_its_variable(
    changes: dict[str, str], words: str
) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        EngineSettings.read({**ENDPOINT, **changes})
    assert "\n" not in str(refused.value)
    assert "sk-secret" not in str(refused.value)


def test_without_its_name_an_endpoint_is_not_looked_at() -> None:
    """Incomplete settings, and a key in the environment for another program, do no harm."""
    settings = EngineSettings.read({"KB_EMBEDDING_URL": "half", "OPENAI_API_KEY": "sk-\n"})
    assert settings.embedder == "minilm"
    with pytest.raises(SettingsError, match="KB_EMBEDDING_URL"):
        embedder_from("openai")


@pytest.mark.parametrize(
    ("url", "key", "clear"),
    [
        ("http://vllm:8000/v1", "sk", True),
        ("http://vllm:8000/v1", "", False),
        ("https://vllm:8000/v1", "sk", False),
        ("http://127.0.0.1:8000/v1", "sk", False),
        ("http://[::1]:8000/v1", "sk", False),
        ("http://localhost/v1", "sk", False),
        ("http://127.example.org/v1", "sk", True),
    ],
)
def test_a_key_on_a_network_without_tls_is_noticed(url: str, key: str, clear: bool) -> None:
    """Loopback is not a network."""
    settings = OpenAISettings(embedding_url=url, embedding_model="m", embedding_key=key)
    assert any("encryption" in each for each in settings.warnings(chosen=True)) is clear


TEXTS = {
    "english": "Honey bees keep the brood nest at 35 degrees, and the queen lays up to 2,000 eggs a day. "
    * 8,
    "code": "def embed(self, texts: Sequence[str]) -> Vectors:\n    return self._ask(texts)[0]\n" * 8,
    "numbers": "0.7312, 44.9180, 1995-07-03, 17 % of 4,096; " * 15,
    "russian": "Все люди рождаются свободными и равными в своём достоинстве и правах. " * 8,
    "chinese": "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。" * 30,
    "korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. " * 10,
    "arabic": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. " * 10,
    "hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है। " * 8,
    "emoji": "👨‍👩‍👧‍👦🎉" * 30,
}


@pytest.fixture(scope="module")
def minilm() -> MiniLM:
    return MiniLM()


@pytest.mark.process
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_tokens_are_estimated_at_no_fewer_than_a_tokenizer_counts(text: str, minilm: MiniLM) -> None:
    """MiniLM's vocabulary is English: other scripts are split into letters and parts of letters."""
    assert estimated_tokens(text) >= minilm.count_tokens(text)


def test_a_chunk_of_english_fits_the_default_window() -> None:
    """Chunks of 1,100 characters fit 512 tokens."""
    assert estimated_tokens(TEXTS["english"][:1100]) <= OpenAISettings().embedding_max_tokens


@given(st.text(max_size=400), st.integers(3, 100))
def test_a_cut_text_is_a_beginning_within_the_window(text: str, most: int) -> None:
    """For any script; a single character is never cut."""
    kept = cut(text, most)
    assert text.startswith(kept)
    assert estimated_tokens(kept) <= most or len(kept) == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('[{"embedding": [NaN]}]', "no list of embeddings"),
        ('[{"embedding": [null]}]', "no list of embeddings"),
        ('[{"embedding": ["1"]}]', "no list of embeddings"),
        ('[{"embedding": [1e999]}]', "no list of embeddings|not finite"),
        ('[{"embedding": [0.0]}]', "zeros"),
        ('[{"embedding": [1.0], "index": 7}]', "index"),
        ("[]", "0 embeddings for 1 texts"),
        ("null", "no list of embeddings"),
        ('"all is well"', "no list of embeddings"),
    ],
)
def test_a_response_without_valid_vectors_is_a_bad_answer(data: str, words: str) -> None:
    with pytest.raises(BadAnswer, match=words):
        vectors_of(f'{{"data": {data}}}'.encode(), count=1, dimensions=0)


@pytest.mark.parametrize("indices", [(None, 1), (0, None), (0, 0), (1, 2), (-1, 0)])
def test_an_index_is_told_of_all_or_of_none(indices: tuple[int | None, ...]) -> None:
    """Otherwise the order of the vectors is unknown."""
    data = [{"embedding": [1.0], "index": index} for index in indices]
    with pytest.raises(BadAnswer, match="index"):
        vectors_of(json.dumps({"data": data}).encode(), count=2, dimensions=0)


@given(st.binary(max_size=300))
def test_any_bytes_are_vectors_or_a_bad_answer(body: bytes) -> None:
    """No other exception is raised."""
    with pytest.raises(BadAnswer):
        vectors_of(body, count=2, dimensions=0)
    assert isinstance(words_of(body, ""), str)


@given(
    st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
        min_size=1,
        max_size=4,
    )
)
def test_any_numbers_become_vectors_of_length_one_or_a_bad_answer(rows: list[list[float]]) -> None:
    body = json.dumps({"data": [{"embedding": row} for row in rows]}).encode()
    if not all(any(row) for row in rows):
        with pytest.raises(BadAnswer, match="zeros"):
            vectors_of(body, count=len(rows), dimensions=3)
        return
    vectors = vectors_of(body, count=len(rows), dimensions=3)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "a\\nb"}}', "a b"),
        (b'{"error": "plain"}', "plain"),
        (b'{"message": "m"}', "m"),
        (b'{"detail": "d"}', "d"),
        (b'{"detail": [{"input": "text"}]}', ""),
        (b'{"error": {"message": "key sk-1 is wrong"}}', "key *** is wrong"),
        (b'{"error": {"message": "\\u001b[2J"}}', "?[2J"),
        (b"<html>", ""),
    ],
)
def test_words_of_an_error_are_one_plain_line(body: bytes, words: str) -> None:
    assert words_of(body, "sk-1") == words
    assert len(words_of(json.dumps({"error": "x" * 9999}).encode(), "")) <= 200


@given(st.one_of(st.text(max_size=40), st.floats().map(str), st.datetimes().map(format_datetime)))
def test_any_retry_after_is_a_time_within_bounds_or_none(header: str) -> None:
    seconds = seconds_of(header)
    assert seconds is None or 0 <= seconds <= MOST_RETRY_AFTER


@pytest.mark.parametrize(
    "header", ["Wed, 21 Oct 99999 07:28:00 GMT", "Wed, 21 Oct 2015 07:28:00 +99999999", ""]
)
def test_a_date_that_is_none_is_passed_over(header: str) -> None:
    assert seconds_of(header) in {None, 0.0}


KEY = "sk-a-key-that-nobody-may-see"


def test_a_certificate_that_is_not_trusted_is_told(tmp_path: Path) -> None:
    with tls_server(tmp_path) as (port, seen):
        url = f"https://127.0.0.1:{port}/v1"
        settings = OpenAISettings(embedding_url=url, embedding_model=MODEL, embedding_key=KEY)
        with (
            closing(OpenAIEmbedder(settings)) as embedder,
            pytest.raises(EmbedderUnavailable, match="its certificate is not trusted"),
        ):
            embedder.load()
    assert KEY.encode() not in b"".join(seen)


@contextmanager
def tls_server(folder: Path) -> Iterator[tuple[int, list[bytes]]]:
    certificate = folder / "self-signed.pem"
    certificate.write_bytes(self_signed())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    seen: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                read(listener.accept()[0])

    def read(connection: socket.socket) -> None:
        with connection, suppress(OSError), context.wrap_socket(connection, server_side=True) as secure:
            seen.append(secure.recv(65536))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield listener.getsockname()[1], seen
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(ANSWER_SECONDS)
