"""The index of a PostgreSQL base: words as rows of postings, vectors in pgvector, scored by the database.

It takes part in the store's transactions instead of following them: whatever engine searches, it reads one
snapshot of the database, and no vector travels. Every chunk that the filters leave gets its exact score in
one statement, by the formula of `kb_engine.index.ranking`.

There is a bound on the work that frequent words cause. To score every chunk that holds any word of a query
takes about a microsecond a chunk and word, so a stop word in 80,000 chunks costs 60 ms and distinguishes
nothing. Words are therefore looked up with the rarest first, until a budget of chunks is spent; the words
that remain do not count, unless no chunk that may answer holds any other. Where the filters leave few chunks
only those are scored, which is cheaper, so the budget is larger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kb_contracts.api import models as m
from kb_engine.index.port import Candidate, Candidates, IndexQuery, Scoring
from kb_engine.index.ranking import DECIMALS
from kb_engine.index.words import Analyser, weight
from kb_engine.store.port import EmbedderIdentity
from kb_engine.store.postgres.connection import Db, row, rows, value
from kb_engine.store.postgres.transaction import expect_embedder, expect_length
from kb_engine.store.repository import search as filters

K1, B = 1.2, 0.75
"""Those of FTS5."""
_BM25 = f"""
  SELECT p.chunk_id, sum(CASE WHEN a.flat THEN a.weight ELSE
    a.weight * p.frequency * {K1 + 1} / (p.frequency + {K1} * ({1 - B} + {B} * p.length / ?::float8))
    END) AS bm25
  FROM unnest(?::text[], ?::float8[], ?::boolean[]) AS a (term, weight, flat)
  JOIN postings p ON p.term = a.term
"""  # noqa: S608
_ALL = "true"
_COSINE = "-(v.vector <#> ?::real[]::vector)"
_MEANING = "least(greatest(cosine, 0.0), 1.0)"
_WORDING = "bm25 / (bm25 + ?::float8)"

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
"""A term that occurs, and in about how many chunks."""


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

    def about(self, term: str, extent: Extent) -> int | None:
        """A count that is good enough to order words by; None where there is none."""
        count, size, _ = self._counts.get(term, (0, 0, 0))
        return count if count and abs(size - extent.size) <= size * DRIFT else None

    def exactly(self, term: str, extent: Extent) -> int | None:
        """The count in this state of the base; None where it is not known."""
        count, _, generation = self._counts.get(term, (0, 0, -1))
        return count if generation == extent.generation else None

    def remember(self, term: str, count: int, extent: Extent) -> None:
        """Keep a count that was costly to take."""
        if count < CACHED_FROM:
            return
        if len(self._counts) >= CACHE_SIZE:
            self._counts.clear()
        self._counts[term] = (count, extent.size, extent.generation)


def affordable(known: list[Known], corpus: Extent) -> tuple[list[Known], list[Known]]:
    """The rarest terms that the budget allows, one at least, and the rest."""
    left = corpus.budget
    for place, (_, count) in enumerate(known):
        left -= count
        if left < 0 and place > 0:
            return known[:place], known[place:]
    return known, []


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms, each once, with what each weighs; of a `flat` one only that it occurs counts."""

    terms: Sequence[str] = ()
    weights: Sequence[float] = ()
    flat: Sequence[bool] = ()


