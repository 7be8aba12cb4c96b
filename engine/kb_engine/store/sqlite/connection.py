"""SQLite connections: how they are opened, read, and rolled back, and their errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import apsw

from kb_contracts.api.errors import EngineError

BUSY_TIMEOUT_MS = 10_000
BUSY_RETRY_SECONDS = 5.0
JOURNAL_LIMIT_BYTES = 64 * 1024 * 1024
CACHE_KIB = 32 * 1024
VECTOR_TYPE = "<f4"

_DISK = {
    apsw.SQLITE_IOERR_WRITE,
    apsw.SQLITE_IOERR_FSYNC,
    apsw.SQLITE_IOERR_TRUNCATE,
    apsw.SQLITE_IOERR_SHMSIZE,
}
"""The I/O errors caused by a quota or a failing volume, which SQLite does not report as a full disk."""


def connect(path: Path) -> apsw.Connection:
    """Open a connection that syncs each commit to the disk and enforces foreign keys."""
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


def value(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> Any:
    """Return the first value of the first row, or None."""
    found = db.execute(sql, values).fetchone()
    return found[0] if found else None


def damage_of(db: apsw.Connection) -> list[str]:
    """Return the faults found by SQLite's integrity check, and rows with a dangling foreign key."""
    try:
        found = [str(line) for (line,) in rows(db, "PRAGMA integrity_check(5)") if line != "ok"]
    except apsw.CorruptError as error:
        return [str(error)]
    return found + [f"a row of {table} points nowhere" for table, *_ in rows(db, "PRAGMA foreign_key_check")]


def set_meta(db: apsw.Connection, name: str, text: str) -> None:
    """Store a property of the base as a whole."""
    db.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, text))


@contextmanager
def transaction(db: apsw.Connection) -> Iterator[None]:
    """A write transaction, committed at the end and rolled back on any exception."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        roll_back(db)
        raise


def roll_back(db: apsw.Connection) -> None:
    """Roll back the transaction, unless SQLite has done so already (as it does if the disk is full)."""
    if db.in_transaction:
        db.execute("ROLLBACK")


def engine_error(error: apsw.Error) -> EngineError | None:
    """Return the contract's error for a full disk, a locked base or a damaged base."""
    if isinstance(error, apsw.FullError) or getattr(error, "extendedresult", None) in _DISK:
        return EngineError(
            "storage_full",
            "The disk of the base is full. Nothing was changed; make room, for which documents can be "
            "deleted, and retry.",
        )
    if isinstance(error, apsw.BusyError):
        detail = "Another program keeps the base locked. Close it and retry."
        return EngineError("not_ready", detail, retry_after=BUSY_RETRY_SECONDS)
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return EngineError("internal", "The base is damaged. Restore it from a copy.")
    return None
