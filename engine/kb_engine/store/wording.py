"""A search whose passages have to hold phrases, or must not hold words: the index finds, the texts decide.

An index knows words and no texts, so it is asked for more than is wanted, and the texts of what it found are
read, until enough pass:

    asked for                               looked at
    the best                                256
    with phrases, those with their words    8,192, whatever their rank; then the best of those that passed
    else the best                           4,096

An index finds words as it knows them: stemmed, by the rules of the document's language, with its accents. A
phrase whose words are spelled otherwise in a passage can be missed by it, which is why the first are asked
for without that condition: in a base that they exhaust nothing is missed. To list what holds words costs an
index little, however many there are; to rank it by meaning as well, as deep as that, would cost it more than
the texts cost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from kb_contracts.semantics.query import Wording
from kb_engine.index.port import Candidate, Candidates, IndexQuery
from kb_engine.store.port import Query

Find = Callable[[IndexQuery], Awaitable[Candidates]]
Passing = Callable[[Wording, Sequence[int]], Awaitable[set[int]]]
"""Those of these chunks that pass."""

FIRST, MOST, LISTED = 256, 4_096, 8_192
EFFORT = 400_000
"""Texts that are looked at, times how often each is gone over: fewer texts where a query has hundreds of
phrases."""
BATCH = 128
"""Texts that are read at once: others get a turn in between."""


async def find_passing(query: Query, find: Find, passing: Passing) -> Candidates:
    """The best candidates that pass, `query.top` of them where there are so many, or more.

    `total` counts those among what was looked at, and is exact where that was all there is.
    """
    assert query.wording is not None, "else any candidate passes"
    texts = _Texts(query.wording, passing)
    most = max(FIRST, EFFORT // query.wording.effort)
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
    """The best of those that hold the phrases, as far as the index finds their words, and of the first."""
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
    """Which chunks pass; each text is read once."""

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
