"""Words in FTS5: written with the chunks, and scored by the rules of `kb_engine.index.words`.

FTS5 computes the score of one word at a time; its weight of the word is replaced by ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import apsw
import numpy as np
from numpy.typing import NDArray

from kb_engine.index.port import Ids
from kb_engine.index.tokens import index_text, phrases
from kb_engine.index.words import Counts, Extent, Known, affordable, weight

_SCALE = 1e12
"""FTS5's values leave SQLite as integers: they are formatted and read several times faster than floats."""
_FTS5_LEAST_WEIGHT = 1e-6
_SCORES_OF_ALL = (
    "SELECT group_concat(chunk), group_concat(score) FROM ("
    "SELECT rowid AS chunk, CAST(-1e12 * bm25(words, 2.0, 1.0, 1.0) AS INTEGER) AS score "
    "FROM words WHERE words MATCH ? LIMIT -1 OFFSET 0)"
)
# Without the limit SQLite flattens the subquery, and bm25() may not stand inside an aggregate.
_SCORES_OF_SOME = _SCORES_OF_ALL.replace(" LIMIT", " AND +rowid IN (SELECT value FROM carray(?)) LIMIT")
# Without the plus sign SQLite queries FTS5 once for each allowed chunk.
_PRESENCE = "SELECT group_concat(rowid) FROM words WHERE words MATCH ?"


@dataclass(frozen=True, slots=True)
class Corpus(Extent):
    """The chunks that count for this search: `allowed` ascending."""

    allowed: Ids


def insert(db: apsw.Connection, title: str, chunks: Iterable[tuple[int, str | None, str]]) -> None:
    """Write the words of a document's chunks, each an id, a heading and a text."""
    title = index_text(title)
    db.executemany(
        "INSERT INTO words (rowid, title, heading, text) VALUES (?, ?, ?, ?)",
        (
            (chunk_id, title, index_text(heading or ""), index_text(text))
            for chunk_id, heading, text in chunks
        ),
    )


def remove(db: apsw.Connection, document_id: int) -> None:
    """Take away the words of a document, whose chunks are still there."""
    db.execute(
        "DELETE FROM words WHERE rowid IN (SELECT id FROM chunks WHERE document_id = ?)", (document_id,)
    )


def remove_all(db: apsw.Connection) -> None:
    """Take away all words."""
    db.execute("INSERT INTO words (words) VALUES ('delete-all')")


def numbers(joined: str | None) -> Ids:
    """The integers of a `group_concat`: fetched row by row, each would take the interpreter's lock."""
    return np.fromstring(joined or "", dtype=np.int64, sep=",")


class Words:
    """Keyword scores, and the counts of frequent words that are remembered between searches."""

    def __init__(self) -> None:
        self._counts = Counts()

    def scores(self, db: apsw.Connection, query: str, corpus: Corpus) -> NDArray[np.float64]:
        """BM25 of each allowed chunk; 0 where it holds no word of the query that counts."""
        found = np.zeros(len(corpus.allowed))
        if not len(found):
            return found
        kept, rest = affordable(self._known(db, phrases(db, query), corpus), corpus)
        if corpus.few:
            self._score_some(db, kept, corpus, found)
        else:
            _score_all(db, kept, corpus, found)
        if rest and not found.any():
            self._score_some(db, rest, corpus, found)
        return found

    def _known(self, db: apsw.Connection, wanted: Iterable[str], corpus: Corpus) -> list[Known]:
        """The phrases that occur, the rarest first, with about how many chunks hold them."""
        counted = [(phrase, self._estimate(db, phrase, corpus)) for phrase in wanted]
        return sorted(((phrase, n) for phrase, n in counted if n), key=lambda entry: entry[1])

    def _estimate(self, db: apsw.Connection, phrase: str, corpus: Corpus) -> int:
        about = self._counts.about(phrase, corpus)
        return self._exact(db, phrase, corpus) if about is None else about

    def _exact(self, db: apsw.Connection, phrase: str, corpus: Corpus) -> int:
        if (known := self._counts.exactly(phrase, corpus)) is not None:
            return known
        count = int(db.execute("SELECT count(*) FROM words WHERE words MATCH ?", (phrase,)).get)
        self._counts.remember(phrase, count, corpus)
        return count

    def _score_some(
        self, db: apsw.Connection, known: list[Known], corpus: Corpus, found: NDArray[np.float64]
    ) -> None:
        for phrase, _ in known:
            chunks, scores = _fetch(db, _SCORES_OF_SOME, phrase, apsw.carray(corpus.allowed))
            if len(chunks):
                _add(found, corpus, chunks, scores * _reweigh(self._exact(db, phrase, corpus), corpus.size))


def _score_all(db: apsw.Connection, known: list[Known], corpus: Corpus, found: NDArray[np.float64]) -> None:
    for phrase, count in known:
        if corpus.too_frequent(count):
            chunks = numbers(db.execute(_PRESENCE, (phrase,)).get)
            _add(found, corpus, chunks, np.full(len(chunks), weight(len(chunks), corpus.size)))
            continue
        chunks, scores = _fetch(db, _SCORES_OF_ALL, phrase)
        if len(chunks):
            _add(found, corpus, chunks, scores * _reweigh(len(chunks), corpus.size))


def _fetch(
    db: apsw.Connection, sql: str, phrase: str, *more: apsw.CArrayBinding
) -> tuple[Ids, NDArray[np.float64]]:
    chunks, scores = db.execute(sql, (phrase, *more)).get or (None, None)
    return numbers(chunks), numbers(scores) / _SCALE


def _add(found: NDArray[np.float64], corpus: Corpus, chunks: Ids, scores: NDArray[np.float64]) -> None:
    places = np.searchsorted(corpus.allowed, chunks)
    places[places == len(corpus.allowed)] = 0
    hit = corpus.allowed[places] == chunks
    found[places[hit]] += scores[hit]


def _reweigh(count: int, size: int) -> float:
    """What turns FTS5's score of one word into ours."""
    ratio = (size - count + 0.5) / (count + 0.5)
    theirs = max(math.log(ratio), _FTS5_LEAST_WEIGHT) if ratio > 0 else _FTS5_LEAST_WEIGHT
    return weight(count, size) / theirs
