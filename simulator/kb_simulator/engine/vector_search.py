"""RAGler's search over one base: a search by meaning, its results as RAGler's clients read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.api.errors import EngineError
from kb_simulator.engine.collections import Collections
from kb_simulator.engine.documents import Documents, Stored
from kb_simulator.engine.search import TOOK_MS, Search

DATE_FIELD: m.DateField = "updated_at"
"""Which dates of a document the filters are about."""


def answer(
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
    wanted = filters.source_type

    def is_of_source(stored: Stored) -> bool:
        return wanted is None or _source_type(stored.document.metadata) == wanted

    found = Search(documents).answer(by_meaning, also=[is_of_source])
    names = [name for result in found.results for name in r.names_in(result.tags)[:1]]
    ids = chosen or collections.ids(documents, names)
    return r.VectorSearchResponse(
        results=[_result(result, ids) for result in found.results],
        total=found.total,
        query=request.query,
        execution_time=TOOK_MS,
    )


def _chosen(documents: Documents, collections: Collections, request: r.VectorSearchRequest) -> dict[str, str]:
    """The collection that is asked for, its id by its name; empty for all."""
    name, id_ = request.collection_name, request.collection_id
    if id_ is not None:
        found = collections.name_of(documents, id_)
        if name not in (None, found):
            raise EngineError(
                "contradiction",
                f"collectionId says {found!r} and collectionName {name!r}.",
                parameter="collectionName",
            )
        return {found: id_}
    if name is None:
        return {}
    if not (ids := collections.ids(documents, [name])):
        raise EngineError(
            "collection_not_found",
            f"There is no collection {name!r}. List the collections.",
            parameter="collectionName",
        )
    return ids


def _result(result: m.SearchResult, ids: Mapping[str, str]) -> r.VectorResult:
    document, metadata = result.document, result.document.metadata
    return r.VectorResult(
        content=result.chunk.text,
        source_url=_text(metadata, "source_url")
        or _text(metadata, "url")
        or document.source_path
        or document.filename
        or f"urn:uuid:{document.uid}",
        score=result.score,
        metadata=r.VectorMetadata(
            collection_id=next((ids[name] for name in r.names_in(result.tags) if name in ids), None),
            source_type=_source_type(metadata),
            context_breadcrumbs=_text(metadata, "context_breadcrumbs") or UNSET,
            heading=result.chunk.heading or UNSET,
            tags=[tag for tag in result.tags if not tag.startswith(r.PREFIX)],
            last_modified_by=_text(metadata, "last_modified_by") or r.ENGINE_USER,
            last_modified_at=document.updated_at,
        ),
    )


def _source_type(metadata: Mapping[str, Any]) -> str:
    value = metadata.get("source_type")
    return value if isinstance(value, str) else r.DEFAULT_SOURCE_TYPE


def _text(metadata: Mapping[str, Any], name: str) -> str:
    """A member that is a text, empty where it is none or says nothing."""
    value = metadata.get(name)
    return value if isinstance(value, str) and value.strip() else ""
