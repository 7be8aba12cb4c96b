"""Ranking of the passages of one base, by keywords, by cosine or by both.

    score = weight * cosine + (1 - weight) * bm25 / (bm25 + saturation)      hybrid
    score = bm25 / (bm25 + saturation)                                       fts
    score = cosine                                                           vector

The saturation is proportional to the total weight of the query, so that scores are comparable between queries
and between bases. A query without words is answered by cosine alone. If a search asks for `ranking`, the best
hits are then put into their final order (`kb_contracts.semantics.ranking`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import msgspec
from msgspec import UNSET

from kb_contracts.access.reach import Reach
from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.semantics import search as rules
from kb_contracts.semantics.collections import (
    check_same_collection,
    first_collections,
    no_collection_name,
    source_types,
    vector_result,
)
from kb_contracts.semantics.cursors import cursor_after, opened, places_after, places_of, results_at
from kb_contracts.semantics.diversity import diverse, in_pages, pool_for
from kb_contracts.semantics.documents import similar_notes
from kb_contracts.semantics.query import ParsedQuery
from kb_contracts.semantics.ranking import NO_RERANKER, PLAIN, in_final_order, ranking_plan
from kb_simulator.determinism import microseconds_of, moment_of
from kb_simulator.engine.collections import Collections, estimated_tokens
from kb_simulator.engine.documents import Documents
from kb_simulator.engine.index import Scores
from kb_simulator.engine.stored import Stored

WEIGHT = 0.5
_WEIGHTS: Mapping[m.Mode, float] = {"fts": 0.0, "vector": 1.0, "hybrid": WEIGHT}
SATURATION = 0.5
"""BM25 score at which keywords score a half, as a fraction of the query's total weight."""
FLOOR = 0.25
"""If all scores are lower, the answer says that nothing matches well."""
SIMILAR_FLOOR = 0.6
"""The least cosine of two notes on the same subject."""
TOOK_MS = 0.001
"""Constant search time in milliseconds: a measured time would differ between runs."""
DATE_FIELD: m.DateField = "updated_at"
"""The date of a document that the filters of RAGler's search compare."""
_DECIMALS = 6  # of a score; further digits depend on the order of additions

Test = Callable[[Stored], bool]


def search(
    documents: Documents, request: m.SearchRequest, now: int, reach: Reach | None = None
) -> m.SearchResponse:
    """Return the best chunks, best first, ties by id. A cursor is valid only within the same access scope."""
    if request.cursor is not None:
        answer = _after_cursor(documents, request, reach)
    else:
        answer = _search(documents, request, rules.query_of(request), now)
    return _page(documents, answer, request, reach)


