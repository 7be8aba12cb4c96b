"""Words as the index counts them: SQLite's tokenizer cuts and stems them, as the engine's does.

Where words are not separated by spaces (Chinese, Japanese, Korean) each character is a word, and each pair of
neighbours is one more, so that a word is found inside a sentence.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from threading import local

_CJK = re.compile(
    "[\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]+"
)
_STOP_WORDS = (
    "a an and are as at be but by can do does for from had has have how i if in into is it its no not of on "
    "or our so such that the their then there these they this to was we were what when where which who why "
    "will with you your"
)


class _Tokenizer(local):
    """SQLite's tokenizer, which the standard library reaches only through a table; one for each thread."""

    def __init__(self) -> None:
        import sqlite3  # not before the first text: most of a start is imports

        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.executescript(
            "CREATE VIRTUAL TABLE text USING fts5 "
            "(x, content = '', tokenize = 'porter unicode61 remove_diacritics 2');"
            "CREATE VIRTUAL TABLE word USING fts5vocab (text, 'instance');"
        )

    def stems(self, text: str) -> list[str]:
        """The stems of a text's words in order, repeated where they are repeated."""
        valid = text.encode("utf-8", "replace").decode().replace("\0", " ")
        self._db.execute("INSERT INTO text (x) VALUES (?)", (valid,))
        found = [stem for (stem,) in self._db.execute("SELECT term FROM word ORDER BY offset")]
        self._db.execute("INSERT INTO text (text) VALUES ('delete-all')")
        return found


@cache
def _tokenizer() -> _Tokenizer:
    return _Tokenizer()  # when the first text comes: importing this module opens nothing


def _stems(text: str) -> list[str]:
    return _tokenizer().stems(_CJK.sub(" ", text))


def words_of_text(text: str) -> list[str]:
    """The stems of a text's words, repeated where they are repeated, and its characters without spaces."""
    return [*_stems(text), *(word for run in _CJK.findall(text) for word in (*run, *_pairs(run)))]


def words_of_query(query: str) -> list[str]:
    """The stems to look for, each once; of a run of characters without spaces, its pairs."""
    pairs = [pair for run in _CJK.findall(query) for pair in (_pairs(run) or [run])]
    return list(dict.fromkeys([*_stems(query), *pairs]))


def content_words(stems: list[str]) -> list[str]:
    """Those that say what a text is about; all of them where none does.

    Stop words count for keywords, where their frequency weighs them, and not for meaning, where nothing else
    would.
    """
    return [word for word in stems if word not in _stop_stems()] or stems


@cache
def _stop_stems() -> frozenset[str]:
    return frozenset(_stems(_STOP_WORDS))


def _pairs(run: str) -> list[str]:
    return ["".join(pair) for pair in pairwise(run)]
