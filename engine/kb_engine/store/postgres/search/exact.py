"""Scores of every chunk that passes the filters, in one statement, or of the chunks of a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kb_engine.index.port import Candidate, Candidates, IndexQuery
from kb_engine.index.score import K1, B, Floats, Formula, select
from kb_engine.store.postgres.connection import Db, rows, value
from kb_engine.store.postgres.search.state import ALL, State, selected
from kb_engine.store.postgres.search.words import Terms
from kb_engine.store.repository import search as filters

_BM25 = f"""
  SELECT p.chunk_id, sum(a.weight * p.frequency * {K1 + 1}
    / (p.frequency + {K1} * ({1 - B} + {B} * p.length / ?::float8))) AS bm25
  FROM unnest(?::text[], ?::float8[]) AS a (term, weight)
  JOIN postings p ON p.term = a.term
"""  # noqa: S608
"""Parameters: the average length, the terms and their weights; to be grouped by `p.chunk_id`."""
_COSINE = "-(v.vector <#> ?::real[]::vector)"


async def score_all(db: Db, state: State, query: IndexQuery, terms: Terms) -> Candidates:
    """Return the best chunks by these terms and by the vector."""
    if query.mode == "fts" and not terms.terms:
        return Candidates((), 0, terms.total_weight)
    sql, values = _statement(state, query, terms)
    found = await rows(db, sql, values)
    best = [
        Candidate(chunk_id, None if query.mode == "fts" else cosine, None if query.mode == "vector" else bm25)
        for _, chunk_id, cosine, bm25, _ in found
        if chunk_id is not None
    ]
    lost = [] if query.mode == "fts" else await _lost(db, state, query, found[0][-1])
    return Candidates(best, found[0][0], terms.total_weight, state.extent.left, lost=lost)


async def score_few(db: Db, state: State, query: IndexQuery, terms: Terms) -> Candidates:
    """Return the best chunks that pass the filters, by reading each of them."""
    where, values = selected(state, query)
    cosine = "NULL"
    if query.vector is not None and query.mode != "fts":
        cosine, values = _COSINE, [query.vector.tolist(), *values]
    sql = f"SELECT v.chunk_id, {cosine} FROM vectors v WHERE {where} ORDER BY v.chunk_id"  # noqa: S608
    left = await rows(db, sql, values)
    lost = await _lost(db, state, query, len(left))
    return replace(await _scored(db, state, query, left, terms), lost=lost)


async def _lost(db: Db, state: State, query: IndexQuery, known: int) -> list[int]:
    """Return the chunks that pass the filters but have no vector; `known` is the number with a vector."""
    if known >= state.extent.left:
        return []
    where, values = filters.condition(query.selection)
    sql = (
        "SELECT c.id FROM chunks c JOIN documents d ON d.id = c.document_id "  # noqa: S608
        "LEFT JOIN vectors v ON v.chunk_id = c.id "
        f"WHERE v.chunk_id IS NULL AND {where or 'true'} ORDER BY c.id"
    )
    return [chunk_id for (chunk_id,) in await rows(db, sql, values)]


async def score_some(
    db: Db, state: State, query: IndexQuery, chunk_ids: Sequence[int], terms: Terms
) -> Candidates:
    """Return the best of these chunks, whose ids ascend."""
    if query.vector is None or query.mode == "fts":
        return await _scored(db, state, query, [(chunk_id, None) for chunk_id in chunk_ids], terms)
    sql = f"SELECT v.chunk_id, {_COSINE} FROM vectors v WHERE v.chunk_id = ANY (?::bigint[])"  # noqa: S608
    near = dict(await rows(db, sql, (query.vector.tolist(), chunk_ids)))
    lost = [chunk_id for chunk_id in chunk_ids if chunk_id not in near]
    return replace(await _scored(db, state, query, sorted(near.items()), terms), lost=lost)


async def _scored(
    db: Db, state: State, query: IndexQuery, chunks: Sequence[tuple[int, float | None]], terms: Terms
) -> Candidates:
    """Return the best of these chunks, given by ascending ids with their cosines."""
    ids = [chunk_id for chunk_id, _ in chunks]
    cosines: Floats | None = None
    bm25: Floats | None = None
    if query.vector is not None and query.mode != "fts":
        cosines = np.array([cosine for _, cosine in chunks], np.float64)
    if query.mode != "vector":
        sql = f"{_BM25} WHERE p.chunk_id = ANY (?::bigint[]) GROUP BY p.chunk_id"
        held = dict(await rows(db, sql, (state.average, terms.terms, terms.weights, ids)))
        bm25 = np.array([held.get(chunk_id, 0.0) for chunk_id in ids], np.float64)
    return select(np.array(ids, np.int64), cosines, bm25, query, terms.total_weight)


async def any_holds(db: Db, state: State, query: IndexQuery, terms: Sequence[str]) -> bool:
    """True if a chunk that passes the filters contains one of these terms."""
    where, chosen = selected(state, query)
    sql = (
        "SELECT EXISTS (SELECT FROM postings p JOIN vectors v ON v.chunk_id = p.chunk_id "  # noqa: S608
        f"WHERE p.term = ANY (?::text[]) AND {where})"
    )
    return bool(await value(db, sql, [terms, *chosen]))


def _statement(state: State, query: IndexQuery, terms: Terms) -> tuple[str, list[Any]]:
    """Build the statement for total and best chunks: columns total, chunk_id, cosine, bm25, scored."""
    scoring = query.scoring
    parts, values = _parts(state, query, terms)
    score, constants = Formula(query.mode, scoring, terms.total_weight).sql()
    near = "false" if query.mode == "fts" else "cosine >= ?::float8"
    floor = [] if query.mode == "fts" else [scoring.cosine_floor]
    answering = "AND matches" if query.mode == "fts" else ""
    # OFFSET 0 prevents inlining, which would compute the parts at every reference.
    sql = f"""