class Words:
    """The counts of frequent words that are remembered between searches."""

    def __init__(self) -> None:
        self._counts = Counts()

    async def choose(self, db: Db, terms: Sequence[str], extent: Extent) -> tuple[list[Known], list[Known]]:
        """The rarest terms that the budget allows, one at least, and the rest; each with its count."""
        about = {term: self._counts.about(term, extent) for term in terms}
        counted = await self._count(db, [term for term, count in about.items() if count is None], extent)
        known = [(term, about[term] or counted[term]) for term in terms if about[term] or counted[term]]
        return affordable(sorted(known, key=lambda entry: entry[1]), extent)

    async def weighed(self, db: Db, known: Sequence[Known], extent: Extent, *, flatten: bool) -> Terms:
        """The terms with their weights; a term that the query has twice weighs twice.

        With `flatten`, words in too many chunks count as present and no more.
        """
        exact = await self._exactly(db, [term for term, _ in known], extent)
        weights: dict[str, float] = {}
        flat: dict[str, bool] = {}
        for term, about in known:
            weights[term] = weights.get(term, 0.0) + weight(exact[term], extent.size)
            flat[term] = flatten and extent.too_frequent(about)
        return Terms(list(weights), list(weights.values()), list(flat.values()))

    async def _exactly(self, db: Db, terms: Sequence[str], extent: Extent) -> dict[str, int]:
        known = {term: self._counts.exactly(term, extent) for term in terms}
        counted = await self._count(db, [term for term, count in known.items() if count is None], extent)
        return {term: counted[term] if count is None else count for term, count in known.items()}

    async def _count(self, db: Db, terms: Sequence[str], extent: Extent) -> dict[str, int]:
        if not terms:
            return {}
        sql = "SELECT term, count(*) FROM postings WHERE term = ANY (?::text[]) GROUP BY term"
        counts = dict.fromkeys(terms, 0) | dict(await rows(db, sql, (terms,)))
        for term, count in counts.items():
            self._counts.remember(term, count, extent)
        return counts


@dataclass(frozen=True, slots=True)
class _State:
    """What the base is in this snapshot, as far as scores depend on it."""

    extent: Extent
    average: float
    """Words a chunk."""


async def find_candidates(db: Db, embedder: EmbedderIdentity, words: Words, query: IndexQuery) -> Candidates:
    """The best chunks. `db` is in a transaction with one snapshot.

    Raises:
        EngineError: `not_ready` where the base has another embedder by now.
    """
    state = await _state(db, embedder, query)
    if not state.extent.left:
        return Candidates((), 0)
    if query.mode == "vector":
        return (await _scored(db, state, query, Terms()))[0]
    terms = await asyncio.to_thread(lambda: Analyser().terms_of(query.text))
    kept, rest = await words.choose(db, terms, state.extent)
    found, any_word = await _scored(
        db, state, query, await words.weighed(db, kept, state.extent, flatten=True)
    )
    if rest and not any_word:
        weighed = await words.weighed(db, rest, state.extent, flatten=False)
        found, _ = await _scored(db, state, query, weighed)
    return found


async def _state(db: Db, embedder: EmbedderIdentity, query: IndexQuery) -> _State:
    found = await row(db, "SELECT embedder, dimensions, chunks, words, generation FROM totals")
    assert found is not None, "an opened base has its row"
    name, dimensions, chunks, words, generation = found
    stored = expect_embedder(embedder, EmbedderIdentity(name, dimensions))
    if query.vector is not None and stored.dimensions:
        expect_length(stored, len(query.vector))
    where, values = filters.condition(query.selection)
    left = chunks
    if where:
        sql = f"SELECT coalesce(sum(chunk_count), 0) FROM documents d WHERE {where}"  # noqa: S608
        left = await value(db, sql, values)
    return _State(Extent(int(left), chunks, generation), words / chunks if chunks else 1.0)


async def _scored(db: Db, state: _State, query: IndexQuery, terms: Terms) -> tuple[Candidates, bool]:
    """The best by these terms, and whether any chunk holds one of them."""
    if query.mode == "fts" and not terms.terms:
        return Candidates((), 0), False
    sql, values = _statement(state, query, terms)
    found = await rows(db, sql, values)
    total, any_word = found[0][0], found[0][1]
    best = [
        Candidate(chunk_id, None if query.mode == "fts" else cosine, None if query.mode == "vector" else bm25)
        for _, _, chunk_id, cosine, bm25 in found
        if chunk_id is not None
    ]
    return Candidates(best, total), any_word


