"""Reading and searching a SQLite base: on one of a few threads, each with its own connection, on a snapshot.
Searches have threads of their own.

The event loop never waits for the disk: work is submitted to a thread and awaited. If a caller is cancelled,
it stops waiting, but the work on the thread completes.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw
import msgspec
import numpy as np

from kb_config import tracing
from kb_contracts.api.errors import EngineError
from kb_engine.cores import CORES
from kb_engine.index.embedded import selection, vectors
from kb_engine.index.embedded.index import EmbeddedIndex, State
from kb_engine.index.embedded.selection import Lookup
from kb_engine.index.port import Candidates, Ids, IndexQuery, Selection, Vector, Vectors
from kb_engine.index.words import Analyser, Word
from kb_engine.store.clock import SteadyClock
from kb_engine.store.port import Bounds, Found, Query
from kb_engine.store.repository import search
from kb_engine.store.repository.reach import Condition
from kb_engine.store.repository.transaction import Read, Row
from kb_engine.store.sqlite.connection import VECTOR_TYPE, connect, engine_error
from kb_engine.store.sqlite.search_processes import SearchProcesses
from kb_engine.store.sqlite.segments import folder_of as segment_folder
from kb_engine.store.store import Store

T = TypeVar("T")

READERS = 3
SCANNERS = min(3, max(1, CORES - 1))
"""Number of threads that compare vectors while reader threads look up words."""
SEARCHES = max(1, min(READERS, CORES // 2))
"""Number of concurrent searches, of two threads each; more would compete for the interpreter."""
SPARE_CORES = max(0, CORES - 2 * SEARCHES)
"""Number of searches of a large index that other processes run at a time, on the other cores."""
_MAX_FILTERS = 256
_DOCUMENTS = "SELECT group_concat(d.id) FROM documents d WHERE {}"


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


class Threads:
    """Connections to one base, each used by one thread only."""

    def __init__(self, open_one: Callable[[], apsw.Connection], count: int, name: str) -> None:
        self._open_one = open_one
        self._local = threading.local()
        self._opened: list[apsw.Connection] = []
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` on one of the threads, and roll back a transaction that it leaves open. Raises
        `not_ready` once closed.
        """
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
            db = self.connection()
            try:
                return work(db)
            finally:
                if db.in_transaction:  # SQLite has rolled back by itself if the disk is full
                    db.execute("ROLLBACK")
        except apsw.Error as error:
            if (known := engine_error(error)) is not None:
                raise known from error
            raise

    def close(self) -> None:
        """Wait for running work, then close the connections. Blocks; may be called again."""
        self._executor.shutdown(wait=True)
        while self._opened:
            self._opened.pop().close()


class ReadingStore(Store):
    """The half of the store that reads; `SqliteStore` writes too."""

    def __init__(self, path: Path, index: EmbeddedIndex, bounds: Bounds, clock: SteadyClock) -> None:
        super().__init__(bounds, clock)
        self._path = path
        self._index = index
        self._readers = Threads(partial(connect, path), READERS, "kb-read")
        # On threads of their own: of more, each would have a cache of the same pages.
        self._searchers = Threads(partial(connect, path), SEARCHES, "kb-search")
        self._scanner = ThreadPoolExecutor(SCANNERS, thread_name_prefix="kb-scan")
        self._searching = asyncio.Semaphore(SEARCHES)
        self._turns = vectors.Turns()
        self._whole: set[Hashable] = set()
        """Filters that all chunks passed when they were last used, such as the only collection of a base."""
        self._under_way = 0
        """Number of searches in progress."""
        self.search_processes: SearchProcesses | None = None

    @property
    def dimensions(self) -> int:
        return self._index.state.dimensions

    def search_in(self, processes: int) -> None:
        """Let further processes search while searches wait for each other. Called once."""
        snapshot = partial(self._readers.run, self._snapshot)
        self.search_processes = SearchProcesses(
            self._path, segment_folder(self._path), self._index, processes, snapshot
        )

    async def _run_read(self, work: Callable[[Read], Coroutine[Any, Any, T]]) -> T:
        return await self._readers.run(partial(self._look, work))

    def _look(self, work: Callable[[Read], Coroutine[Any, Any, T]], db: apsw.Connection) -> T:
        db.execute("BEGIN")
        return run_to_end(work(SqliteRead(db, self._clock)))

    async def search(self, query: Query, vector: Awaitable[Vector] | None = None) -> Found:
        with tracing.step("search index"):
            return await self._find(query, vector)

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
        originals = partial(selection.originals, read.db, dimensions)
        if query.mode == "fts":
            return lookup.best(query, originals)
        try:
            found = lookup.without(self._lost).best(query, originals, self._scanner, looked_up.turn)
        except selection.VectorsLost:
            self._note_lost(selection.lost(read.db, dimensions))
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
        if self._searching.locked() and query.vector is not None and self._reads_all_vectors(query):
            shared = vectors.quantise_query(query.vector)
        turn = vectors.Turn(self._turns, shared)
        self._turns.waiting += (turn,)
        try:
            async with self._searching:
                self._leave(turn)
                return await self._searchers.run(partial(self._search, query, answer, ahead, turn))
        finally:
            self._leave(turn)

    def _leave(self, turn: vectors.Turn) -> None:
        """Remove a search that begins or was cancelled from the waiting searches."""
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
        state, generation = self._snapshot(db)
        read = SqliteRead(db, self._clock)
        read.reach = query.selection.reach
        if ahead is not None and ahead.generation == generation and ahead.lookup.state is state:
            return answer(read, replace(ahead, turn=turn))
        return answer(read, _LookedUp(look_up(read, state, query, self._whole), generation, turn))

    def _reads_all_vectors(self, query: IndexQuery) -> bool:
        """True if no filter but the access scope excludes chunks, as far as is known."""
        if query.mode == "fts" or not _is_selected_alone(query):
            return False
        within_reach = search.condition(Selection(reach=query.selection.reach))
        wanted = search.condition(query.selection)
        return wanted == within_reach or _key(wanted) in self._whole

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


def look_up(read: SqliteRead, state: State, query: IndexQuery, whole: set[Hashable] | None = None) -> Lookup:
    """Apply a query to the state of the index that belongs to the transaction.

    In `whole` it notes whether all chunks pass the filter.
    """
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
    lookup = Lookup(state, words, documents, query, required, readable)
    if whole is not None and _is_selected_alone(query):
        if len(whole) >= _MAX_FILTERS:
            whole.clear()
        (whole.add if lookup.is_whole else whole.discard)(_key(wanted))
    return lookup


def _is_selected_alone(query: IndexQuery) -> bool:
    """True if nothing but the selection of the query excludes chunks."""
    return not query.required and query.among is None and query.wording is None


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


def _key(condition: Condition) -> Hashable:
    where, values = condition
    return where, tuple(values)


def _with_scores(_read: SqliteRead, looked_up: _LookedUp) -> _LookedUp:
    """Compute the scores of the words now, instead of on first use."""
    _ = looked_up.lookup.scores
    return looked_up


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends. Raises RuntimeError if it does."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a repository waited for something other than its database")
