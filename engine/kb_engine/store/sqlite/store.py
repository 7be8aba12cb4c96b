"""The store on SQLite: one file, one process, every transaction synced to the disk.

One thread writes, a few read, each on a connection of its own. A write that touches chunks becomes
visible to searches together with its vectors: commit and publication happen under the index's guard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from kb_contracts.api.errors import EngineError
from kb_engine.index.embedded.search import search
from kb_engine.index.embedded.vectors import Changes, ExactVectors
from kb_engine.index.embedded.words import Words
from kb_engine.index.port import Index
from kb_engine.store import filters
from kb_engine.store.facade import Clock, Store, utc_now
from kb_engine.store.port import Counts, EmbedderIdentity, Found, Query, StoreEventCallback
from kb_engine.store.repository import jobs, results, state
from kb_engine.store.repository.transaction import Read, Write, run_to_end
from kb_engine.store.sqlite.connection import Journal, Threads, connect, roll_back
from kb_engine.store.sqlite.dialect import SQLITE
from kb_engine.store.sqlite.lock import BaseLock
from kb_engine.store.sqlite.opening import own, prepare
from kb_engine.store.sqlite.reserve import Reserve
from kb_engine.store.sqlite.schema import set_meta
from kb_engine.store.sqlite.write import SqliteRead, SqliteWrite

T = TypeVar("T")

READERS = 3


async def open_sqlite(
    path: Path,
    *,
    embedder: EmbedderIdentity,
    max_queued: int = 100_000,
    clock: Clock = utc_now,
    index: Index | None = None,
) -> SqliteStore:
    """Open the base at `path`, creating or migrating it first. Reads all vectors into memory.

    `index`, which is closed with the store, answers the searches in place of the base's own.

    Raises:
        BaseRefused: one of its kinds, with a message for the person who starts the engine.
    """
    store = await asyncio.to_thread(_open, path, embedder, max_queued, clock)
    if index is not None:
        store.follow_with(index)
    return store


def _open(path: Path, embedder: EmbedderIdentity, max_queued: int, clock: Clock) -> SqliteStore:
    lock = own(path)
    try:
        reserve = Reserve(lock.path)
        reserve.give()
        index = prepare(lock.path, embedder)
        reserve.take()
    except BaseException:
        lock.release()
        raise
    return SqliteStore(lock, reserve, index, max_queued, clock)


class SqliteStore(Store):
    """The store on one file; made by `open_sqlite`."""

    def __init__(
        self,
        lock: BaseLock,
        reserve: Reserve,
        index: ExactVectors,
        max_queued: int,
        clock: Clock,
    ) -> None:
        super().__init__(max_queued, clock)
        path = self._path = lock.path
        self._lock = lock
        self._reserve = reserve
        self._index = index
        self._words = Words()
        self._journal = Journal()
        self._writer = Threads(partial(self._journal.connect, path), 1, "kb-write")
        self._readers = Threads(partial(connect, path), READERS, "kb-read")

    @property
    def dimensions(self) -> int:
        return self._index.dimensions

    def subscribe(self, callback: StoreEventCallback) -> None:
        """One process owns the base: nobody else changes it."""

    async def _close(self) -> None:
        try:
            # Where this fails, as on a full disk, `release_all` does the same at the next start.
            with suppress(EngineError, apsw.Error):
                await self._run_write(jobs.hand_back, makes_room=False)
        finally:
            await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        self._readers.close()
        self._writer.close()
        self._lock.release()

    # transactions

    async def _run_write(self, work: Callable[[Write], Coroutine[Any, Any, T]], *, makes_room: bool) -> T:
        transact = partial(self._transact, work)
        try:
            return await self._writer.run(transact)
        except EngineError as error:
            if error.code != "storage_full" or not makes_room:
                raise
        return await self._writer.run(partial(self._reserve.spend, transact))

    def _transact(self, work: Callable[[Write], Coroutine[Any, Any, T]], db: apsw.Connection) -> T:
        db.execute("BEGIN IMMEDIATE")
        try:
            write = SqliteWrite(db, self._now(), SQLITE, logs_changes=self._follower is not None)
            answer = run_to_end(work(write))
            self._commit(db, write.changes)
        except BaseException:
            roll_back(db)
            raise
        self._journal.settle(db)
        return answer

    def _commit(self, db: apsw.Connection, changes: Changes) -> None:
        if not changes:
            db.execute("COMMIT")
            return
        # Memory is found before the commit: after it nothing may fail.
        staged = self._index.stage(changes)
        if changes.added and not self._index.dimensions:
            set_meta(db, "dimensions", str(changes.added[0].vectors.shape[1]))
        # A savepoint makes FTS5 write its words now rather than inside the commit.
        db.execute("SAVEPOINT words; RELEASE words")
        with self._index.guard:
            db.execute("COMMIT")
            self._index.publish(staged)

    async def _run_read(self, work: Callable[[Read], Coroutine[Any, Any, T]]) -> T:
        return await self._readers.run(partial(self._look, work))

    def _look(self, work: Callable[[Read], Coroutine[Any, Any, T]], db: apsw.Connection) -> T:
        db.execute("BEGIN")
        try:
            return run_to_end(work(SqliteRead(db, self._now(), SQLITE)))
        finally:
            roll_back(db)

    async def _run_search(self, query: Query) -> Found:
        return await self._readers.run(partial(self._search, query))

    def _search(self, query: Query, db: apsw.Connection) -> Found:
        """One read transaction, and the vectors of the same instant."""
        try:
            with self._index.guard:
                db.execute("BEGIN")
                # SQLite takes its snapshot at the first read, not at BEGIN.
                db.pragma("user_version")
                vectors = self._index.snapshot
            documents = filters.documents(db, query.selection)
            candidates = search(db, vectors, self._words, documents, query)
            return run_to_end(results.found(SqliteRead(db, self._now(), SQLITE), query, candidates))
        finally:
            roll_back(db)

    async def counts(self) -> Counts:
        files = (self._path, self._path.with_name(self._path.name + "-wal"))
        size = sum(file.stat().st_size for file in files if file.exists())
        return await self._read(lambda read: state.counts(read, size))

    async def ping(self) -> None:
        await self._writer.run(partial(self._transact, _ping))
        await self._read(lambda read: read.value("SELECT value FROM meta WHERE name = 'pinged_at'"))


async def _ping(write: Write) -> None:
    set_meta(write.db, "pinged_at", write.now)
