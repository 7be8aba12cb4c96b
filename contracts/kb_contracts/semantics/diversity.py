"""A page that says many things: near duplicates become one result, as do neighbours; no document fills it.

This works on the candidates of one search alone, in their order, so that it costs the same in a base of any
size. Two texts are near duplicates where they share most of their runs of words, and have the same figures: a
report of another month says something else.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.semantics import cursors

POOL = 30
POOL_A_RESULT = 3

_ALIKE = 0.8  # of the runs that either text has
_RUN = 3
_LONG_WORD = 20  # characters a word on average; above, the text has no blanks between its words
_FIGURE = re.compile(r"\d+")
_HOLDERS = 8  # results that are remembered for a run; what more have in common tells none apart
_COMPARED = 3
_COMPARABLE = 0.5

Run = tuple[str, ...]


def pool_for(request: m.SearchRequest) -> int:
    """How many candidates a page is chosen from."""
    pages = cursors.POOL if request.pages else request.top
    if not request.collapse and request.per_document is None:
        return pages
    return max(POOL, POOL_A_RESULT * request.top, pages)


def diverse(results: Sequence[m.SearchResult], request: m.SearchRequest) -> list[m.SearchResult]:
    """The candidates in the order in which pages give them, `top` a page; best first within each page."""
    ordered = list(results)
    if request.collapse:
        ordered = merge_neighbors(collapse_duplicates(ordered), request.top)
    if request.per_document is not None:
        ordered = limit_documents(ordered, request.top, request.per_document)
    return ordered


def collapse_duplicates(results: Sequence[m.SearchResult]) -> list[m.SearchResult]:
    """The results without near duplicates of better ones, which name them."""
    kept: list[m.SearchResult] = []
    runs: list[frozenset[Run]] = []
    duplicates: dict[int, list[m.Duplicate]] = defaultdict(list)
    holders: dict[Run, list[int]] = defaultdict(list)
    for result in results:
        own = runs_of(result.chunk.text)
        shared = Counter(place for run in own for place in holders.get(run, ()))
        likely = (place for place, _ in shared.most_common(_COMPARED))
        twin = next((place for place in likely if _alike(result, own, kept[place], runs[place])), None)
        if twin is not None:
            duplicates[twin].append(m.Duplicate(document_id=result.document.id, chunk_id=result.chunk.id))
            continue
        for run in own:
            if len(held := holders[run]) < _HOLDERS:
                held.append(len(kept))
        kept.append(result)
        runs.append(own)
    return [
        msgspec.structs.replace(result, duplicates=duplicates[place]) if place in duplicates else result
        for place, result in enumerate(kept)
    ]


def runs_of(text: str) -> frozenset[Run]:
    """Three words in a row each, in any case; three characters where there are no blanks between words."""
    units: Sequence[str] = (folded := text.casefold()).split()
    if len(units) * _LONG_WORD < len(folded):
        units = "".join(units)
    if len(units) < _RUN:
        return frozenset([tuple(units)])
    return frozenset(zip(units, units[1:], units[2:], strict=False))


def _alike(
    one: m.SearchResult, runs: frozenset[Run], other: m.SearchResult, of_other: frozenset[Run]
) -> bool:
    both = len(runs & of_other)
    if both < _ALIKE * (len(runs) + len(of_other) - both):
        return False
    return sorted(_FIGURE.findall(one.chunk.text)) == sorted(_FIGURE.findall(other.chunk.text))


def merge_neighbors(results: Sequence[m.SearchResult], top: int) -> list[m.SearchResult]:
    """Of the first `top`, chunks that stand beside a better one go into its `before` and `after`.

    Only what would have been on the page is merged, so that a page does not grow by what answers less.
    """
    beside = {(result.document.id, result.chunk.index): result for result in results[:top]}
    merged = []
    for result in results[:top]:
        if beside.pop((result.document.id, result.chunk.index), None) is None:
            continue
        before, after = (list(_taken(beside, result, step)) for step in (-1, 1))
        if before or after:
            found = [each for other in (*before, *after) for each in other.duplicates or ()]
            result = msgspec.structs.replace(
                result,
                before=[other.chunk for other in reversed(before)],
                after=[other.chunk for other in after],
                duplicates=[*(result.duplicates or ()), *found] or UNSET,
            )
        merged.append(result)
    return [*merged, *results[top:]]


def _taken(
    beside: dict[tuple[int, int], m.SearchResult], result: m.SearchResult, step: int
) -> Iterator[m.SearchResult]:
    """The unbroken row of results on one side of this one, taken out of those that are left."""
    index = result.chunk.index
    for place in range(1, m.MAX_NEIGHBORS + 1):
        other = beside.pop((result.document.id, index + step * place), None)
        if other is None:
            return
        yield other


def limit_documents(results: Sequence[m.SearchResult], top: int, per_document: int) -> list[m.SearchResult]:
    """The results page by page, on each at most so many of one document.

    What scores less than half of the page's best does not drive out what scores more: where nothing else
    compares, one document does fill the page.
    """
    ordered: list[m.SearchResult] = []
    left = list(results)
    while left:
        counts: Counter[int] = Counter()
        page: set[int] = set()
        for place, result in enumerate(left):
            if len(page) == top or result.score < _COMPARABLE * left[0].score:
                break
            if counts[result.document.id] < per_document:
                counts[result.document.id] += 1
                page.add(place)
        page.update([place for place in range(len(left)) if place not in page][: top - len(page)])
        ordered += [result for place, result in enumerate(left) if place in page]
        left = [result for place, result in enumerate(left) if place not in page]
    return ordered
