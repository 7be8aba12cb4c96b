"""RAGler's operations: `/vector/search` and `/collections`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.errors import EngineError
from kb_contracts.http.mount import Incoming
from kb_engine.api.engine import Engine
from kb_engine.api.idempotency import idempotency_of
from kb_engine.api.times import span_of
from kb_engine.index.port import Selection
from kb_engine.store.port import Query


class RaglerApi:
    """Handlers of `vectorSearch`, `listCollections`, `getCollection` and `putCollection`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store

    async def search(self, incoming: Incoming) -> r.VectorSearchResponse:
        """Find passages by meaning."""
        started = time.perf_counter()
        self._engine.limits.count(incoming)
        request: r.VectorSearchRequest = incoming.body
        chosen = await self._chosen(request)
        selection = selection_of(request.filters or r.VectorFilters(), next(iter(chosen), None))
        encoder = self._engine.encoder
        found = await self._store.search(
            Query(
                text=request.query,
                mode="vector",
                vector=await encoder.query(request.query),
                scoring=encoder.scoring,
                top=request.limit,
                selection=selection,
            )
        )
        ids = chosen or await self._store.collection_ids(_first_collections(found.results))
        return r.VectorSearchResponse(
            results=[result_of(result, ids) for result in found.results],
            total=found.total,
            query=request.query,
            execution_time=round((time.perf_counter() - started) * 1000, 3),
        )

    async def list(self, incoming: Incoming) -> r.CollectionList:
        """All collections."""
        self._engine.limits.count(incoming)
        return await self._store.collections()

    async def get(self, incoming: Incoming) -> r.CollectionDetail:
        """One collection."""
        self._engine.limits.count(incoming)
        return await self._store.collection(incoming.path["collection_id"])

    async def put(self, incoming: Incoming) -> r.CollectionDetail:
        """Describe a collection."""
        if not r.may_change(incoming.role):
            raise EngineError(
                "forbidden",
                f"The role {r.SERVICE!r} may search, list and get collections, and change none.",
                parameter=r.USER_ROLE,
            )
        with self._engine.keys.hold(incoming):
            return await self._store.put_collection(
                incoming.path["collection_id"], incoming.body, idempotency_of(incoming)
            )

    async def _chosen(self, request: r.VectorSearchRequest) -> dict[str, str]:
        """The collection that is asked for by its name, its id or both: its id by its name; empty for all."""
        name = request.collection_name
        if request.collection_id is None:
            if name is None:
                return {}
            if not (ids := await self._store.collection_ids([name])):
                raise EngineError(
                    "collection_not_found",
                    f"There is no collection {name!r}. List the collections to see which there are.",
                    parameter="collectionName",
                )
            return ids
        found = await self._store.collection_name(request.collection_id)
        if name is not None and name != found:
            raise EngineError(
                "contradiction",
                f"collectionId is that of the collection {found!r}, collectionName says {name!r}; send one.",
                parameter="collectionName",
            )
        return {found: request.collection_id}


def selection_of(filters: r.VectorFilters, collection: str | None) -> Selection:
    """Which documents may answer. Raises EngineError as `span_of`."""
    date_from, date_to = span_of(filters)
    return Selection(
        tags=() if collection is None else (r.PREFIX + collection,),
        tags_any=filters.tags,
        source_types=_source_types(filters.source_type),
        date_field="updated_at",
        date_from=date_from,
        date_to=date_to,
    )


def _source_types(wanted: r.SourceType | None) -> tuple[str | None, ...]:
    if wanted is None:
        return ()
    return (wanted, None) if wanted == r.DEFAULT_SOURCE_TYPE else (wanted,)


def _first_collections(results: Sequence[m.SearchResult]) -> list[str]:
    """Of each result that is in a collection, the first one's name."""
    return [name for result in results for name in r.names_in(result.tags)[:1]]


def result_of(result: m.SearchResult, ids: Mapping[str, str]) -> r.VectorResult:
    """A passage as RAGler's clients read it; `ids` are those of collections, by name."""
    document, chunk = result.document, result.chunk
    metadata = document.metadata
    source_type = metadata.get("source_type")
    return r.VectorResult(
        content=chunk.text,
        source_url=_text(metadata, "source_url", "url")
        or document.source_path
        or document.filename
        or f"urn:uuid:{document.uid}",
        score=result.score,
        metadata=r.VectorMetadata(
            collection_id=next((ids[name] for name in r.names_in(result.tags) if name in ids), None),
            source_type=source_type if isinstance(source_type, str) else r.DEFAULT_SOURCE_TYPE,
            context_breadcrumbs=_text(metadata, "context_breadcrumbs") or UNSET,
            heading=chunk.heading or UNSET,
            tags=[tag for tag in result.tags if not tag.startswith(r.PREFIX)],
            last_modified_by=_text(metadata, "last_modified_by") or r.ENGINE_USER,
            last_modified_at=document.updated_at,
        ),
    )


def _text(metadata: Mapping[str, Any], *names: str) -> str | None:
    """The first of these members that is a text in which something stands."""
    for name in names:
        if isinstance(value := metadata.get(name), str) and value.strip():
            return value
    return None
