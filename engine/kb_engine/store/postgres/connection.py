"""Connections to a PostgreSQL base, and statements on them.

The number of connections is bounded, and every fault maps to an error of the contract. Statements have a `?`
for each value, as on SQLite, so that both databases share SQL.

A pooler that gives a connection of the server for one transaction only, as PgBouncer does, may stand before
the pool. Then nothing may depend on the session: no statement is prepared by name, and each transaction sets
its own parameters. Connections outside the pool are direct: those of the listener, of migrations and of the
build of the index, which hold a session.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache
from itertools import count
from typing import Any, TypeAlias, TypeVar

import asyncpg

from kb_contracts.api.errors import EngineError
from kb_engine.address import Address, urls_of

T = TypeVar("T")

Db: TypeAlias = Any  # an `asyncpg.Connection`; the package has no types

SCHEMA = "kb"
CONNECTIONS = 10  # maximum number of pooled connections of an engine. The listener has an additional one.
WRITERS = CONNECTIONS - 3
"""Maximum number of connections for writes; the rest stays free for searches and leases."""
_ATTEMPTS = 5
ACQUIRE_SECONDS = 20.0
CONNECT_SECONDS = 10.0
HOST_SECONDS = 3.0
"""Time after which the next of several hosts is tried, in seconds: a host without power does not refuse."""
READ_SECONDS = 60.0
WRITE_SECONDS = 900.0
"""Time-out of a statement in seconds; a file of a hundred megabytes is stored in one transaction."""
IDLE_SECONDS = 300.0
STOPPED_SECONDS = 15
"""Time after which the server ends a transaction whose engine sends nothing, so that a stopped one holds no
locks, in seconds: less than a call waits for an answer, and more than a busy engine takes (`SLICE`).
"""
RETRY_SECONDS = 2.0

_SHARED_MEMORY = "/PostgreSQL."
"""Begins the name of a segment for a parallel query; lack of room for one has the SQLSTATE of a full disk.

The rest of the message, its quotation marks included, is in the language of the server.
"""

CHANNEL = "kb"
LISTENER = "kb listener"  # the name under which the server lists the connections that receive events

_ESCAPED = {"\0": "\x01\x01", "\x01": "\x01\x02"}
_RESTORED = {kept: original for original, kept in _ESCAPED.items()}
_TO_ESCAPE = re.compile("[\0\x01]")
_TO_RESTORE = re.compile("\x01[\x01\x02]")

_answered: dict[str, str] = {}  # the URL of the host that answered last, by the URL of all hosts

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
"""The server is down, starting, unreachable, out of connections, or a standby."""
TRY_AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.InvalidCachedStatementError)
"""The server aborted a transaction because of a conflict or an invalid plan; nothing changed."""


class Lost(Exception):
    """The connection was lost before the commit: nothing was changed, and the transaction may be repeated."""


def to_base(text: str) -> str:
    """Escape NUL, which PostgreSQL does not store. Order and prefixes of texts are preserved."""
    return _TO_ESCAPE.sub(lambda found: _ESCAPED[found[0]], text)


def from_base(text: str) -> str:
    """Undo `to_base`."""
    return _TO_RESTORE.sub(lambda found: _RESTORED[found[0]], text)


def as_json(text: str) -> str:
    """Return the SQL expression for the JSON of a text expression, with U+001A for each NUL.

    PostgreSQL cannot read a member of JSON that has the escape of a NUL anywhere. An escaped backslash before
    `u0000` is no such escape; raw control characters do not occur in JSON, so one can stand for it meanwhile.
    """
    bare = rf"replace({text}, E'\\\\', E'\x02')"
    return rf"replace(replace({bare}, E'\\u0000', E'\\u001a'), E'\x02', E'\\\\')::json"


@lru_cache(maxsize=512)
def to_dollar_params(sql: str) -> str:
    """Convert a statement to PostgreSQL's placeholders: `$1`, `$2` and so on for each `?`."""
    first, *rest = sql.split("?")
    return first + "".join(f"${number}{part}" for number, part in zip(count(1), rest, strict=False))


