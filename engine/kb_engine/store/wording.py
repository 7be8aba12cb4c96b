"""A search whose passages have to hold phrases, or must not hold words: the index finds, the texts decide.

An index knows words and no texts, so it is asked for more than is wanted, and the texts of what it found are
read, the best pool first. Each pool is as large again as is looked at in a moment; where none has enough
passages that pass, the search ends at a bound and says that it may have missed some.

    asked for                               looked at
    the best                                256
    the best that hold the phrases' words   256, 4,096

An index finds words as it knows them: stemmed, by the rules of the document's language, with its accents. A
phrase whose words are spelled otherwise in a passage can be missed by it, which is why the first pool is
asked for without that condition: in a base that the pool exhausts nothing is missed. A query without phrases
has no such condition to ask for, and goes on with larger pools of the best.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

from kb_contracts.semantics.query import Wording
from kb_engine.index.port import Candidate, Candidates, IndexQuery
from kb_engine.store.port import Query

Find = Callable[[IndexQuery], Awaitable[Candidates]]
Passing = Callable[[Wording, Sequence[int]], Awaitable[set[int]]]
"""Those of these chunks that pass."""

POOLS = (256, 4_096)
EFFORT = 400_000
"""Texts that are looked at, times how often each is gone over: fewer texts where a query has hundreds of
phrases."""
BATCH = 128
"""Texts that are read at once: on PostgreSQL the event loop gets a turn in between."""


async def find_passing(query: Query, find: Find, passing: Passing) -> Candidates:
    """The best candidates that pass, `query.top` of them where there are so many, or more.

    `total` counts those among what was looked at, and is exact where that was all there is.
    """
    assert query.wording is not None, "else any candidate passes"
    looked_at: set[int] = set()
    passed: dict[int, Candidate] = {}
    total_exact = False
    for wanted in _rounds(query, query.wording):
        found = await find(wanted)
        new = [each for each in found.best if each.chunk_id not in looked_at]
        for start in range(0, len(new), BATCH):
            batch = new[start : start + BATCH]
            good = await passing(query.wording, [each.chunk_id for each in batch])
            passed |= {each.chunk_id: each for each in batch if each.chunk_id in good}
        looked_at.update(each.chunk_id for each in new)
        complete = found.exact and len(found.best) < wanted.top
        if not wanted.required:
            matching = sum(_matches(query, each) for each in found.best)
            total_exact = complete or (found.total_exact and matching == found.total)
        if complete or len(passed) >= query.top:
            break
    return replace(
        found,
        best=list(passed.values()),
        total=sum(_matches(query, each) for each in passed.values()),
        total_exact=total_exact,
    )


def _rounds(query: Query, wording: Wording) -> Iterator[IndexQuery]:
    """What the index is asked for, one after the other."""
    most = max(POOLS[0], EFFORT // wording.effort)
    first, *others = (max(2 * query.top, min(pool, most)) for pool in POOLS)
    yield replace(query, top=first)
    if wording.phrases:
        query = replace(query, required=wording.phrases)
        yield replace(query, top=first)
    for size in others:
        yield replace(query, top=size)


def _matches(query: Query, candidate: Candidate) -> bool:
    near = candidate.cosine is not None and candidate.cosine >= query.scoring.cosine_floor
    return near or bool(candidate.bm25)
