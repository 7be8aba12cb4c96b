"""The passages of a search in RAGler's form: where each field comes from, and its default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET

from kb_contracts.api import ragler as r
from kb_contracts.api.models import SearchResult


def source_types(wanted: r.SourceType | None) -> tuple[str | None, ...]:
    """The values of the metadata's `source_type` that pass the filter; None: the document has none."""
    if wanted is None:
        return ()
    return (wanted, None) if wanted == r.DEFAULT_SOURCE_TYPE else (wanted,)


def first_collections(results: Iterable[SearchResult]) -> list[str]:
    """The names of the collections that the results are in; of each result, of the first one."""
    return [name for result in results for name in r.names_in(result.tags)[:1]]


def vector_result(result: SearchResult, ids: Mapping[str, str]) -> r.VectorResult:
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
    """The first of these members that is a text and not blank."""
    for name in names:
        if isinstance(value := metadata.get(name), str) and value.strip():
            return value
    return None
