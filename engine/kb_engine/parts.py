"""The optional parts of the engine: `kb_config.parts` has their form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kb_config import parts as form
from kb_config.settings import Settings

PARTS = (
    "kb_engine.index.qdrant",
    "kb_engine.store.postgres",
    "kb_engine.embed.openvino",
    "kb_engine.rerank",
)


@dataclass(frozen=True, slots=True)
class Part(form.Part):
    """An optional part of the engine.

    `index` and `reranker` are `module:function`; the functions take the settings of the engine, and return an
    `Index` and a `Reranker`. `embedders` are `module:class`, by the value of `KB_EMBEDDER`. `store` is a
    module with `open_base`, `filled_by` and `reindex`, for `KB_STORE=postgresql://...`.
    """

    index: str = ""
    reranker: str = ""
    embedders: Mapping[str, str] = field(default_factory=dict)
    store: str = ""


def parts() -> Iterator[Part]:
    return form.loaded(PARTS)


def index_parts() -> dict[str, Part]:
    """Return the parts that are a search index, by the value of `VECTOR_DB_TYPE`."""
    return {part.name: part for part in parts() if part.index}


def store_part() -> Part | None:
    """Return the part that stores a base in PostgreSQL, if there is one."""
    return next((part for part in parts() if part.store), None)


def reranker_part(settings: Settings) -> Part | None:
    return next((part for part in parts() if part.reranker and part.is_on(settings)), None)
