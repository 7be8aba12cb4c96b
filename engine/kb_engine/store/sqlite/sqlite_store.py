"""The store on SQLite: one file, one process, every transaction synced to the disk.

One thread writes, a few read (`reading.py`), each with its own connection. If a caller is cancelled, the work
on the thread completes, so no transaction is left half done.

A write that changes chunks becomes visible to searches together with their words and vectors: commit and
publication happen under the index's guard.

Writes that arrive while the thread is busy are committed together, in their order of arrival (group commit):
the disk is synced once, and then each caller gets its result. If one fails, the transaction is rolled back
and each write is repeated in a transaction of its own, so that a failing write does not affect the rest.
"""

from __future__ import annotations

import asyncio
import math
import shutil
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

import apsw
import numpy as np

from kb_contracts.api.errors import EngineError
from kb_engine.index.embedded import selection
from kb_engine.index.embedded.index import Changes, EmbeddedIndex, State
from kb_engine.index.embedded.tail import Batch
from kb_engine.index.port import Index
from kb_engine.spool import no_space
from kb_engine.store import port
from kb_engine.store.clock import Clock, Elapsed, SteadyClock, elapsed_seconds
from kb_engine.store.repository import jobs, originals, versions
from kb_engine.store.repository.transaction import Work, Write
from kb_engine.store.sqlite.connection import (
    VECTOR_TYPE,
    connect,
    engine_error,
    roll_back,
    rows,
    set_meta,
    value,
)
from kb_engine.store.sqlite.opening import BaseLock, own, prepare
from kb_engine.store.sqlite.originals import OriginalFolder
from kb_engine.store.sqlite.reading import ReadingStore, SqliteRead, Threads, run_to_end
from kb_engine.store.sqlite.reserve import Reserve
from kb_engine.store.sqlite.search_processes import folder_of as shared_folder
from kb_engine.store.sqlite.segments import Upkeep
from kb_engine.store.store import BLOCK_BYTES, original_lost, utc_now

T = TypeVar("T")

GROUP_WRITES = 64
"""Maximum number of writes committed together."""
GROUP_CHUNKS = 256
"""Number of added chunks at which a group of writes is committed, to bound the wait of the next group."""
CHECKPOINT_PAGES = 1_000


async def open_sqlite(
    path: Path,
    *,
    embedder: port.EmbedderIdentity,
    bounds: port.Bounds = port.DEFAULT_BOUNDS,
    clock: Clock = utc_now,
    elapsed: Elapsed = elapsed_seconds,
    index: Index | None = None,
    spool: Path | None = None,
    unfinished: bool = False,
    search_processes: int = 0,
) -> SqliteStore:
    """Open the base at `path` with its index. A missing base is created, an old one migrated, a missing index
    rebuilt.

    `spool` is the folder of the uploads, by default `spool` beside the base. `index` answers the searches
    instead of the embedded index, and is closed with the store. `unfinished` also opens the target of an
    unfinished migration. Up to `search_processes` processes search beside this one, if there is no `index`.
    Raises BaseRefused: the base cannot be opened; the message is for the operator.
    """
    store = await asyncio.to_thread(
        _open,
        path,
        spool or path.with_name("spool"),
        embedder,
        bounds,
        (clock, elapsed),
        unfinished=unfinished,
    )
    store.begin_upkeep()
    if index is not None:
        store.follow_with(index)
    elif search_processes:
        store.search_in(search_processes)
    return store


def _open(
    path: Path,
    spool: Path,
    embedder: port.EmbedderIdentity,
    bounds: port.Bounds,
    times: tuple[Clock, Elapsed],
    *,
    unfinished: bool,
) -> SqliteStore:
    lock = own(path, unfinished=unfinished)
    try:
        reserve = Reserve(lock.path)
        reserve.give()
        shutil.rmtree(shared_folder(lock.path), ignore_errors=True)
        index, bound, bounds = prepare(lock.path, embedder, bounds, unfinished=unfinished)
        originals = OriginalFolder(lock.path, spool)
        with closing(connect(lock.path)) as db:
            originals.sweep({sha256 for (sha256,) in rows(db, "SELECT sha256 FROM originals")})
            # The index has every chunk with a vector, and possibly chunks whose vector was lost later.
            is_whole = value(db, "SELECT count(*) FROM chunks") == index.state.size
            lost = [] if is_whole else selection.lost(db, index.state.dimensions)
            newest = value(db, "SELECT max(created_at) FROM idempotency")
        reserve.take()
    except BaseException:
        lock.release()
        raise
    clock = SteadyClock(*times, newest)
    store = SqliteStore(lock, reserve, index, originals, bounds, clock, context=bound.context)
    store._note_lost(lost)
    return store


