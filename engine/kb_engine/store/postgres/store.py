"""The store on PostgreSQL: many engines on one database, every transaction whole.

Changes of documents follow one another (`write.py`); jobs, leases and files do not wait for them. A search
reads one snapshot of the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_engine.address import Address
from kb_engine.index.port import Index
from kb_engine.index.postgres.search import search
from kb_engine.index.postgres.words import Words
from kb_engine.store.facade import Clock, Store, utc_now
from kb_engine.store.port import (
    Counts,
    EmbedderIdentity,
    Found,
    LeasedJob,
    Prepared,
    Query,
    StoreEventCallback,
)
from kb_engine.store.postgres import leases, schema
from kb_engine.store.postgres.background import Heartbeat, NotificationListener
from kb_engine.store.postgres.connection import (
    GONE,
    READ_SECONDS,
    SCHEMA,
    Connections,
    Lost,
    as_engine_errors,
    attempted,
    not_ready,
    was_cut_off,
)
from kb_engine.store.postgres.dialect import POSTGRES
from kb_engine.store.postgres.opening import WAIT_SECONDS, prepare
from kb_engine.store.postgres.spool import PostgresSpool
from kb_engine.store.postgres.write import PostgresRead, PostgresWrite, expect_layout
from kb_engine.store.repository import jobs, results, state
from kb_engine.store.repository.transaction import Read, Write
from kb_engine.turns import LANES, Lane

T = TypeVar("T")

LEASE_SECONDS = 30.0
"""So long after the last sign of life of an engine its jobs are free for the others."""
BEATS = 3
"""Signs of life in that time."""
_FILE_LEASES = 4
"""An upload that nobody accepts is kept for so many leases."""


async def open_postgres(
    address: Address,
    *,
    embedder: EmbedderIdentity,
    max_queued: int = 100_000,
    lease_seconds: float = LEASE_SECONDS,
    clock: Clock = utc_now,
    wait: float = WAIT_SECONDS,
    index: Index | None = None,
) -> PostgresStore:
    """Open the base at `address`, creating or migrating it first; `wait` seconds for its server to answer.

    `index`, which is closed with the store, answers the searches in place of the base's own.

    Raises:
        BaseRefused: one of its kinds, with a message for the person who starts the engine.
    """
    search_path, bound = await prepare(address, embedder, wait)
    connections = Connections(address, search_path)
    store = PostgresStore(address, connections, bound, max_queued, lease_seconds, clock)
    if index is not None:
        store.follow_with(index)
    return store


class PostgresStore(Store):
    """The store on one database, which other engines may use too; made by `open_postgres`."""

    def __init__(
        self,
        address: Address,
        connections: Connections,
        embedder: EmbedderIdentity,
        max_queued: int,
        lease_seconds: float,
        clock: Clock,
    ) -> None:
        super().__init__(max_queued, clock)
        self._connections = connections
        self._embedder = embedder
        self._lease_seconds = lease_seconds
        self._layout = len(schema.MIGRATIONS)
        self._words = Words()
        self._leases: set[str] = set()
        self._taking: set[str] = set()
        self._spool: PostgresSpool | None = None
        self._writing: set[asyncio.Task[object]] = set()
        self._listener = NotificationListener(address)
        self._heartbeat = Heartbeat(self.beat, lease_seconds / BEATS)

    @property
    def dimensions(self) -> int:
        """How many numbers its vectors have; 0: there never was one, when this engine last changed it."""
        return self._embedder.dimensions

    def spool(self, folder: Path) -> PostgresSpool:
        """The uploads in this base; `folder` is for the files that are just read."""
        self._spool = PostgresSpool(self._connections, folder)
        return self._spool

    def subscribe(self, callback: StoreEventCallback) -> None:
        """Listen to the other engines from here on, and give them signs of life."""
        self._listener.start(callback)
        self._heartbeat.start()

    async def beat(self) -> None:
        """A sign of life: this engine's leases and uploads live on, those of dead engines do not.

        Once a newer engine has migrated the base there is none, so that its leases lapse to that one.
        """
        await self._run_read(lambda read: expect_layout(read.db, self._layout))
        if self._leases:
            held = list(self._leases)
            good = await self._run_read(
                lambda read: leases.renew(read, held, self._lease_seconds), readonly=False
            )
            self._leases -= set(held) - good
        if self._spool is not None:
            await self._spool.keep(_FILE_LEASES * self._lease_seconds)
        await self.release_all()

    async def _close(self) -> None:
        await self._heartbeat.stop()
        await self._listener.stop()
        if self._writing:
            await asyncio.wait(self._writing)
        try:
            # Where this fails the leases lapse.
            with suppress(EngineError, asyncpg.PostgresError):
                if held := [*self._leases, *self._taking]:
                    await self._through(lambda write: jobs.hand_back(write, "lease = ANY (?)", (held,)))
        finally:
            await self._connections.close()

    # transactions

    async def _run_write(self, work: Callable[[Write], Coroutine[Any, Any, T]], *, makes_room: bool) -> T:  # noqa: ARG002
        if self._closing is not None:
            raise not_ready("The engine is shutting down.")
        task = asyncio.ensure_future(self._through(work))
        self._writing.add(task)
        task.add_done_callback(self._written)
        return await asyncio.shield(task)

    def _written(self, task: asyncio.Task[T]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have gone

    async def _through(self, work: Callable[[Write], Coroutine[Any, Any, T]]) -> T:
        with as_engine_errors():
            try:
                return await attempted(partial(self._transact, work))
            except Lost:
                # The pool had kept a connection of before the server's restart.
                return await attempted(partial(self._transact, work))

    async def _transact(self, work: Callable[[Write], Coroutine[Any, Any, T]]) -> T:
        async with self._connections.writing() as db:
            transaction = db.transaction()
            try:
                await transaction.start()
                await expect_layout(db, self._layout)
                write = PostgresWrite(
                    db,
                    self._now(),
                    POSTGRES,
                    embedder=self._embedder,
                    layout=self._layout,
                    lease_seconds=self._lease_seconds,
                    logs_changes=self._follower is not None,
                )
                answer = await work(write)
                await write.send_notifications()
            except BaseException as error:
                with suppress(*GONE, asyncpg.PostgresError):
                    await transaction.rollback()
                if was_cut_off(db, error):
                    raise Lost from error
                raise
            await transaction.commit()
            if write.embedder.dimensions:  # once known they stay, whatever a slower transaction has seen
                self._embedder = write.embedder
            return answer

    async def _run_read(self, work: Callable[[Read], Coroutine[Any, Any, T]], *, readonly: bool = True) -> T:
        if self._closing is not None:
            raise not_ready("The engine is shutting down.")
        with as_engine_errors():
            try:
                return await attempted(partial(self._look, work, readonly))
            except Lost:
                return await attempted(partial(self._look, work, readonly))

    async def _look(self, work: Callable[[Read], Coroutine[Any, Any, T]], readonly: bool) -> T:
        async with self._connections.one() as db:
            isolation = "repeatable_read" if readonly else "read_committed"
            try:
                async with asyncio.timeout(READ_SECONDS):
                    async with db.transaction(isolation=isolation, readonly=readonly):
                        return await work(PostgresRead(db, self._now(), POSTGRES))
            except GONE as error:
                if was_cut_off(db, error):
                    raise Lost from error
                raise

    async def _run_search(self, query: Query) -> Found:
        return await self._run_read(partial(self._search, query))

    async def _search(self, query: Query, read: Read) -> Found:
        candidates = await search(read.db, self._embedder, self._words, query)
        return await results.found(read, query, candidates)

    # leases: those that this engine holds, which its heartbeat renews until the job is out of its hands

    async def take(
        self, lease: str, lanes: Collection[Lane] = LANES, without: Collection[str] = ()
    ) -> LeasedJob | None:
        # Not among the leases yet: a beat that does not see it in the base would call it void.
        self._taking.add(lease)
        try:
            leased = await super().take(lease, lanes, without)
        except asyncio.CancelledError:
            raise  # the transaction goes on, and what it takes is handed back in the end
        except BaseException:
            self._taking.discard(lease)
            raise
        self._taking.discard(lease)
        if leased is not None:
            self._leases.add(lease)
        return leased

    async def change_lane(self, leased: LeasedJob, lane: Lane) -> bool:
        changed = await super().change_lane(leased, lane)
        self._leases.discard(leased.lease)
        return changed

    async def commit(self, leased: LeasedJob, prepared: Prepared) -> m.Job | None:
        done = await super().commit(leased, prepared)
        self._leases.discard(leased.lease)
        return done

    async def commit_duplicate(self, leased: LeasedJob) -> m.Job | None:
        done = await super().commit_duplicate(leased)
        if done is not None:
            self._leases.discard(leased.lease)
        return done

    async def fail(self, lease: str, job_id: str, error: m.JobError) -> bool:
        failed = await super().fail(lease, job_id, error)
        self._leases.discard(lease)
        return failed

    # state

    async def counts(self) -> Counts:
        """Totals for `/status`; the spool counts for itself."""
        return await self._read(_counts)

    async def ping(self) -> None:
        await self._run_write(_ping, makes_room=False)
        await self._read(lambda read: read.value("SELECT at FROM pings"))


async def _counts(read: Read) -> Counts:
    size = await read.value(
        "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = ? AND c.relkind = 'r' AND c.relname <> 'spool_parts'",
        (SCHEMA,),
    )
    return await state.counts(read, int(size))


async def _ping(write: Write) -> None:
    sql = "INSERT INTO pings (at) VALUES (?) ON CONFLICT (one) DO UPDATE SET at = EXCLUDED.at"
    await write.rows(sql, (write.now,))
