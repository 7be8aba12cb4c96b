"""The HNSW index of the vectors in half precision: built in the background, used once it is complete.

The first engine to notice that the base has passed the size builds the index, under an advisory lock of its
session, with CREATE INDEX CONCURRENTLY, so that no search or change waits for it. An interrupted build, after
a crash or for lack of space, leaves an invalid index in the catalogue; it is dropped and built again. Once
built the index is maintained by the server, for changes by any engine, even if the base shrinks.

An attempt to lock the table of vectors during the build would wait for its end, and all later statements for
that lock. So a switch to another embedder waits for the advisory lock first (`remove_index`), and clearing
the base works without a table lock. The advisory lock is never awaited inside a statement: the build waits
for all earlier statements, and this would be a deadlock.

Half-precision vectors and their index require pgvector 0.7; scans that continue until enough rows pass the
filters require 0.8. With an older version, and for vectors too long for an index, searches stay exact.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass

import asyncpg

from kb_engine.address import Address
from kb_engine.store.postgres.connection import GONE, SCHEMA, Connections, Db, connect, row, rows, value
from kb_engine.store.postgres.transaction import BUILDING, expect_layout

LEAST_PGVECTOR = (0, 8)
LONGEST_VECTOR = 4_000  # maximum number of dimensions of an index in half precision
CHECK_SECONDS = 10.0
_LONGEST_PAUSE = 3_600.0
_LOCK_SECONDS = 0.25
_CLOSE_SECONDS = 5.0
_BUILD_SECONDS = 7 * 86_400.0
_MOST_MEMORY_KIB = 1024 * 1024
"""Upper bound of the memory for the build; the part of the graph beyond it is built on disk,
which is slow.
"""
_NODE_BYTES = 800  # size of a chunk's node in the graph, without its vector, in bytes

_NAME = "vectors_by_meaning"
VALID = f"SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('{SCHEMA}.{_NAME}')"  # noqa: S608
"""Returns no row if the index does not exist."""

_TRY_LOCK = f"SELECT pg_try_advisory_lock({BUILDING})"
_DROP = f"DROP INDEX CONCURRENTLY IF EXISTS {SCHEMA}.{_NAME}"

logger = logging.getLogger(__name__)


def half_of(dimensions: int) -> str:
    """Return the type of a vector in half precision."""
    return f"halfvec({dimensions})"


class CannotIndex(Exception):
    """These vectors cannot have an index on this server; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Due:
    """An index to be built."""

    dimensions: int
    chunks: int


async def keep_index(
    connections: Connections, address: Address, search_path: str, exact_below: int, layout: int
) -> None:
    """Check periodically whether the index is due, and build it; runs until cancelled."""
    pause, known = CHECK_SECONDS, False
    while True:
        try:
            async with connections.statements() as db:
                await expect_layout(db, layout)
                due = await index_due(db, exact_below)
            if due is not None:
                await build_index(address, search_path, due)
            pause = CHECK_SECONDS
        except CannotIndex as error:
            if not known:
                logger.warning("cannot build a vector index: searches stay exact", extra={"why": str(error)})
            known = True
        except Exception as error:  # noqa: BLE001 - boundary: the next check tries again
            pause = min(2 * pause, _LONGEST_PAUSE)
            why = str(error) or type(error).__name__
            logger.warning("maintenance of the vector index failed", extra={"why": why, "pause": pause})
        await asyncio.sleep(pause)


async def index_due(db: Db, exact_below: int) -> Due | None:
    """Return the index to build, or None.
    Raises CannotIndex: it is due, but this server or these vectors do not allow it.
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
    """Build the index, unless another engine is building it or has built it; return whether this one did."""
    db = await connect(address, search_path=search_path)
    try:
        if not await value(db, _TRY_LOCK) or await value(db, VALID):
            return False
        logger.info("building the vector index", extra={"chunks": due.chunks})
        await db.execute(_DROP)
        memory = min(due.chunks * (2 * due.dimensions + _NODE_BYTES) // 1024, _MOST_MEMORY_KIB)
        await rows(
            db,
            # Parallel workers would need shared memory, which is scarce in containers, and all cores.
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
        logger.info("the vector index is complete", extra={"chunks": due.chunks})
        return True
    finally:
        with suppress(*GONE, asyncpg.PostgresError):
            await db.close(timeout=_CLOSE_SECONDS)


async def remove_index(db: Db) -> None:
    """Drop the index, after a running build if necessary, and prevent new ones until this connection is
    closed.
    """
    while not await value(db, _TRY_LOCK):  # noqa: ASYNC110 - it is held by another process
        await asyncio.sleep(_LOCK_SECONDS)
    await db.execute(_DROP)
