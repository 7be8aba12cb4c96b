"""The nearest chunks by the HNSW index."""

from __future__ import annotations

from kb_engine.index.port import IndexQuery
from kb_engine.store.postgres.connection import Db, rows
from kb_engine.store.postgres.search.building import half_of
from kb_engine.store.postgres.search.state import State, selected

_EFFORT = 200
"""Number of candidates during a graph search (`hnsw.ef_search`)."""


async def nearest(db: Db, state: State, query: IndexQuery, count: int) -> dict[int, float]:
    """Return about `count` nearest chunks that pass the filters, with their cosines.

    The scan continues until `count` chunks have passed the filters, or `hnsw.max_scan_tuples` (a setting of
    the server) have been visited.
    """
    assert query.vector is not None, "a search by meaning has a vector"
    # The order of the scan does not matter: all chunks are scored again.
    await rows(
        db,
        "SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), "
        "set_config('hnsw.ef_search', ?, true)",
        (str(_EFFORT),),
    )
    where, chosen = selected(state, query)
    half = half_of(state.dimensions)
    distance = f"v.vector::{half} <#> ?::real[]::{half}"
    sql = f"SELECT v.chunk_id, -({distance}) FROM vectors v WHERE {where} ORDER BY {distance} LIMIT ?"  # noqa: S608
    vector = query.vector.tolist()
    return dict(await rows(db, sql, [vector, *chosen, vector, count]))
