"""Another embedder for a base on PostgreSQL: every chunk embedded again, then one switch.

The new vectors gather beside the old ones, a batch a transaction, so that what was interrupted goes on
where it stopped. Engines may work meanwhile: what they take in is embedded too, before the switch. After it
they refuse searches and changes until they are started again with the new embedder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kb_engine.address import Address
from kb_engine.index.port import Vectors
from kb_engine.store.failures import BaseTooNew, NotABase
from kb_engine.store.port import EmbedderIdentity
from kb_engine.store.postgres.connection import Db, rows, value
from kb_engine.store.postgres.opening import WAIT_SECONDS, latest
from kb_engine.store.postgres.schema import MIGRATIONS, layout_version, set_embedder, stored_embedder
from kb_engine.store.reindexing import BATCH, Progress, check_shape

_MISSING = "FROM chunks c WHERE NOT EXISTS (SELECT FROM next_vectors n WHERE n.chunk_id = c.id)"


async def reindex_postgres(
    address: Address,
    *,
    embedder: EmbedderIdentity,
    embed: Callable[[Sequence[str]], Vectors],
    progress: Progress = lambda _done, _total: None,
    wait: float = WAIT_SECONDS,
) -> int:
    """Embed all chunks of a base again and make `embedder` its own; how many chunks. `embed` blocks.

    Chunks keep their text: those that are longer than the new embedder's window are embedded in part.
    `progress` is called with how many of how many are done. It may be stopped and started again.

    Raises:
        BaseRefused: there is none, or it cannot be used.
    """
    async with latest(address, wait) as db:
        async with db.transaction():
            if await stored_embedder(db) is None:
                raise NotABase(address, "no engine has used it. Name the base that the engine uses.")
        await _begin(db, embedder)
        while not await _switched(db, address, embedder):
            await _embed_missing(db, embedder, embed, progress)
        total = int(await value(db, "SELECT count(*) FROM vectors"))
        progress(total, total)
        return total


async def _begin(db: Db, embedder: EmbedderIdentity) -> None:
    """Go on with what was begun for this embedder; drop what was begun for another."""
    async with db.transaction():
        known = await rows(db, "SELECT name, dimensions FROM next_embedder FOR UPDATE")
        if [tuple(one) for one in known] == [(embedder.name, embedder.dimensions)]:
            return
        await db.execute("DELETE FROM next_vectors; DELETE FROM next_embedder")
        sql = "INSERT INTO next_embedder (name, dimensions) VALUES (?, ?)"
        await rows(db, sql, (embedder.name, embedder.dimensions))


async def _embed_missing(
    db: Db, embedder: EmbedderIdentity, embed: Callable[[Sequence[str]], Vectors], progress: Progress
) -> None:
    batch = f"SELECT c.id, c.document_id, c.text {_MISSING} ORDER BY c.id LIMIT ?"
    while found := await rows(db, batch, (BATCH,)):
        progress(
            int(await value(db, "SELECT count(*) FROM next_vectors")),
            int(await value(db, "SELECT count(*) FROM chunks")),
        )
        vectors = await asyncio.to_thread(embed, [text for _, _, text in found])
        check_shape(vectors, len(found), embedder)
        await db.executemany(
            # Of a chunk that has gone meanwhile nothing is kept.
            "INSERT INTO next_vectors (chunk_id, document_id, vector) "
            "SELECT id, document_id, $3::real[]::vector FROM chunks WHERE id = $1 AND document_id = $2 "
            "ON CONFLICT DO NOTHING",
            [(row[0], row[1], vector) for row, vector in zip(found, vectors.tolist(), strict=True)],
        )


async def _switched(db: Db, address: Address, embedder: EmbedderIdentity) -> bool:
    """Make the new vectors those of the base, unless some are still missing."""
    async with db.transaction():
        await stored_embedder(db)  # holds the base: no document changes until the end
        if (version := await layout_version(db)) > len(MIGRATIONS):
            raise BaseTooNew(address, version, len(MIGRATIONS))
        if await value(db, f"SELECT EXISTS (SELECT {_MISSING})"):
            return False
        # A chunk may have gone between being read and its vector being kept.
        await db.execute("DELETE FROM next_vectors WHERE chunk_id NOT IN (SELECT id FROM chunks)")
        await db.execute(
            "DELETE FROM vectors; "
            "INSERT INTO vectors (chunk_id, document_id, vector) "
            "SELECT chunk_id, document_id, vector FROM next_vectors ORDER BY chunk_id; "
            "DELETE FROM next_vectors; DELETE FROM next_embedder; "
            "UPDATE base SET generation = generation + 1"
        )
        await set_embedder(db, embedder)
    return True
