"""The words of chunks and queries, and their scores, equal those of FTS5."""

from __future__ import annotations

import math
from collections import Counter

import apsw
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_engine.index.embedded import postings
from kb_engine.index.embedded.postings import Terms
from kb_engine.index.languages import STEMMERS, UNSPACED
from kb_engine.index.words import (
    CJK_CHARACTER,
    LONGEST_TERM,
    MAX_PHRASES,
    TITLE_WEIGHT,
    TOKENIZER,
    Analyser,
    index_text,
    plain,
)
from tests.support.word_blocks import build, weigh

ANALYSER = Analyser()
ANYTHING = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)
SAMPLES = [
    *("Running", "runs", "naïve", "NAIVE", "中国", "国中国", "タワー", "학교", "a中b"),
    *("🙂", "\ud800", "\0", "it's", "the", "THE"),
]
QUERIED = ["Running", "naïve", "中国", "학교", "🙂"]
"""Content words, of one token or one pair of CJK characters."""
LONG = ["x" * LONGEST_TERM, "x" * (LONGEST_TERM + 1)]
LANGUAGE = st.lists(st.sampled_from([*SAMPLES, *LONG]), max_size=8).map(" ".join)
TEXT = ANYTHING | LANGUAGE


def test_a_question_of_many_words_is_bounded() -> None:
    assert len(ANALYSER.words_of(" ".join(map(str, range(1_000))))) == MAX_PHRASES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("\u2014 !", []),
        ("\u2e80", []),
        ("NOT pump OR b", ["not", "pump", "or", "b"]),
        ("run running RUN", ["run"]),
        ("na\u00efve Caf\u00e9", ["naiv", "cafe"]),
        ("\u4e2d\u56fd", ["\u4e2d \u56fd"]),
        ("\u53bb\u4e2d\u56fd", ["\u53bb \u4e2d", "\u4e2d \u56fd"]),
        ("b\u4e2dc", ["b", "c", "\u4e2d"]),
        ('col:x "y"', ["col", "x", "y", "col:x"]),
        ("c\0b", ["c", "b"]),
    ],
)
def test_words_and_pairs_of_cjk_characters_are_looked_up_once(text: str, expected: list[str]) -> None:
    assert list(dict.fromkeys(word[0] for word in ANALYSER.words_of(text))) == expected


@given(TEXT, st.sampled_from([None, *sorted(STEMMERS), *sorted(UNSPACED)]))
def test_each_word_of_a_text_finds_the_text(text: str, language: str | None) -> None:
    """Document and query have the same forms of a word, in any language."""
    (found,) = ANALYSER.chunks("", [(None, text)], language)
    terms = set(found.terms)
    assert all(terms.intersection(word) for word in ANALYSER.words_of(text, filter(None, [language])))


@pytest.mark.process
def test_every_cjk_character_is_a_token_of_its_own_or_none() -> None:
    """Pairs of characters depend on this: the tokenizer only converts the character to its plain form."""
    characters = filter(CJK_CHARACTER.match, map(chr, range(0x2E80, 0x40000)))
    for character in characters:
        (found,) = ANALYSER.chunks("", [(None, character)])
        letters = list(plain(character))
        assert found.terms[: found.length] in ([], letters)


def test_a_word_of_megabytes_is_bounded() -> None:
    (found,) = ANALYSER.chunks("", [(None, "y" * 10_000_000)])
    assert (found.length, len(found.terms[0]) <= LONGEST_TERM) == (1, True)


@given(
    st.lists(st.tuples(LANGUAGE, LANGUAGE, LANGUAGE), min_size=1, max_size=12),
    st.lists(st.sampled_from(QUERIED), unique=True),
    st.data(),
)
def test_scores_are_those_of_fts5(
    documents: list[tuple[str, str, str]], query: list[str], data: st.DataObject
) -> None:
    """The weight of a word differs, as it can fall to nothing in FTS5; removed rows count in neither."""
    db = apsw.Connection(":memory:")
    db.execute(
        "CREATE VIRTUAL TABLE words USING fts5 (title, heading, text, content = '', contentless_delete = 1, "
        f"tokenize = '{TOKENIZER}')"
    )
    insert = "INSERT INTO words (rowid, title, heading, text) VALUES (?, ?, ?, ?)"
    db.executemany(insert, ((row, *map(index_text, document)) for row, document in enumerate(documents)))
    block = build(
        found for title, heading, text in documents for found in ANALYSER.chunks(title, [(heading, text)])
    )
    gone = data.draw(st.sets(st.integers(0, len(documents) - 1), max_size=len(documents) - 1))
    db.executemany("DELETE FROM words WHERE rowid = ?", ((row,) for row in gone))
    rows = np.array([row for row in range(len(documents)) if row not in gone], np.uint32)

    expected = dict.fromkeys(rows.tolist(), 0.0)
    for phrase in (f'"{index_text(word)}"' for word in query):
        sql = f"SELECT rowid, -bm25(words, {TITLE_WEIGHT}, 1, 1) FROM words WHERE words MATCH ?"
        scores = dict(db.execute(sql, (phrase,)))
        odds = (len(rows) - len(scores) + 0.5) / (len(scores) + 0.5)
        for row, score in scores.items():
            expected[row] += score / max(math.log(odds), 1e-6) * math.log1p(odds)

    terms = Terms([word[0] for word in ANALYSER.words_of(" ".join(query))])
    weights = weigh(block.frequencies(terms, rows), len(rows))
    found = np.zeros(len(rows), np.float32)
    average = float(block.lengths[rows].mean()) or 1.0
    with pytest.MonkeyPatch.context() as as_in_fts5:
        as_in_fts5.setattr(postings, "K1", 1.2)
        block.add_scores(terms, weights, average, found, rows)
    assert found.tolist() == pytest.approx(list(expected.values()), rel=1e-5, abs=1e-5)


def test_the_terms_of_a_text_are_the_words_that_fts5_keeps() -> None:
    db = apsw.Connection(":memory:")
    db.execute(
        f"CREATE VIRTUAL TABLE w USING fts5 (text, tokenize = '{TOKENIZER}');"
        "CREATE VIRTUAL TABLE v USING fts5vocab (w, row)"
    )
    for text in [*SAMPLES, *LONG]:
        db.execute("DELETE FROM w")
        db.execute("INSERT INTO w VALUES (?)", (index_text(text),))
        kept = {
            str(term): count
            for term, count in db.execute("SELECT term, cnt FROM v")
            if isinstance(count, int)
        }
        (found,) = ANALYSER.chunks("", [(None, text)])
        assert found.length == sum(kept.values())
        single = Counter(term for term in found.terms if " " not in term)
        assert single == {term: count for term, count in kept.items() if len(term) <= LONGEST_TERM}
