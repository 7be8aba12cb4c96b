"""Search: every chunk that the filters leave gets its exact score in one statement, and the best are told.

The formula is that of `store/sqlite/search.py`; here the database computes it, so that no vectors travel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kb_contracts.api import models as m
from kb_engine.store import selection
from kb_engine.store.port import EmbedderIdentity, Found, Query, Scoring
from kb_engine.store.postgres.connection import Db, row, rows, value
from kb_engine.store.postgres.documents import SUMMARY_COLUMNS, told
from kb_engine.store.postgres.postings import Tokenizer
from kb_engine.store.postgres.words import Asked, Words
from kb_engine.store.postgres.write import expect_embedder, expect_length
from kb_engine.store.rows import CHUNK_COLUMNS, chunk
from kb_engine.store.sqlite.search import DECIMALS
from kb_engine.store.sqlite.words import Extent

K1, B = 1.2, 0.75
"""Those of FTS5."""


@dataclass(frozen=True, slots=True)
class _Hit:
    """One of the best chunks; a part that had no say is None."""

    chunk_id: int
    score: float
    cosine: float | None
    bm25: float | None


@dataclass(frozen=True, slots=True)
class _Scored:
    """The best, how many match in all, and whether any chunk held a word."""

    best: Sequence[_Hit]
    total: int
    worded: bool


@dataclass(frozen=True, slots=True)
class _State:
    """What the base is in this snapshot, as far as scores depend on it."""

    extent: Extent
    average: float
    """Words a chunk."""


async def search(db: Db, embedder: EmbedderIdentity, words: Words, query: Query) -> Found:
    """The best chunks, best first, ties by chunk id. `db` is in a transaction with one snapshot."""
    if query.mode != "fts" and query.vector is None:
        raise ValueError(f"mode {query.mode} needs a vector")
    state = await _state(db, embedder, query)
    scored = await _score(db, state, words, query)
    results = await _results(db, scored.best, query)
    return Found(results=results, total=scored.total, weak=_is_weak(scored.best, query.scoring))


async def _state(db: Db, embedder: EmbedderIdentity, query: Query) -> _State:
    found = await row(db, "SELECT embedder, dimensions, chunks, words, generation FROM base")
    assert found is not None, "an opened base has its row"
    name, dimensions, chunks, words, generation = found
    stored = expect_embedder(embedder, EmbedderIdentity(name, dimensions))
    if query.vector is not None and stored.dimensions:
        expect_length(stored, len(query.vector))
    where, values = selection.condition(query.selection)
    left = chunks
    if where:
        sql = f"SELECT coalesce(sum(chunk_count), 0) FROM documents d WHERE {where}"  # noqa: S608
        left = await value(db, sql, values)
    return _State(Extent(int(left), chunks, generation), words / chunks if chunks else 1.0)


async def _score(db: Db, state: _State, words: Words, query: Query) -> _Scored:
    if not state.extent.left:
        return _Scored((), 0, worded=False)
    if query.mode == "vector":
        return await _scored(db, state, query, Asked())
    terms = await asyncio.to_thread(_terms, query.text)
    kept, rest = await words.choose(db, terms, state.extent)
    scored = await _scored(db, state, query, await words.weighed(db, kept, state.extent, flatten=True))
    if rest and not scored.worded:
        return await _scored(db, state, query, await words.weighed(db, rest, state.extent, flatten=False))
    return scored


def _terms(query: str) -> list[str]:
    return Tokenizer().terms_of(query)


async def _scored(db: Db, state: _State, query: Query, asked: Asked) -> _Scored:
    if query.mode == "fts" and not asked.terms:
        return _Scored((), 0, worded=False)
    sql, values = _statement(state, query, asked)
    found = await rows(db, sql, values)
    total, worded = found[0][0], found[0][1]
    best = [_hit(one, query.mode) for one in found if one[2] is not None]
    return _Scored(best, total, worded)


def _hit(found: Sequence[Any], mode: m.Mode) -> _Hit:
    _, _, chunk_id, score, cosine, bm25 = found
    return _Hit(chunk_id, score, None if mode == "fts" else cosine, None if mode == "vector" else bm25)


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


def _statement(state: _State, query: Query, asked: Asked) -> tuple[str, list[Any]]:
    """The totals and the best: columns total, worded, chunk_id, score, cosine, bm25."""
    scoring = query.scoring
    parts, values = _parts(state, query, asked)
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
SELECT t.total, t.worded, b.chunk_id, b.score, b.cosine, b.bm25 FROM (
  SELECT count(*) FILTER (WHERE matches AND score >= ?::float8) AS total,
    coalesce(bool_or(bm25 > 0), false) AS worded FROM scored) t
LEFT JOIN best b ON true ORDER BY b.score DESC, b.chunk_id
"""  # noqa: S608
    return sql, [*values, *floor, *weights, query.min_score, query.top, query.min_score]


