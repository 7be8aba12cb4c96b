"""Words are cut and stemmed as FTS5's `porter unicode61 remove_diacritics 2` does it, held against it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb_simulator.engine.stemming import stem
from kb_simulator.engine.words import telling, words_of_query, words_of_text

ENDINGS = (
    "ational", "tional", "enci", "anci", "izer", "logi", "bli", "alli", "entli", "eli", "ousli", "ization",
    "ation", "ator", "alism", "iveness", "fulness", "ousness", "aliti", "iviti", "biliti", "icate", "ative",
    "alize", "iciti", "ical", "ful", "ness", "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement",
    "ment", "ent", "ion", "sion", "tion", "ou", "ism", "ate", "iti", "ous", "ive", "ize", "ed", "ing", "eed",
    "s", "es", "ies", "sses", "y", "e", "ll",
)  # fmt: skip
ENGLISH = st.builds(
    "".join,
    st.tuples(
        st.text("aeiouybcdlstxwz", max_size=5), st.sampled_from(ENDINGS), st.sampled_from(["", *ENDINGS])
    ),
)


class Fts5:
    """SQLite's tokenizer, asked through a table of its vocabulary."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:")
        self._db.execute(
            "CREATE VIRTUAL TABLE t USING fts5 (x, tokenize = 'porter unicode61 remove_diacritics 2')"
        )
        self._db.execute("CREATE VIRTUAL TABLE v USING fts5vocab (t, 'instance')")

    def words(self, text: str) -> list[str]:
        """The tokens of a text, in order."""
        self._db.execute("DELETE FROM t")
        self._db.execute("INSERT INTO t (x) VALUES (?)", (text,))
        return [term for (term,) in self._db.execute("SELECT term FROM v ORDER BY offset")]

    def close(self) -> None:
        """Let go of the base."""
        self._db.close()


@pytest.fixture(scope="module")
def fts5() -> Iterator[Fts5]:
    """A tokenizer to compare with."""
    tokenizer = Fts5()
    yield tokenizer
    tokenizer.close()


@settings(max_examples=600)
@given(word=ENGLISH)
def test_stems_are_those_of_fts5(fts5: Fts5, word: str) -> None:
    assert words_of_text(word) == fts5.words(word)


@settings(max_examples=200)
@given(text=st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=60))
def test_ascii_text_is_cut_as_fts5_cuts_it(fts5: Fts5, text: str) -> None:
    """Letters and digits are words, all else parts them."""
    assert words_of_text(text) == fts5.words(text)


@pytest.mark.parametrize(
    "text",
    [
        "Ångström naïve café",
        "Ελληνικά",
        "straße gegangen",
        "İstanbul",
        "a_b-c",
        "x² ½ Ⅷ",
        "e\u0301te",
        "ñandú Žižek",
        "ạ́ḅ",
    ],
)
def test_other_scripts_are_cut_as_fts5_cuts_them(fts5: Fts5, text: str) -> None:
    """Latin loses its diacritics, others keep their marks."""
    assert words_of_text(text) == fts5.words(text)


def test_text_without_spaces_is_found_by_its_pairs() -> None:
    """Characters are words, and so is each pair of neighbours; a query asks for its pairs."""
    assert words_of_text("日本語") == ["日", "本", "語", "日本", "本語"]
    assert words_of_query("日本語 テ") == ["日本", "本語", "テ"]


def test_a_query_asks_for_each_word_once() -> None:
    assert words_of_query("rivers and river AND river") == ["river", "and"]


def test_words_that_tell_nothing_have_no_say_in_meaning() -> None:
    assert telling(words_of_text("the price of barley")) == ["price", "barlei"]
    assert telling(["the", "of"]) == ["the", "of"]


def test_a_word_of_great_length_stays_as_it_is() -> None:
    """As with FTS5, whose stemmer takes up to 64 bytes."""
    assert stem("a" * 62 + "ing") == "a" * 62 + "ing"
    assert stem("b" * 10 + "aing") == "b" * 10 + "a"
