"""Any query becomes phrases that FTS5 takes, and none of its operators is one."""

from __future__ import annotations

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_engine.index.words import MAX_PHRASES, TOKENIZER, index_text, phrases

DB = apsw.Connection(":memory:")
DB.execute(f"CREATE VIRTUAL TABLE words USING fts5 (text, tokenize = '{TOKENIZER}')")
DB.execute("INSERT INTO words VALUES ('plain words only')")

TRICKY = st.sampled_from(
    [
        '"',
        "'",
        "*",
        "-",
        "+",
        "^",
        ":",
        "(",
        ")",
        "{",
        "}",
        ",",
        "\0",
        "\ud800",
        "NEAR(",
        "AND",
        "OR",
        "NOT",
        "text:",
    ]
)
CHARACTERS = st.characters(codec=None, exclude_categories=())


@given(st.lists(st.one_of(st.text(CHARACTERS, max_size=20), TRICKY), max_size=40).map(" ".join))
def test_no_text_is_a_syntax_error(text: str) -> None:
    """Each phrase of it can be asked for."""
    for phrase in phrases(DB, text):
        assert DB.execute("SELECT count(*) FROM words WHERE words MATCH ?", (phrase,)).get in {0, 1}


@given(st.text(CHARACTERS, min_size=1, max_size=60))
def test_what_was_indexed_is_found_by_every_phrase_of_itself(text: str) -> None:
    """Text and query are taken apart in the same way."""
    with DB:
        DB.execute("DELETE FROM words")
        DB.execute("INSERT INTO words VALUES (?)", (index_text(text),))
    for phrase in phrases(DB, text):
        assert DB.execute("SELECT count(*) FROM words WHERE words MATCH ?", (phrase,)).get == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("— !", []),
        ("🙂 ok", ['"🙂"', '"ok"']),
        ("NOT a OR b", ['"NOT"', '"a"', '"OR"', '"b"']),
        ("run running RUN", ['"run"']),
        ("naïve Café", ['"naïve"', '"Café"']),
        ("中国", ['"中 国"']),
        ("去中国", ['"去 中"', '"中 国"']),
        ("a中b", ['"a"', '"b"', '"中"']),
        ("カタカナ", ['"カ タ"', '"タ カ"', '"カ ナ"']),
        ('col:x "y"', ['"col"', '"x"', '"y"']),
        ("a\0b", ['"a"', '"b"']),
    ],
)
def test_words_and_pairs_of_cjk_characters_are_asked_for_once(text: str, expected: list[str]) -> None:
    assert phrases(DB, text) == expected


def test_a_long_query_is_bounded() -> None:
    """The words beyond the bound have no say."""
    assert len(phrases(DB, " ".join(map(str, range(2_000))))) == MAX_PHRASES
