"""The transactions of repositories on SQLite, on the thread that owns the connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from kb_engine.index.embedded.vectors import Changes
from kb_engine.store.repository.transaction import Dialect, Read, Write
from kb_engine.store.rows import Row
from kb_engine.store.sqlite.connection import value
from kb_engine.store.sqlite.schema import set_meta


class SqliteRead(Read):
    db: apsw.Connection

    async def rows(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        return self.db.execute(sql, values).fetchall()


class SqliteWrite(SqliteRead, Write):
    """An open transaction that writes; `changes` are what it leaves for the index in memory."""

    def __init__(self, db: apsw.Connection, now: str, dialect: Dialect, *, logs_changes: bool) -> None:
        super().__init__(db, now, dialect)
        self.changes = Changes()
        self._logs_changes = logs_changes

    async def changed(self, sql: str, values: Sequence[Any] = ()) -> int:
        self.db.execute(sql, values)
        return self.db.changes()

    async def next_document(self) -> int:
        """The id of a new document; AUTOINCREMENT keeps the highest ever given."""
        return int(value(self.db, "SELECT seq FROM sqlite_sequence WHERE name = 'documents'") or 0) + 1

    async def touch_base(self, document_id: int | None) -> None:
        set_meta(self.db, "last_updated", self.now)
        if self._logs_changes:
            self.db.execute("INSERT INTO index_changes (document_id) VALUES (?)", (document_id,))
        else:
            self.db.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'index_changes'")
