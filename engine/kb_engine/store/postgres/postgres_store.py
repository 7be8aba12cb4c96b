"""The store on PostgreSQL: many engines on one database, with atomic transactions.

Changes of different documents run concurrently (`transaction.py`), as do jobs, leases and files. A search
reads one snapshot of the database.

A job that is taken has a lease, which expires by the clock of the database. Its holder renews it while alive;
after the expiry any engine may take the job. The holder commits results under its lease, with the job's row
locked, so that work under a lost lease has no effect. An open store also runs these tasks:

every third of a lease   renew the leases and unaccepted files of this engine
                         requeue the jobs of expired leases of any engine
                         remove the files of uploads that have ended without acceptance
LISTEN                   pass events of other engines to this engine's workers and waiting requests;
                         end the transactions of stopped engines, past a pooler that these may fill

A queued job is offered to this engine's own workers. If they have no room, one other engine is called, which
calls the next one if it has no room either; each engine also looks at the queue now and then. The end of a
job is reported to all engines, because any may have a waiting request.

Uploads are stored in the database, in parts, so that any engine that takes a job has its file:

    receive ──▶ parts ──▶ job accepted ──▶ job ends ──▶ removed with it, in the same transaction; for a failed
       |                                               job at the end of its retention
       └─ failed, cut off, cancelled ──▶ removed        kill -9 ──▶ removed when its lease expires

Parts are transferred one at a time, so that a file needs about a megabyte of memory, whatever its size.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

import asyncpg

from kb_config import tracing
from kb_contracts.api.errors import EngineError
from kb_engine.address import Address
from kb_engine.index.port import Candidates, Index, IndexQuery, Vector
from kb_engine.spool import Spool, SpoolFile, on_disk
from kb_engine.store import port
from kb_engine.store.clock import Clock, Elapsed, SteadyClock, elapsed_seconds
from kb_engine.store.postgres import schema
from kb_engine.store.postgres.connection import (
    CHANNEL,
    GONE,
    LISTENER,
    READ_SECONDS,
    STOPPED_SECONDS,
    Connections,
    Db,
    Lost,
    as_engine_errors,
    attempted,
    changed,
    connect,
    not_ready,
    rows,
    value,
    was_cut_off,
)
from kb_engine.store.postgres.opening import WAIT_SECONDS, check_pooler, prepare
from kb_engine.store.postgres.postgres_settings import EXACT_BELOW, LEASE_SECONDS
from kb_engine.store.postgres.search.building import keep_index
from kb_engine.store.postgres.search.hybrid import find_candidates
from kb_engine.store.postgres.search.renewal import keep_words
from kb_engine.store.postgres.search.words import Words
from kb_engine.store.postgres.transaction import PostgresRead, PostgresWrite, expect_layout, fold_counters
from kb_engine.store.postgres.word_order import Passing, passing
from kb_engine.store.repository import jobs, originals, search
from kb_engine.store.repository.transaction import Read, Work, Write
from kb_engine.store.store import Store, original_lost, utc_now
from kb_engine.store.wording import find_passing
from kb_engine.tasks import end, repeat

T = TypeVar("T")
Attempt = Callable[[], Awaitable[object]]
WithRoom = Callable[[Attempt, Attempt], Awaitable[object]]
"""Runs the first attempt; if the disk is full, makes room and runs the second."""

_GROUPS = 2
"""Maximum number of groups of one kind in progress: the engine prepares one while the server does another."""
GROUP_WRITES = 16  # maximum number of works in a transaction
GROUP_LOCK_MS = 5_000
"""Time that a group waits for one lock, in milliseconds; a lost engine may hold it until the server notices.
"""
BEATS = 3  # heartbeats per lifetime of a lease
_END_STOPPED = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() "
    "AND usename = current_user AND application_name = 'kb' AND xact_start IS NOT NULL "
    "AND wait_event = 'ClientRead' "
    "AND greatest(query_start, state_change) < clock_timestamp() - make_interval(secs => ?)"
)
"""Ends the transactions of stopped engines, also those that the server itself does not end: in the middle of
a COPY, between two messages about one statement, or begun behind a pooler.
"""
_FILE_LEASES = 4  # number of lease lifetimes for which an unaccepted upload is kept without a heartbeat
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 5.0
_SILENT_SECONDS = 10.0
"""Time between looks if the server of the listener still answers, and time for an answer, in seconds: one
without power closes no connection.
"""
_EMPTYING_SECONDS = 5

PART_BYTES = 1024 * 1024

_PART = "INSERT INTO spool_parts (name, part, data) VALUES (?, ?, ?)"
_ONE_PART = "SELECT data FROM spool_parts WHERE name = ? AND part = ?"
_GROWN = "UPDATE spool_files SET size_bytes = size_bytes + ?, touched_at = clock_timestamp() WHERE name = ?"

_ALONE_SECONDS = 1.0
"""Time without calls after no engine was left to call, in seconds: all have work, or there is no other."""
_NOTIFY = "SELECT pg_notify(?, payload) FROM unnest(?::text[]) AS payload"
_CALL_ONE = (
    "SELECT pg_notify(?, 'queued ' || pid || ' ' || ?) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name = ? AND pid <> ALL (?::int[]) "
    "ORDER BY random() LIMIT 1"
)
"""Calls any of the engines that had no chance to take the job."""

_COPY = "part-"
_YOUNG_SECONDS = 60.0  # another engine using this folder may have created a copy and not locked it yet

logger = logging.getLogger(__name__)


async def open_postgres(
    address: Address,
    *,
    embedder: port.EmbedderIdentity,
    pooler: Address | None = None,
    bounds: port.Bounds = port.DEFAULT_BOUNDS,
    lease_seconds: float = LEASE_SECONDS,
    clock: Clock = utc_now,
    elapsed: Elapsed = elapsed_seconds,
    wait: float = WAIT_SECONDS,
    exact_below: int = EXACT_BELOW,
    index: Index | None = None,
    unfinished: bool = False,
) -> PostgresStore:
    """Open the base at `address`, creating or migrating it first; wait up to `wait` seconds for its server
    and the pooler.

    From `exact_below` chunks on, searches by meaning use an approximate index (`postgres/search`). `index`
    answers the searches instead of the base's own, and is closed with the store. `unfinished` also opens the
    target of an unfinished migration. Transactions go through the `pooler`, if there is one.
    Raises BaseRefused: the base cannot be opened; the message is for the operator.
    """
    search_path, bound, newest = await prepare(address, embedder, wait, unfinished=unfinished)
    connections = Connections(pooler or address, search_path, is_pooled=pooler is not None)
    if pooler is not None:
        try:
            await check_pooler(address, pooler, connections, wait)
        except BaseException:
            await connections.close()
            raise
    steady = SteadyClock(clock, elapsed, newest)
    store = PostgresStore(
        address, connections, search_path, bound, bounds, lease_seconds, steady, exact_below
    )
    if index is not None:
        store.follow_with(index)
    return store


class PostgresStore(Store):
    """The store on one database, which other engines may use too; created by `open_postgres`."""

    def __init__(
        self,
        address: Address,
        connections: Connections,
        search_path: str,
        embedder: port.EmbedderIdentity,
        bounds: port.Bounds,
        lease_seconds: float,
        clock: SteadyClock,
        exact_below: int,
    ) -> None:
        super().__init__(bounds, clock)
        self._connections = connections
        self._embedder = embedder
        self._lease_seconds = lease_seconds
        self._layout = len(schema.MIGRATIONS)
        self._words = Words()
        self._leases: set[str] = set()  # the leases that this engine holds; the heartbeat renews them
        self._spool: PostgresSpool | None = None
        self._writing: set[asyncio.Task[object]] = set()
        self._address = address
        self._search_path = search_path
        self._exact_below = exact_below
        self._background: list[asyncio.Task[None]] = []
        self._callback: port.StoreEventCallback = lambda _: False
        self._alone_until = 0.0
        self._groups: defaultdict[str, _Group] = defaultdict(lambda: _Group(self._together, self._through))
        self._owed: dict[str, list[int]] = {}
        """The calls to be made, by lane, with the listeners of the engines that have no room."""
        self._owing = asyncio.Event()
        self._listener = 0  # the process of the server that serves the listener

    @property
    def context(self) -> bool:
        return self._embedder.context

    @property
    def dimensions(self) -> int:
        """Dimensions of the vectors, as of this engine's last write; 0 if the base had no vectors then."""
        return self._embedder.dimensions

    def spool(self, folder: Path) -> PostgresSpool:
        """Return the uploads in this base; `folder` holds the files while they are read."""
        self._spool = PostgresSpool(self._connections, folder, self._with_room)
        return self._spool

    def subscribe(self, callback: port.StoreEventCallback) -> None:
        """Start the listener for events of other engines, the heartbeat, and the upkeep of the index."""
        self._callback = callback
        beating = repeat(self.beat, self._lease_seconds / BEATS, "the heartbeat of the store failed")
        self._background = [
            asyncio.create_task(self._listen(callback), name="kb-store-listener"),
            asyncio.create_task(beating, name="kb-store-heartbeat"),
            asyncio.create_task(self._call_on(), name="kb-store-calls"),
        ]
        if self._follower is None:
            keeping = keep_index(
                self._connections, self._address, self._search_path, self._exact_below, self._layout
            )
            self._background.append(asyncio.create_task(keeping, name="kb-store-index"))
            renewing = keep_words(self._connections, self._layout)
            self._background.append(asyncio.create_task(renewing, name="kb-store-words"))

    async def _listen(self, callback: port.StoreEventCallback) -> None:
        """Listen on a separate connection and reconnect if it is lost; after each gap report `resumed`."""

        def receive(_db: Db, _pid: int, _channel: str, payload: str) -> None:
            kind, _, subject = payload.partition(" ")
            if kind in {"ended", "cancelled", "cleared"}:  # ignores unknown events of later engines
                callback(port.StoreEvent(kind, subject or None))  # type: ignore[arg-type]
            elif kind == "queued":
                called, lane, busy, *_ = *subject.split(" "), "", ""
                if called not in {"", str(self._listener)}:  # engines of earlier versions call all
                    return
                has_room = callback(port.StoreEvent("queued", lane=lane or None))  # type: ignore[arg-type]
                if busy and not has_room:
                    self._owe(lane, [int(each) for each in busy.split(",")])

        wait = _FIRST_WAIT
        look: tuple[str, Sequence[object]] = _END_STOPPED, (STOPPED_SECONDS,)
        while True:
            try:
                lost = asyncio.Event()
                db: Db = await connect(self._address, name=LISTENER)
                self._listener = db.get_server_pid()
                try:
                    db.add_termination_listener(lambda _, lost=lost: lost.set())
                    await db.add_listener(CHANNEL, receive)
                    callback(port.StoreEvent("resumed"))
                    while not db.is_closed():
                        with suppress(TimeoutError):
                            await asyncio.wait_for(lost.wait(), _SILENT_SECONDS)
                            break
                        try:
                            async with asyncio.timeout(_SILENT_SECONDS):
                                ended = await value(db, *look)
                        except TimeoutError:
                            self._connections.break_off()
                            raise
                        except asyncpg.InsufficientPrivilegeError as error:  # revoked on some servers
                            ended, look = 0, ("SELECT 0", ())
                            logger.warning(
                                "cannot end the transactions of stopped engines", extra={"why": str(error)}
                            )
                        if ended:
                            logger.warning("a stopped engine held locks", extra={"transactions": ended})
                finally:
                    with suppress(*GONE, asyncpg.PostgresError):
                        await db.close(timeout=1.0)
                wait = _FIRST_WAIT
            except Exception as error:  # noqa: BLE001 - boundary: it is connected again
                logger.warning(
                    "the connection for database events is lost", extra={"error": type(error).__name__}
                )
                wait = min(wait * 2, _LONGEST_WAIT)
            await asyncio.sleep(wait)

    async def beat(self) -> None:
        """Send a heartbeat: renew this engine's leases and uploads, and release those of dead engines.

        Once a newer engine has migrated the base there are no heartbeats, so that the leases expire.
        """
        await self._run_read(lambda read: expect_layout(read.db, self._layout))
        if self._leases:
            held = list(self._leases)
            good = await self._run_read(lambda read: renew(read, held, self._lease_seconds), readonly=False)
            self._leases -= set(held) - good
        if self._spool is not None:
            await self._spool.keep(_FILE_LEASES * self._lease_seconds)
        await self._run_read(fold_counters, readonly=False)
        await self.write(jobs.release)

    async def _close(self) -> None:
        await end(*self._background)
        if self._writing:
            await asyncio.wait(self._writing)
        try:
            # If this fails, the leases expire.
            with suppress(EngineError, asyncpg.PostgresError):
                if held := list(self._leases):
                    await self._through(lambda write: jobs.hand_back(write, "lease = ANY (?)", (held,)))
        finally:
            await self._connections.close()

    # transactions

    async def _run_write(self, work: Work[T], *, makes_room: bool, group: str | None = None) -> T:
        if self._closing is not None:
            raise not_ready("The engine is shutting down.")
        bounds = replace(self._bounds, versions=0) if makes_room else self._bounds
        once, again = partial(self._through, work), partial(self._through, work, bounds)
        if group is not None:
            once = partial(self._groups[group].run, work)
        task = asyncio.ensure_future(self._with_room(once, again))
        self._writing.add(task)

        def written(task: asyncio.Task[T]) -> None:
            self._writing.discard(task)
            if not task.cancelled():
                task.exception()  # marks the exception as retrieved; the caller may be cancelled

        task.add_done_callback(written)
        return await asyncio.shield(task)

    async def _with_room(self, work: Callable[[], Awaitable[T]], again: Callable[[], Awaitable[T]]) -> T:
        """Run `work`; if the disk is full, drop versions and trash and run `again`."""
        try:
            return await work()
        except EngineError as error:
            if error.code != "storage_full":
                raise
        with suppress(asyncpg.LockNotAvailableError):  # a long reader of versions, such as a dump
            await self._empty_versions()
        return await again()

    async def _empty_versions(self) -> None:
        """Drop old versions and trash to make room for a write."""
        count = await self._run_read(lambda read: read.value("SELECT count(*) FROM versions"))
        if not count:
            return
        # Emptying a table needs some pages for its new indexes; emptying the reserve frees these without
        # needing any.
        await self._through(lambda write: write.rows("TRUNCATE reserve"))

        async def empty(write: Write) -> None:
            await write.rows(f"SET LOCAL lock_timeout = '{_EMPTYING_SECONDS}s'")
            await write.rows("TRUNCATE versions")
            await originals.release_all(write)

        await self._through(empty)
        self._note_emptied(count)
        await self._through(lambda write: write.rows(schema.FILL_RESERVE))

    async def _through(self, work: Work[T], bounds: port.Bounds | None = None) -> T:
        (answer,) = await _answered(partial(self._transact, [work], bounds))
        return answer

    async def _together(self, works: Sequence[Work[Any]]) -> list[Any]:
        async def impatient(write: Write) -> None:
            await write.rows(f"SET LOCAL lock_timeout = {GROUP_LOCK_MS}")

        _, *answers = await self._transact([impatient, *works])
        return answers

    async def _transact(self, works: Sequence[Work[T]], bounds: port.Bounds | None = None) -> list[T]:
        """Return the results of the works, done in one transaction."""
        async with self._connections.writing() as db:
            transaction = db.transaction()
            try:
                await transaction.start()
                await self._connections.begin(db)
                await expect_layout(db, self._layout)
                write = PostgresWrite(
                    db,
                    self._clock,
                    bounds or self._bounds,
                    embedder=self._embedder,
                    layout=self._layout,
                    lease_seconds=self._lease_seconds,
                    logs_changes=self._follower is not None,
                )
                answers = []
                for work in works:
                    write.begin_next()
                    answers.append(await work(write))
                await write.finish()
            except BaseException as error:
                with suppress(*GONE, asyncpg.PostgresError):
                    await transaction.rollback()
                if was_cut_off(db, error):
                    raise Lost from error
                raise
            await transaction.commit()
            if write.embedder.dimensions:  # once known they stay; a slower transaction may not see them
                self._embedder = write.embedder
            self._leases |= write.kept_leases
            self._leases -= write.dropped_leases
            try:
                await self._publish(db, write.events)
            except (*GONE, asyncpg.PostgresError):  # the commit is final
                db.terminate()
            return answers

    async def _publish(self, db: Db, events: Sequence[port.StoreEvent]) -> None:
        """Report events after the commit: a queued job to one engine, any other event to all.

        Within the transaction a notification would serialize commits: the server holds a database-wide lock
        from NOTIFY until the transaction is on disk. If this engine dies before it, the remaining engines
        find the change at their next poll.
        """
        for event in events:
            if event.kind == "queued" and not self._callback(event):
                await self._call(db, event.lane or "", [])
        payloads = [f"{each.kind} {each.job_id or ''}".rstrip() for each in events if each.kind != "queued"]
        if payloads:
            await rows(db, _NOTIFY, (CHANNEL, payloads))

    async def _call(self, db: Db, lane: str, busy: list[int]) -> None:
        """Call an engine that is not `busy` for a queued job, later if there was none a moment ago."""
        if time.monotonic() < self._alone_until:
            self._owe(lane, busy)
            return
        left_out = [*busy, self._listener]
        call = f"{lane} {','.join(map(str, left_out))}"
        if not await changed(db, _CALL_ONE, (CHANNEL, call, LISTENER, left_out)):
            self._alone_until = time.monotonic() + _ALONE_SECONDS

    def _owe(self, lane: str, busy: list[int]) -> None:
        self._owed[lane] = busy
        self._owing.set()

    async def _call_on(self) -> None:
        """Make the calls that are owed."""
        while True:
            await self._owing.wait()
            await asyncio.sleep(max(0.0, self._alone_until - time.monotonic()))
            self._owing.clear()
            owed, self._owed = self._owed, {}
            # After a fault the remaining engines find the job at their next poll.
            with suppress(*GONE, EngineError, asyncpg.PostgresError):
                async with self._connections.one() as db:
                    for lane, busy in owed.items():
                        await self._call(db, lane, busy)

    async def _run_read(self, work: Callable[[Read], Coroutine[Any, Any, T]], *, readonly: bool = True) -> T:
        if self._closing is not None:
            raise not_ready("The engine is shutting down.")
        return await _answered(partial(self._look, work, readonly))

    async def _look(self, work: Callable[[Read], Coroutine[Any, Any, T]], readonly: bool) -> T:
        async with self._connections.one() as db:
            isolation = "repeatable_read" if readonly else "read_committed"
            try:
                async with asyncio.timeout(READ_SECONDS):
                    async with db.transaction(isolation=isolation, readonly=readonly):
                        await self._connections.begin(db)
                        return await work(PostgresRead(db, self._clock))
            except GONE as error:
                if was_cut_off(db, error):
                    raise Lost from error
                raise

    async def search(self, query: port.Query, vector: Awaitable[Vector] | None = None) -> port.Found:
        with tracing.step("search index"):
            if vector is not None:
                query = replace(query, vector=await vector)
            if self._follower is not None:
                return await self._search_elsewhere(self._follower, query)
            return await self._run_read(partial(self._search, query))

    async def original(self, sha256: str) -> AsyncGenerator[bytes, None]:
        sql = "SELECT p.data FROM originals o JOIN spool_parts p ON p.name = o.file WHERE o.sha256 = ? "
        part = 0
        while True:
            values = (sha256, part)
            data = await self._run_read(lambda read, v=values: read.value(f"{sql} AND p.part = ?", v))  # type: ignore[misc]
            if data is None:
                break
            yield data
            part += 1
        kept = "SELECT EXISTS (SELECT FROM originals WHERE sha256 = ?)"
        if not part and not await self._run_read(lambda read: read.value(kept, (sha256,))):
            raise original_lost()

    async def _search(self, query: port.Query, read: Read) -> port.Found:
        read.reach = query.selection.reach

        async def find(wanted: IndexQuery, without: Sequence[int] = ()) -> Candidates:
            return await find_candidates(
                read.db, self._embedder, self._words, wanted, self._exact_below, without
            )

        left = Passing() if query.wording is None else await passing(read.db, query.wording)
        if left is not None:
            candidates = await find(replace(query, among=left.among), left.without)
        else:
            candidates = await find_passing(query, find, partial(search.passing, read))
        self._note_lost(candidates.lost)
        return await search.found(read, query, candidates)


