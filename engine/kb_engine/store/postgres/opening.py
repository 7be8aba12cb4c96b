"""Opening a base on PostgreSQL: connect, create or migrate it; and re-embed all its chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

import asyncpg

from kb_engine.address import Address
from kb_engine.embed.context import Passage
from kb_engine.index.port import Vectors
from kb_engine.store import port
from kb_engine.store.postgres import schema
from kb_engine.store.postgres.connection import GONE, SCHEMA, Connections, Db, connect, rows, value
from kb_engine.store.postgres.search.building import remove_index
from kb_engine.store.postgres.search.renewal import renew_one
from kb_engine.store.postgres.transaction import layout_version, lock_base, set_embedder

T = TypeVar("T")

WAIT_SECONDS = 15.0
"""Time to wait for the server, in seconds, because an engine may be started together with its database."""
_AGAIN_SECONDS = 0.25
_FOR_GOOD = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)

_DATABASE = (
    "SELECT c.system_identifier, d.oid FROM pg_control_system() c, pg_database d "
    "WHERE d.datname = current_database()"
)
"""Identifies a database in a server and its copies."""
_WITHOUT_LANGUAGE = (
    "INSERT INTO outdated_words SELECT id FROM documents WHERE language IS NULL ON CONFLICT DO NOTHING"
)
_MISSING = (
    "FROM chunks c JOIN documents d ON d.id = c.document_id "
    "WHERE NOT EXISTS (SELECT FROM next_vectors n WHERE n.chunk_id = c.id)"
)


async def prepare(
    address: Address, embedder: port.EmbedderIdentity, wait: float = WAIT_SECONDS, *, unfinished: bool = False
) -> tuple[str, port.EmbedderIdentity, str | None]:
    """Migrate the base to the current layout; return the search path of its connections, the base's embedder,
    and the time of the latest idempotency key.
    Raises BaseRefused: the base cannot be opened; the subclass gives the reason.
    """
    async with latest(address, wait, unfinished=unfinished) as db:
        async with db.transaction():
            stored = await schema.stored_embedder(db)
            bound = port.bound_embedder(address, stored, embedder)
            if bound is not stored:
                await set_embedder(db, bound)
        newest = await value(db, "SELECT max(created_at) FROM idempotency")
        return str(await value(db, "SELECT current_setting('search_path')")), bound, newest


async def check_pooler(address: Address, pooler: Address, connections: Connections, wait: float) -> None:
    """Check that `connections` lead through the `pooler` to the base at `address`. Raises `BaseRefused`."""

    async def beyond() -> list[Any]:
        async with connections.statements() as db:
            return await rows(db, _DATABASE)

    with _refusals(pooler, "KB_POSTGRES_POOLER"):
        db = await connect(address)
        try:
            direct = await rows(db, _DATABASE)
        finally:
            await db.close()
        if await _reached(beyond, wait) != direct:
            raise port.NotABase(pooler, "KB_POSTGRES_POOLER leads to another database than KB_STORE.")


async def filled_by(address: Address) -> port.EmbedderIdentity:
    """Return the embedder that filled a base, which must have been used. Raises `BaseRefused`."""
    async with latest(address) as db, db.transaction():
        return port.check_used(address, await schema.stored_embedder(db))


@asynccontextmanager
async def latest(
    address: Address, wait: float = WAIT_SECONDS, *, unfinished: bool = False
) -> AsyncIterator[Db]:
    """Yield a connection to the base after creating or migrating it. Raises `BaseRefused`.

    With `unfinished` a base that holds a part of another one is accepted, to complete it.
    """
    with _refusals(address):
        db = await _reached(partial(connect, address), wait)
        try:
            encoding = await value(db, "SELECT current_setting('server_encoding')")
            if encoding != "UTF8":
                why = f"its encoding is {encoding}. Make a database with the encoding UTF8."
                raise port.NotABase(address, why)
            place = await _extension(db, address)
            await value(db, "SELECT set_config('search_path', ?, false)", (f"{SCHEMA}, {place}",))
            await schema.migrate(db, address, schema.MIGRATIONS, unfinished=unfinished)
            mark = f"{SCHEMA}.{port.UNFINISHED}"
            if not unfinished and await value(db, "SELECT to_regclass(?::text) IS NOT NULL", (mark,)):
                raise port.BaseUnfinished(address)
            yield db
        finally:
            await db.close()


async def _reached(connecting: Callable[[], Awaitable[T]], wait: float) -> T:
    deadline = asyncio.get_running_loop().time() + wait
    while True:
        try:
            return await connecting()
        except _FOR_GOOD:
            raise
        except GONE:
            if asyncio.get_running_loop().time() >= deadline:
                raise
        await asyncio.sleep(_AGAIN_SECONDS)


@contextmanager
def _refusals(address: Address, setting: str = "KB_STORE") -> Iterator[None]:
    try:
        yield
    except (asyncpg.InsufficientPrivilegeError, asyncpg.ReadOnlySQLTransactionError) as error:
        raise port.BaseUnwritable(address, f"{error}. Give this user the right to write it.") from error
    except (asyncpg.DiskFullError, asyncpg.InsufficientResourcesError) as error:
        raise port.BaseUnwritable(address, f"{error}. Look at the server: is its disk full?") from error
    except asyncpg.ClientConfigurationError as error:
        # The driver's message may quote the address with its password.
        raise port.BaseUnreachable(address, f"its address cannot be used. Check {setting}.") from error
    except (asyncpg.SyntaxOrAccessError, asyncpg.IntegrityConstraintViolationError) as error:
        raise port.NotABase(
            address, f"{port.UNLIKE_ITS_NUMBER} ({error}). Restore it from a copy."
        ) from error
    except GONE as error:
        why = f"{error or type(error).__name__}".rstrip(".")
        raise port.BaseUnreachable(address, f"{why}. Check {setting} and the server.") from error


async def _extension(db: Db, address: Address) -> str:
    """Return the schema of pgvector, quoted; create the extension if permitted."""
    where = (
        "SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
        "WHERE e.extname = 'vector'"
    )
    if (found := await value(db, where)) is not None:
        return str(found)
    why = "it has no extension `vector` (pgvector)"
    try:
        await db.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
    except (asyncpg.UniqueViolationError, asyncpg.DuplicateObjectError):
        pass  # another engine created it at the same time
    except asyncpg.InsufficientPrivilegeError as error:
        raise port.NotABase(address, f"{why}. Have its administrator run CREATE EXTENSION vector.") from error
    except asyncpg.PostgresError as error:
        raise port.NotABase(
            address, f"{why}, and it cannot be made: {error}. Install pgvector there."
        ) from error
    return str(await value(db, where))


async def reindex_postgres(
    address: Address,
    *,
    embedder: port.EmbedderIdentity,
    embed: Callable[[Sequence[Passage]], Vectors],
    progress: port.ReindexProgress = lambda _done, _total: None,
    wait: float = WAIT_SECONDS,
) -> int:
    """Do as `reindex_sqlite` does, and index outdated words again, one document per transaction.

    Engines may run meanwhile: chunks that they add are embedded too, before the switch. After it they refuse
    searches and changes until they are restarted with the new embedder. `embed` blocks.
    Raises BaseRefused: there is no base, or it cannot be used.
    """
    async with latest(address, wait) as db:
        async with db.transaction():
            port.check_used(address, await schema.stored_embedder(db))
            # A run begun for this embedder continues; one begun for a different embedder is dropped.
            wanted = (embedder.note, embedder.dimensions)
            known = await rows(db, "SELECT name, dimensions FROM next_embedder FOR UPDATE")
            if [tuple(one) for one in known] != [wanted]:
                await db.execute("DELETE FROM next_vectors; DELETE FROM next_embedder")
                await rows(db, "INSERT INTO next_embedder (name, dimensions) VALUES (?, ?)", wanted)
        await _embed_missing(db, embedder, embed, progress)
        await rows(db, _WITHOUT_LANGUAGE)
        while await _renewed_one(db):
            pass
        await remove_index(db)
        while not await _switched(db, address, embedder):
            await _embed_missing(db, embedder, embed, progress)
        total = int(await value(db, "SELECT count(*) FROM vectors"))
        progress(total, total)
        return total


async def _embed_missing(
    db: Db,
    embedder: port.EmbedderIdentity,
    embed: Callable[[Sequence[Passage]], Vectors],
    progress: port.ReindexProgress,
) -> None:
    batch = f"SELECT c.id, c.document_id, d.title, c.heading, c.text {_MISSING} ORDER BY c.id LIMIT ?"
    while found := await rows(db, batch, (port.REINDEX_BATCH,)):
        progress(
            int(await value(db, "SELECT count(*) FROM next_vectors")),
            int(await value(db, "SELECT count(*) FROM chunks")),
        )
        vectors = await asyncio.to_thread(embed, [Passage(*each) for _, _, *each in found])
        port.check_shape(vectors, len(found), embedder)
        await db.executemany(
            # Skip chunks that were deleted meanwhile.
            "INSERT INTO next_vectors (chunk_id, document_id, vector) "
            "SELECT id, document_id, $3::real[]::vector FROM chunks WHERE id = $1 AND document_id = $2 "
            "ON CONFLICT DO NOTHING",
            [(row[0], row[1], vector) for row, vector in zip(found, vectors.tolist(), strict=True)],
        )


async def _renewed_one(db: Db) -> bool:
    async with db.transaction():
        await lock_base(db, shared=True)
        return await renew_one(db)


async def _switched(db: Db, address: Address, embedder: port.EmbedderIdentity) -> bool:
    """Replace the vectors of the base by the new ones; return False if some are still missing."""
    async with db.transaction():
        await lock_base(db, shared=False)  # no document changes until the end of the transaction
        await schema.stored_embedder(db)  # and no engine binds the base to an embedder
        if (version := await layout_version(db)) > len(schema.MIGRATIONS):
            raise port.BaseTooNew(address, version, len(schema.MIGRATIONS))
        if await value(db, f"SELECT EXISTS (SELECT {_MISSING})"):
            return False
        # A chunk may have been deleted between its selection and the insertion of its vector.
        await db.execute("DELETE FROM next_vectors WHERE chunk_id NOT IN (SELECT id FROM chunks)")
        # The gap in the log of changes causes a separate index to be rebuilt.
        await db.execute(
            "DELETE FROM vectors; "
            "INSERT INTO vectors (chunk_id, document_id, vector) "
            "SELECT chunk_id, document_id, vector FROM next_vectors ORDER BY chunk_id; "
            "DELETE FROM next_vectors; DELETE FROM next_embedder; "
            "UPDATE versions SET vectors = NULL; "
            "UPDATE base SET generation = generation + 1, changes = changes + 1"
        )
        await set_embedder(db, embedder)
    return True