WITH parts AS ({parts} OFFSET 0),
scored AS MATERIALIZED (
  SELECT chunk_id, cosine, bm25, bm25 > 0 OR {near} AS matches, {score} AS score FROM parts),
best AS (
  SELECT chunk_id, score, cosine, bm25 FROM scored WHERE score >= ?::float8 {answering}
  ORDER BY score DESC, chunk_id LIMIT ?)
SELECT t.total, b.chunk_id, b.cosine, b.bm25, t.scored FROM (
  SELECT count(*) FILTER (WHERE matches AND score >= ?::float8) AS total, count(*) AS scored FROM scored) t
LEFT JOIN best b ON true ORDER BY b.score DESC, b.chunk_id
"""  # noqa: S608
    return sql, [*values, *floor, *constants, query.min_score, query.top, query.min_score]


def _parts(state: State, query: IndexQuery, terms: Terms) -> tuple[str, list[Any]]:
    """Build the statement for cosine and BM25 of each chunk that passes the filters."""
    where, chosen = selected(state, query)
    vector = [] if query.vector is None else [query.vector.tolist()]
    hits, values = _BM25, [state.average, terms.terms, terms.weights]
    if query.mode == "fts":
        if where != ALL:
            hits += f" WHERE p.chunk_id IN (SELECT v.chunk_id FROM vectors v WHERE {where})"  # noqa: S608
        sql = f"SELECT h.chunk_id, 0.0::float8 AS cosine, h.bm25 FROM ({hits} GROUP BY p.chunk_id) h"  # noqa: S608
        return sql, [*values, *chosen]
    # OFFSET 0 computes the cosines separately, and keeps the vectors out of the join.
    near = f"SELECT v.chunk_id, {_COSINE} AS cosine FROM vectors v WHERE {where} OFFSET 0"  # noqa: S608
    if query.mode == "vector" or not terms.terms:
        return f"SELECT chunk_id, cosine, 0.0::float8 AS bm25 FROM ({near}) n", [*vector, *chosen]  # noqa: S608
    # Summing the words of all chunks is faster than selecting some chunks first.
    sql = (
        f"SELECT n.chunk_id, n.cosine, coalesce(h.bm25, 0.0) AS bm25 FROM ({near}) n "  # noqa: S608
        f"LEFT JOIN ({hits} GROUP BY p.chunk_id) h ON h.chunk_id = n.chunk_id"
    )
    return sql, [*vector, *chosen, *values]