class SqliteWrite(SqliteRead, Write):
    """An open write transaction; `changes` are its changes to the index."""

    ping = "INSERT OR REPLACE INTO meta (name, value) VALUES ('pinged_at', ?)"

    def __init__(
        self,
        db: apsw.Connection,
        clock: SteadyClock,
        bounds: port.Bounds,
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

    async def insert_content(self, document_id: int, title: str, prepared: port.Prepared) -> None:
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


class SqliteStore(ReadingStore):
    """The store on one file; created by `open_sqlite`."""

    def __init__(
        self,
        lock: BaseLock,
        reserve: Reserve,
        index: EmbeddedIndex,
        originals: OriginalFolder,
        bounds: port.Bounds,
        clock: SteadyClock,
        *,
        context: bool,
    ) -> None:
        super().__init__(lock.path, index, bounds, clock)
        self._lock = lock
        self._reserve = reserve
        self._originals = originals
        self._context = context
        self._log_pages = 0
        self._least_size = 0.0
        """Size of the file at the last check, in bytes: it never shrinks. Infinite once it has."""
        self._publish: Callable[[port.StoreEvent], object] = lambda _: None
        self._waiting: deque[_Waiting[Any]] = deque()
        self._writer = Threads(self._connect_writer, 1, "kb-write")

    @property
    def context(self) -> bool:
        return self._context

    def begin_upkeep(self) -> None:
        """Start merging the files of the index. Called once."""
        self._upkeep = Upkeep(self._index, self._lock.path, self._writer.run)

    async def original(self, sha256: str) -> AsyncGenerator[bytes, None]:
        try:
            file = await asyncio.to_thread(self._originals.path(sha256).open, "rb")
        except FileNotFoundError as error:
            raise original_lost() from error
        try:
            while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
                yield block
        finally:
            file.close()

    def check_file(self) -> None:
        try:
            size = self._lock.path.stat().st_size
        except OSError as error:
            raise EngineError("internal", f"Its file cannot be read: {error.strerror}.") from error
        if size < self._least_size:
            self._least_size = math.inf
            raise EngineError("internal", "Its file was truncated. Restore the base from a copy.")
        self._least_size = size

    async def make_room(self) -> bool:
        """Drop old versions with original files on the disk of uploads: only removed files free space."""
        if not await asyncio.to_thread(self._originals.is_on_disk_of_spool):
            return False
        if not await self.read(originals.bytes_of_versions):
            return False
        await self._writer.run(self._empty_versions)
        return True

    async def renew_damaged_index(self) -> int:
        return await self._upkeep.renew_damaged()

    def subscribe(self, callback: port.StoreEventCallback) -> None:
        """Report queued jobs. There are no changes by other engines: one process owns the base."""
        loop = asyncio.get_running_loop()
        self._publish = lambda event: loop.call_soon_threadsafe(callback, event)

    async def _close(self) -> None:
        try:
            if self.search_processes is not None:
                await self.search_processes.close()
            await self._upkeep.close()
            # If this fails, as on a full disk, `jobs.release` does the same at the next start.
            with suppress(EngineError, apsw.Error):
                self._publish = lambda _: None
                await self._run_write(jobs.hand_back, makes_room=False)
        finally:
            await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        self._searchers.close()
        self._readers.close()
        self._scanner.shutdown()
        self._writer.close()
        self._lock.release()

    # transactions

    def _connect_writer(self) -> apsw.Connection:
        def note(_db: apsw.Connection, _name: str, pages: int) -> int:
            self._log_pages = pages
            return apsw.SQLITE_OK

        db = connect(self._lock.path)
        # Otherwise SQLite checkpoints the log within a commit, and searches wait for it.
        db.set_wal_hook(note)
        return db

    async def _run_write(self, work: Work[T], *, makes_room: bool, group: str | None = None) -> T:  # noqa: ARG002
        waiting = _Waiting(work)
        self._waiting.append(waiting)
        try:
            self._writer.begin(self._write_waiting)
        except EngineError:
            if waiting.outcome.cancel():
                raise
        try:
            return await asyncio.wrap_future(waiting.outcome)
        except EngineError as error:
            if error.code != "storage_full":
                raise
        finally:
            self._upkeep.wake()
        await self._writer.run(self._empty_versions)
        if makes_room:
            # Keeping a version of the removed document would use the space just freed.
            bounds = replace(self._bounds, versions=0)
            again = partial(self._reserve.spend, partial(self._transact, [work], bounds))
        else:
            again = partial(self._reserve.move_log, partial(self._transact, [work]))
        (answer,) = await self._writer.run(again)
        return answer

    def _empty_versions(self, db: apsw.Connection) -> None:
        """Drop old versions and trash to make room for a write."""
        if value(db, "SELECT EXISTS (SELECT 1 FROM versions)"):
            (count,) = self._reserve.spend(partial(self._transact, [versions.drop_all]), db)
            self._note_emptied(count)

    def _write_waiting(self) -> None:
        """Commit the waiting writes together. Does nothing if an earlier call has committed them."""
        group: list[_Waiting[Any]] = []

        def works() -> Iterator[Work[Any]]:
            # Writes that arrive meanwhile go into the next transaction, so that this one is not delayed.
            for _ in range(min(len(self._waiting), GROUP_WRITES)):
                one = self._waiting.popleft()
                if one.outcome.set_running_or_notify_cancel():  # otherwise its caller was cancelled
                    group.append(one)
                    yield one.work

        try:
            answers = self._transact(works())
        except BaseException as error:  # noqa: BLE001 - raised in the caller's coroutine
            if len(group) == 1:
                group[0].fail(error)
                return
            for one in group:
                self._write_alone(one)
        else:
            for one, answer in zip(group, answers, strict=True):
                one.outcome.set_result(answer)

    def _write_alone(self, waiting: _Waiting[Any]) -> None:
        try:
            (answer,) = self._transact([waiting.work])
        except BaseException as error:  # noqa: BLE001 - see above
            waiting.fail(error)
        else:
            waiting.outcome.set_result(answer)

    def _transact(self, works: Iterable[Work[T]], bounds: port.Bounds | None = None) -> list[T]:
        """Return the results of the works done in one transaction; it accepts no more once it is large."""
        works = iter(works)
        if (first := next(works, None)) is None:
            return []
        answers: list[T] = []
        staged: State | None = None
        added = 0
        dropped: set[str] = set()
        events: list[port.StoreEvent] = []
        db = self._writer.connection()
        db.execute("BEGIN IMMEDIATE")
        try:
            logs_changes = self._follower is not None
            for work in chain([first], works):
                write = SqliteWrite(
                    db,
                    self._clock,
                    bounds or self._bounds,
                    self._originals,
                    dropped,
                    logs_changes=logs_changes,
                )
                answers.append(run_to_end(work(write)))
                events += write.events
                if write.changes:
                    # Allocate memory before the commit; nothing may fail after it.
                    staged = self._index.stage(write.changes, staged)
                added += sum(len(batch.chunk_ids) for batch in write.changes.added)
                if added >= GROUP_CHUNKS:
                    break
            generation = value(db, SqliteRead.generation)
            if staged is not None:
                if staged.dimensions != self._index.state.dimensions:
                    set_meta(db, "dimensions", str(staged.dimensions))
                with self._index.guard:
                    db.execute("COMMIT")
                    self._index.publish(staged, generation)
            else:
                db.execute("COMMIT")
                self._index.publish(self._index.state, generation)
        except BaseException:
            roll_back(db)
            raise
        for event in events:
            if event.kind == "queued":
                self._publish(event)
        self._originals.remove(dropped)
        if self._log_pages >= CHECKPOINT_PAGES:
            # The commit is safe in the log; the checkpoint is retried after the next commit.
            with suppress(apsw.Error):
                db.wal_checkpoint()
        return answers


class _Waiting(Generic[T]):
    """A write waiting for its transaction, and its outcome."""

    def __init__(self, work: Work[T]) -> None:
        self.work = work
        self.outcome: Future[T] = Future()

    def fail(self, error: BaseException) -> None:
        known = engine_error(error) if isinstance(error, apsw.Error) else None
        if known is not None:
            known.__cause__ = error
        self.outcome.set_exception(known or error)
