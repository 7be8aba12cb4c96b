"""Words as rows: which terms stand in a chunk, and which terms a query has.

The tokens are made by SQLite's own tokenizer, so that a word has one stem in both stores. A term is a token,
or two neighbouring CJK tokens with a space between them: the phrases that a query can hold.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import apsw

from kb_engine.index.tokens import CJK_CHARACTER, TOKENIZER, index_text, phrases

TITLE_WEIGHT = 2
"""Of a word in the title; in heading and text it is one. As in `words.py`."""
LONGEST_TERM = 200
"""In characters; of a longer one its digest is kept, for a row of an index is short."""

Posting = tuple[str, int, int, int]
"""Term, chunk id, frequency, and the length of the chunk in tokens."""


@dataclass(frozen=True, slots=True)
class _Words:
    """The terms of a text with how often each stands there, and how many tokens it has."""

    terms: Counter[str]
    length: int


class Tokenizer:
    """Used by one thread; making one takes a tenth of a millisecond."""

    def __init__(self) -> None:
        self._db = apsw.Connection(":memory:")
        self._tokenize = self._db.fts5_tokenizer("porter", TOKENIZER.split()[1:])

    def terms_of(self, query: str) -> list[str]:
        """The terms of a query, one for each of its phrases; a phrase without a word has none."""
        found = (self._tokens(phrase, apsw.FTS5_TOKENIZE_QUERY) for phrase in phrases(self._db, query))
        return [_term(*(token for token, _ in tokens)) for tokens in found if tokens]

    def postings(
        self, title: str, chunks: Iterable[tuple[int, str | None, str]]
    ) -> tuple[list[Posting], list[int]]:
        """The rows of a document's chunks, each an id, a heading and a text; and the length of each."""
        titled = self._words(title)
        rows: list[Posting] = []
        lengths = []
        for chunk_id, heading, text in chunks:
            parts = [self._words(heading or ""), self._words(text)]
            length = titled.length + sum(part.length for part in parts)
            found = Counter({term: TITLE_WEIGHT * count for term, count in titled.terms.items()})
            for part in parts:
                found.update(part.terms)
            rows += [(term, chunk_id, count, length) for term, count in found.items()]
            lengths.append(length)
        return rows, lengths

    def _words(self, text: str) -> _Words:
        tokens = self._tokens(index_text(text), apsw.FTS5_TOKENIZE_DOCUMENT)
        single = Counter(_term(token) for token, _ in tokens)
        single.update(_neighbours(tokens))
        return _Words(single, len(tokens))

    def _tokens(self, text: str, reason: int) -> list[tuple[str, bool]]:
        """Each token, and whether it is a CJK character."""
        raw = text.encode("utf-8", "replace")
        found = cast("list[tuple[int, int, str]]", self._tokenize(raw, reason, None, include_colocated=False))
        return [(token, bool(CJK_CHARACTER.match(raw[start:end].decode()))) for start, end, token in found]


def _neighbours(tokens: list[tuple[str, bool]]) -> Iterator[str]:
    for (first, is_cjk), (second, is_cjk_too) in pairwise(tokens):
        if is_cjk and is_cjk_too:
            yield _term(first, second)


def _term(*tokens: str) -> str:
    term = " ".join(tokens)
    if len(term) <= LONGEST_TERM:
        return term
    # No token holds a space at its beginning, so that this is nobody else's term.
    return " " + hashlib.sha256(term.encode("utf-8", "surrogatepass")).hexdigest()