def _search(
    documents: Documents, request: m.SearchRequest, query: ParsedQuery, now: int, also: Sequence[Test] = ()
) -> m.SearchResponse:
    """Like `search`, for a parsed query; documents must also pass the tests in `also`."""
    mode, owners = rules.mode_of(request), documents.owners
    plan = None if request.ranking is None else ranking_plan(request.query, request.ranking, PLAIN)
    pool = pool_for(request, plan, query)
    allowed: set[int] | None = None  # document ids, or None for all
    if tests := [*_tests(request), *also]:
        allowed = {
            number for number, stored in documents.by_id.items() if all(test(stored) for test in tests)
        }
    bm25 = None if mode == "vector" else documents.index.keyword_scores(query.text)
    cosines = None if mode == "fts" else documents.index.cosines(query.text)
    weight, saturation = _formula(mode, documents.index.total_weight(query.text))
    scores = _mixed(bm25, cosines, weight, saturation)
    if allowed is not None:
        scores = {key: score for key, score in scores.items() if owners[key][0] in allowed}
    passing: set[int] | None = None  # chunk ids, or None for all
    if (wording := query.wording) is not None:
        chunks = {key: documents.chunk(key) for key in owners}
        passing = {
            key
            for key, (stored, chunk) in chunks.items()
            if wording.passes(stored.document.title, rules.headings_of(chunk), chunk.text)
        }
        scores = {key: score for key, score in scores.items() if key in passing}
    if (least := request.min_score) > 0:
        scores = {key: score for key, score in scores.items() if round(score, _DECIMALS) >= least}
    # Only candidates for the best are rounded, because rounding all would take longer than finding them.
    edge = min(sorted(scores.values(), reverse=True)[:pool], default=0.0) - 10**-_DECIMALS
    near = sorted((-round(score, _DECIMALS), key) for key, score in scores.items() if score >= edge)
    best = [(-negative, key) for negative, key in near[:pool]]
    if mode != "fts" and request.min_score == 0.0:
        # Chunks that share nothing with the query: a vector search always has nearest neighbours.
        far = (
            (0.0, chunk_id)
            for chunk_id in sorted(owners)
            if chunk_id not in scores
            and (allowed is None or owners[chunk_id][0] in allowed)
            and (passing is None or chunk_id in passing)
        )
        best += islice(far, pool - len(best))
    if not best and (others := rules.relaxed(query, request)) is not None:
        beside = _search(documents, request, others, now, also)
        return msgspec.structs.replace(beside, total=0, weak=True)

    def result(chunk_id: int, score: float) -> m.SearchResult:
        stored, chunk = documents.chunk(chunk_id)
        explanation = None
        if request.explain:
            explanation = m.Explanation(
                cosine=cosines.get(chunk_id, 0.0) if cosines is not None else None,
                bm25=bm25.get(chunk_id) if bm25 is not None else None,
                weight=weight,
                saturation=saturation,
            )
        return m.SearchResult(
            chunk=chunk, score=score, document=stored.summary, tags=stored.document.tags, explain=explanation
        )

    results = [result(key, score) for score, key in best]
    if query.preferred is not None:
        results = rules.preferring(results, query.preferred)
    if plan is not None:
        results = in_final_order(results, documents.votes(), plan, moment_of(now))
    return m.SearchResponse(
        results=diverse(results, request),
        total=len(scores),
        mode=mode,
        took_ms=TOOK_MS,
        weak=not best or best[0][0] < FLOOR,
        reranked=False if request.rerank else UNSET,
        rerank_failure=NO_RERANKER if request.rerank else UNSET,
    )


def similar_to(documents: Documents, note: m.DocumentDetail, limit: int, now: int) -> list[m.SimilarNote]:
    """The notes most similar to the first chunk of `note`, the most similar first."""
    text = next((chunk.text for chunk in documents.find(note.id).chunks), "")
    request = m.SearchRequest(
        query=text, top=len(documents.owners), mode="vector", doc_type="note", min_score=SIMILAR_FLOOR
    )
    return similar_notes(_search(documents, request, ParsedQuery(text), now).results, note.id, limit)


def _after_cursor(documents: Documents, request: m.SearchRequest, reach: Reach | None) -> m.SearchResponse:
    answer, places = opened(request, reach)
    found, tests = {}, _tests(request)
    for key in [place.chunk_id for place in places if place.chunk_id in documents.owners]:
        stored, chunk = documents.chunk(key)
        if all(test(stored) for test in tests):
            found[key] = m.SearchResult(
                chunk=chunk, score=0.0, document=stored.summary, tags=stored.document.tags
            )
    answer.results, answer.took_ms = in_pages(results_at(places, found), request), TOOK_MS
    return answer


def _page(
    documents: Documents, answer: m.SearchResponse, request: m.SearchRequest, reach: Reach | None
) -> m.SearchResponse:
    """Reduce the answer to one page."""
    places, results = places_of(answer.results) if request.pages else [], answer.results[: request.top]
    if not answer.total:
        rules.mark_without_phrase(results, rules.query_of(request))
    if request.neighbors and request.detail == "full":
        results = [documents.with_neighbors(each, request.neighbors) for each in results]
    answer.results, answer.omitted = rules.presented(results, request, estimated_tokens)
    if places and (rest := places_after(places, answer.results)):
        answer.next_cursor = cursor_after(request, answer, rest, reach)
    return answer


