"""Connections to a PostgreSQL base, and the transactions of repositories on them.

Connections are bounded in number, and every fault has a code of the contract. Statements are written with a
`?` for each value, as those of SQLite are, so that both can be made of the same parts.

Whoever changes documents holds the row of `base` until the transaction ends. So these transactions follow
one another over all engines, as they do in SQLite: ids grow with commits, and what one decides (is it a
duplicate, is the version still that) holds when it commits.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache
from itertools import count
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4

import asyncpg
import numpy as np

from kb_contracts.api.errors import EngineError
from kb_engine.address import Address
from kb_engine.index.port import Vectors
from kb_engine.index.words import Tokenizer
from kb_engine.store.port import EmbedderIdentity, Idempotency, Prepared, StoreEventKind, described
from kb_engine.store.repository.transaction import Clock, Read, Row, Write

T = TypeVar("T")

Db: TypeAlias = Any
"""An `asyncpg.Connection`; the package has no types."""

SCHEMA = "kb"
CONNECTIONS = 10
"""Of one engine; one more listens."""
WRITERS = CONNECTIONS - 3
"""That change something; those that wait for one another's changes leave room for searches and leases."""
ACQUIRE_SECONDS = 20.0
CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
WRITE_SECONDS = 900.0
"""A book of a hundred megabytes is one transaction."""
IDLE_SECONDS = 300.0
RETRY_SECONDS = 2.0

CHANNEL = "kb"

_ACCEPTING = 0x6B62_0002
"""The advisory lock of whoever accepts: the numbers of jobs grow with their commits, and the bound holds."""
_CHUNKS = (
    "id", "uid", "document_id", "position", "text", "page", "heading", "first", "beyond", "tokens", "words",
)  # fmt: skip
_POSTINGS = ("term", "chunk_id", "frequency", "length")

_ESCAPED = {"\0": "\x01\x01", "\x01": "\x01\x02"}
_RESTORED = {kept: original for original, kept in _ESCAPED.items()}
_TO_ESCAPE = re.compile("[\0\x01]")
_TO_RESTORE = re.compile("\x01[\x01\x02]")

GONE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.ReadOnlySQLTransactionError,
    OSError,
    TimeoutError,
)
"""The server is down, starting, out of reach, out of connections, or a standby."""
TRY_AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.InvalidCachedStatementError)
"""The server gave up one of several transactions, or a plan that is no longer right; nothing was done."""


class Lost(Exception):
    """The connection went before the commit: nothing was done, and it may be done again."""


def to_base(text: str) -> str:
    """Text as the base keeps it, which has no NUL; order and prefixes stay as they were."""
    return _TO_ESCAPE.sub(lambda found: _ESCAPED[found[0]], text)


def from_base(text: str) -> str:
    """Text that `to_base` made."""
    return _TO_RESTORE.sub(lambda found: _RESTORED[found[0]], text)


def _encoded(text: str) -> bytes:
    return to_base(text).encode()


def _decoded(raw: bytes) -> str:
    return from_base(bytes(raw).decode())


@lru_cache(maxsize=512)
def to_dollar_params(sql: str) -> str:
    """The statement as PostgreSQL takes it: `$1`, `$2` for one `?` after the other."""
    first, *rest = sql.split("?")
    return first + "".join(f"${number}{part}" for number, part in zip(count(1), rest, strict=False))


