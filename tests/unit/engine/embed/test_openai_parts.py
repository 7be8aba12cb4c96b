"""Parts of the embedder behind an endpoint: what is made of its answers, and of texts before they go."""

from __future__ import annotations

import json
from email.utils import format_datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_engine.embed.minilm import MiniLM
from kb_engine.embed.openai.embedder import cut, estimated_tokens
from kb_engine.embed.openai.endpoint import MOST_RETRY_AFTER, BadAnswer, seconds_of, vectors_of, words_of
from kb_engine.embed.openai.settings import OpenAISettings

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


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_tokens_are_estimated_at_no_fewer_than_a_tokenizer_counts(text: str) -> None:
    """That of MiniLM, whose vocabulary is English: other scripts fall into letters and parts of letters."""
    assert estimated_tokens(text) >= MiniLM().count_tokens(text)


def test_a_chunk_of_english_fits_the_default_window() -> None:
    """Chunks of 1,100 characters stay whole at 512 tokens."""
    assert estimated_tokens(TEXTS["english"][:1100]) <= OpenAISettings().embedding_max_tokens


@given(st.text(max_size=400), st.integers(3, 100))
def test_a_cut_text_is_a_beginning_within_the_window(text: str, most: int) -> None:
    """Of any script; a single sign is never cut."""
    kept = cut(text, most)
    assert text.startswith(kept)
    assert estimated_tokens(kept) <= most or len(kept) == 1


@pytest.mark.parametrize("indices", [(None, 1), (0, None), (0, 0), (1, 2), (-1, 0)])
def test_an_index_is_told_of_all_or_of_none(indices: tuple[int | None, ...]) -> None:
    """Otherwise nobody knows whose vector is whose."""
    data = [{"embedding": [1.0], "index": index} for index in indices]
    with pytest.raises(BadAnswer, match="index"):
        vectors_of(json.dumps({"data": data}).encode(), count=2, dimensions=0)


@given(st.binary(max_size=300))
def test_any_bytes_are_vectors_or_a_bad_answer(body: bytes) -> None:
    """Nothing else is raised."""
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
    """It fails nothing."""
    assert seconds_of(header) in {None, 0.0}
