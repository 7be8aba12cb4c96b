"""Words: how text is prepared for FTS5, and which words of a query count, and how much.

There is a bound on the work that frequent words cause. To score every chunk that holds any word of a query
takes about a microsecond a chunk and word, so a stop word in 80,000 chunks costs 60 ms and distinguishes
nothing. Words are therefore looked up one by one, the rarest first, until a budget of chunks is spent; the
words that remain do not count, unless no chunk that may answer holds any other. Where the filters leave few
chunks only those are scored, which is cheaper, so the budget is larger.

A word's weight is `log(1 + (N - n + 0.5) / (n + 0.5))`, which stays above zero in a base of three chunks,
where that of FTS5 falls to nothing. FTS5 computes the score of one word at a time; its weight of the word is
replaced by ours.

Both indexes that live in a store's database follow these rules, so that their scores are the same; `Words`
applies them in a SQLite base.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import cast

import apsw
import numpy as np
from numpy.typing import NDArray

from kb_engine.index.port import Ids

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

Known = tuple[str, int]
"""A phrase that occurs, and in about how many chunks."""

TITLE_WEIGHT = 2
"""Of a word in the title; in heading and text it is one. As in `_SCORES_OF_ALL`."""
LONGEST_TERM = 200
"""In characters; of a longer one its digest is kept, for a row of an index is short."""

Posting = tuple[str, int, int, int]
"""Term, chunk id, frequency, and the length of the chunk in tokens."""

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


def index_text(text: str) -> str:
    """The text as FTS5 is to read it: each CJK character a word of its own.

    unicode61 takes a run of CJK characters for one word, so that a word inside a sentence is never
    found. The index keeps no text, so this changes nothing that anybody reads.
    """
    return CJK_CHARACTER.sub(r" \g<0> ", _valid(text)).replace("\0", " ")


def phrases(db: apsw.Connection, query: str) -> list[str]:
    """The FTS5 phrases of a query: its words, and each pair of neighbouring CJK characters, once each.

    Every phrase is quoted, so nothing a caller types is an operator. Radicals and the middle dot are CJK
    characters, but no letters to FTS5: a phrase of nothing else would be looked for in vain.
    """
    query = _valid(query)
    words = _words(db, _CJK_RUN.sub(" ", query))
    cjk: list[str] = []
    for run in _CJK_RUN.findall(query):
        pairs = [f'"{first} {second}"' for first, second in pairwise(run)]
        cjk += pairs or [f'"{run}"']
    words += islice((phrase for phrase in dict.fromkeys(cjk) if _words(db, phrase)), MAX_PHRASES)
    return words[:MAX_PHRASES]


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


def _valid(text: str) -> str:
    """Without lone surrogates, which have no UTF-8."""
    return text.encode("utf-8", "replace").decode()


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
        """In how many chunks the words that are looked up may occur together."""
        return max(BUDGET_CHUNKS, self.size * BUDGET_SHARE) * (FEW_ALLOWANCE if self.few else 1)

    def too_frequent(self, count: int) -> bool:
        """Whether a word in so many chunks counts as present and no more: a stop word."""
        return not self.few and count > max(self.budget, self.size / 2)


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


def affordable(known: list[Known], corpus: Extent) -> tuple[list[Known], list[Known]]:
    """The rarest phrases that the budget allows, one at least, and the rest."""
    left = corpus.budget
    for place, (_, count) in enumerate(known):
        left -= count
        if left < 0 and place > 0:
            return known[:place], known[place:]
    return known, []


def weight(count: int, size: int) -> float:
    """How much a word counts that occurs in `count` of `size` chunks."""
    return math.log1p((size - count + 0.5) / (count + 0.5))


@dataclass(frozen=True, slots=True)
class Corpus(Extent):
    """The chunks that count for this search: `allowed` ascending."""

    allowed: Ids


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
        counted = []
        for phrase in phrases(db, query):
            about = self._counts.about(phrase, corpus)
            counted.append((phrase, self._exact(db, phrase, corpus) if about is None else about))
        known = sorted(((phrase, count) for phrase, count in counted if count), key=lambda entry: entry[1])
        kept, rest = affordable(known, corpus)
        if corpus.few:
            self._score_some(db, kept, corpus, found)
        else:
            _score_all(db, kept, corpus, found)
        if rest and not found.any():
            self._score_some(db, rest, corpus, found)
        return found

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


@dataclass(frozen=True, slots=True)
class _Terms:
    """The terms of a text with how often each stands there, and how many tokens it has."""

    terms: Counter[str]
    length: int


class Tokenizer:
    """Words as rows, for a PostgreSQL base: which terms stand in a chunk, and which terms a query has.

    The tokens are made by SQLite's own tokenizer, so that a word has one stem in both stores. A term is a
    token, or two neighbouring CJK tokens with a space between them: the phrases that a query can hold.

    Used by one thread; making one takes a tenth of a millisecond.
    """

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

    def _words(self, text: str) -> _Terms:
        tokens = self._tokens(index_text(text), apsw.FTS5_TOKENIZE_DOCUMENT)
        terms = Counter(_term(token) for token, _ in tokens)
        terms.update(
            _term(first, second)
            for (first, is_cjk), (second, is_cjk_too) in pairwise(tokens)
            if is_cjk and is_cjk_too
        )
        return _Terms(terms, len(tokens))

    def _tokens(self, text: str, reason: int) -> list[tuple[str, bool]]:
        """Each token, and whether it is a CJK character."""
        raw = text.encode("utf-8", "replace")
        found = cast("list[tuple[int, int, str]]", self._tokenize(raw, reason, None, include_colocated=False))
        return [(token, bool(CJK_CHARACTER.match(raw[start:end].decode()))) for start, end, token in found]


def _term(*tokens: str) -> str:
    term = " ".join(tokens)
    if len(term) <= LONGEST_TERM:
        return term
    # No token holds a space at its beginning, so that this is nobody else's term.
    return " " + hashlib.sha256(term.encode("utf-8", "surrogatepass")).hexdigest()
