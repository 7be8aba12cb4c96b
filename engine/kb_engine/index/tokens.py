"""Words: how text is prepared for FTS5, and how a query becomes phrases that cannot be a syntax error."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import cast

import apsw

TOKENIZER = "porter unicode61 remove_diacritics 2"
MAX_PHRASES = 256
"""Of a query of up to 4,000 characters; the phrases beyond these do not count."""

_CJK = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Han, kana, bopomofo and Hangul: written without spaces, or with particles grown on to the words."""
CJK_CHARACTER = re.compile(f"[{_CJK}]")
_CJK_RUN = re.compile(f"[{_CJK}]+")


def index_text(text: str) -> str:
    """The text as FTS5 is to read it: each CJK character a word of its own.

    unicode61 takes a run of CJK characters for one word, so that a word inside a sentence is never
    found. The index keeps no text, so this changes nothing that anybody reads.
    """
    return CJK_CHARACTER.sub(r" \g<0> ", _valid(text)).replace("\0", " ")


def phrases(db: apsw.Connection, query: str) -> list[str]:
    """The FTS5 phrases of a query: its words, and each pair of neighbouring CJK characters, once each.

    Every phrase is quoted, so nothing a caller types is an operator.
    """
    query = _valid(query)
    words = _words(db, _CJK_RUN.sub(" ", query))
    pairs = [phrase for run in _CJK_RUN.findall(query) for phrase in _pairs(run)]
    return list(dict.fromkeys([*words, *pairs]))[:MAX_PHRASES]


def _words(db: apsw.Connection, text: str) -> list[str]:
    """The first spelling of each word; FTS5 stems it again, and stemming twice is not stemming once."""
    tokenize = db.fts5_tokenizer("porter", TOKENIZER.split()[1:])
    raw = text.encode()
    found = cast(
        "list[tuple[int, int, str]]",
        tokenize(raw, apsw.FTS5_TOKENIZE_QUERY, None, include_colocated=False),
    )
    spellings: dict[str, str] = {}
    for start, end, token in found:
        spellings.setdefault(token, f'"{raw[start:end].decode()}"')
    return list(spellings.values())


def _pairs(run: str) -> list[str]:
    if len(run) == 1:
        return [f'"{run}"']
    return [f'"{first} {second}"' for first, second in pairwise(run)]


def _valid(text: str) -> str:
    """Without lone surrogates, which have no UTF-8."""
    return text.encode("utf-8", "replace").decode()
