"""`/search`, and RAGler's `/vector/search` and `/collections`: from the request to the store's query."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial

from msgspec import UNSET, UnsetType

from kb_config import tracing
from kb_contracts.access.reach import REACH, Reach
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
from kb_contracts.semantics.query import ParsedQuery
from kb_contracts.semantics.ranking import (
    NO_RERANKER,
    RankingPlan,
    in_final_order,
    in_order_of_relevance,
    pool_size,
    ranking_plan,
)
from kb_engine.api.engine import Api, Engine
from kb_engine.api.reranking import Reranker, RerankFailed
from kb_engine.index.port import Selection
from kb_engine.questions import MOST_PENDING, Questions
from kb_engine.store.port import Found, Query
from kb_engine.store.repository import collections, feedback
from kb_engine.store.repository import search as search_rows
from kb_engine.store.store import Store, utc_now
from kb_http.requests import Incoming

_LOST = "{} passages have no vector and were left out. kb check --repair makes the vectors anew."


def _count(
    questions: Questions, request: m.SearchRequest | r.VectorSearchRequest, *, is_answered: bool
) -> None:
    questions.pending.append((request, is_answered))
    if len(questions.pending) >= MOST_PENDING:
        questions.count()


class SearchApi(Api):
    """Handler of `search`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._encoder = engine.encoder
        self._ranking = engine.settings.ranking.defaults
        self._reranker = engine.reranker

    async def search(self, incoming: Incoming) -> m.SearchResponse:
        answer = await self.answer(incoming.body)
        _count(self._engine.questions, incoming.body, is_answered=answer.total > 0 and not answer.weak)
        return answer

    async def answer(self, request: m.SearchRequest) -> m.SearchResponse:
        """Answer a search request within the access scope of the context, to which cursors are bound. Called
        in process, `top` has no maximum, as `kb eval` needs.
        Raises EngineError: as the operation `search`.
        """
        started, reach = time.perf_counter(), REACH.get()
        self._engine.searched_at = time.monotonic()
        mode, parsed = rules.mode_of(request), rules.query_of(request)
        if request.cursor is None:
            answer = await self._ranked(request, mode, parsed)
        else:
            answer = await self._after_cursor(request, reach)
        places = places_of(answer.results) if request.pages else []
        results = answer.results[: request.top]
        if not answer.total:
            rules.mark_without_phrase(results, parsed)
        if request.neighbors and request.detail == "full":
            await self._store.read(search_rows.add_neighbors, results, request.neighbors)
        if request.max_tokens is None or request.detail == "locations":
            answer.results, answer.omitted = rules.presented(results, request)
        else:
            present = partial(rules.presented, results, request)
            answer.results, answer.omitted = await self._encoder.with_tokenizer(present)
        if places and (rest := places_after(places, answer.results)):
            answer.next_cursor = cursor_after(request, answer, rest, reach)
        answer.took_ms = round((time.perf_counter() - started) * 1000, 3)
        return answer

    async def _after_cursor(self, request: m.SearchRequest, reach: Reach | None) -> m.SearchResponse:
        """Return the next page of an earlier ranking."""
        answer, places = opened(request, reach)
        chunk_ids = [place.chunk_id for place in places]
        there = await self._store.read(search_rows.at, chunk_ids, selection_of(request))
        answer.results = in_pages(results_at(places, there), request)
        return answer

    async def _found(self, query: Query) -> Found:
        vector = None if query.mode == "fts" else self._encoder.query(query.text)
        found = await self._store.search(query, vector)
        return await self._store.judged(query, found) if query.mode == "vector" else found

    async def _ranked(self, request: m.SearchRequest, mode: m.Mode, parsed: ParsedQuery) -> m.SearchResponse:
        """Return the full ranking, from which this page and the following ones are cut."""
        selection = selection_of(request)
        ranking = request.ranking or self._ranking.for_all
        plan = None if ranking is None else ranking_plan(request.query, ranking, self._ranking)
        reranker = None if request.rerank is False else self._reranker
        looked_at = 0 if reranker is None else max(reranker.candidates, request.top)
        arrange = partial(diverse, request=request)
        is_arranged = request.collapse and reranker is None and plan is None and parsed.preferred is None
        query = Query(
            text=parsed.text,
            mode=mode,
            vector=None,
            scoring=self._encoder.embedder.scoring,
            top=max(looked_at, pool_for(request, plan, parsed)),
            selection=selection,
            min_score=request.min_score,
            wording=parsed.wording,
            explain=request.explain,
            arrange=arrange if is_arranged else None,
        )
        found = await self._found(query)
        if not found.results and (others := rules.relaxed(parsed, request)) is not None:
            beside = await self._found(replace(query, wording=others.wording))
            found = replace(found, results=beside.results, lost=beside.lost)
        results = found.results
        if parsed.preferred is not None:  # compares many texts, as `arrange`
            results = await asyncio.to_thread(rules.preferring, results, parsed.preferred)
        results, reranked, rerank_failure = await _second_look(
            reranker, request, parsed.text, results, looked_at
        )
        if plan is not None:
            results = await _in_final_order(self._store, results, plan)
        if not is_arranged:  # comparing many texts would block the event loop
            results = await asyncio.to_thread(arrange, results) if request.collapse else arrange(results)
        return m.SearchResponse(
            results=results,
            total=found.total,
            mode=mode,
            took_ms=0.0,
            weak=found.weak,
            total_exact=UNSET if found.total_exact else False,
            reranked=reranked,
            rerank_failure=rerank_failure,
            incomplete=_LOST.format(found.lost) if found.lost else UNSET,
        )