async def rows(db: Db, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    found: list[Any] = await db.fetch(to_dollar_params(sql), *values)
    return found


async def row(db: Db, sql: str, values: Sequence[Any] = ()) -> Any | None:
    return await db.fetchrow(to_dollar_params(sql), *values)


async def value(db: Db, sql: str, values: Sequence[Any] = ()) -> Any:
    """The first value of the first row, or None."""
    return await db.fetchval(to_dollar_params(sql), *values)


async def changed(db: Db, sql: str, values: Sequence[Any] = ()) -> int:
    return int((await db.execute(to_dollar_params(sql), *values)).rpartition(" ")[2])


@contextmanager
def as_engine_errors() -> Iterator[None]:
    """A server that is away and a disk that is full raise errors of the contract."""
    try:
        yield
    except asyncpg.DiskFullError as error:
        raise EngineError(
            "storage_full", "The disk of the database is full. Nothing was changed; make room and retry."
        ) from error
    except GONE as error:
        if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
            raise  # a value that does not fit its statement: no fault of the server's
        raise not_ready() from error
    except Lost as error:
        raise not_ready() from error
    except TRY_AGAIN as error:
        raise EngineError(
            "not_ready", "The database is too busy. Nothing was changed; retry.", retry_after=RETRY_SECONDS
        ) from error


def was_cut_off(db: Db, error: BaseException) -> bool:
    """Whether the connection went with this error, rather than the statement alone."""
    return isinstance(error, asyncpg.InternalClientError) or (isinstance(error, GONE) and db.is_closed())


def not_ready(why: str = "The database does not answer. Retry when it is back.") -> EngineError:
    """The error while the database is away."""
    return EngineError("not_ready", why, retry_after=RETRY_SECONDS)


async def connect(address: Address, *, search_path: str = f"{SCHEMA}, public") -> Db:
    """A connection outside the pool; the caller closes it. Raises what asyncpg raises."""
    db = await asyncpg.connect(
        address.url,
        timeout=CONNECT_SECONDS,
        command_timeout=WRITE_SECONDS,
        server_settings=_settings(search_path),
    )
    await _prepare(db)
    return db


def _settings(search_path: str) -> dict[str, str]:
    return {
        "application_name": "kb",
        "search_path": search_path,
        # Plans for these very values: how many rows a filter leaves decides how to walk.
        "plan_cache_mode": "force_custom_plan",
        # Compiling a plan takes longer than any of these statements.
        "jit": "off",
        # The scores of a hundred thousand chunks, rather than a file of them.
        "work_mem": "64MB",
        "timezone": "UTC",
    }


async def _prepare(db: Db) -> None:
    await db.set_type_codec("text", schema="pg_catalog", encoder=_encoded, decoder=_decoded, format="binary")


class Connections:
    """A bounded pool, opened when it is first used and again whenever the server comes back."""

    def __init__(self, address: Address, search_path: str, size: int = CONNECTIONS) -> None:
        self._address = address
        self._search_path = search_path
        self._size = size
        self._pool: Any = None
        self._opening = asyncio.Lock()
        self._writers = asyncio.Semaphore(WRITERS)
        self._closed = False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Db]:
        """A connection for the length of a block. Raises `EngineError` and what asyncpg raises."""
        pool = await self._opened()
        db = await pool.acquire(timeout=ACQUIRE_SECONDS)
        try:
            yield db
        except asyncpg.InternalClientError:
            db.terminate()  # it was cut off in a state that the driver cannot leave
            raise
        finally:
            # What was committed stays so when the connection goes now: the pool replaces it.
            with suppress(*GONE):
                await asyncio.shield(pool.release(db))

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Db]:
        """One that is to change something; raises as `one`."""
        async with asyncio.timeout(ACQUIRE_SECONDS):
            await self._writers.acquire()
        try:
            async with self.one() as db:
                yield db
        finally:
            self._writers.release()

    async def _opened(self) -> Any:
        async with self._opening:
            if self._closed:
                raise not_ready("The engine is shutting down.")
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self._address.url,
                    min_size=0,
                    max_size=self._size,
                    timeout=CONNECT_SECONDS,
                    command_timeout=WRITE_SECONDS,
                    max_inactive_connection_lifetime=IDLE_SECONDS,
                    server_settings=_settings(self._search_path),
                    init=_prepare,
                )
            return self._pool

    async def close(self) -> None:
        """Wait for what is under way, then close all; may be called again."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()


async def attempted(work: Callable[[], Awaitable[T]], attempts: int = 5) -> T:
    """Do `work`, a transaction that the server may give up, until it is through."""
    for _ in range(attempts - 1):
        try:
            return await work()
        except TRY_AGAIN:
            continue
    return await work()


class PostgresRead(Read):
    sources = "ARRAY(SELECT s.source_path FROM document_sources s WHERE s.document_id = d.id ORDER BY s.id)"
    tags = "ARRAY(SELECT t.tag FROM document_tags t WHERE t.document_id = d.id ORDER BY t.id)"
    among = "= ANY (?)"
    # The selection is made once, and its rows are then found by their index.
    selected = "= ANY (ARRAY({}))"
    last_updated = "SELECT last_updated FROM base"
    generation = "SELECT changes FROM base"
    vector = "v.vector::real[]"

    @staticmethod
    def read_list(kept: Iterable[str]) -> list[str]:
        """No codec reads the elements of an array. What is sent as an array must not hold NUL."""
        return [from_base(text) for text in kept]

    @staticmethod
    def list_value(values: Iterable[Any]) -> list[Any]:
        return list(values)

    @staticmethod
    def vectors_of(stored: Sequence[Any]) -> Vectors:
        return np.array(stored, np.float32).reshape(len(stored), -1 if stored else 0)

    async def size(self) -> int:
        return int(
            await self.value(
                "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
                "JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE n.nspname = ? AND c.relkind = 'r' AND c.relname <> 'spool_parts'",
                (SCHEMA,),
            )
        )

    async def rows(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        return await rows(self.db, sql, values)


class PostgresWrite(PostgresRead, Write):
    """An open transaction that writes.

    `embedder` is this engine's; once the base is held, with the dimensions that the base knows.
    """

    for_update = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    abandoned = " AND lease_until < clock_timestamp()"
    no_lease = "lease = NULL, lease_until = NULL"
    forget_answers = (
        "DELETE FROM idempotency WHERE ctid = ANY (ARRAY("
        "SELECT ctid FROM idempotency WHERE created_at <= ? FOR UPDATE SKIP LOCKED))"
    )
    ping = "INSERT INTO pings (at) VALUES (?) ON CONFLICT (one) DO UPDATE SET at = EXCLUDED.at"

    def __init__(
        self,
        db: Db,
        clock: Clock,
        max_queued: int,
        *,
        embedder: EmbedderIdentity,
        layout: int,
        lease_seconds: float,
        logs_changes: bool,
    ) -> None:
        super().__init__(db, clock, max_queued)
        self.embedder = embedder
        self.kept_leases: set[str] = set()
        self.dropped_leases: set[str] = set()
        self._layout = layout
        self._lease_seconds = lease_seconds
        self._logs_changes = logs_changes
        self._notifications: list[str] = []
        self._holds_base = False

    @property
    def lease_end(self) -> tuple[str, Sequence[Any]]:
        return "lease_until = clock_timestamp() + make_interval(secs => ?), ", (self._lease_seconds,)

    def keep_lease(self, lease: str) -> None:
        self.kept_leases.add(lease)

    def drop_lease(self, lease: str) -> None:
        self.dropped_leases.add(lease)

    async def changed(self, sql: str, values: Sequence[Any] = ()) -> int:
        return await changed(self.db, sql, values)

    async def hold_queue(self) -> None:
        await rows(self.db, "SELECT pg_advisory_xact_lock(?)", (_ACCEPTING,))

    async def hold_key(self, idempotency: Idempotency) -> None:
        name = "\x1f".join((idempotency.credential, idempotency.operation, idempotency.key))
        await rows(self.db, "SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (name,))

    async def keep_file(self, name: str) -> None:
        await rows(self.db, "UPDATE spool_files SET accepted = true WHERE name = ?", (name,))

    async def drop_files(self, names: Sequence[str]) -> None:
        await rows(self.db, "DELETE FROM spool_files WHERE name = ANY (?::text[])", (names,))

    async def hold_base(self) -> None:
        """Wait for other changes of documents to end, and keep them out until this one has.

        Raises:
            EngineError: `not_ready` where the base has another embedder or a later layout by now.
        """
        if self._holds_base:
            return
        ((name, dimensions),) = await rows(self.db, "SELECT embedder, dimensions FROM base FOR UPDATE")
        # A statement of its own: that of the lock does not see what was committed while it waited.
        await expect_layout(self.db, self._layout)
        self.embedder = expect_embedder(self.embedder, EmbedderIdentity(name, dimensions))
        self._holds_base = True

    async def next_document(self) -> int:
        sql = "UPDATE base SET last_document = last_document + 1 RETURNING last_document"
        return int(await value(self.db, sql))

    async def touch_base(self, document_id: int | None) -> None:
        sql = "UPDATE base SET last_updated = ?, changes = changes + 1 RETURNING changes"
        generation = await value(self.db, sql, (self.now,))
        if self._logs_changes:
            sql = "INSERT INTO index_changes (generation, document_id) VALUES (?, ?)"
            await rows(self.db, sql, (generation, document_id))

    async def insert_content(self, document_id: int, title: str, prepared: Prepared) -> None:
        """Raises `not_ready` where the base, which is held, has vectors of another length."""
        if not prepared.chunks:
            return
        dimensions = prepared.vectors.shape[1]
        if self.embedder.dimensions:
            expect_length(self.embedder, dimensions)
        else:  # the first vectors of a base say what it takes
            self.embedder = EmbedderIdentity(self.embedder.name, dimensions)
            await set_embedder(self.db, self.embedder)
        sql = "UPDATE base SET last_chunk = last_chunk + ? RETURNING last_chunk"
        last = int(await value(self.db, sql, (len(prepared.chunks),)))
        ids = range(last - len(prepared.chunks) + 1, last + 1)
        texts = [(chunk_id, c.heading, c.text) for chunk_id, c in zip(ids, prepared.chunks, strict=True)]
        postings, lengths = await asyncio.to_thread(lambda: Tokenizer().postings(title, texts))
        await self.db.copy_records_to_table(
            "chunks",
            columns=_CHUNKS,
            records=[
                (
                    i,
                    str(uuid4()),
                    document_id,
                    place,
                    c.text,
                    c.page,
                    c.heading,
                    c.start,
                    c.end,
                    c.tokens,
                    words,
                )
                for place, (i, c, words) in enumerate(zip(ids, prepared.chunks, lengths, strict=True))
            ],
        )
        await self.db.copy_records_to_table("postings", columns=_POSTINGS, records=postings)
        await self.db.executemany(
            "INSERT INTO vectors (chunk_id, document_id, vector) VALUES ($1, $2, $3::real[]::vector)",
            (
                (chunk_id, document_id, vector)
                for chunk_id, vector in zip(ids, prepared.vectors.tolist(), strict=True)
            ),
        )
        await self._count_chunks(len(ids), sum(lengths))

    async def remove_content(self, document_id: int) -> None:
        gone = "DELETE FROM chunks WHERE document_id = ? RETURNING id, words"
        found = await rows(self.db, gone, (document_id,))
        ids = [chunk_id for chunk_id, _ in found]
        await rows(self.db, "DELETE FROM postings WHERE chunk_id = ANY (?::bigint[])", (ids,))
        await rows(self.db, "DELETE FROM vectors WHERE document_id = ?", (document_id,))
        await rows(self.db, "DELETE FROM next_vectors WHERE document_id = ?", (document_id,))
        await self._count_chunks(-len(found), -sum(words for _, words in found))

    async def remove_all_content(self) -> None:
        # At once, however many there are. A search that has begun keeps its rows or finds none; documents and
        # chunks are deleted one by one, for what reads those must see its own state of the base.
        await self.db.execute("TRUNCATE postings, vectors, next_vectors")
        await self.db.execute("DELETE FROM chunks")
        ((chunks, words),) = await rows(self.db, "SELECT chunks, words FROM base")
        await self._count_chunks(-int(chunks), -int(words))

    async def _count_chunks(self, chunks: int, words: int) -> None:
        """So many more (or fewer) chunks and words: the base is in another state for searches."""
        sql = (
            "UPDATE base SET chunks = chunks + ?::bigint, words = words + ?::bigint, "
            "generation = generation + 1"
        )
        await rows(self.db, sql, (chunks, words))

    def notify(self, kind: StoreEventKind, job_id: str | None = None) -> None:
        self._notifications.append(kind if job_id is None else f"{kind} {job_id}")

    async def send_notifications(self) -> None:
        """Hand them to the server, which sends them when the transaction commits."""
        for payload in self._notifications:
            await rows(self.db, "SELECT pg_notify(?, ?)", (CHANNEL, payload))


async def layout_version(db: Db) -> int:
    """The number of the last migration done, by now also by a later engine."""
    return int(await value(db, "SELECT version FROM layout"))


async def set_embedder(db: Db, embedder: EmbedderIdentity) -> None:
    """Note whose vectors the base holds."""
    await rows(db, "UPDATE base SET embedder = ?, dimensions = ?", (embedder.name, embedder.dimensions))


async def expect_layout(db: Db, known: int) -> None:
    """Raises `not_ready`: a later engine has migrated the base, whose rules this one does not know."""
    if await layout_version(db) > known:
        raise EngineError(
            "not_ready",
            "A newer engine has taken over the base and changed its layout. Stop this engine, "
            "or start it again in that version.",
            retry_after=60.0,
        )


def expect_embedder(wanted: EmbedderIdentity, stored: EmbedderIdentity) -> EmbedderIdentity:
    """The one that fills the base. Raises `not_ready`: vectors of two embedders are never mixed."""
    if not wanted.fits(stored):
        raise _of_another(f"the embedder {described(stored)}, and this engine was started with {wanted.name}")
    return stored


def expect_length(stored: EmbedderIdentity, found: int) -> None:
    """Raises `not_ready`: vectors of two lengths cannot be compared."""
    if found != stored.dimensions:
        raise _of_another(f"{described(stored)}, and the embedder of this engine gives vectors of {found}")


def _of_another(what: str) -> EngineError:
    return EngineError(
        "not_ready",
        f"The base is filled by {what}. Start this engine again with the embedder of the base.",
        retry_after=60.0,
    )
