"""The statistics of a base in one snapshot, as needed by searches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kb_contracts.access.reach import Reach
from kb_engine.index.port import IndexQuery
from kb_engine.index.words import Analyser, Word
from kb_engine.store.port import EmbedderIdentity
from kb_engine.store.postgres.connection import Db, row, rows, value
from kb_engine.store.postgres.search.building import VALID
from kb_engine.store.postgres.transaction import expect_embedder, expect_length
from kb_engine.store.repository import search as filters
from kb_engine.store.repository.reach import of_document

ALL = "true"
MOST_REACHES = 1_000  # maximum number of access scopes in the cache
_HOLDS = "v.chunk_id IN (SELECT p.chunk_id FROM postings p WHERE p.term = ANY (?::text[]))"


@dataclass(frozen=True, slots=True)
class Extent:
    """The number of chunks that pass the filters (`left`), within the access scope (`size`), and in the base.

    `generation` identifies the state of the base to which counts refer: it changes with each change of
    chunks, and with an access scope also with changes of tags.
    """

    left: int
    size: int
    generation: int
    whole: int
    reach: Reach | None = None


class ReachedSizes:
    """Cache of the number of chunks and words within an access scope, for one state of the base."""

    def __init__(self) -> None:
        self._known: dict[Reach, tuple[int, int, int]] = {}

    async def of(self, db: Db, reach: Reach, changes: int) -> tuple[int, int]:
        """Return chunks and words; `changes` is the number of the last change of the base."""
        known = self._known.get(reach)
        if known is None or known[0] != changes:
            where, values = of_document(reach, "c.document_id")
            sql = f"SELECT count(*), coalesce(sum(c.words), 0)::bigint FROM chunks c WHERE {where}"  # noqa: S608
            ((chunks, words),) = await rows(db, sql, values)
            if len(self._known) >= MOST_REACHES:
                self._known.clear()
            known = self._known[reach] = changes, int(chunks), int(words)
        return known[1], known[2]


@dataclass(frozen=True, slots=True)
class State:
    """The statistics for a query. `average` is in words per chunk; like `languages` it covers the documents
    within the access scope. `indexed`: the HNSW index is complete. Each chunk must contain every word of
    `required` in one of its forms; the chunks `without` are left out. `filtered`: the number of chunks that
    pass the filters, if `extent.left` has fewer for phrases and exclusions.
    """

    extent: Extent
    average: float
    dimensions: int
    indexed: bool
    languages: Sequence[str]
    required: Sequence[Word] = ()
    without: Sequence[int] = ()
    filtered: int | None = None


async def read_state(
    db: Db, embedder: EmbedderIdentity, query: IndexQuery, sizes: ReachedSizes, without: Sequence[int]
) -> State:
    """Read the statistics. Raises `not_ready` if the base has a different embedder by now."""
    reach = query.selection.reach
    of_languages, reached = filters.languages_within(reach)
    found = await row(
        db,
        f"SELECT embedder, dimensions, chunks, words, generation, changes, coalesce(({VALID}), false), "  # noqa: S608
        f"(SELECT coalesce(string_agg(l.language, ' '), '') FROM ({of_languages}) l) FROM totals",
        reached,
    )
    assert found is not None, "an opened base has its row"
    name, dimensions, whole, words, generation, changes, indexed, languages = found
    chunks = whole
    if reach is not None:
        generation = changes
        chunks, words = await sizes.of(db, reach, changes)
    stored = expect_embedder(embedder, EmbedderIdentity.noted(name, dimensions))
    if query.vector is not None and stored.dimensions:
        expect_length(stored, len(query.vector))
    where, values = filters.condition(query.selection)
    left = chunks
    if where:
        sql = f"SELECT coalesce(sum(chunk_count), 0) FROM documents d WHERE {where}"  # noqa: S608
        left = await value(db, sql, values)
    extent = Extent(int(left), chunks, generation, whole, reach)
    average = words / chunks if chunks else 1.0
    state = State(extent, average, stored.dimensions, indexed, languages.split(), without=without)
    if not query.required and query.among is None and not without:
        return state
    required = await asyncio.to_thread(lambda: Analyser().required(query.required, state.languages))
    state = replace(state, required=required)
    where, values = selected(state, query)
    left = await value(db, f"SELECT count(*) FROM vectors v WHERE {where}", values)  # noqa: S608
    return replace(state, extent=replace(extent, left=left), filtered=extent.left)


def selected(state: State, query: IndexQuery) -> tuple[str, list[Any]]:
    """Return the condition on a row `v` of the vectors, and its values."""
    where, values = filters.condition(query.selection)
    conditions = [f"v.document_id IN (SELECT d.id FROM documents d WHERE {where})"] if where else []  # noqa: S608
    conditions += len(state.required) * [_HOLDS]
    values = [*values, *map(list, state.required)]
    if query.among is not None:
        conditions.append("v.chunk_id = ANY (?::bigint[])")
        values.append(list(query.among))
    if state.without:
        conditions.append("v.chunk_id <> ALL (?::bigint[])")
        values.append(state.without)
    return " AND ".join(conditions) or ALL, values