class _Group:
    """Works of one kind. The ones that arrive while others are in progress wait, and share a transaction.

    If it fails, or waits too long for a lock, each is done alone and beside the next groups, so that a fault
    or a conflict concerns its own work only; that is rare, and needs no savepoints. No work waits for further
    ones to arrive.
    """

    def __init__(
        self,
        together: Callable[[Sequence[Work[Any]]], Awaitable[list[Any]]],
        alone: Callable[[Work[Any]], Awaitable[Any]],
    ) -> None:
        self._together = together
        self._alone = alone
        self._waiting: deque[tuple[Work[Any], asyncio.Future[Any]]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._running_alone: set[asyncio.Task[None]] = set()

    async def run(self, work: Work[T]) -> T:
        """Return the result of the work once its transaction is committed."""
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, outcome))
        if len(self._running) < _GROUPS:
            _start(self._run_waiting(), self._running)
        return await outcome

    async def _run_waiting(self) -> None:
        while self._waiting:
            group = [self._waiting.popleft() for _ in range(min(len(self._waiting), GROUP_WRITES))]
            if not await self._run_together(group):
                for one in group:
                    _start(self._run_alone(*one), self._running_alone)

    async def _run_together(self, group: Sequence[tuple[Work[Any], asyncio.Future[Any]]]) -> bool:
        """Return False if nothing was changed."""
        try:
            answers = await self._together([work for work, _ in group])
        except Exception as error:  # noqa: BLE001 - it recurs where it belongs
            if not isinstance(error, GONE) or isinstance(error, ValueError):
                return False
            for _, outcome in group:  # the commit may have been done
                outcome.set_exception(not_ready())
        else:
            for (_, outcome), answer in zip(group, answers, strict=True):
                outcome.set_result(answer)
        return True

    async def _run_alone(self, work: Work[T], outcome: asyncio.Future[T]) -> None:
        try:
            outcome.set_result(await self._alone(work))
        except Exception as error:  # noqa: BLE001 - raised to the caller
            outcome.set_exception(error)


