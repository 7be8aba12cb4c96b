"""Diversity of a page: near duplicates are collapsed, neighbours merged, and results of one document limited.

It works only on the candidates of one search, in their order, so that its cost is independent of the size of
the base. Two texts are near duplicates if they share most of their word sequences, and have the same numbers:
the report of another month is a different text.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain

import msgspec
from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.semantics import cursors
from kb_contracts.semantics.query import ParsedQuery
from kb_contracts.semantics.ranking import RankingPlan, pool_size
from kb_contracts.semantics.search import PREFERRED_POOL

POOL = 30
POOL_A_RESULT = 3

_OTHER = 5  # at most 1/5 of the sequences of two near duplicates are in one of them only
_RUN = 3
_LONG_WORD = 20  # average characters of a word; above, the text has no spaces between its words
_FIGURE = re.compile(r"\d+")
_WITHOUT_ASCII = bytes(code if code >= 128 or chr(code).isdecimal() else 32 for code in range(256))
"""A translation of bytes: a space for every character of ASCII but digits."""
_HOLDERS = 8  # texts stored for a sequence; a sequence common to more texts distinguishes none
_CACHED = 512  # texts whose first sequences are kept, which takes some 4 KiB each
_COMPARED = 3
_COMPARABLE = 0.5

Run = int
"""Hash of consecutive words; equal words have equal hashes within this process."""


def pool_for(
    request: m.SearchRequest, plan: RankingPlan | None = None, query: ParsedQuery | None = None
) -> int:
    """Return the number of candidates that a page is chosen from, after ranking and raising for phrases."""
    pools = [cursors.POOL if request.pages else request.top]
    if request.collapse or request.per_document is not None:
        pools += [POOL, POOL_A_RESULT * request.top]
    if plan is not None:
        pools.append(pool_size(request.top))
    if query is not None and query.preferred is not None:
        pools.append(PREFERRED_POOL)
    return max(pools)


def diverse(results: Sequence[m.SearchResult], request: m.SearchRequest) -> list[m.SearchResult]:
    """Return the candidates in pages of `top`, without near duplicates if wanted; each page best first."""
    return in_pages(collapse_duplicates(results) if request.collapse else results, request)


def in_pages(results: Sequence[m.SearchResult], request: m.SearchRequest) -> list[m.SearchResult]:
    """Return results without near duplicates, such as those of a cursor, in the order of the pages.

    As `diverse`, but without the search for duplicates. The order is computed again, since a page that was
    cut leaves other results for the next ones.
    """
    ordered = sorted(results, key=lambda result: -result.score)
    if request.collapse:
        ordered = merge_neighbors(ordered, request.top)
    if request.per_document is not None:
        ordered = limit_documents(ordered, request.top, request.per_document)
    return ordered


def collapse_duplicates(results: Sequence[m.SearchResult]) -> list[m.SearchResult]:
    """Return the results without near duplicates of better ones, which list them."""
    of_figures: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, result in enumerate(results):
        of_figures[_figures(result.chunk.text)].append(place)
    twins: dict[int, int] = {}
    for places in of_figures.values():
        if len(places) > 1:
            twins |= _twins({place: results[place].chunk.text for place in places})
    duplicates: dict[int, list[m.Duplicate]] = defaultdict(list)
    for place in sorted(twins):
        result = results[place]
        duplicates[twins[place]].append(m.Duplicate(document_id=result.document.id, chunk_id=result.chunk.id))
    return [
        msgspec.structs.replace(result, duplicates=duplicates[place]) if place in duplicates else result
        for place, result in enumerate(results)
        if place not in twins
    ]


def _figures(text: str) -> tuple[str, ...]:
    """Return the numbers of a text, sorted; most of the text is left out before the search, which is slow."""
    left = text.encode("utf-8", "surrogatepass").translate(_WITHOUT_ASCII).split()
    return tuple(sorted(_FIGURE.findall(b" ".join(left).decode("utf-8", "surrogatepass"))))


def _twins(spelled: Mapping[int, str]) -> dict[int, int]:
    """Return the near duplicates of earlier texts, each with that text.

    Two near duplicates share one of the first fifth of their sequences, in the order of the hashes, since at
    most a fifth of the sequences of either is missing in the other. So only these are looked up.
    """
    of_texts = {place: _first_runs(text) for place, text in spelled.items()}
    repeated = _repeated(of_texts.values())
    texts = {
        place: runs_of(spelled[place]) for place, runs in of_texts.items() if not repeated.isdisjoint(runs)
    }
    twins: dict[int, int] = {}
    holders: dict[Run, list[int]] = defaultdict(list)
    for place, runs in _overlapping(texts).items():
        first = of_texts[place]
        shared = Counter(chain.from_iterable(holders[run] for run in first if run in holders))
        likely = (other for other, _ in shared.most_common(_COMPARED))
        if (twin := next((other for other in likely if _alike(runs, texts[other])), None)) is not None:
            twins[place] = twin
            continue
        for run in first:
            if len(held := holders[run]) < _HOLDERS:
                held.append(place)
    return twins


def _overlapping(texts: Mapping[int, frozenset[Run]]) -> dict[int, frozenset[Run]]:
    """Return the texts of which others hold three quarters, as of every near duplicate."""
    repeated = _repeated(texts.values())
    return {
        place: runs
        for place, runs in texts.items()
        if (len(runs) - len(runs & repeated)) * (_OTHER - 1) <= len(runs)
    }


def _repeated(texts: Iterable[Iterable[Run]]) -> set[Run]:
    """Return the sequences that are in several texts."""
    seen: set[Run] = set()
    repeated: set[Run] = set()
    for runs in texts:
        repeated |= seen.intersection(runs)
        seen.update(runs)
    return repeated


@lru_cache(maxsize=_CACHED)
def _first_runs(text: str) -> tuple[Run, ...]:
    """Return the first fifth of the sequences of a text in the order of their hashes."""
    runs = runs_of(text)
    return tuple(sorted(runs)[: len(runs) // _OTHER + 1])


def _alike(runs: frozenset[Run], others: frozenset[Run]) -> bool:
    both = len(runs & others)
    of_either = len(runs) + len(others) - both
    return (of_either - both) * _OTHER <= of_either


def runs_of(text: str) -> frozenset[Run]:
    """Return hashes of three consecutive words, or of characters where words are not separated."""
    units: Sequence[str] = (folded := text.casefold()).split()
    if len(units) * _LONG_WORD < len(folded):
        units = "".join(units)
    if len(units) < _RUN:
        return frozenset([hash(tuple(units))])
    return frozenset(map(hash, zip(units, units[1:], units[2:], strict=False)))


def merge_neighbors(results: Sequence[m.SearchResult], top: int) -> list[m.SearchResult]:
    """Return the results with chunks next to a better one moved into its `before` and `after`.

    Only results among the first `top` are merged, so that a page does not gain chunks of lower relevance.
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
    """Take the adjacent results on one side of this one out of `beside`, up to the first gap."""
    index = result.chunk.index
    for place in range(1, m.MAX_NEIGHBORS + 1):
        other = beside.pop((result.document.id, index + step * place), None)
        if other is None:
            return
        yield other


def limit_documents(results: Sequence[m.SearchResult], top: int, per_document: int) -> list[m.SearchResult]:
    """Return the results page by page, on each page at most `per_document` of one document.

    A result with less than half the score of the page's best does not displace a better one: without
    comparable results, one document may fill the page.
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
