"""The transactions of repositories on PostgreSQL, and the one row that all changes of documents go through.

Whoever changes documents holds the row of `base` until the transaction ends. So these transactions follow
one another over all engines, as they do in SQLite: ids grow with commits, and what one decides (is it a
duplicate, is the version still that) holds when it commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kb_contracts.api.errors import EngineError
from kb_engine.store.failures import described
from kb_engine.store.port import EmbedderIdentity, StoreEventKind
from kb_engine.store.postgres.connection import Db, changed, rows, value
from kb_engine.store.postgres.schema import layout_version, set_embedder
from kb_engine.store.repository.transaction import Dialect, Read, Write
from kb_engine.store.rows import Row

CHANNEL = "kb"

_ACCEPTING = 0x6B62_0002
"""The advisory lock of whoever accepts: the numbers of jobs grow with their commits, and the bound holds."""


class PostgresRead(Read):
    async def rows(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        return await rows(self.db, sql, values)


class PostgresWrite(PostgresRead, Write):
    """An open transaction that writes.

    `embedder` is this engine's; once the base is held, with the dimensions that the base knows.
    """

    def __init__(
        self,
        db: Db,
        now: str,
        dialect: Dialect,
        *,
        embedder: EmbedderIdentity,
        layout: int,
        lease_seconds: float,
        logs_changes: bool,
    ) -> None:
        super().__init__(db, now, dialect)
        self.embedder = embedder
        self.lease_end = ("lease_until = clock_timestamp() + make_interval(secs => ?), ", (lease_seconds,))
        self._layout = layout
        self._logs_changes = logs_changes
        self._notifications: list[str] = []
        self._holds_base = False

    async def changed(self, sql: str, values: Sequence[Any] = ()) -> int:
        return await changed(self.db, sql, values)

    async def hold_queue(self) -> None:
        await rows(self.db, "SELECT pg_advisory_xact_lock(?)", (_ACCEPTING,))

    async def hold_key(self, *name: str) -> None:
        lock = "SELECT pg_advisory_xact_lock(hashtextextended(?, 0))"
        await rows(self.db, lock, ("\x1f".join(name),))

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

    async def expect_vectors(self, dimensions: int) -> None:
        """Take vectors of this length into the base, which is held; its first ones say what it takes.

        Raises:
            EngineError: `not_ready` where the base has others.
        """
        if self.embedder.dimensions:
            expect_length(self.embedder, dimensions)
            return
        self.embedder = EmbedderIdentity(self.embedder.name, dimensions)
        await set_embedder(self.db, self.embedder)

    async def next_document(self) -> int:
        sql = "UPDATE base SET last_document = last_document + 1 RETURNING last_document"
        return int(await value(self.db, sql))

    async def next_chunks(self, count: int) -> range:
        sql = "UPDATE base SET last_chunk = last_chunk + ? RETURNING last_chunk"
        last = int(await value(self.db, sql, (count,)))
        return range(last - count + 1, last + 1)

    async def count_chunks(self, chunks: int, words: int) -> None:
        """So many more (or fewer) chunks and words: the base is in another state for searches."""
        sql = (
            "UPDATE base SET chunks = chunks + ?::bigint, words = words + ?::bigint, "
            "generation = generation + 1"
        )
        await rows(self.db, sql, (chunks, words))

    async def touch_base(self, document_id: int | None) -> None:
        sql = "UPDATE base SET last_updated = ?, changes = changes + 1 RETURNING changes"
        generation = await value(self.db, sql, (self.now,))
        if self._logs_changes:
            sql = "INSERT INTO index_changes (generation, document_id) VALUES (?, ?)"
            await rows(self.db, sql, (generation, document_id))

    def notify(self, kind: StoreEventKind, job_id: str | None = None) -> None:
        self._notifications.append(kind if job_id is None else f"{kind} {job_id}")

    async def send_notifications(self) -> None:
        """Hand them to the server, which sends them when the transaction commits."""
        for payload in self._notifications:
            await rows(self.db, "SELECT pg_notify(?, ?)", (CHANNEL, payload))


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
