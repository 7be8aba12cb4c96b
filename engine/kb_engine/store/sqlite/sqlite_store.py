"""The store on SQLite: one file, one process, every transaction synced to the disk.

One thread writes, a few read, each with its own connection. The event loop never waits for the disk: work is
submitted to a thread and awaited. If a caller is cancelled, it stops waiting, but the work on the thread
completes, so no transaction is left half done.

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
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar, cast

import apsw
import numpy as np

from kb_contracts.api.errors import EngineError
from kb_engine.cores import CORES
from kb_engine.index.embedded import vectors
from kb_engine.index.embedded.index import EmbeddedIndex, State
from kb_engine.index.embedded.selection import Lookup
from kb_engine.index.port import Candidates, Ids, Index, IndexQuery, Selection, Vector
from kb_engine.index.words import Analyser, Word
from kb_engine.store.clock import Clock, Elapsed, SteadyClock, elapsed_seconds
from kb_engine.store.port import (
    DEFAULT_BOUNDS,
    Bounds,
    EmbedderIdentity,
    Found,
    Query,
    StoreEvent,
    StoreEventCallback,
)
from kb_engine.store.repository import jobs, originals, search, versions
from kb_engine.store.repository.reach import Condition
from kb_engine.store.repository.transaction import Read, Write
from kb_engine.store.sqlite.connection import (
    SqliteRead,
    SqliteWrite,
    connect,
    engine_error,
    roll_back,
    rows,
    set_meta,
    value,
)
from kb_engine.store.sqlite.opening import BaseLock, own, prepare
from kb_engine.store.sqlite.originals import OriginalFolder
from kb_engine.store.sqlite.reserve import Reserve
from kb_engine.store.sqlite.search_processes import SearchProcesses
from kb_engine.store.sqlite.search_processes import folder_of as shared_folder
from kb_engine.store.sqlite.segments import Upkeep
from kb_engine.store.sqlite.segments import folder_of as segment_folder
from kb_engine.store.store import BLOCK_BYTES, Store, original_lost, utc_now

T = TypeVar("T")
Work: TypeAlias = Callable[[Write], Coroutine[Any, Any, T]]

READERS = 3
SCANNERS = min(3, max(1, CORES - 1))
"""Number of threads that compare vectors while reader threads look up words."""
SEARCHES = max(1, min(READERS, CORES // 2))
"""Number of concurrent searches, of two threads each; more would compete for the interpreter."""
SPARE_CORES = max(0, CORES - 2 * SEARCHES)
"""Number of searches of a large index that other processes run at a time, on the other cores."""
GROUP_WRITES = 64
"""Maximum number of writes committed together."""
GROUP_CHUNKS = 256
"""Number of added chunks at which a group of writes is committed, to bound the wait of the next group."""
CHECKPOINT_PAGES = 1_000
_DOCUMENTS = "SELECT group_concat(d.id) FROM documents d WHERE {}"


async def open_sqlite(
    path: Path,
    *,
    embedder: EmbedderIdentity,
    bounds: Bounds = DEFAULT_BOUNDS,
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

    Raises:
        BaseRefused: the base cannot be opened; the message is for the operator.
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
    embedder: EmbedderIdentity,
    bounds: Bounds,
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
            lost = [] if is_whole else vectors.lost(db, index.state.dimensions)
            newest = value(db, "SELECT max(created_at) FROM idempotency")
        reserve.take()
    except BaseException:
        lock.release()
        raise
    clock = SteadyClock(*times, newest)
    store = SqliteStore(lock, reserve, index, originals, bounds, clock, context=bound.context)
    store._note_lost(lost)
    return store


class SqliteStore(Store):
    """The store on one file; created by `open_sqlite`."""

    def __init__(
        self,
        lock: BaseLock,
        reserve: Reserve,
        index: EmbeddedIndex,
        originals: OriginalFolder,
        bounds: Bounds,
        clock: SteadyClock,
        *,
        context: bool,
    ) -> None:
        super().__init__(bounds, clock)
        self._lock = lock
        self._reserve = reserve
        self._index = index
        self._originals = originals
        self._context = context
        self._log_pages = 0
        self._least_size = 0.0
        """Size of the file at the last check, in bytes: it never shrinks. Infinite once it has."""
        self._publish: Callable[[StoreEvent], object] = lambda _: None
        self._waiting: deque[_Waiting[Any]] = deque()
        self._writer = Threads(self._connect_writer, 1, "kb-write")
        self._readers = Threads(partial(connect, lock.path), READERS, "kb-read")
        self._scanner = ThreadPoolExecutor(SCANNERS, thread_name_prefix="kb-scan")
        self._searching = asyncio.Semaphore(SEARCHES)
        self._turns = vectors.Turns()
        self._under_way = 0
        """Number of searches in progress."""
        self.search_processes: SearchProcesses | None = None

    @property
    def context(self) -> bool:
        return self._context

    @property
    def dimensions(self) -> int:
        return self._index.state.dimensions

    def begin_upkeep(self) -> None:
        """Start merging the files of the index. Called once."""
        self._upkeep = Upkeep(self._index, self._lock.path, self._writer.run)

    def search_in(self, processes: int) -> None:
        """Let further processes search while searches wait for each other. Called once."""

        def snapshot(db: apsw.Connection) -> tuple[State, int]:
            try:
                return self._snapshot(db)
            finally:
                roll_back(db)

        path = self._lock.path
        self.search_processes = SearchProcesses(
            path, segment_folder(path), self._index, processes, partial(self._readers.run, snapshot)
        )

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
        """Drop old versions if they have original files: only removed files free disk space."""
        if not await self.read(originals.bytes_of_versions):
            return False
        await self._writer.run(self._empty_versions)
        return True

    async def renew_damaged_index(self) -> int:
        return await self._upkeep.renew_damaged()

    def subscribe(self, callback: StoreEventCallback) -> None:
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

    def _transact(self, works: Iterable[Work[T]], bounds: Bounds | None = None) -> list[T]:
        """Return the results of the works done in one transaction; it accepts no more once it is large."""
        works = iter(works)
        if (first := next(works, None)) is None:
            return []
        answers: list[T] = []
        staged: State | None = None
        added = 0
        dropped: set[str] = set()
        events: list[StoreEvent] = []
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

    async def _run_read(self, work: Callable[[Read], Coroutine[Any, Any, T]]) -> T:
        return await self._readers.run(partial(self._look, work))

    def _look(self, work: Callable[[Read], Coroutine[Any, Any, T]], db: apsw.Connection) -> T:
        db.execute("BEGIN")
        try:
            return run_to_end(work(SqliteRead(db, self._clock)))
        finally:
            roll_back(db)

    async def _find(self, query: Query, vector: Awaitable[Vector] | None) -> Found:
        ahead = None
        if vector is not None:
            if self._looks_ahead(query):
                ahead, made = await asyncio.gather(self._ask(query, _with_scores), vector)
            else:
                made = await vector
            query = replace(query, vector=made)
        if self._follower is not None:
            return await self._search_elsewhere(self._follower, query)
        if self._answers_at_once(query):
            self._under_way += 1
            try:
                if (found := await self._found_by_process(query)) is not None:
                    return found
                return await self._ask(query, partial(self._found, query), ahead)
            finally:
                self._under_way -= 1

        # In several turns, so that other searches can run while many texts are read.
        async def find(wanted: IndexQuery) -> Candidates:
            unworded = replace(wanted, wording=None)
            return await self._ask(unworded, partial(self._best, unworded))

        return await self._search_for_wording(query, find)

    async def _found_by_process(self, query: Query) -> Found | None:
        """Return the answer of another process; None if the search is to be done here."""
        processes = self.search_processes
        if processes is None or self._lost:
            return None
        is_large = self._index.state.size >= vectors.BESIDE_ROWS
        if is_large and not (self._searching.locked() and processes.under_way < SPARE_CORES):
            return None
        if self._under_way > 1:
            processes.crowded()
        return await processes.found(query) if processes.state is self._index.state else None

    def _found(self, query: Query, read: SqliteRead, looked_up: _LookedUp) -> Found:
        return run_to_end(search.found(read, query, self._best(query, read, looked_up)))

    def _best(self, query: IndexQuery, read: SqliteRead, looked_up: _LookedUp) -> Candidates:
        lookup = looked_up.lookup
        dimensions = lookup.state.dimensions
        originals = partial(vectors.originals, read.db, dimensions)
        if query.mode == "fts":
            return lookup.best(query, originals)
        try:
            found = lookup.without(self._lost).best(query, originals, self._scanner, looked_up.turn)
        except vectors.VectorsLost:
            self._note_lost(vectors.lost(read.db, dimensions))
            found = lookup.without(self._lost).best(query, originals, self._scanner, looked_up.turn)
        return replace(found, lost=sorted(self._lost))

    def _answers_at_once(self, query: Query) -> bool:
        """True if no text must be read to find the passages."""
        return query.wording is None or self._index.state.finds(query.wording)

    def _looks_ahead(self, query: Query) -> bool:
        """True if looking up the words while the query is embedded delays no other search."""
        return (
            self._follower is None
            and self._answers_at_once(query)
            and query.mode == "hybrid"
            and self._index.state.size >= vectors.BESIDE_ROWS
            and not self._searching.locked()
        )

    async def _ask(
        self, query: IndexQuery, answer: Callable[[SqliteRead, _LookedUp], T], ahead: _LookedUp | None = None
    ) -> T:
        shared = None
        if self._searching.locked() and query.vector is not None and _reads_all_vectors(query):
            shared = vectors.quantise_query(query.vector)
        turn = vectors.Turn(self._turns, shared)
        self._turns.waiting += (turn,)
        try:
            async with self._searching:
                self._leave(turn)
                return await self._readers.run(partial(self._search, query, answer, ahead, turn))
        finally:
            self._leave(turn)

    def _leave(self, turn: vectors.Turn) -> None:
        """Remove a search that begins or was cancelled from those that wait."""
        self._turns.waiting = tuple(each for each in self._turns.waiting if each is not turn)

    def _search(
        self,
        query: IndexQuery,
        answer: Callable[[SqliteRead, _LookedUp], T],
        ahead: _LookedUp | None,
        turn: vectors.Turn,
        db: apsw.Connection,
    ) -> T:
        """Run in one read transaction with the index state of the same moment.

        `ahead` is an earlier lookup; it is used if nothing has changed since.
        """
        try:
            state, generation = self._snapshot(db)
            read = SqliteRead(db, self._clock)
            read.reach = query.selection.reach
            if ahead is not None and ahead.generation == generation and ahead.lookup.state is state:
                return answer(read, replace(ahead, turn=turn))
            return answer(read, _LookedUp(look_up(read, state, query), generation, turn))
        finally:
            roll_back(db)

    def _snapshot(self, db: apsw.Connection) -> tuple[State, int]:
        """Begin a read transaction; return the index state of the same moment, and their generation."""
        state, known = self._index.latest
        # SQLite takes its snapshot at the first read, not at BEGIN.
        db.execute("BEGIN")
        if (generation := db.execute(SqliteRead.generation).get) == known:
            return state, generation
        db.execute("ROLLBACK")
        with self._index.guard:
            db.execute("BEGIN")
            return self._index.state, db.execute(SqliteRead.generation).get


def look_up(read: SqliteRead, state: State, query: IndexQuery) -> Lookup:
    """Apply a query to the state of the index that belongs to the transaction."""
    db, analyser = read.db, Analyser(read.db)
    wanted = search.condition(query.selection)
    within_reach = search.condition(Selection(reach=read.reach))
    documents = documents_that_meet(db, wanted)
    readable = documents if within_reach == wanted else documents_that_meet(db, within_reach)
    words: Sequence[Word] = ()
    required: Sequence[Word] = ()
    if query.mode != "vector" or query.required:
        languages = [one for (one,) in db.execute(*search.languages_within(read.reach))]
        required = analyser.required(query.required, languages)
        words = analyser.words_of(query.text, languages) if query.mode != "vector" else ()
    return Lookup(state, words, documents, query, required, readable)


def documents_that_meet(db: apsw.Connection, condition: Condition) -> Ids | None:
    """Return the ids of the documents that meet the condition; None if there is no condition."""
    where, values = condition
    if not where:
        return None
    # One value: fetching row by row would take the interpreter's lock for each.
    joined = db.execute(_DOCUMENTS.format(where), values).get
    return np.fromstring(joined or "", dtype=np.int64, sep=",")


@dataclass(frozen=True, slots=True)
class _LookedUp:
    """A query looked up at a generation of the base."""

    lookup: Lookup
    generation: int
    turn: vectors.Turn


def _reads_all_vectors(query: IndexQuery) -> bool:
    """True if the query has no filter besides the access scope."""
    chosen = Selection(reach=query.selection.reach)
    narrowed = query.required or query.among is not None or query.wording is not None
    return query.mode != "fts" and query.selection == chosen and not narrowed


def _with_scores(_read: SqliteRead, looked_up: _LookedUp) -> _LookedUp:
    """Compute the scores of the words now, instead of on first use."""
    _ = looked_up.lookup.scores
    return looked_up


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


class Threads:
    """Connections to one base, each used by one thread only."""

    def __init__(self, open_one: Callable[[], apsw.Connection], count: int, name: str) -> None:
        self._open_one = open_one
        self._local = threading.local()
        self._opened: list[apsw.Connection] = []
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` on one of the threads. Raises `not_ready` once closed."""
        return await asyncio.wrap_future(self.begin(partial(self._do, work)))

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Submit `work` to one of the threads without waiting. Raises `not_ready` once closed."""
        try:
            return self._executor.submit(work)
        except RuntimeError as error:
            raise EngineError("not_ready", "The engine is shutting down.") from error

    def connection(self) -> apsw.Connection:
        """Return the connection of the calling thread, one of these threads; opened on first use."""
        if not hasattr(self._local, "db"):
            self._local.db = self._open_one()
            self._opened.append(self._local.db)
        return cast("apsw.Connection", self._local.db)

    def _do(self, work: Callable[[apsw.Connection], T]) -> T:
        try:
            return work(self.connection())
        except apsw.Error as error:
            if (known := engine_error(error)) is not None:
                raise known from error
            raise

    def close(self) -> None:
        """Wait for running work, then close the connections. Blocks; may be called again."""
        self._executor.shutdown(wait=True)
        while self._opened:
            self._opened.pop().close()


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends. Raises RuntimeError if it does."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a repository waited for something other than its database")
