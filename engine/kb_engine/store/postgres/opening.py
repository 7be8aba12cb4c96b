"""Opening a base on PostgreSQL: reached, made or migrated, every refusal with words for people."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import asyncpg

from kb_engine.address import Address
from kb_engine.store.failures import UNLIKE_ITS_NUMBER, BaseUnreachable, BaseUnwritable, NotABase
from kb_engine.store.port import EmbedderIdentity
from kb_engine.store.postgres import schema
from kb_engine.store.postgres.connection import GONE, SCHEMA, Db, connect, value

WAIT_SECONDS = 15.0
"""An engine that starts with its database lets it come up first."""
_AGAIN_SECONDS = 0.25
_FOR_GOOD = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)


async def prepare(
    address: Address, embedder: EmbedderIdentity, wait: float = WAIT_SECONDS
) -> tuple[str, EmbedderIdentity]:
    """Bring the base to today's layout; the search path of its connections, and the embedder that fills it.

    Raises:
        BaseRefused: one of its kinds.
    """
    async with latest(address, wait) as db:
        bound = await schema.bind_embedder(db, address, embedder)
        return str(await value(db, "SELECT current_setting('search_path')")), bound


@asynccontextmanager
async def latest(address: Address, wait: float = WAIT_SECONDS) -> AsyncIterator[Db]:
    """A connection to the base, created or migrated; closed in the end. Raises `BaseRefused`."""
    with _refusals(address):
        db = await _reached(address, wait)
        try:
            await _expect_unicode(db, address)
            place = await _extension(db, address)
            await value(db, "SELECT set_config('search_path', ?, false)", (f"{SCHEMA}, {place}",))
            await schema.migrate(db, address, schema.MIGRATIONS)
            yield db
        finally:
            await db.close()


async def _reached(address: Address, wait: float) -> Db:
    deadline = asyncio.get_running_loop().time() + wait
    while True:
        try:
            return await connect(address)
        except _FOR_GOOD:
            raise
        except GONE:
            if asyncio.get_running_loop().time() >= deadline:
                raise
        await asyncio.sleep(_AGAIN_SECONDS)


@contextmanager
def _refusals(address: Address) -> Iterator[None]:
    try:
        yield
    except (asyncpg.InsufficientPrivilegeError, asyncpg.ReadOnlySQLTransactionError) as error:
        raise BaseUnwritable(address, f"{error}. Give this user the right to write it.") from error
    except (asyncpg.DiskFullError, asyncpg.InsufficientResourcesError) as error:
        raise BaseUnwritable(address, f"{error}. Look at the server: is its disk full?") from error
    except asyncpg.ClientConfigurationError as error:
        # Its words may quote the address, and with it the password.
        raise BaseUnreachable(address, "its address cannot be used. Check KB_STORE.") from error
    except (asyncpg.SyntaxOrAccessError, asyncpg.IntegrityConstraintViolationError) as error:
        raise NotABase(address, f"{UNLIKE_ITS_NUMBER} ({error}). Restore it from a copy.") from error
    except GONE as error:
        why = f"{error or type(error).__name__}".rstrip(".")
        raise BaseUnreachable(address, f"{why}. Check KB_STORE and the server.") from error


async def _expect_unicode(db: Db, address: Address) -> None:
    encoding = await value(db, "SELECT current_setting('server_encoding')")
    if encoding != "UTF8":
        raise NotABase(address, f"its encoding is {encoding}. Make a database with the encoding UTF8.")


async def _extension(db: Db, address: Address) -> str:
    """The schema of pgvector, quoted; the extension is made where that is allowed."""
    where = (
        "SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
        "WHERE e.extname = 'vector'"
    )
    if (found := await value(db, where)) is None:
        await _make_extension(db, address)
        found = await value(db, where)
    return str(found)


async def _make_extension(db: Db, address: Address) -> None:
    why = "it has no extension `vector` (pgvector)"
    try:
        await db.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
    except (asyncpg.UniqueViolationError, asyncpg.DuplicateObjectError):
        return  # another engine was faster
    except asyncpg.InsufficientPrivilegeError as error:
        raise NotABase(address, f"{why}. Have its administrator run CREATE EXTENSION vector.") from error
    except asyncpg.PostgresError as error:
        raise NotABase(address, f"{why}, and it cannot be made: {error}. Install pgvector there.") from error
