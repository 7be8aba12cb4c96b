"""Searches with phrases or exclusions in an index without the order of words: it proposes chunks, their texts
decide.

The indexes of SQLite (`index/embedded/word_order.py`) and PostgreSQL (`store/postgres/word_order.py`) know
the order, unless chunks of an earlier version are still to be indexed again, or a query has hundreds of
phrases. Other indexes are asked for more candidates than requested, and their texts are read until enough
pass:

    query to the index                      texts checked
    the best candidates                     256
    with phrases: chunks with their words   8,192 at any rank; then the best of those that passed
    otherwise: the best candidates          4,096

An index matches stems, by the rules of the document's language, with accents. It can miss a passage that
spells the words of a phrase differently, so the first query is sent without the phrase condition: if that
exhausts the base, nothing is missed. Listing the chunks that contain given words is cheap for an index,
however many there are; ranking as many by meaning would cost more than reading the texts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from kb_contracts.semantics.query import Wording
from kb_engine.index.port import Candidate, Candidates, IndexQuery
from kb_engine.store.port import Query

Find = Callable[[IndexQuery], Awaitable[Candidates]]
Passing = Callable[[Wording, Sequence[int]], Awaitable[set[int]]]
"""Returns the given chunks that pass."""

FIRST, MOST, LISTED = 256, 4_096, 8_192
MAX_SCANS = 400_000
"""Upper bound of checked texts times scans per text, for queries of hundreds of phrases."""
BATCH = 128
"""Number of texts read at once, so that other searches can run in between."""


async def find_passing(query: Query, find: Find, passing: Passing) -> Candidates:
    """Return the best candidates that pass, at least `query.top` if there are as many.

    `total` counts the matches among the checked candidates; it is exact if these were all.
    """
    assert query.wording is not None, "else any candidate passes"
    texts = _Texts(query.wording, passing)
    most = max(FIRST, MAX_SCANS // query.wording.scans)
    wanted = replace(query, top=max(2 * query.top, FIRST))
    found = await find(wanted)
    passed = await texts.passing(found.best)
    if len(passed) < query.top and not _is_complete(wanted, found):
        if query.wording.phrases:
            return await _by_words(query, find, texts, passed, most)
        wanted = replace(wanted, top=max(wanted.top, min(most, MOST)))
        found = await find(wanted)
        passed = await texts.passing(found.best)
    matching = sum(_matches(query, each) for each in found.best)
    return replace(
        found,
        best=passed,
        total=sum(_matches(query, each) for each in passed),
        total_exact=_is_complete(wanted, found) or (found.total_exact and matching == found.total),
    )


async def _by_words(
    query: Query, find: Find, texts: _Texts, first: Sequence[Candidate], most: int
) -> Candidates:
    """Return the best of the chunks that hold the phrases, as far as the index knows, and of `first`."""
    assert query.wording is not None, "it has the phrases"
    phrases = query.wording.phrases
    holding = replace(
        query, text=" ".join(phrases), mode="fts", vector=None, min_score=0.0, top=min(most, LISTED)
    )
    listed = await find(replace(holding, required=phrases))
    passed = {each.chunk_id for each in (*first, *await texts.passing(listed.best))}
    found = await find(replace(query, among=sorted(passed)))
    return replace(found, total_exact=False)


class _Texts:
    """Cache of the chunks that pass; each text is read once."""

    def __init__(self, wording: Wording, passing: Passing) -> None:
        self._wording, self._passing = wording, passing
        self._known: dict[int, bool] = {}

    async def passing(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        new = [each.chunk_id for each in candidates if each.chunk_id not in self._known]
        for start in range(0, len(new), BATCH):
            batch = new[start : start + BATCH]
            good = await self._passing(self._wording, batch)
            self._known |= {chunk_id: chunk_id in good for chunk_id in batch}
        return [each for each in candidates if self._known[each.chunk_id]]


def _is_complete(wanted: Query, found: Candidates) -> bool:
    return found.exact and len(found.best) < wanted.top


def _matches(query: Query, candidate: Candidate) -> bool:
    near = candidate.cosine is not None and candidate.cosine >= query.scoring.cosine_floor
    return near or bool(candidate.bm25)