async def rows(db: Db, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    found: list[Any] = await db.fetch(to_dollar_params(sql), *values)
    return found


async def row(db: Db, sql: str, values: Sequence[Any] = ()) -> Any | None:
    return await db.fetchrow(to_dollar_params(sql), *values)


async def value(db: Db, sql: str, values: Sequence[Any] = ()) -> Any:
    """Return the first value of the first row, or None."""
    return await db.fetchval(to_dollar_params(sql), *values)


async def changed(db: Db, sql: str, values: Sequence[Any] = ()) -> int:
    return int((await db.execute(to_dollar_params(sql), *values)).rpartition(" ")[2])


@contextmanager
def as_engine_errors() -> Iterator[None]:
    """Convert the faults of an unreachable server or a full disk to errors of the contract."""
    try:
        yield
    except asyncpg.DiskFullError as error:
        if _SHARED_MEMORY in str(error):
            raise not_ready(
                "The database server has too little shared memory (/dev/shm). Nothing was changed; retry. "
                "If it runs in a container, raise the limit of the container (shm_size)."
            ) from error
        raise EngineError(
            "storage_full", "The disk of the database is full. Nothing was changed; make room and retry."
        ) from error
    except GONE as error:
        if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
            raise  # a value of the wrong type for its statement: not a fault of the server
        raise not_ready() from error
    except Lost as error:
        raise not_ready() from error
    except TRY_AGAIN as error:
        raise EngineError(
            "not_ready", "The database is too busy. Nothing was changed; retry.", retry_after=RETRY_SECONDS
        ) from error


def was_cut_off(db: Db, error: BaseException) -> bool:
    """True if the connection was lost with this error, not the statement alone."""
    try:
        return isinstance(error, asyncpg.InternalClientError) or (isinstance(error, GONE) and db.is_closed())
    except asyncpg.InterfaceError:  # `Connections.break_off` has taken it back
        return True


def not_ready(why: str = "The database does not answer. Retry when it is back.") -> EngineError:
    """Return the error for an unreachable database."""
    return EngineError("not_ready", why, retry_after=RETRY_SECONDS)


async def connect(address: Address, *, search_path: str = f"{SCHEMA}, public", name: str = "kb") -> Db:
    """Open a connection outside the pool; the caller closes it. Raises the exceptions of asyncpg."""
    db = await _connect_to_any(
        address.url,
        timeout=CONNECT_SECONDS,
        command_timeout=WRITE_SECONDS,
        server_settings=_settings(search_path) | {"application_name": name},
    )
    await _prepare(db)
    return db


async def _connect_to_any(url: str, *, timeout: float, **options: Any) -> Db:
    """Connect to the first of the hosts in a URL that answers, beginning with the last one that did."""
    hosts = sorted(urls_of(url), key=lambda host: host != _answered.get(url))
    for host in hosts[:-1]:
        with suppress(*GONE):
            db = await asyncpg.connect(host, timeout=HOST_SECONDS, **options)
            _answered[url] = host
            return db
    db = await asyncpg.connect(hosts[-1], timeout=timeout, **options)
    _answered[url] = hosts[-1]
    return db


def _settings(search_path: str) -> dict[str, str]:
    return {
        "application_name": "kb",
        "timezone": "UTC",
        # The server releases the locks of an engine that lost power after half a minute, not two hours (or a
        # quarter of an hour, while data to it is under way).
        "tcp_keepalives_idle": "15",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": "30s",
        **_parameters(search_path),
    }


def _parameters(search_path: str) -> dict[str, str]:
    """Return the parameters of a session that a pooler does not take over."""
    return {
        "search_path": search_path,
        # Plan for the actual values: the best plan depends on how many rows a filter leaves.
        "plan_cache_mode": "force_custom_plan",
        # JIT compilation takes longer than any of these statements.
        "jit": "off",
        "idle_in_transaction_session_timeout": f"{STOPPED_SECONDS}s",
        # Enough to keep the scores of a hundred thousand chunks in memory instead of a temporary file.
        "work_mem": "64MB",
    }


async def _prepare(db: Db) -> None:
    await db.set_type_codec(
        "text",
        schema="pg_catalog",
        encoder=lambda text: to_base(text).encode(),
        decoder=lambda raw: from_base(bytes(raw).decode()),
        format="binary",
    )


async def _keep(_db: Db) -> None:
    """Replace the pool's reset, a transaction of its own: statements here change no state of a session."""


class Connections:
    """A bounded pool, opened on first use; it leads to the base or, if `is_pooled`, to a pooler before it."""

    def __init__(self, address: Address, search_path: str, *, is_pooled: bool = False) -> None:
        self._address = address
        self._settings = _settings(search_path)
        self._of_transactions: dict[str, str] = {}
        if is_pooled:
            self._of_transactions = _parameters(search_path)
            self._settings = {name: self._settings[name] for name in ("application_name", "timezone")}
        self._pool: Any = None
        self._opening = asyncio.Lock()
        self._writers = asyncio.Semaphore(WRITERS)
        self._closed = False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Db]:
        """Acquire a connection for a block. Raises `EngineError` and the exceptions of asyncpg."""
        while True:
            pool = await self._opened()
            try:
                db = await pool.acquire(timeout=ACQUIRE_SECONDS)
                break
            except asyncpg.InterfaceError:
                if not pool.is_closing():
                    raise
        try:
            yield db
        except asyncpg.InternalClientError:
            db.terminate()  # it was interrupted in a state from which the driver cannot recover
            raise
        finally:
            # A commit is final even if the connection is lost now: the pool replaces it.
            with suppress(*GONE):
                await asyncio.shield(pool.release(db))

    async def begin(self, db: Db) -> None:
        """Set the parameters of a transaction that has begun, unless the session has them."""
        if named := self._of_transactions:
            each = ", ".join("set_config(?, ?, true)" for _ in named)
            await rows(db, f"SELECT {each}", [text for pair in named.items() for text in pair])

    @asynccontextmanager
    async def statements(self) -> AsyncIterator[Db]:
        """Acquire a connection for statements outside a transaction; behind a pooler they are one."""
        async with self.one() as db:
            if not self._of_transactions:
                yield db
                return
            async with db.transaction():
                await self.begin(db)
                yield db

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Db]:
        """Acquire a connection for a write; raises like `one`."""
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
                    connect=_connect_to_any,
                    min_size=0,
                    max_size=CONNECTIONS,
                    timeout=CONNECT_SECONDS,
                    command_timeout=WRITE_SECONDS,
                    max_inactive_connection_lifetime=IDLE_SECONDS,
                    server_settings=self._settings,
                    # A name would be unknown to the server's next connection.
                    **({"statement_cache_size": 0} if self._of_transactions else {}),
                    init=_prepare,
                    reset=_keep,
                )
            return self._pool

    def break_off(self) -> None:
        """Break off all statements, whose server is silent: they are lost with their connections.

        Acquisitions that wait get a new connection.
        """
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    async def close(self) -> None:
        """Wait for running statements, then close all connections; may be called again."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()


async def attempted(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work`, a transaction, and repeat it if the server aborts it because of a conflict."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return await work()
        except TRY_AGAIN:
            continue
    return await work()
