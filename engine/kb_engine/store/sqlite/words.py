"""Search by words: BM25 over FTS5, with a bound on the work that frequent words cause.

FTS5 alone computes `bm25()` for every chunk that holds any word of the query: about a microsecond a
chunk and word, so a stop word in 80,000 chunks costs 60 ms and tells nothing. Here each word is asked
for by itself, the rarest first, until a budget of chunks is spent; the words that remain have no say,
unless no chunk that may answer holds any other. Where the filters leave few chunks only those are
scored, which is cheaper, so the budget is larger.

A word's weight is `log(1 + (N - n + 0.5) / (n + 0.5))`, which stays above zero in a base of three
chunks, where that of FTS5 falls to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import apsw
import numpy as np
from numpy.typing import NDArray

from kb_engine.store.selection import numbers
from kb_engine.store.sqlite.connection import row, value
from kb_engine.store.tokens import phrases
from kb_engine.vectors.port import Ids

BUDGET_CHUNKS = 10_000
BUDGET_SHARE = 0.15
"""The budget is the larger of the number and this share of the base."""
FEW_CHUNKS = 2_000
FEW_SHARE = 0.02
"""Filters that leave no more than the larger of these leave "few"."""
FEW_ALLOWANCE = 6
"""How many times the budget is spent on few chunks: walking past a chunk costs a sixth of scoring it."""
CACHED_FROM = 500
"""Counting a word that is rarer costs less than remembering it."""
CACHE_SIZE = 50_000
DRIFT = 0.02
"""An earlier count serves as an estimate until the base has grown or shrunk by this share."""

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
# Without the plus sign it asks FTS5 once for each allowed chunk.
_PRESENCE = "SELECT group_concat(rowid) FROM words WHERE words MATCH ?"


Known = tuple[str, int]
"""A phrase that occurs, and in about how many chunks."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How many chunks the filters leave, out of `size` in the base, and in which state that is."""

    left: int
    size: int
    generation: int

    @property
    def few(self) -> bool:
        """Whether the filters leave so few that it pays to score these alone."""
        return self.left <= max(FEW_CHUNKS, self.size * FEW_SHARE)

    @property
    def budget(self) -> float:
        """In how many chunks the words that are asked for may stand together."""
        return max(BUDGET_CHUNKS, self.size * BUDGET_SHARE) * (FEW_ALLOWANCE if self.few else 1)

    def too_frequent(self, count: int) -> bool:
        """Whether a word in so many chunks tells no more than that it occurs: a stop word."""
        return not self.few and count > max(self.budget, self.size / 2)


@dataclass(frozen=True, slots=True)
class Corpus(Extent):
    """The chunks that count for this search: `allowed` ascending."""

    allowed: Ids


class Counts:
    """In how many chunks the frequent words stand, as far as it is remembered."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int, int]] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def about(self, phrase: str, extent: Extent) -> int | None:
        """A count that is good enough to order words by; None where there is none."""
        count, size, _ = self._counts.get(phrase, (0, 0, 0))
        return count if count and abs(size - extent.size) <= size * DRIFT else None

    def exactly(self, phrase: str, extent: Extent) -> int | None:
        """The count in this state of the base; None where it is not known."""
        count, _, generation = self._counts.get(phrase, (0, 0, -1))
        return count if generation == extent.generation else None

    def remember(self, phrase: str, count: int, extent: Extent) -> None:
        """Keep a count that was costly to take."""
        if count < CACHED_FROM:
            return
        if len(self._counts) >= CACHE_SIZE:
            self._counts.clear()
        self._counts[phrase] = (count, extent.size, extent.generation)


class Words:
    """Keyword scores, and what is remembered of how often words occur."""

    def __init__(self) -> None:
        self._counts = Counts()

    def scores(self, db: apsw.Connection, query: str, corpus: Corpus) -> NDArray[np.float64]:
        """BM25 of each allowed chunk; 0 where it holds no word of the query that has a say."""
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

    def _known(self, db: apsw.Connection, asked: Iterable[str], corpus: Corpus) -> list[Known]:
        """The phrases that occur, the rarest first, with about how many chunks hold them."""
        counted = [(phrase, self._estimate(db, phrase, corpus)) for phrase in asked]
        return sorted(((phrase, n) for phrase, n in counted if n), key=lambda entry: entry[1])

    def _estimate(self, db: apsw.Connection, phrase: str, corpus: Corpus) -> int:
        about = self._counts.about(phrase, corpus)
        return self._exact(db, phrase, corpus) if about is None else about

    def _exact(self, db: apsw.Connection, phrase: str, corpus: Corpus) -> int:
        if (known := self._counts.exactly(phrase, corpus)) is not None:
            return known
        count = int(value(db, "SELECT count(*) FROM words WHERE words MATCH ?", (phrase,)))
        self._counts.remember(phrase, count, corpus)
        return count

    def _score_some(
        self, db: apsw.Connection, known: list[Known], corpus: Corpus, found: NDArray[np.float64]
    ) -> None:
        for phrase, _ in known:
            chunks, scores = _fetch(db, _SCORES_OF_SOME, phrase, apsw.carray(corpus.allowed))
            if len(chunks):
                _add(found, corpus, chunks, scores * _reweigh(self._exact(db, phrase, corpus), corpus.size))


def affordable(known: list[Known], corpus: Extent) -> tuple[list[Known], list[Known]]:
    """The rarest phrases that the budget allows, one at least, and the rest."""
    left = corpus.budget
    for place, (_, count) in enumerate(known):
        left -= count
        if left < 0 and place > 0:
            return known[:place], known[place:]
    return known, []


def _score_all(db: apsw.Connection, known: list[Known], corpus: Corpus, found: NDArray[np.float64]) -> None:
    for phrase, count in known:
        if corpus.too_frequent(count):
            chunks = numbers(value(db, _PRESENCE, (phrase,)))
            _add(found, corpus, chunks, np.full(len(chunks), weight(len(chunks), corpus.size)))
            continue
        chunks, scores = _fetch(db, _SCORES_OF_ALL, phrase)
        if len(chunks):
            _add(found, corpus, chunks, scores * _reweigh(len(chunks), corpus.size))


def _fetch(
    db: apsw.Connection, sql: str, phrase: str, *more: apsw.CArrayBinding
) -> tuple[Ids, NDArray[np.float64]]:
    chunks, scores = row(db, sql, (phrase, *more)) or (None, None)
    return numbers(chunks), numbers(scores) / _SCALE


def _add(found: NDArray[np.float64], corpus: Corpus, chunks: Ids, scores: NDArray[np.float64]) -> None:
    places = np.searchsorted(corpus.allowed, chunks)
    places[places == len(corpus.allowed)] = 0
    hit = corpus.allowed[places] == chunks
    found[places[hit]] += scores[hit]


def weight(count: int, size: int) -> float:
    """How much a word tells that stands in `count` of `size` chunks."""
    return math.log1p((size - count + 0.5) / (count + 0.5))


def _reweigh(count: int, size: int) -> float:
    """What turns FTS5's score of one word into ours."""
    ratio = (size - count + 0.5) / (count + 0.5)
    theirs = max(math.log(ratio), _FTS5_LEAST_WEIGHT) if ratio > 0 else _FTS5_LEAST_WEIGHT
    return weight(count, size) / theirs
