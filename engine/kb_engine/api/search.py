"""`POST /search`: from the request to the store's query, and the answer within its budget."""

from __future__ import annotations

import time

from kb_contracts.api import models as m
from kb_contracts.http.mount import Incoming
from kb_contracts.semantics.search import date_window, mode_of, within_budget
from kb_engine.api.engine import Engine
from kb_engine.index.port import Selection
from kb_engine.store.port import Query


class SearchApi:
    """Handler of `search`."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.store
        self._encoder = engine.encoder

    async def search(self, incoming: Incoming) -> m.SearchResponse:
        """Find passages."""
        started = time.perf_counter()
        request: m.SearchRequest = incoming.body
        found = await self._store.search(await self._query(request))
        results, omitted = within_budget(found.results, request.max_chars)
        return m.SearchResponse(
            results=results,
            total=found.total,
            mode=mode_of(request),
            took_ms=round((time.perf_counter() - started) * 1000, 3),
            weak=found.weak,
            omitted=omitted,
        )

    async def _query(self, request: m.SearchRequest) -> Query:
        mode = mode_of(request)
        selection = selection_of(request)
        return Query(
            text=request.query,
            mode=mode,
            vector=None if mode == "fts" else await self._encoder.query(request.query),
            scoring=self._encoder.scoring,
            top=request.top,
            selection=selection,
            min_score=request.min_score,
            neighbors=request.neighbors,
            explain=request.explain,
        )


def selection_of(request: m.SearchRequest) -> Selection:
    """Which documents may answer. Raises EngineError as `date_window`."""
    filters = request.filters or m.Filters()
    date_from, date_to = date_window(filters)
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
