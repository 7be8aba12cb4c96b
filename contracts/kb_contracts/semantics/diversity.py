"""A page that says many things: near duplicates become one result, as do neighbours; no document fills it.

This works on the candidates of one search alone, in their order, so that it costs the same in a base of any
size. Two texts are near duplicates where they share most of their runs of words, and have the same figures: a
report of another month says something else.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import msgspec
from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.semantics import cursors

POOL = 30
POOL_A_RESULT = 3

_OTHER = 5  # one in so many of the runs of both may be in one of them alone
_RUN = 3
_LONG_WORD = 20  # characters a word on average; above, the text has no blanks between its words
_FIGURE = re.compile(r"\d+")
_HOLDERS = 8  # texts that are remembered for a run; what more have in common tells none apart
_COMPARED = 3
_COMPARABLE = 0.5

Run = int
"""A number for words in a row, within this process the same for the same words."""


def pool_for(request: m.SearchRequest) -> int:
    """How many candidates a page is chosen from."""
    pages = cursors.POOL if request.pages else request.top
    if not request.collapse and request.per_document is None:
        return pages
    return max(POOL, POOL_A_RESULT * request.top, pages)


def diverse(results: Sequence[m.SearchResult], request: m.SearchRequest) -> list[m.SearchResult]:
    """The candidates in the order in which pages give them, `top` a page; best first within each page."""
    return in_pages(collapse_duplicates(results) if request.collapse else results, request)


def in_pages(results: Sequence[m.SearchResult], request: m.SearchRequest) -> list[m.SearchResult]:
    """As `diverse`, of results among which are no near duplicates, such as those that a cursor holds.

    They come in the order of their pages, which one that was cut has made another one for what is left.
    """
    ordered = sorted(results, key=lambda result: -result.score)
    if request.collapse:
        ordered = merge_neighbors(ordered, request.top)
    if request.per_document is not None:
        ordered = limit_documents(ordered, request.top, request.per_document)
    return ordered


def collapse_duplicates(results: Sequence[m.SearchResult]) -> list[m.SearchResult]:
    """The results without near duplicates of better ones, which name them."""
    of_figures: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, result in enumerate(results):
        of_figures[tuple(sorted(_FIGURE.findall(result.chunk.text)))].append(place)
    twins: dict[int, int] = {}
    for places in of_figures.values():
        if len(places) > 1:
            twins |= _twins({place: runs_of(results[place].chunk.text) for place in places})
    duplicates: dict[int, list[m.Duplicate]] = defaultdict(list)
    for place in sorted(twins):
        result = results[place]
        duplicates[twins[place]].append(m.Duplicate(document_id=result.document.id, chunk_id=result.chunk.id))
    return [
        msgspec.structs.replace(result, duplicates=duplicates[place]) if place in duplicates else result
        for place, result in enumerate(results)
        if place not in twins
    ]


def _twins(texts: Mapping[int, frozenset[Run]]) -> dict[int, int]:
    """Of the texts those that are near duplicates of an earlier one, and of which.

    In the order of their numbers, two near duplicates have one of the first fifth of their runs in common:
    at the most a fifth of the runs of either is the other's alone. So no more than these are looked up.
    """
    twins: dict[int, int] = {}
    holders: dict[Run, list[int]] = defaultdict(list)
    for place, runs in texts.items():
        first = sorted(runs)[: len(runs) // _OTHER + 1]
        shared = Counter(chain.from_iterable(holders[run] for run in first if run in holders))
        likely = (other for other, _ in shared.most_common(_COMPARED))
        if (twin := next((other for other in likely if _alike(runs, texts[other])), None)) is not None:
            twins[place] = twin
            continue
        for run in first:
            if len(held := holders[run]) < _HOLDERS:
                held.append(place)
    return twins


def _alike(runs: frozenset[Run], others: frozenset[Run]) -> bool:
    both = len(runs & others)
    of_either = len(runs) + len(others) - both
    return (of_either - both) * _OTHER <= of_either


def runs_of(text: str) -> frozenset[Run]:
    """Three words in a row each, in any case; three characters where there are no blanks between words."""
    units: Sequence[str] = (folded := text.casefold()).split()
    if len(units) * _LONG_WORD < len(folded):
        units = "".join(units)
    if len(units) < _RUN:
        return frozenset([hash(tuple(units))])
    return frozenset(map(hash, zip(units, units[1:], units[2:], strict=False)))


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
