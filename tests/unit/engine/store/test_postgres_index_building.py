"""The HNSW index is built in the background, once, without blocking; an interrupted build is repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import numpy as np
import pytest

from kb_engine.store.port import EmbedderIdentity, StoreEvent
from kb_engine.store.postgres.connection import Connections
from kb_engine.store.postgres.opening import reindex_postgres
from kb_engine.store.postgres.schema import MIGRATIONS
from kb_engine.store.postgres.search import building
from kb_engine.store.postgres.search.building import (
    VALID,
    CannotIndex,
    Due,
    build_index,
    index_due,
    keep_index,
)
from kb_engine.store.postgres.transaction import BUILDING
from kb_engine.store.repository import documents
from tests.support.eventually import eventually_async
from tests.support.patience import ANSWER_SECONDS
from tests.support.postgres import Database
from tests.support.side_by_side import in_flight, waiting
from tests.support.stores import (
    DIMENSIONS,
    SEARCH_PATH,
    Base,
    axis,
    between,
    new_note,
    opened,
    prepared,
    visit,
)

pytestmark = pytest.mark.process

DUE = Due(DIMENSIONS, 1)


@pytest.fixture
async def base(database: Database) -> AsyncIterator[Base]:
    async with opened(database, exact_below=0) as base:
        yield base


async def is_valid(database: Database) -> bool | None:
    """None if there is no index."""
    found: bool | None = await database.value(VALID)
    return found


async def due(database: Database, exact_below: int) -> Due | None:
    return await database.ask(lambda db: index_due(db, exact_below))


async def build(database: Database) -> bool:
    return await build_index(database.address, SEARCH_PATH, DUE)


async def nearest(base: Base) -> list[int]:
    return [each.chunk.id for each in (await base.find("", "vector", vector=axis(0), top=3)).results]


@asynccontextmanager
async def half_built(database: Database, base: Base) -> AsyncIterator[asyncio.Future[bool]]:
    """Yield while the index is being built: the build waits for an open transaction."""
    leased = await base.lease(new_note("in flight"))
    async with (
        in_flight(base, documents.commit, leased, prepared("in flight", vectors=[axis(5)])),
        waiting(database, build(database)) as building,
    ):
        assert await is_valid(database) is False
        yield building


async def test_the_index_is_due_from_a_size_on_and_stays_when_the_base_shrinks(
    database: Database, base: Base
) -> None:
    note = await base.note("a", vectors=[axis(1)])
    assert await due(database, 2) is None
    await base.note("b", vectors=[axis(0)])
    assert await due(database, 2) == Due(DIMENSIONS, 2)
    assert await build(database)
    assert await due(database, 2) is None
    await base.store.once(None, documents.delete, note.id)
    assert await is_valid(database)
    assert await nearest(base) == [2]


async def test_of_a_base_that_never_had_a_vector_there_is_no_index(database: Database) -> None:
    await visit(database, embedder=EmbedderIdentity("unknown", 0))
    assert await due(database, 0) is None


async def test_an_older_pgvector_keeps_searches_exact(database: Database, base: Base) -> None:
    await base.note("a", vectors=[axis(0)])
    version = await database.value("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    await database.execute("UPDATE pg_extension SET extversion = '0.7.4' WHERE extname = 'vector'")
    try:
        with pytest.raises(CannotIndex, match=r"pgvector 0\.7\.4 is too old.*ALTER EXTENSION"):
            await due(database, 1)
        assert await nearest(base) == [1]
    finally:
        await database.execute(f"UPDATE pg_extension SET extversion = '{version}' WHERE extname = 'vector'")


async def test_vectors_that_are_too_long_for_an_index_are_searched_exactly(database: Database) -> None:
    await visit(database)
    await database.execute("UPDATE base SET dimensions = 4001, chunks = 1")
    with pytest.raises(CannotIndex, match="4001"):
        await due(database, 1)


async def test_while_one_engine_makes_the_index_the_others_leave_it_alone_and_search(
    database: Database, base: Base
) -> None:
    """Documents can also be added, and are in the index when it is complete."""
    await base.note("a", vectors=[between(0, 1, 0.5)])
    async with half_built(database, base) as building:
        assert not await build(database)
        assert await nearest(base) == [1]
        await base.note("b", vectors=[between(0, 1, 0.9)])
        assert await nearest(base) == [3, 1]
        assert not building.done()
    assert await building
    assert await is_valid(database)
    assert await nearest(base) == [3, 1, 2]


async def test_a_making_that_was_cut_off_is_begun_again(database: Database, base: Base) -> None:
    """After a stop of the engine, or of the server process, as after a kill of the engine."""
    async with half_built(database, base) as building:
        building.cancel()
        await asyncio.wait([building])
        await database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX%'"
        )
    assert await is_valid(database) is False
    assert await nearest(base) == [1]
    async with half_built(database, base) as building:
        await database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX%'"
        )
        with pytest.raises((asyncpg.PostgresError, OSError)):
            await building
    assert await is_valid(database) is False
    assert await build(database)
    assert await is_valid(database)


async def test_an_engine_makes_the_index_beside_its_work_and_again_where_that_fails(
    database: Database, base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "CHECK_SECONDS", 0.01)
    await database.execute("CREATE VIEW vectors_by_meaning AS SELECT 1")  # occupies the index's name
    connections = Connections(database.address, SEARCH_PATH)
    keeping = asyncio.create_task(keep_index(connections, database.address, SEARCH_PATH, 1, len(MIGRATIONS)))
    try:
        await base.note("a", vectors=[axis(0)])
        assert await nearest(base) == [1]
        await database.execute("DROP VIEW vectors_by_meaning")
        await eventually_async(lambda: is_valid(database), what="the index")
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await connections.close()


async def test_an_open_store_makes_the_index(database: Database) -> None:
    async with opened(database, exact_below=1) as base:
        await base.note("a", vectors=[axis(0)])
        events: list[StoreEvent] = []
        base.store.subscribe(events.append)
        await eventually_async(lambda: is_valid(database), what="the index")


async def test_clearing_the_base_does_not_wait_for_the_index(database: Database, base: Base) -> None:
    await base.note("a", vectors=[axis(0)])
    db = await asyncpg.connect(database.url)
    try:
        await db.execute(f"SELECT pg_advisory_lock({BUILDING})")
        reader = db.transaction()
        await reader.start()
        await db.execute("LOCK TABLE kb.vectors IN SHARE UPDATE EXCLUSIVE MODE")  # the lock of an index build
        async with asyncio.timeout(ANSWER_SECONDS):
            await base.store.once(None, documents.clear)
        await reader.rollback()
    finally:
        await db.close()
    assert await base.count("vectors") == 0
    await base.note("b", vectors=[axis(0)])
    assert len(await nearest(base)) == 1


async def test_reindexing_with_another_embedder_waits_for_the_build_of_the_index(
    database: Database, base: Base
) -> None:
    await base.note("a", vectors=[axis(0)])
    async with half_built(database, base) as building:
        reindexing = asyncio.ensure_future(
            reindex_postgres(
                database.address,
                embedder=EmbedderIdentity("other", 3),
                embed=lambda texts: np.eye(3, dtype=np.float32)[[0] * len(texts)],
            )
        )
        await eventually_async(lambda: base.count("next_vectors"), what="the new vectors")
        assert not reindexing.done()
    assert await building
    assert await reindexing == 2
    assert await is_valid(database) is None
    assert await due(database, 1) == Due(3, 2)
    assert await build_index(database.address, SEARCH_PATH, Due(3, 2))
