"""`POST /search`: from the request to the store's query, and the answer within its budget."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.http.mount import Incoming
from kb_engine.api.engine import Engine
from kb_engine.api.times import span_of
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


def mode_of(request: m.SearchRequest) -> m.Mode:
    """The mode that `mode` and `fts_only` ask for together.

    Raises:
        EngineError: `contradiction`.
    """
    if request.fts_only is None or request.mode is None:
        return "fts" if request.fts_only else request.mode or "hybrid"
    if request.fts_only != (request.mode == "fts"):
        raise EngineError(
            "contradiction",
            f"fts_only {str(request.fts_only).lower()} and mode {request.mode!r} exclude each other; "
            "send one of the two.",
            parameter="fts_only",
        )
    return request.mode


def selection_of(request: m.SearchRequest) -> Selection:
    """Which documents may answer. Raises EngineError as `span_of`."""
    filters = request.filters or m.Filters()
    date_from, date_to = span_of(filters)
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


def within_budget(
    results: Sequence[m.SearchResult], max_chars: int | None
) -> tuple[list[m.SearchResult], int]:
    """The results that fit into `max_chars` characters of text, and how many were left out.

    The best come first and take what they need. One that does not fit whole loses its neighbours, then
    the end of its text, and says so; when nothing is left, the rest is left out.
    """
    if max_chars is None:
        return list(results), 0
    left = max_chars
    kept: list[m.SearchResult] = []
    for result in results:
        if left <= 0:
            break
        fitted, used = _fit(result, left)
        kept.append(fitted)
        left -= used
    return kept, len(results) - len(kept)


def _fit(result: m.SearchResult, room: int) -> tuple[m.SearchResult, int]:
    own = len(result.chunk.text)
    around = sum(len(chunk.text) for chunk in (*result.before, *result.after))
    if own + around <= room:
        return result, own + around
    chunk = msgspec.structs.replace(result.chunk, text=result.chunk.text[:room])
    cut = msgspec.structs.replace(result, chunk=chunk, before=[], after=[], truncated=True)
    return cut, len(chunk.text)
