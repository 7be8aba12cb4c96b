"""One SQLite file: its tables, its transactions, its time, and the answers given under a key."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Row = dict[str, Any]

_TABLES = """
CREATE TABLE IF NOT EXISTS documents (
  id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT UNIQUE, kind TEXT, title TEXT, titled INTEGER, doc_type TEXT,
  format TEXT, filename TEXT, size_bytes INTEGER, sha256 TEXT, scope TEXT, metadata TEXT, pages INTEGER,
  version INTEGER, created_at TEXT, updated_at TEXT);
CREATE TABLE IF NOT EXISTS sources (document INTEGER, path TEXT, PRIMARY KEY (document, path));
CREATE TABLE IF NOT EXISTS tags (document INTEGER, tag TEXT, PRIMARY KEY (document, tag));
CREATE TABLE IF NOT EXISTS chunks (
  id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT, document INTEGER, place INTEGER, text TEXT, page INTEGER,
  heading TEXT, first INTEGER, beyond INTEGER, length INTEGER, vector BLOB);
CREATE TABLE IF NOT EXISTS postings (word TEXT, chunk INTEGER, times INTEGER, PRIMARY KEY (word, chunk))
  WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS chunks_of ON chunks (document);
CREATE INDEX IF NOT EXISTS postings_of ON postings (chunk);
CREATE TABLE IF NOT EXISTS jobs (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, status TEXT, attempts INTEGER, request TEXT,
  answer TEXT);
CREATE TABLE IF NOT EXISTS answers (name TEXT PRIMARY KEY, request TEXT, status INTEGER, body TEXT);
CREATE TABLE IF NOT EXISTS changes (one INTEGER PRIMARY KEY CHECK (one = 1), at TEXT);
"""


class Database:
    """One SQLite file, used by one thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(folder / "foreign.db", isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; {_TABLES}")
        self._last = ""

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def now(self) -> str:
        """The time, later than every time told before."""
        told = datetime.now(UTC)
        if self._last:
            told = max(told, datetime.fromisoformat(self._last) + timedelta(microseconds=1))
        self._last = told.isoformat(timespec="microseconds").replace("+00:00", "Z")
        return self._last

    @property
    def last(self) -> str:
        """The time told last."""
        return self._last

    @property
    def writes(self) -> int:
        """How many rows were written since the file was opened."""
        return self._db.total_changes

    def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        """Carry out one statement."""
        return self._db.execute(sql, values)

    def rows(self, sql: str, *values: object) -> list[Row]:
        """What a query finds."""
        return [dict(row) for row in self._db.execute(sql, values)]

    def row(self, sql: str, *values: object) -> Row | None:
        """The first that a query finds."""
        return next(iter(self.rows(sql, *values)), None)

    def count(self, sql: str, *values: object) -> int:
        """The one number that a query answers."""
        return int(self._db.execute(sql, values).fetchone()[0] or 0)

    def changed(self, when: str) -> None:
        """Note when the documents changed."""
        self._db.execute("INSERT INTO changes VALUES (1, ?1) ON CONFLICT DO UPDATE SET at = ?1", (when,))

    def answered(self, name: str) -> Row | None:
        """The answer that was given under a key."""
        return self.row("SELECT * FROM answers WHERE name = ?", name)

    def keep_answer(self, name: str, request: str, status: int, body: str) -> None:
        """Remember an answer, in the transaction of what it tells."""
        self._db.execute("INSERT INTO answers VALUES (?, ?, ?, ?)", (name, request, status, body))
