"""Words are those of SQLite's tokenizer; text without spaces is cut into characters and pairs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_simulator.engine.index import content_words, words_of_query, words_of_text


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
    """Characters are words, and so is each pair of neighbours; a query asks for its pairs."""
    assert words_of_text("\u65e5\u672c\u8a9e") == [
        *"\u65e5\u672c\u8a9e",
        "\u65e5\u672c",
        "\u672c\u8a9e",
    ]
    assert words_of_query("\u65e5\u672c\u8a9e \u30c6") == ["\u65e5\u672c", "\u672c\u8a9e", "\u30c6"]


def test_a_query_asks_for_each_word_once() -> None:
    assert words_of_query("rivers and river AND river") == ["river", "and"]


def test_stop_words_have_no_say_in_meaning() -> None:
    """Unless there are no others."""
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
