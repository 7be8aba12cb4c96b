"""The HNSW index over the vectors in half precision: made in the background, searched once it is complete.

Whichever engine sees first that the base has passed its size makes the index, under an advisory lock of its
session, with CREATE INDEX CONCURRENTLY: nobody's search or change waits for it. One whose making was cut off,
by a kill or for want of room, is invalid in the catalogue; it is dropped and made again. From then on the
server keeps it, whatever engine changes vectors, also when the base shrinks.

Who would lock the table of vectors meanwhile would wait until the index is complete, and all others for him.
So another embedder waits for the advisory lock first (`remove_index`), and clearing the base does without a
lock of the table. Nobody waits for the advisory lock inside a statement: the making waits for all statements
that were there before it, and the two would wait for each other.

Vectors in half precision and an index of them came with pgvector 0.7, scans that go on while filters shut out
what they find with 0.8. With an older one, and of vectors too long for an index, searches stay exact.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass

import asyncpg

from kb_contracts.api.errors import EngineError
from kb_engine.address import Address
from kb_engine.store.postgres.connection import GONE, SCHEMA, Connections, Db, connect, row, rows, value
from kb_engine.store.postgres.transaction import BUILDING, expect_layout

LEAST_PGVECTOR = (0, 8)
LONGEST_VECTOR = 4_000
"""That an index over half precision takes."""
CHECK_SECONDS = 10.0
_LONGEST_PAUSE = 3_600.0
_LOCK_SECONDS = 0.25
_CLOSE_SECONDS = 5.0
_BUILD_SECONDS = 7 * 86_400.0
_MOST_MEMORY_KIB = 1024 * 1024
"""Of what making the index takes; what does not fit is added to it on the disk, which is slow."""
_NODE_BYTES = 800
"""That a chunk's place in the graph takes beside its vector."""

_NAME = "vectors_by_meaning"
VALID = f"SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('{SCHEMA}.{_NAME}')"  # noqa: S608
"""Gives no row where there is no index."""

_TRY_LOCK = f"SELECT pg_try_advisory_lock({BUILDING})"
_DROP = f"DROP INDEX CONCURRENTLY IF EXISTS {SCHEMA}.{_NAME}"

logger = logging.getLogger(__name__)


def half_of(dimensions: int) -> str:
    """The type of such a vector in half precision."""
    return f"halfvec({dimensions})"


class CannotIndex(Exception):
    """There can be no index of these vectors on this server; the message says why."""


@dataclass(frozen=True, slots=True)
class Due:
    """An index to be made."""

    dimensions: int
    chunks: int


async def keep_index(
    connections: Connections, address: Address, search_path: str, exact_below: int, layout: int
) -> None:
    """Look again and again whether the index is to be made, and make it; ends by being cancelled."""
    pause, known = CHECK_SECONDS, False
    while True:
        try:
            async with connections.one() as db:
                await expect_layout(db, layout)
                due = await index_due(db, exact_below)
            if due is not None:
                await build_index(address, search_path, due)
            pause = CHECK_SECONDS
        except CannotIndex as error:
            if not known:
                logger.warning("searches stay exact", extra={"why": str(error)})
            known = True
        except (*GONE, asyncpg.PostgresError, EngineError) as error:
            pause = min(2 * pause, _LONGEST_PAUSE)
            why = str(error) or type(error).__name__
            logger.warning("the index of vectors is not looked after", extra={"why": why, "pause": pause})
        await asyncio.sleep(pause)


async def index_due(db: Db, exact_below: int) -> Due | None:
    """What is to be made; None where nothing is.

    Raises:
        CannotIndex: it is due, and this server or these vectors do not allow it.
    """
    found = await row(
        db,
        f"SELECT dimensions, chunks, ({VALID}), "  # noqa: S608
        "(SELECT extversion FROM pg_extension WHERE extname = 'vector') FROM totals",
    )
    assert found is not None, "an opened base has its row"
    dimensions, chunks, valid, version = found
    if valid or not dimensions or chunks < exact_below:
        return None
    if tuple(int(part) for part in version.split(".")[:2]) < LEAST_PGVECTOR:
        raise CannotIndex(f"pgvector {version} is too old; install 0.8 and run ALTER EXTENSION vector UPDATE")
    if dimensions > LONGEST_VECTOR:
        raise CannotIndex(f"an index takes {LONGEST_VECTOR} dimensions, and these vectors have {dimensions}")
    return Due(dimensions, chunks)


async def build_index(address: Address, search_path: str, due: Due) -> bool:
    """Make the index, unless another engine is making it or has made it; whether this one did."""
    db = await connect(address, search_path=search_path)
    try:
        if not await value(db, _TRY_LOCK) or await value(db, VALID):
            return False
        logger.info("the index of vectors is being made", extra={"chunks": due.chunks})
        await db.execute(_DROP)
        memory = min(due.chunks * (2 * due.dimensions + _NODE_BYTES) // 1024, _MOST_MEMORY_KIB)
        await rows(
            db,
            # Parallel workers would need shared memory, of which containers have little, and all cores.
            "SELECT set_config('max_parallel_maintenance_workers', '0', false), "
            "set_config('statement_timeout', '0', false), set_config('maintenance_work_mem', "
            "greatest(pg_size_bytes(current_setting('maintenance_work_mem')) / 1024, ?)::text, false)",
            (memory,),
        )
        await db.execute(
            f"CREATE INDEX CONCURRENTLY {_NAME} ON vectors "
            f"USING hnsw ((vector::{half_of(due.dimensions)}) halfvec_ip_ops)",
            timeout=_BUILD_SECONDS,
        )
        logger.info("the index of vectors is complete", extra={"chunks": due.chunks})
        return True
    finally:
        with suppress(*GONE, asyncpg.PostgresError):
            await db.close(timeout=_CLOSE_SECONDS)


async def remove_index(db: Db) -> None:
    """Drop the index, if need be once it is made, and have none made until this connection is closed."""
    while not await value(db, _TRY_LOCK):  # noqa: ASYNC110 - it is held by another process
        await asyncio.sleep(_LOCK_SECONDS)
    await db.execute(_DROP)
