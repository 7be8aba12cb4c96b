"""SQLite connections on threads of their own, and transactions that end whole or not at all.

The event loop never waits for the disk: work is handed to a thread and awaited. A caller that is
cancelled meanwhile stops waiting; the work on the thread runs to its end, so no transaction is left
half done.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw

from kb_contracts.api.errors import EngineError

T = TypeVar("T")

BUSY_TIMEOUT_MS = 10_000
BUSY_RETRY_SECONDS = 5.0
JOURNAL_LIMIT_BYTES = 64 * 1024 * 1024
CACHE_KIB = 32 * 1024
CHECKPOINT_PAGES = 1_000

_DISK = {
    apsw.SQLITE_IOERR_WRITE,
    apsw.SQLITE_IOERR_FSYNC,
    apsw.SQLITE_IOERR_TRUNCATE,
    apsw.SQLITE_IOERR_SHMSIZE,
}
"""How a quota or a failing volume shows itself where SQLite does not see `ENOSPC` itself."""


def connect(path: Path) -> apsw.Connection:
    """A connection that syncs each commit to the disk and honours foreign keys."""
    db = apsw.Connection(str(path))
    db.set_busy_timeout(BUSY_TIMEOUT_MS)
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "full")
    db.pragma("foreign_keys", True)
    db.pragma("journal_size_limit", JOURNAL_LIMIT_BYTES)
    db.pragma("cache_size", -CACHE_KIB)
    return db


def rows(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    return cast("list[tuple[Any, ...]]", db.execute(sql, values).fetchall())


def row(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
    found = rows(db, sql, values)
    return found[0] if found else None


def value(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> Any:
    """The first value of the first row, or None."""
    found = row(db, sql, values)
    return found[0] if found else None


@contextmanager
def transaction(db: apsw.Connection) -> Iterator[None]:
    """A write transaction: committed at the end, rolled back on any exception."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        roll_back(db)
        raise


def roll_back(db: apsw.Connection) -> None:
    """End the transaction, unless SQLite has done so already (it does when the disk is full)."""
    if db.in_transaction:
        db.execute("ROLLBACK")


@contextmanager
def as_engine_errors() -> Iterator[None]:
    """A full disk and a damaged base raise errors of the contract."""
    try:
        yield
    except apsw.FullError as error:
        raise _storage_full() from error
    except apsw.IOError as error:
        if getattr(error, "extendedresult", None) in _DISK:
            raise _storage_full() from error
        raise
    except apsw.BusyError as error:
        detail = "Another program keeps the base locked. Close it and retry."
        raise EngineError("not_ready", detail, retry_after=BUSY_RETRY_SECONDS) from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise EngineError("internal", "The base is damaged. Restore it from a copy.") from error


def _storage_full() -> EngineError:
    return EngineError(
        "storage_full",
        "The disk of the base is full. Nothing was changed; make room, for which documents can be deleted, "
        "and retry.",
    )


class Journal:
    """Moves the write-ahead log into the base between transactions.

    SQLite would do so inside a commit, for which searches have to wait.
    """

    def __init__(self) -> None:
        self._pages = 0

    def connect(self, path: Path) -> apsw.Connection:
        """A connection whose commits are watched."""
        db = connect(path)
        db.set_wal_hook(self._note)
        return db

    def _note(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def settle(self, db: apsw.Connection) -> None:
        """After a transaction: move the pages when there are many."""
        if self._pages >= CHECKPOINT_PAGES:
            # What was committed is safe in the log; after the next commit this is tried again.
            with suppress(apsw.Error):
                db.wal_checkpoint()


class Threads:
    """Connections to one base, each used by one thread only."""

    def __init__(self, open_one: Callable[[], apsw.Connection], count: int, name: str) -> None:
        self._open_one = open_one
        self._local = threading.local()
        self._opened: list[apsw.Connection] = []
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[[apsw.Connection], T]) -> T:
        """Do `work` on one of the threads. Raises `not_ready` once closed."""
        try:
            future = asyncio.get_running_loop().run_in_executor(self._executor, self._do, work)
        except RuntimeError as error:
            raise EngineError("not_ready", "The engine is shutting down.") from error
        return await future

    def _do(self, work: Callable[[apsw.Connection], T]) -> T:
        with as_engine_errors():
            return work(self._connection())

    def _connection(self) -> apsw.Connection:
        if not hasattr(self._local, "db"):
            self._local.db = self._open_one()
            self._opened.append(self._local.db)
        return cast("apsw.Connection", self._local.db)

    def close(self) -> None:
        """Wait for what is under way, then close the connections. Blocks; may be called again."""
        self._executor.shutdown(wait=True)
        while self._opened:
            self._opened.pop().close()