class RaglerApi(Api):
    """Handlers of `vectorSearch`, `listCollections`, `getCollection` and `putCollection`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._ranking = engine.settings.ranking.defaults

    async def vector_search(self, incoming: Incoming) -> r.VectorSearchResponse:
        started = time.perf_counter()
        self._engine.searched_at = time.monotonic()
        request: r.VectorSearchRequest = incoming.body
        chosen = await self._chosen(request)
        selection = vector_selection_of(request.filters or r.VectorFilters(), next(iter(chosen), None))
        ranking = request.ranking or self._ranking.for_all
        plan = None if ranking is None else ranking_plan(request.query, ranking, self._ranking)
        encoder = self._engine.encoder
        found = await self._store.search(
            Query(
                text=request.query,
                mode="vector",
                vector=None,
                scoring=encoder.embedder.scoring,
                top=request.limit if plan is None else pool_size(request.limit),
                selection=selection,
            ),
            encoder.query(request.query),
        )
        results = found.results
        if plan is not None:
            results = (await _in_final_order(self._store, results, plan))[: request.limit]
        _count(self._engine.questions, request, is_answered=found.total > 0)
        ids = chosen or await self._store.read(collections.ids, first_collections(results))
        return r.VectorSearchResponse(
            results=[vector_result(result, ids) for result in results],
            total=found.total,
            query=request.query,
            execution_time=round((time.perf_counter() - started) * 1000, 3),
        )

    async def list_collections(self, _incoming: Incoming) -> r.CollectionList:
        return await self._store.read(collections.every)

    async def get_collection(self, incoming: Incoming) -> r.CollectionDetail:
        return await self._store.read(collections.detail, incoming.path["collection_id"])

    async def put_collection(self, incoming: Incoming) -> r.CollectionDetail:
        return await self._once(incoming, collections.put, incoming.path["collection_id"], incoming.body)

    async def _chosen(self, request: r.VectorSearchRequest) -> dict[str, str]:
        """Return the requested collection as {name: id}; empty for all collections."""
        name = request.collection_name
        if request.collection_id is None:
            if name is None:
                return {}
            if not (ids := await self._store.read(collections.ids, [name])):
                raise no_collection_name(name)
            return ids
        found = await self._store.read(collections.name_of, request.collection_id)
        check_same_collection(name, found)
        return {found: request.collection_id}


async def _second_look(
    reranker: Reranker | None, request: m.SearchRequest, query: str, results: list[m.SearchResult], most: int
) -> tuple[list[m.SearchResult], bool | UnsetType, str | UnsetType]:
    """Rerank the first `most` results; if the reranker fails, keep all in their original order."""
    if reranker is None:
        return (results, False, NO_RERANKER) if request.rerank else (results, UNSET, UNSET)
    first = results[:most]
    try:
        with tracing.step("rerank"):
            relevances = await reranker.scores(query, [rules.with_header(result.chunk) for result in first])
    except RerankFailed as error:
        return results, False, str(error)
    return in_order_of_relevance(first, relevances), True, UNSET


async def _in_final_order(
    store: Store, results: list[m.SearchResult], plan: RankingPlan
) -> list[m.SearchResult]:
    votes = await store.read(feedback.votes, [result.document.id for result in results])
    return in_final_order(results, votes, plan, utc_now())


def selection_of(request: m.SearchRequest) -> Selection:
    """Return the filters of a request. Raises EngineError as `date_window`."""
    filters = request.filters or m.Filters()
    date_from, date_to = rules.date_window(filters) if request.filters else (None, None)
    return Selection(
        tags=request.tags,
        tags_any=request.tags_any,
        doc_type=request.doc_type,
        formats=[form.lower() for form in filters.format or ()],
        source_types=filters.source_type or (),
        source_path_prefix=filters.source_path_prefix,
        date_field=filters.date_field,
        date_from=date_from,
        date_to=date_to,
    )


def vector_selection_of(filters: r.VectorFilters, collection: str | None) -> Selection:
    """Return the filters of a vector search. Raises EngineError as `date_window`."""
    date_from, date_to = rules.date_window(filters)
    return Selection(
        tags=() if collection is None else (r.PREFIX + collection,),
        tags_any=filters.tags,
        source_types=source_types(filters.source_type),
        date_field="updated_at",
        date_from=date_from,
        date_to=date_to,
    )
