"""Which chunks answer a query.

Where the filters leave few chunks these are scored, by their vectors and by all words. Else chunks are found

    by scoring all: each that the filters leave gets its cosine, and its BM25 by the words that are looked up
    (`words.py`), in a time in proportion to their number; or

    by the HNSW index: the nearest to the query's vector, and the best by words. That takes about as long
    however large the base is, and longer the fewer chunks the filters leave, for it passes over the others.

Both take the same at a base of `exact_below` chunks without a filter; so, where a share of s is left of n
chunks, at `s * n = exact_below / s`. What was found by the index, or by some of the words, is then scored by
its vector as it is kept and by all words. So scores mean the same whatever way found them. What can be wrong
is that a better chunk was not found: then `exact` is false.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from kb_engine.index.port import Candidate, Candidates, IndexQuery
from kb_engine.index.postgres.exact import K1, any_holds, score_all, score_few, score_some
from kb_engine.index.postgres.nearest import nearest
from kb_engine.index.postgres.state import State, read_state
from kb_engine.index.postgres.words import Known, Terms, Words, affordable, weighed
from kb_engine.index.ranking import scores_of
from kb_engine.index.words import Analyser, Word, weigh_words
from kb_engine.store.port import EmbedderIdentity
from kb_engine.store.postgres.connection import Db

FEW_CHUNKS = 2_000
"""Filters that leave no more than these leave "few"."""
POOLS = (400, 2_000)
"""So many chunks of each kind are found, to be scored again; the more where the fewer do not settle it."""


async def find_candidates(
    db: Db, embedder: EmbedderIdentity, words: Words, query: IndexQuery, exact_below: int
) -> Candidates:
    """The best chunks. `db` is in a transaction with one snapshot.

    Raises:
        EngineError: `not_ready` where the base has another embedder by now.
    """
    state = await read_state(db, embedder, query, words.sizes)
    extent = state.extent
    if not extent.left:
        return Candidates((), 0)
    found: Sequence[Word] = ()
    known: list[Known] = []
    if query.mode != "vector":
        found = await asyncio.to_thread(lambda: Analyser().words_of(query.text, state.languages))
        known = await words.known(db, list(dict.fromkeys(chain.from_iterable(found))), extent)
        if not found and query.mode == "hybrid":
            query = replace(query, mode="vector")
    few = extent.left <= FEW_CHUNKS
    sought, rest = affordable(known, extent)
    while rest and not few and not await any_holds(db, state, query, [term for term, _ in sought]):
        sought, rest = affordable(rest, extent)
    sought = await words.exactly(db, sought, extent)
    weights, reach = weigh_words(found, dict(known) | dict(sought), extent.size)
    first, others = weighed(sought, weights, reach), weighed(rest, weights, reach)
    if few:
        return await score_few(db, state, query, first + others)
    by_index = query.mode != "fts" and state.indexed and extent.left**2 >= exact_below * extent.whole
    if by_index or others.terms:
        return await _best_of_pools(db, state, query, first, others, by_index=by_index)
    return await score_all(db, state, query, first)


async def _best_of_pools(
    db: Db, state: State, query: IndexQuery, sought: Terms, rest: Terms, *, by_index: bool
) -> Candidates:
    """The best of what the words sought bring, with the nearest by the index or with all cosines."""
    deepest = replace(query, top=max(*POOLS, query.top), min_score=0.0)
    if by_index:
        deepest = replace(deepest, mode="fts", vector=None)
    found = await score_all(db, state, deepest, sought)
    for count in (max(each, query.top) for each in POOLS):
        pool = found.best[:count]
        near = await nearest(db, state, query, count) if by_index else {}
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
    """Whether a chunk that was not found, with the parts of the last one of each kind, is no better.

    It may hold all the other words, each as often as counts.
    """
    cosine, bm25 = (pool[-1].cosine, pool[-1].bm25) if pool else (None, None)
    if near:
        cosine = min(near.values())
    if query.mode != "vector":
        bm25 = (bm25 or 0.0) + (K1 + 1) * sum(rest.weights)
    if len(best.best) < query.top:
        return False
    worst = scores_of(best.best[query.top - 1 : query.top], query.scoring, rest.reach)
    return worst >= scores_of([Candidate(0, cosine, bm25)], query.scoring, rest.reach)