def _statement(state: _State, query: IndexQuery, terms: Terms) -> tuple[str, list[Any]]:
    """The totals and the best: columns total, any_word, chunk_id, cosine, bm25."""
    scoring = query.scoring
    parts, values = _parts(state, query, terms)
    score, weights = _formula(query.mode, scoring)
    near = "false" if query.mode == "fts" else "cosine >= ?::float8"
    floor = [] if query.mode == "fts" else [scoring.cosine_floor]
    answering = "AND matches" if query.mode == "fts" else ""
    # With an offset the parts are computed once; without it, wherever they are named.
    sql = f"""
WITH parts AS ({parts} OFFSET 0),
scored AS MATERIALIZED (
  SELECT chunk_id, cosine, bm25, bm25 > 0 OR {near} AS matches,
    round({score} * 1e{DECIMALS}) / 1e{DECIMALS} AS score
  FROM parts),
best AS (
  SELECT chunk_id, score, cosine, bm25 FROM scored WHERE score >= ?::float8 {answering}
  ORDER BY score DESC, chunk_id LIMIT ?)
SELECT t.total, t.any_word, b.chunk_id, b.cosine, b.bm25 FROM (
  SELECT count(*) FILTER (WHERE matches AND score >= ?::float8) AS total,
    coalesce(bool_or(bm25 > 0), false) AS any_word FROM scored) t
LEFT JOIN best b ON true ORDER BY b.score DESC, b.chunk_id
"""  # noqa: S608
    return sql, [*values, *floor, *weights, query.min_score, query.top, query.min_score]


def _parts(state: _State, query: IndexQuery, terms: Terms) -> tuple[str, list[Any]]:
    """Cosine and BM25 of each chunk that the filters leave."""
    selected, chosen = _selected(query)
    vector = [] if query.vector is None else [query.vector.tolist()]
    if query.mode == "fts":
        hits, values = _hits(state, query, terms, narrowed=selected != _ALL)
        return f"SELECT h.chunk_id, 0.0::float8 AS cosine, h.bm25 FROM ({hits}) h", values  # noqa: S608
    # With an offset the cosines are computed on their own, and the vectors are in no join.
    near = f"SELECT v.chunk_id, {_COSINE} AS cosine FROM vectors v WHERE {selected} OFFSET 0"  # noqa: S608
    if query.mode == "vector" or not terms.terms:
        return f"SELECT chunk_id, cosine, 0.0::float8 AS bm25 FROM ({near}) n", [*vector, *chosen]  # noqa: S608
    # Where the filters leave much, summing the words of all chunks is quicker than choosing some.
    hits, values = _hits(state, query, terms, narrowed=state.extent.few and selected != _ALL)
    sql = (
        f"SELECT n.chunk_id, n.cosine, coalesce(h.bm25, 0.0) AS bm25 FROM ({near}) n "  # noqa: S608
        f"LEFT JOIN ({hits}) h ON h.chunk_id = n.chunk_id"
    )
    return sql, [*vector, *chosen, *values]


def _selected(query: IndexQuery) -> tuple[str, list[Any]]:
    """The condition on a row `v` of the vectors, and its values."""
    where, chosen = filters.condition(query.selection)
    if not where:
        return _ALL, []
    return f"v.document_id IN (SELECT d.id FROM documents d WHERE {where})", list(chosen)  # noqa: S608


def _hits(state: _State, query: IndexQuery, terms: Terms, *, narrowed: bool) -> tuple[str, list[Any]]:
    """BM25 of the chunks that hold a word; with `narrowed`, of those alone that the filters leave."""
    values = [state.average, terms.terms, terms.weights, terms.flat]
    if not narrowed:
        return f"{_BM25} GROUP BY p.chunk_id", values
    selected, chosen = _selected(query)
    among = f"SELECT v.chunk_id FROM vectors v WHERE {selected}"  # noqa: S608
    return f"{_BM25} JOIN ({among}) s ON s.chunk_id = p.chunk_id GROUP BY p.chunk_id", [*values, *chosen]


def _formula(mode: m.Mode, scoring: Scoring) -> tuple[str, list[Any]]:
    if mode == "fts":
        return _WORDING, [scoring.saturation]
    if mode == "vector":
        return _MEANING, []
    mixed = f"least(greatest(?::float8 * {_MEANING} + ?::float8 * {_WORDING}, 0.0), 1.0)"
    return mixed, [scoring.weight, 1.0 - scoring.weight, scoring.saturation]
