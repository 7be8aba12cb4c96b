"""Ranks the passages of one base, by words, by meaning or by both.

    score = weight * cosine + (1 - weight) * bm25 / (bm25 + saturation)      hybrid
    score = bm25 / (bm25 + saturation)                                       fts
    score = cosine                                                           vector

The constants never depend on the query, so that a score is comparable from one query to the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.semantics.collections import check_same_collection, no_collection_name
from kb_contracts.semantics.search import (
    date_window,
    first_collections,
    mode_of,
    source_types,
    vector_result,
    within_budget,
)
from kb_simulator.determinism import microseconds_of
from kb_simulator.engine.documents import Collections, Documents, Stored

WEIGHT = 0.5
_WEIGHTS: Mapping[m.Mode, float] = {"fts": 0.0, "vector": 1.0, "hybrid": WEIGHT}
SATURATION = 2.0
FLOOR = 0.25
"""Where no score reaches this, nothing matches well."""
TOOK_MS = 0.001
"""What a search is said to have taken: a true measure would be another one in every run."""
_DECIMALS = 6  # of a score: beyond these, two sums of the same parts may differ

Scores = Mapping[int, float]
Test = Callable[[Stored], bool]


@dataclass(frozen=True, slots=True)
class _Scored:
    """The chunks that match, by id; a part that has no say in the mode is None."""

    mode: m.Mode
    scores: Scores
    bm25: Scores | None
    cosines: Scores | None

    def best(self, top: int, min_score: float) -> tuple[list[tuple[float, int]], int]:
        """The best `top` scores with their chunks, equals by id, and how many reach `min_score`."""
        scores = self.scores
        if min_score > 0:
            scores = {key: score for key, score in scores.items() if round(score, _DECIMALS) >= min_score}
        # Rounding all would take longer than finding them: only what can be among the best is rounded.
        edge = min(sorted(scores.values(), reverse=True)[:top], default=0.0) - 10**-_DECIMALS
        near = sorted((-round(score, _DECIMALS), key) for key, score in scores.items() if score >= edge)
        return [(-negative, key) for negative, key in near[:top]], len(scores)

    def explanation(self, chunk_id: int) -> m.Explanation:
        """How a chunk's score came about."""
        return m.Explanation(
            cosine=self.cosines.get(chunk_id, 0.0) if self.cosines is not None else None,
            bm25=self.bm25.get(chunk_id) if self.bm25 is not None else None,
            weight=_WEIGHTS[self.mode],
            saturation=SATURATION,
        )


@dataclass(frozen=True, slots=True)
class Search:
    """Searches in `documents`."""

    documents: Documents

    def answer(self, request: m.SearchRequest, also: Sequence[Test] = ()) -> m.SearchResponse:
        """The best chunks, best first, equals by id; their documents pass the tests in `also` too.

        Raises:
            EngineError: `contradiction` or `invalid_parameter`.
        """
        mode = mode_of(request)
        allowed = self._allowed([*_tests(request), *also])
        scored = self._scored(request.query, mode, allowed)
        best, total = scored.best(request.top, request.min_score)
        if mode != "fts" and request.min_score == 0.0:
            best += self._far(scored.scores, allowed, request.top - len(best))
        results = [self._result(chunk_id, score, scored, request) for score, chunk_id in best]
        kept, omitted = within_budget(results, request.max_chars)
        return m.SearchResponse(
            results=kept,
            total=total,
            mode=mode,
            took_ms=TOOK_MS,
            weak=not best or best[0][0] < FLOOR,
            omitted=omitted,
        )

    def _scored(self, query: str, mode: m.Mode, allowed: set[int] | None) -> _Scored:
        index, owners = self.documents.index, self.documents.owners
        bm25 = None if mode == "vector" else index.keyword_scores(query)
        cosines = None if mode == "fts" else index.cosines(query)
        scores = _mixed(bm25, cosines)
        if allowed is not None:
            scores = {key: score for key, score in scores.items() if owners[key][0] in allowed}
        return _Scored(mode, scores, bm25, cosines)

    def _far(self, near: Scores, allowed: set[int] | None, count: int) -> list[tuple[float, int]]:
        """Further chunks that share nothing with the query: by meaning, something is always the nearest."""
        owners = self.documents.owners
        rest = (
            chunk_id
            for chunk_id in sorted(owners)
            if chunk_id not in near and (allowed is None or owners[chunk_id][0] in allowed)
        )
        return [(0.0, chunk_id) for chunk_id in islice(rest, max(0, count))]

    def _allowed(self, tests: list[Test]) -> set[int] | None:
        """The documents that pass; None where all do."""
        if not tests:
            return None
        return {
            document_id
            for document_id, stored in self.documents.by_id.items()
            if all(test(stored) for test in tests)
        }

    def _result(
        self, chunk_id: int, score: float, scored: _Scored, request: m.SearchRequest
    ) -> m.SearchResult:
        stored, chunk, before, after = self.documents.around(chunk_id, request.neighbors)
        return m.SearchResult(
            chunk=chunk,
            score=score,
            document=stored.summary,
            tags=stored.document.tags,
            before=before,
            after=after,
            explain=scored.explanation(chunk_id) if request.explain else None,
        )


