"""Which words stand in a chunk, and which a query asks for.

The tokens are made by SQLite's own FTS5 tokenizer, through APSW and without a table, so that a word has the
same stem in every index. A term is a token, or two neighbouring CJK tokens with a space between them: the
phrases that a query can hold (`kb_engine.index.words`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import NamedTuple, cast

import apsw

from kb_engine.index.words import CJK_CHARACTER, LONGEST_TERM, TITLE_WEIGHT, TOKENIZER, index_text, phrases

ANALYSER = f"FTS5 {TOKENIZER}, CJK pairs, title {TITLE_WEIGHT}"
"""Stands in every file that holds such terms: those of another analyser must not be added to it."""


class AnalysedChunk(NamedTuple):
    """The words of a chunk with its title and heading."""

    terms: list[str]
    """Each as often as it counts, in any order."""
    length: int
    """In tokens, each once: pairs are not counted, and a title counts like any other text."""


class Analyser:
    """Used by one thread, with a connection of its own or one that it is given for its tokenizers alone."""

    def __init__(self, db: apsw.Connection | None = None) -> None:
        self._db = db or apsw.Connection(":memory:")
        self._tokenizer = self._db.fts5_tokenizer("porter", TOKENIZER.split()[1:])

    def terms_of(self, query: str) -> list[str]:
        """The terms of a query, one for each of its phrases; a phrase without a word has none."""
        found = (self._tokens(phrase, apsw.FTS5_TOKENIZE_QUERY) for phrase in phrases(self._db, query))
        return [_bounded(" ".join(tokens)) for tokens in found if tokens]

    def chunks(self, title: str, chunks: Iterable[tuple[str | None, str]]) -> Iterator[AnalysedChunk]:
        """The words of a document's chunks, each of which has a heading and a text."""
        titled = self._analysed(title)
        for heading, text in chunks:
            parts = [titled, self._analysed(heading or ""), self._analysed(text)]
            terms = list(chain(titled.terms * (TITLE_WEIGHT - 1), *(part.terms for part in parts)))
            yield AnalysedChunk(terms, sum(part.length for part in parts))

    def _analysed(self, text: str) -> AnalysedChunk:
        tokens = self._tokens(text if text.isascii() else index_text(text), apsw.FTS5_TOKENIZE_DOCUMENT)
        terms = tokens
        if not text.isascii():
            cjk = [CJK_CHARACTER.match(token) is not None for token in tokens]
            pairs = pairwise(zip(tokens, cjk, strict=True))
            terms = tokens + [f"{first} {second}" for (first, a), (second, b) in pairs if a and b]
        if max(map(len, terms), default=0) > LONGEST_TERM:
            terms = [_bounded(term) for term in terms]
        return AnalysedChunk(terms, len(tokens))

    def _tokens(self, text: str, reason: int) -> list[str]:
        raw = text.encode("utf-8", "replace")
        found = self._tokenizer(raw, reason, None, include_offsets=False, include_colocated=False)
        return cast("list[str]", found)


def _bounded(term: str) -> str:
    """A term of at most `LONGEST_TERM` characters: the digest of a longer one, which is nobody else's term,
    for no token begins with a space."""
    if len(term) <= LONGEST_TERM:
        return term
    return " " + hashlib.sha256(term.encode("utf-8", "surrogatepass")).hexdigest()
