"""What the base is in one snapshot, as far as searches depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kb_engine.index.port import IndexQuery
from kb_engine.index.postgres.building import VALID
from kb_engine.store.port import EmbedderIdentity
from kb_engine.store.postgres.connection import Db, row, value
from kb_engine.store.postgres.transaction import expect_embedder, expect_length
from kb_engine.store.repository import search as filters


@dataclass(frozen=True, slots=True)
class Extent:
    """How many chunks the filters leave, out of `size` in the base, and in which state that is."""

    left: int
    size: int
    generation: int


@dataclass(frozen=True, slots=True)
class State:
    """`average` is in words a chunk; `indexed`: the HNSW index is there and complete; `languages`: those of
    documents."""

    extent: Extent
    average: float
    dimensions: int
    indexed: bool
    languages: Sequence[str]


async def read_state(db: Db, embedder: EmbedderIdentity, query: IndexQuery) -> State:
    """Raises `not_ready` where the base has another embedder by now."""
    found = await row(
        db,
        f"SELECT embedder, dimensions, chunks, words, generation, coalesce(({VALID}), false), "  # noqa: S608
        f"(SELECT coalesce(string_agg(l.language, ' '), '') FROM ({filters.LANGUAGES}) l) FROM totals",
    )
    assert found is not None, "an opened base has its row"
    name, dimensions, chunks, words, generation, indexed, languages = found
    stored = expect_embedder(embedder, EmbedderIdentity.noted(name, dimensions))
    if query.vector is not None and stored.dimensions:
        expect_length(stored, len(query.vector))
    where, values = filters.condition(query.selection)
    left = chunks
    if where:
        sql = f"SELECT coalesce(sum(chunk_count), 0) FROM documents d WHERE {where}"  # noqa: S608
        left = await value(db, sql, values)
    extent = Extent(int(left), chunks, generation)
    return State(extent, words / chunks if chunks else 1.0, stored.dimensions, indexed, languages.split())
