"""RAGler's search over one base: a search by meaning, its results as RAGler's clients read them."""

from __future__ import annotations

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.semantics.collections import check_same_collection, no_collection_name
from kb_contracts.semantics.search import first_collections, source_types, vector_result
from kb_simulator.engine.collections import Collections
from kb_simulator.engine.documents import Documents, Stored
from kb_simulator.engine.search import TOOK_MS, Search, source_type

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