def _start(work: Coroutine[Any, Any, None], running: set[asyncio.Task[None]]) -> None:
    task = asyncio.create_task(work)
    running.add(task)
    task.add_done_callback(running.discard)


async def _answered(work: Callable[[], Awaitable[T]]) -> T:
    with as_engine_errors():
        try:
            return await attempted(work)
        except Lost:  # the pool had kept a connection from before the server's restart
            return await attempted(work)


async def renew(read: Read, leases: Sequence[str], seconds: float) -> set[str]:
    """Renew leases; return the ones that are valid, including those locked by a running transaction."""
    await read.rows(
        "UPDATE jobs SET lease_until = clock_timestamp() + make_interval(secs => ?) WHERE seq = ANY (ARRAY("
        "SELECT seq FROM jobs WHERE status = 'running' AND lease = ANY (?::text[]) FOR UPDATE SKIP LOCKED))",
        (seconds, leases),
    )
    good = "SELECT lease FROM jobs WHERE status = 'running' AND lease = ANY (?::text[])"
    return {lease for (lease,) in await read.rows(good, (leases,))}


class PostgresSpool(Spool):
    """A `Spool` in the tables `spool_files` and `spool_parts`; `folder` holds files while they are read."""

    def __init__(self, connections: Connections, folder: Path, with_room: WithRoom) -> None:
        super().__init__()
        self._connections = connections
        self._folder = folder
        self._with_room = with_room

    @asynccontextmanager
    async def receive(self, name: str) -> AsyncIterator[SpoolFile]:
        """Yield a new file to write; each full part is committed."""
        begin = partial(self._do, "INSERT INTO spool_files (name) VALUES (?)", (name,))
        await self._with_room(begin, begin)
        try:
            received = _Parts(self._append, name)
            yield received
            await received.end()
        except BaseException:  # even a cancelled request leaves nothing behind
            with suppress(EngineError):  # otherwise `keep` removes it
                await asyncio.shield(self.remove(name))
            raise

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[Path]:
        """Yield the path of a temporary copy on the local disk."""
        if not await self.has(name):
            raise FileNotFoundError(f"the spool has no file {name}")
        with NamedTemporaryFile(dir=self._folder, prefix=_COPY) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released at the end of this process, however it ends
            part = 0
            while (data := await self._ask(_ONE_PART, (name, part))) is not None:
                await on_disk(partial(file.write, data))
                part += 1
            await on_disk(file.flush)
            yield Path(file.name)

    async def has(self, name: str) -> bool:
        return await self._ask("SELECT true FROM spool_files WHERE name = ?", (name,)) is not None

    async def remove(self, name: str) -> None:
        """Delete the file, unless a job has accepted it: such a file is deleted with its job."""
        await self._do("DELETE FROM spool_files WHERE name = ? AND NOT accepted", (name,))

    async def sweep(self, needed: Callable[[], Awaitable[set[str]]]) -> int:  # noqa: ARG002
        """Delete the copies that ended engines have left on the local disk; return their number.

        The database knows which files jobs need; `keep` removes the rest with every heartbeat.
        """

        def sweep_copies() -> int:
            before, removed = time.time() - _YOUNG_SECONDS, 0
            for path in self._folder.glob(f"{_COPY}*"):
                if path.stat().st_mtime >= before:
                    continue
                with suppress(OSError), path.open("rb") as file:  # already removed, or locked by a process
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                    removed += 1
            return removed

        return await asyncio.to_thread(sweep_copies)

    async def keep(self, seconds: float) -> int:
        """Renew this engine's incoming files, and remove files of dead engines; return the number removed.

        A file counts as dead `seconds` after its last heartbeat.
        """
        touch = "UPDATE spool_files SET touched_at = clock_timestamp() WHERE name = ANY (?::text[])"
        if self.held:
            await self._do(touch, (list(self.held),))
        gone = (
            "DELETE FROM spool_files WHERE NOT accepted "
            "AND touched_at < clock_timestamp() - make_interval(secs => ?)"
        )
        return await self._do(gone, (seconds,))

    async def size(self) -> int:
        return int(await self._ask("SELECT coalesce(sum(size_bytes), 0)::bigint FROM spool_files", ()))

    async def _append(self, name: str, part: int, data: bytes) -> None:
        append = partial(self._append_once, name, part, data)
        await self._with_room(append, append)

    async def _append_once(self, name: str, part: int, data: bytes) -> None:
        async with self._one() as db, db.transaction():
            try:
                await rows(db, _PART, (name, part, data))
            except asyncpg.ForeignKeyViolationError as error:
                raise not_ready("The upload came too slowly and was given up. Send it again.") from error
            await rows(db, _GROWN, (len(data), name))

    async def _ask(self, sql: str, values: Sequence[Any]) -> Any:
        async with self._one() as db:
            return await value(db, sql, values)

    async def _do(self, sql: str, values: Sequence[Any]) -> int:
        async with self._one() as db:
            return await changed(db, sql, values)

    @asynccontextmanager
    async def _one(self) -> AsyncIterator[Db]:
        with as_engine_errors():
            async with self._connections.statements() as db:
                yield db


class _Parts:
    """Buffers written data into parts of equal size."""

    def __init__(self, append: Callable[[str, int, bytes], Awaitable[None]], name: str) -> None:
        self._append = append
        self._name = name
        self._gathered = bytearray()
        self._count = 0

    async def write(self, data: bytes) -> None:
        self._gathered += data
        while len(self._gathered) >= PART_BYTES:
            await self._flush(PART_BYTES)

    async def end(self) -> None:
        if self._gathered:
            await self._flush(len(self._gathered))

    async def _flush(self, size: int) -> None:
        await self._append(self._name, self._count, bytes(self._gathered[:size]))
        del self._gathered[:size]
        self._count += 1