def _mixed(bm25: Scores | None, cosines: Scores | None) -> Scores:
    if cosines is None:
        return {key: words / (words + SATURATION) for key, words in (bm25 or {}).items()}
    if bm25 is None:
        return cosines
    scores = defaultdict(float, {key: WEIGHT * cosine for key, cosine in cosines.items()})
    for key, words in bm25.items():
        scores[key] += (1.0 - WEIGHT) * words / (words + SATURATION)
    return scores


def _tests(request: m.SearchRequest) -> list[Test]:
    """What a document must pass, in the order of the request's members."""
    filters = request.filters or m.Filters()
    wanted, any_of = frozenset(request.tags), frozenset(request.tags_any)
    formats, kinds = frozenset(map(str.lower, filters.format or ())), frozenset(filters.source_type or ())
    prefix, doc_type = filters.source_path_prefix, request.doc_type
    tests: list[tuple[object, Test]] = [
        (wanted, lambda stored: wanted.issubset(stored.document.tags)),
        (any_of, lambda stored: not any_of.isdisjoint(stored.document.tags)),
        (doc_type, lambda stored: stored.document.doc_type == doc_type),
        (formats, lambda stored: stored.document.format in formats),
        (kinds, lambda stored: source_type(stored) in kinds),
        (prefix, lambda stored: any(path.startswith(prefix or "") for path in stored.document.source_paths)),
    ]
    return [test for condition, test in tests if condition] + _within(filters)


def source_type(stored: Stored) -> str | None:
    """The value of the metadata that filters by `source_type` look at."""
    value = stored.document.metadata.get("source_type")
    return value if isinstance(value, str) else None


def _within(filters: m.Filters) -> list[Test]:
    """The tests of the dates. Raises EngineError as `date_window`."""
    start, end = date_window(filters)
    if start is None and end is None:
        return []
    low = microseconds_of(start) if start else -(1 << 62)
    high = microseconds_of(end) if end else 1 << 62
    if filters.date_field == "created_at":
        return [lambda stored: low <= stored.created <= high]
    return [lambda stored: low <= stored.updated <= high]


DATE_FIELD: m.DateField = "updated_at"
"""Which dates of a document the filters are about."""


def search_vectors(
    documents: Documents, collections: Collections, request: r.VectorSearchRequest
) -> r.VectorSearchResponse:
    """The best passages.

    Raises:
        EngineError: `collection_not_found`, `contradiction` or `invalid_parameter`.
    """
    chosen = _chosen(documents, collections, request)
    filters = request.filters or r.VectorFilters()
    by_meaning = m.SearchRequest(
        query=request.query,
        top=request.limit,
        mode="vector",
        tags=[r.PREFIX + name for name in chosen],
        tags_any=filters.tags,
        filters=m.Filters(date_from=filters.date_from, date_to=filters.date_to, date_field=DATE_FIELD),
    )
    wanted = source_types(filters.source_type)

    def is_of_source(stored: Stored) -> bool:
        return not wanted or source_type(stored) in wanted

    found = Search(documents).answer(by_meaning, also=[is_of_source])
    ids = chosen or collections.ids(documents, first_collections(found.results))
    return r.VectorSearchResponse(
        results=[vector_result(result, ids) for result in found.results],
        total=found.total,
        query=request.query,
        execution_time=TOOK_MS,
    )


def _chosen(documents: Documents, collections: Collections, request: r.VectorSearchRequest) -> dict[str, str]:
    """The collection that the request names, its id by its name; empty for all."""
    name, id_ = request.collection_name, request.collection_id
    if id_ is not None:
        found = collections.name_of(documents, id_)
        check_same_collection(name, found)
        return {found: id_}
    if name is None:
        return {}
    if not (ids := collections.ids(documents, [name])):
        raise no_collection_name(name)
    return ids
