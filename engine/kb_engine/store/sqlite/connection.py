"""SQLite connections, and the transactions of repositories on their threads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import apsw
import msgspec
import numpy as np

from kb_contracts.api.errors import EngineError
from kb_engine.index.embedded.index import Changes
from kb_engine.index.embedded.tail import Batch
from kb_engine.index.port import Vectors
from kb_engine.spool import no_space
from kb_engine.store.clock import SteadyClock
from kb_engine.store.port import Bounds, Prepared
from kb_engine.store.repository.transaction import Read, Row, Write
from kb_engine.store.sqlite.originals import OriginalFolder

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


class SqliteRead(Read):
    sources = (
        "(SELECT json_group_array(s.source_path ORDER BY s.id) FROM document_sources s "
        "WHERE s.document_id = d.id) AS source_paths"
    )
    tags = (
        "(SELECT json_group_array(t.tag ORDER BY t.id) FROM document_tags t "
        "WHERE t.document_id = d.id) AS tags"
    )
    read_list = staticmethod(msgspec.json.Decoder(list[str]).decode)
    among = "IN (SELECT value FROM json_each(?))"
    list_value = staticmethod(json.dumps)
    selected = "IN ({})"
    # Forces a scan of the index alone. SQLite would use the table's primary key, and read the metadata too.
    statistics_index = " INDEXED BY documents_figures"
    last_updated = "SELECT value FROM meta WHERE name = 'last_updated'"
    generation = "SELECT seq FROM sqlite_sequence WHERE name = 'index_changes'"
    lacking_words = "SELECT false WHERE ? IS NOT NULL"  # always false: words are in the index files
    last_document = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'documents'"
    vector = "v.vector"
    tags_in = "json_each({}) AS e"
    of_version = "json_extract(v.members, '$.tags')"
    tag_in = "e.value"

    db: apsw.Connection

    @staticmethod
    def vectors_of(stored: Sequence[Any]) -> Vectors:
        return np.frombuffer(b"".join(stored), VECTOR_TYPE).reshape(len(stored), -1 if stored else 0)

    async def rows(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        return self.db.execute(sql, values).fetchall()

    async def size(self) -> int:
        files = [Path(f"{self.db.filename}{end}") for end in ("", "-wal")]
        originals = await self.value("SELECT coalesce(sum(size_bytes), 0) FROM originals")
        return sum(file.stat().st_size for file in files if file.exists()) + int(originals)


class SqliteWrite(SqliteRead, Write):
    """An open write transaction; `changes` are its changes to the index."""

    ping = "INSERT OR REPLACE INTO meta (name, value) VALUES ('pinged_at', ?)"

    def __init__(
        self,
        db: apsw.Connection,
        clock: SteadyClock,
        bounds: Bounds,
        originals: OriginalFolder,
        dropped: set[str],
        *,
        logs_changes: bool,
    ) -> None:
        """`dropped` collects the original files to remove after the commit."""
        super().__init__(db, clock, bounds)
        self.changes = Changes()
        self._originals = originals
        self._dropped = dropped
        self._logs_changes = logs_changes

    async def changed(self, sql: str, values: Sequence[Any] = ()) -> int:
        self.db.execute(sql, values)
        return self.db.changes()

    async def next_document(self) -> int:
        """Return the id of a new document; AUTOINCREMENT remembers the highest id ever assigned."""
        return int(value(self.db, self.last_document)) + 1

    async def continue_from(self, last_document: int, generation: int) -> None:
        for name, least in (("documents", last_document), ("index_changes", generation)):
            highest = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?"
            if value(self.db, highest, (name,)) < least:
                self.db.execute("DELETE FROM sqlite_sequence WHERE name = ?", (name,))
                self.db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (name, least))

    async def touch_base(self, document_id: int | None) -> None:
        set_meta(self.db, "last_updated", self.now)
        if self._logs_changes:
            self.db.execute("INSERT INTO index_changes (document_id) VALUES (?)", (document_id,))
        else:
            self.db.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'index_changes'")

    async def keep_original(self, sha256: str, size: int, name: str) -> None:
        try:
            self._originals.take(sha256, name)
        except OSError as error:
            raise no_space(error) from error
        self.db.execute("INSERT OR REPLACE INTO originals (sha256, size_bytes) VALUES (?, ?)", (sha256, size))
        self._dropped.discard(sha256)

    async def drop_originals(self, hashes: Sequence[str]) -> None:
        self.db.executemany("DELETE FROM originals WHERE sha256 = ?", [(each,) for each in hashes])
        self._dropped.update(hashes)

    async def insert_content(self, document_id: int, title: str, prepared: Prepared) -> None:
        if not prepared.chunks:
            return
        # Chunk ids are never reused, even those of deleted chunks: AUTOINCREMENT remembers the highest.
        last = value(self.db, "SELECT seq FROM sqlite_sequence WHERE name = 'chunks'") or 0
        ids = range(last + 1, last + 1 + len(prepared.chunks))
        chunks = list(zip(ids, prepared.chunks, strict=True))
        self.db.executemany(
            "INSERT INTO chunks (id, uid, document_id, position, text, page, heading, first, beyond, tokens) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (chunk.row(number, document_id, place) for place, (number, chunk) in enumerate(chunks)),
        )
        vectors = np.ascontiguousarray(prepared.vectors, dtype=VECTOR_TYPE)
        self.db.executemany(
            "INSERT INTO vectors (chunk_id, vector) VALUES (?, ?)",
            ((i, vector.tobytes()) for i, vector in zip(ids, vectors, strict=True)),
        )
        numbers = np.arange(ids.start, ids.stop, dtype=np.int64)
        texts = [(chunk.heading, chunk.text) for chunk in prepared.chunks]
        self.changes.added.append(Batch(document_id, title, numbers, texts, vectors, prepared.language))

    async def remove_content(self, document_id: int) -> None:
        self.db.execute("DELETE FROM chunks WHERE document_id = ?", (document_id,))
        self.changes.removed.append(document_id)

    async def remove_all_content(self) -> None:
        self.db.execute("DELETE FROM index_segments")
        self.db.execute("DELETE FROM vectors")
        self.db.execute("DELETE FROM chunks")
        self.changes.cleared = True
