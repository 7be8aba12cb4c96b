"""Rules of RAGler's operations: ids of collections, the collection of a search, and the form of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET

from kb_contracts.api import ragler as r
from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import SearchResult
from kb_contracts.semantics.search import with_header


def check_description(
    id_: str, name: str, *, described_as: str | None, owner: str | None, in_use: bool
) -> None:
    """Refuse to describe the collection `name` under `id_` if the id does not belong to it.

    `described_as` is the id of its earlier description, or None; `owner` is the name of another collection
    that was described under `id_`; `in_use`: documents carry its tag.
    Raises EngineError: `collection_exists`.
    """
    own = r.collection_id(name)
    if described_as is not None:
        if described_as == id_:
            return
        detail = f"The collection {name!r} has the id {described_as}; describe it under this id."
    elif owner is not None:
        detail = f"{id_} is the id of the collection {owner!r}, and a name never changes. Use another id."
    elif not r.may_have_id(name, id_):
        detail = (
            f"An id of version 5 is derived from a name, and {id_} is not the id of {name!r}. "
            f"Describe it under {own}, or under an id of version 4."
        )
    elif id_ != own and in_use:
        detail = f"The collection {name!r} is in use and has the id {own}; describe it under this id."
    else:
        return
    raise EngineError("collection_exists", detail, parameter="collection_id")


def no_collection_id(id_: str) -> EngineError:
    """No collection has this id."""
    return EngineError(
        "collection_not_found", f"There is no collection {id_}. List the collections to see which exist."
    )


def no_collection_name(name: str) -> EngineError:
    """No collection has this name."""
    return EngineError(
        "collection_not_found",
        f"There is no collection {name!r}. List the collections to see which exist.",
        parameter="collectionName",
    )


def check_same_collection(name: str | None, found: str) -> None:
    """Raise `contradiction` if a search has the id of `found` and another name."""
    if name is not None and name != found:
        raise EngineError(
            "contradiction",
            f"collectionId is the id of the collection {found!r}, but collectionName is {name!r}; send one.",
            parameter="collectionName",
        )


def source_types(wanted: r.SourceType | None) -> tuple[str | None, ...]:
    """Return the values of the metadata's `source_type` that pass the filter; None: the document has no
    value.
    """
    if wanted is None:
        return ()
    return (wanted, None) if wanted == r.DEFAULT_SOURCE_TYPE else (wanted,)


def first_collections(results: Iterable[SearchResult]) -> list[str]:
    """Return the names of the results' collections, the first one of each result."""
    return [name for result in results for name in r.names_in(result.tags)[:1]]


def vector_result(result: SearchResult, ids: Mapping[str, str]) -> r.VectorResult:
    """Return a passage in the form of RAGler's clients; `ids` are the ids of collections by name."""
    document, chunk = result.document, result.chunk
    metadata = document.metadata
    source_type = metadata.get("source_type")
    return r.VectorResult(
        content=with_header(chunk),
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
    """Return the first of these members that is a text and not blank."""
    for name in names:
        if isinstance(value := metadata.get(name), str) and value.strip():
            return value
    return None