def _formula(mode: m.Mode, total_weight: float) -> tuple[float, float]:
    """The weight of the cosine, and the saturation."""
    return (1.0, 1.0) if mode == "vector" or not total_weight else (_WEIGHTS[mode], SATURATION * total_weight)


def _mixed(bm25: Scores | None, cosines: Scores | None, weight: float, saturation: float) -> Scores:
    if cosines is None:
        return {key: words / (words + saturation) for key, words in (bm25 or {}).items()}
    if bm25 is None:
        return cosines
    scores = defaultdict(float, {key: weight * cosine for key, cosine in cosines.items()})
    for key, words in bm25.items():
        scores[key] += (1.0 - weight) * words / (words + saturation)
    return scores


def _tests(request: m.SearchRequest) -> list[Test]:
    """The tests that a document must pass, in the order of the request's members."""
    filters = request.filters or m.Filters()
    wanted, any_of = frozenset(request.tags), frozenset(request.tags_any)
    formats, kinds = frozenset(map(str.lower, filters.format or ())), frozenset(filters.source_type or ())
    prefix, doc_type = filters.source_path_prefix, request.doc_type
    start, end = rules.date_window(filters)
    low = microseconds_of(start) if start else -(1 << 62)
    high = microseconds_of(end) if end else 1 << 62
    by_creation = filters.date_field == "created_at"
    tests: list[tuple[object, Test]] = [
        (wanted, lambda stored: wanted.issubset(stored.document.tags)),
        (any_of, lambda stored: not any_of.isdisjoint(stored.document.tags)),
        (doc_type, lambda stored: stored.document.doc_type == doc_type),
        (formats, lambda stored: stored.document.format in formats),
        (kinds, lambda stored: _source_type(stored) in kinds),
        (prefix, lambda stored: any(path.startswith(prefix or "") for path in stored.document.source_paths)),
        (start or end, lambda stored: low <= (stored.created if by_creation else stored.updated) <= high),
    ]
    return [test for condition, test in tests if condition]


def _source_type(stored: Stored) -> str | None:
    """The value in the metadata for the filter `source_type`."""
    value = stored.document.metadata.get("source_type")
    return value if isinstance(value, str) else None


def search_vectors(
    documents: Documents, collections: Collections, request: r.VectorSearchRequest, now: int
) -> r.VectorSearchResponse:
    """RAGler's search: a vector search, with the results in RAGler's format."""
    name, id_ = request.collection_name, request.collection_id
    chosen: dict[str, str] = {}  # id by name of the collection in the request; empty for all
    if id_ is not None:
        found_name = collections.name_of(documents, id_)
        check_same_collection(name, found_name)
        chosen = {found_name: id_}
    elif name is not None and not (chosen := collections.ids(documents, [name])):
        raise no_collection_name(name)
    filters = request.filters or r.VectorFilters()
    by_meaning = m.SearchRequest(
        query=request.query,
        top=request.limit,
        mode="vector",
        tags=[r.PREFIX + name for name in chosen],
        tags_any=filters.tags,
        filters=m.Filters(date_from=filters.date_from, date_to=filters.date_to, date_field=DATE_FIELD),
        ranking=request.ranking,
    )
    wanted = source_types(filters.source_type)
    of_source = [lambda stored: _source_type(stored) in wanted] if wanted else []
    found = _search(documents, by_meaning, ParsedQuery(request.query), now, of_source)
    ids = chosen or collections.ids(documents, first_collections(found.results))
    return r.VectorSearchResponse(
        results=[vector_result(result, ids) for result in found.results],
        total=found.total,
        query=request.query,
        execution_time=TOOK_MS,
    )