def _parts(state: _State, query: Query, asked: Asked) -> tuple[str, list[Any]]:
    """Cosine and BM25 of each chunk that the filters leave."""
    selected, chosen = _selected(query)
    vector = [] if query.vector is None else [query.vector.tolist()]
    if query.mode == "fts":
        hits, values = _hits(state, query, asked, narrowed=selected != _ALL)
        return f"SELECT h.chunk_id, 0.0::float8 AS cosine, h.bm25 FROM ({hits}) h", values  # noqa: S608
    # With an offset the cosines are computed on their own, and the vectors are in no join.
    near = f"SELECT v.chunk_id, {_COSINE} AS cosine FROM vectors v WHERE {selected} OFFSET 0"  # noqa: S608
    if query.mode == "vector" or not asked.terms:
        return f"SELECT chunk_id, cosine, 0.0::float8 AS bm25 FROM ({near}) n", [*vector, *chosen]  # noqa: S608
    # Where the filters leave much, all chunks' words are summed sooner than some are told apart.
    hits, values = _hits(state, query, asked, narrowed=state.extent.few and selected != _ALL)
    sql = (
        f"SELECT n.chunk_id, n.cosine, coalesce(h.bm25, 0.0) AS bm25 FROM ({near}) n "  # noqa: S608
        f"LEFT JOIN ({hits}) h ON h.chunk_id = n.chunk_id"
    )
    return sql, [*vector, *chosen, *values]


def _selected(query: Query) -> tuple[str, list[Any]]:
    """The condition on a row `v` of the vectors, and its values."""
    where, chosen = selection.condition(query.selection)
    if not where:
        return _ALL, []
    return f"v.document_id IN (SELECT d.id FROM documents d WHERE {where})", list(chosen)  # noqa: S608


def _hits(state: _State, query: Query, asked: Asked, *, narrowed: bool) -> tuple[str, list[Any]]:
    """BM25 of the chunks that hold a word; with `narrowed`, of those alone that the filters leave."""
    values = [state.average, asked.terms, asked.weights, asked.flat]
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


def _is_weak(best: Sequence[_Hit], scoring: Scoring) -> bool:
    """Whether none of the best matches well."""
    if not best:
        return True
    near = any(hit.cosine is not None and hit.cosine >= scoring.cosine_floor for hit in best)
    return not near and best[0].score < scoring.floor


async def _results(db: Db, best: Sequence[_Hit], query: Query) -> list[m.SearchResult]:
    if not best:
        return []
    chunks = await _chunks(db, [hit.chunk_id for hit in best])
    summaries = await _summaries(db, {document_id for document_id, _ in chunks.values()})
    results = []
    for hit in best:
        document_id, found = chunks[hit.chunk_id]
        document, tags = summaries[document_id]
        result = m.SearchResult(chunk=found, score=hit.score, document=document, tags=list(tags))
        result.before, result.after = await _neighbors(db, document_id, found.index, query.neighbors)
        result.explain = _explain(hit, query.scoring) if query.explain else None
        results.append(result)
    return results


async def _chunks(db: Db, chunk_ids: list[int]) -> dict[int, tuple[int, m.Chunk]]:
    sql = f"SELECT c.document_id, {CHUNK_COLUMNS} FROM chunks c WHERE c.id = ANY (?::bigint[])"  # noqa: S608
    return {one[1]: (one[0], chunk(one[1:])) for one in await rows(db, sql, (chunk_ids,))}


async def _summaries(db: Db, document_ids: set[int]) -> dict[int, tuple[m.DocumentSummary, list[str]]]:
    sql = f"SELECT {SUMMARY_COLUMNS} FROM documents d WHERE d.id = ANY (?::bigint[])"  # noqa: S608
    return {one[0]: told(one) for one in await rows(db, sql, (list(document_ids),))}


async def _neighbors(
    db: Db, document_id: int, position: int, count: int
) -> tuple[list[m.Chunk], list[m.Chunk]]:
    if not count:
        return [], []
    found = await rows(
        db,
        f"SELECT {CHUNK_COLUMNS} FROM chunks c WHERE c.document_id = ? AND c.position BETWEEN ? AND ? "  # noqa: S608
        "ORDER BY c.position",
        (document_id, position - count, position + count),
    )
    around = [chunk(one) for one in found]
    return [c for c in around if c.index < position], [c for c in around if c.index > position]


def _explain(hit: _Hit, scoring: Scoring) -> m.Explanation:
    return m.Explanation(
        cosine=hit.cosine, bm25=hit.bm25 or None, weight=scoring.weight, saturation=scoring.saturation
    )
