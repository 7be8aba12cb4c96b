"""The choice of the search method.

If few chunks pass the filters, all of these are scored, by their vectors and by all words. Otherwise chunks
are found

    by scoring all: each chunk that passes the filters gets its cosine, and its BM25 by the words looked up
    (`words.py`); the time is proportional to their number; or

    by the HNSW index: the nearest to the query's vector, and the best by words. The time hardly depends on
    the size of the base, and grows with the strictness of the filters, as rejected chunks are visited too.

Both take equally long at `exact_below` chunks without a filter; so, if a share of s passes out of n chunks,
at `s * n = exact_below / s`. Chunks found by the index, or by some of the words, are then scored by their
stored vector and by all words. So scores do not depend on the method. The only possible error is a better
chunk that was not found: then `exact` is false.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from kb_engine.index.port import Candidate, Candidates, IndexQuery
from kb_engine.index.score import K1, Formula
from kb_engine.index.words import Analyser, Word, looked_up, weigh_words
from kb_engine.store.port import EmbedderIdentity
from kb_engine.store.postgres.connection import Db, rows
from kb_engine.store.postgres.search.building import half_of
from kb_engine.store.postgres.search.exact import any_holds, score_all, score_few, score_some
from kb_engine.store.postgres.search.state import State, read_state, selected
from kb_engine.store.postgres.search.words import Known, Terms, Words, affordable, weighed

FEW_CHUNKS = 2_000  # maximum number of chunks that counts as few
_EFFORT = 200  # number of candidates during a graph search (`hnsw.ef_search`)
POOLS = (400, 2_000)
"""Number of chunks found by each method for rescoring; the larger one if the smaller one is not
conclusive.
"""


async def find_candidates(
    db: Db,
    embedder: EmbedderIdentity,
    words: Words,
    query: IndexQuery,
    exact_below: int,
    without: Sequence[int] = (),
) -> Candidates:
    """Return the best chunks, except `without`. `db` is in a transaction with one snapshot.
    Raises EngineError: `not_ready` if the base has a different embedder by now.
    """
    state = await read_state(db, embedder, query, words.sizes, without)
    if not state.extent.left:
        return Candidates((), 0)
    found = await _found(db, state, words, query, exact_below)
    return found if state.filtered is None else replace(found, size=state.filtered)


async def _found(db: Db, state: State, words: Words, query: IndexQuery, exact_below: int) -> Candidates:
    extent = state.extent
    found: Sequence[Word] = ()
    known: list[Known] = []
    counted: dict[str, int] = {}
    if query.mode != "vector":
        found = await asyncio.to_thread(lambda: Analyser().words_of(query.text, state.languages))
        known, counted = await words.known(db, looked_up(found), extent)
        if not found and query.mode == "hybrid":
            query = replace(query, mode="vector")
    few = extent.left <= FEW_CHUNKS
    sought, rest = affordable(known, extent)
    while rest and not few and not await any_holds(db, state, query, [term for term, _ in sought]):
        sought, rest = affordable(rest, extent)
    sought = await words.exactly(db, sought, counted, extent)
    weights, total_weight = weigh_words(found, dict(known) | dict(sought), extent.size)
    first, others = weighed(sought, weights, total_weight), weighed(rest, weights, total_weight)
    if few:
        return await score_few(db, state, query, first + others)
    by_index = query.mode != "fts" and state.indexed and extent.left**2 >= exact_below * extent.whole
    if by_index or others.terms:
        return await _best_of_pools(db, state, query, first, others, by_index=by_index)
    return await score_all(db, state, query, first)


async def _best_of_pools(
    db: Db, state: State, query: IndexQuery, sought: Terms, rest: Terms, *, by_index: bool
) -> Candidates:
    """Return the best chunks found by the selected words, with the nearest by the index or with
    all cosines.
    """
    deepest = replace(query, top=max(*POOLS, query.top), min_score=0.0)
    if by_index:
        deepest = replace(deepest, mode="fts", vector=None)
    found = await score_all(db, state, deepest, sought)
    for count in (max(each, query.top) for each in POOLS):
        pool = found.best[:count]
        near = await _nearest(db, state, query, count) if by_index else {}
        ids = {each.chunk_id for each in pool} | near.keys()
        best = await score_some(db, state, query, sorted(ids), sought + rest)
        if max(len(pool), len(near)) < count or _settled(query, best, pool, near, rest):
            break
    complete = len(ids) == state.extent.left
    total = best.total if query.min_score else max(best.total, found.total)
    return replace(best, total=total, size=state.extent.left, exact=complete, total_exact=complete)


def _settled(
    query: IndexQuery, best: Candidates, pool: Sequence[Candidate], near: dict[int, float], rest: Terms
) -> bool:
    """True if no chunk outside the pools can be better, given the last one of each pool.

    Such a chunk may contain all the remaining words, at the maximum frequency effect.
    """
    if len(best.best) < query.top:
        return False
    cosine, bm25 = (pool[-1].cosine, pool[-1].bm25) if pool else (None, None)
    if near:
        cosine = min(near.values())
    elif cosine is None:
        cosine = 1.0
    unseen = Candidate(0, cosine, (bm25 or 0.0) + (K1 + 1) * sum(rest.weights))
    worst, most = Formula(query.mode, query.scoring, rest.total_weight).of([best.best[query.top - 1], unseen])
    return worst >= most


async def _nearest(db: Db, state: State, query: IndexQuery, count: int) -> dict[int, float]:
    """Return about `count` nearest chunks that pass the filters, with their cosines.

    The scan continues until `count` chunks have passed the filters, or `hnsw.max_scan_tuples` (a setting of
    the server) have been visited.
    """
    assert query.vector is not None, "a search by meaning has a vector"
    # The order of the scan does not matter: all chunks are scored again.
    await rows(
        db,
        "SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), "
        "set_config('hnsw.ef_search', ?, true)",
        (str(_EFFORT),),
    )
    where, chosen = selected(state, query)
    half = half_of(state.dimensions)
    distance = f"v.vector::{half} <#> ?::real[]::{half}"
    sql = f"SELECT v.chunk_id, -({distance}) FROM vectors v WHERE {where} ORDER BY {distance} LIMIT ?"  # noqa: S608
    vector = query.vector.tolist()
    return dict(await rows(db, sql, [vector, *chosen, vector, count]))
