"""What the base is in one snapshot, as far as searches depend on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kb_engine.index.port import IndexQuery
from kb_engine.index.postgres.building import VALID
from kb_engine.index.words import Analyser, Word
from kb_engine.store.port import EmbedderIdentity
from kb_engine.store.postgres.connection import Db, row, value
from kb_engine.store.postgres.transaction import expect_embedder, expect_length
from kb_engine.store.repository import search as filters

ALL = "true"
_HOLDS = "v.chunk_id IN (SELECT p.chunk_id FROM postings p WHERE p.term = ANY (?::text[]))"


@dataclass(frozen=True, slots=True)
class Extent:
    """How many chunks the filters leave, out of `size` in the base, and in which state that is."""

    left: int
    size: int
    generation: int


@dataclass(frozen=True, slots=True)
class State:
    """`average` is in words a chunk; `indexed`: the HNSW index is there and complete; `languages`: those of
    documents. `required` are words that each chunk has to hold, in one of their forms."""

    extent: Extent
    average: float
    dimensions: int
    indexed: bool
    languages: Sequence[str]
    required: Sequence[Word] = ()


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
    state = State(extent, words / chunks if chunks else 1.0, stored.dimensions, indexed, languages.split())
    if not query.required and query.among is None:
        return state
    required = await asyncio.to_thread(lambda: Analyser().required(query.required, state.languages))
    state = replace(state, required=required)
    where, values = selected(state, query)
    left = await value(db, f"SELECT count(*) FROM vectors v WHERE {where}", values)  # noqa: S608
    return replace(state, extent=replace(extent, left=left))


def selected(state: State, query: IndexQuery) -> tuple[str, list[Any]]:
    """The condition on a row `v` of the vectors, and its values."""
    where, values = filters.condition(query.selection)
    conditions = [f"v.document_id IN (SELECT d.id FROM documents d WHERE {where})"] if where else []  # noqa: S608
    conditions += len(state.required) * [_HOLDS]
    values = [*values, *map(list, state.required)]
    if query.among is not None:
        conditions.append("v.chunk_id = ANY (?::bigint[])")
        values.append(list(query.among))
    return " AND ".join(conditions) or ALL, values
