"""Several engines on one base: a job is an engine's as long as its lease is renewed, then another's."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import asyncpg
import pytest
from asyncpg.transaction import Transaction

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.requests import Idempotency
from kb_engine.address import address_of
from kb_engine.store.port import Bounds, JobProgress, LeasedJob, NewJob, StoreEvent
from kb_engine.store.postgres import postgres_store as postgres_store
from kb_engine.store.postgres import schema
from kb_engine.store.postgres.connection import CONNECTIONS, LISTENER, STOPPED_SECONDS, WRITERS, connect
from kb_engine.store.postgres.transaction import lock_base
from kb_engine.store.repository import documents, jobs, state, updates
from kb_engine.store.repository.transaction import Read, Write
from tests.support.contract_objects import job_error
from tests.support.eventually import eventually_async
from tests.support.patience import ANSWER_SECONDS, JOB_SECONDS, SILENCE
from tests.support.postgres import Database, give_back, new_database
from tests.support.stores import EMBEDDER, Base, all_documents, new_file, new_note, opened, prepared

pytestmark = pytest.mark.process

ERROR = job_error()
_WAITING_FOR_ROWS = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


@dataclass
class Two:
    database: Database
    one: Base
    other: Base

    async def uploaded(self) -> NewJob:
        """Return a job whose file is in the spool."""
        job = new_file("a")
        await self.database.execute(f"INSERT INTO spool_files (name) VALUES ('{job.spool}')")
        return job

    async def lapse(self) -> None:
        await self.database.execute(
            "UPDATE jobs SET lease_until = now() - interval '1 second' WHERE lease <> ''"
        )


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    database = await new_database()
    async with opened(database) as one, opened(database) as other:
        yield Two(database, one, other)
    give_back(database)


async def test_a_job_in_hand_is_not_released_by_an_engine_that_starts(two: Two) -> None:
    leased = await two.one.lease(new_note("a"))
    assert await two.other.store.write(jobs.release) == 0
    assert await two.other.store.write(jobs.take, "mine") is None
    assert await two.one.commit(leased, prepared("a")) is not None


async def test_a_lapsed_lease_makes_the_job_anybodys_and_its_holder_nobody(two: Two) -> None:
    """Whatever the first engine still does is refused, and the document comes from the second alone."""
    first = await two.one.lease(new_note("a"))
    await two.lapse()
    assert await two.other.store.write(jobs.release) == 1
    second = await two.other.take("second")
    assert second.attempts == 2
    assert not await two.one.store.write(
        jobs.report, first.lease, first.job.id, JobProgress("embedding", 1, 2)
    )
    assert await two.one.commit(first, prepared("a")) is None
    assert await two.one.store.write(documents.commit_duplicate, first) is None
    assert not await two.one.store.write(jobs.fail, first.lease, first.job.id, ERROR)
    assert (await all_documents(two.one)).total == 0
    assert await two.other.commit(second, prepared("a")) is not None
    assert (await all_documents(two.one)).total == 1


async def test_a_newer_engine_takes_over_from_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The older engine still serves reads, but changes nothing in an unknown layout; its leases expire."""
    extra = "CREATE TABLE extra (x integer)"
    database = await new_database(empty=True)
    async with opened(database) as older:
        document = await older.note("words")
        leased = await older.lease(new_note("a"))
        monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, extra))
        async with opened(database) as newer:
            both = Two(database, older, newer)
            store = older.store
            assert (await store.read(documents.detail, document.id)).version == 1
            assert (await older.find("words")).total == 1
            refused = (
                lambda: store.once(None, documents.add_tags, document.id, ["t"], None),
                lambda: store.once(None, jobs.accept, new_note("b")),
                lambda: store.write(jobs.take, "again"),
                lambda: store.write(jobs.report, leased.lease, leased.job.id, JobProgress("embedding", 1, 2)),
                lambda: store.write(documents.commit, leased, prepared("a")),
                store.ping,
                store.beat,
            )
            await both.lapse()
            for call in refused:
                with pytest.raises(EngineError, match=r"newer engine.*Stop this") as caught:
                    await call()
                assert caught.value.code == "not_ready"
            assert await newer.store.write(jobs.release) == 1
            taken = await newer.take("newer")
            assert await newer.commit(taken, prepared("a")) is not None
            assert (await all_documents(older)).total == 2


@asynccontextmanager
async def held_base(two: Two, *works: Awaitable[Any], waiting: int = 1) -> AsyncIterator[asyncio.Future[Any]]:
    """Hold the base's lock until the block ends; `waiting` of the `works` wait for it."""
    db = await connect(two.database.address)
    try:
        async with asyncio.timeout(ANSWER_SECONDS), db.transaction():
            await lock_base(db, shared=False)
            done = asyncio.gather(*works)

            async def held() -> int:
                return int(await two.database.value(_WAITING_FOR_ROWS))

            await eventually_async(held, lambda count: count >= waiting, what="the wait")
            yield done
    finally:
        await db.close()


async def test_a_migration_waits_for_changes_in_flight(two: Two) -> None:
    migrations = (*schema.MIGRATIONS, "SELECT 1 / 0")
    migrating = two.database.ask(lambda db: schema.migrate(db, two.database.address, migrations))
    async with held_base(two, migrating) as waiting:
        assert not waiting.done()
    with pytest.raises(asyncpg.DivisionByZeroError):
        await waiting


async def test_a_change_that_waited_for_a_migration_is_refused(two: Two) -> None:
    """It reads the layout's version again once it has the lock."""
    document = await two.one.note("a")
    change = two.one.store.once(None, documents.add_tags, document.id, ["t"], None)
    async with held_base(two, change) as waiting:
        await two.database.execute("UPDATE layout SET version = version + 1")
    try:
        with pytest.raises(EngineError, match="newer engine"):
            await waiting
    finally:
        await two.database.execute("UPDATE layout SET version = version - 1")


async def test_a_lapsed_lease_that_nobody_took_is_still_good(two: Two) -> None:
    leased = await two.one.lease(new_note("a"))
    await two.lapse()
    await two.one.store.beat()
    assert await two.other.store.write(jobs.release) == 0
    await two.lapse()
    assert await two.one.commit(leased, prepared("a")) is not None


async def test_signs_of_life_keep_what_is_in_hand(two: Two) -> None:
    """The time does not matter; heartbeats of another engine do not renew the lease."""
    await two.one.lease(new_note("a"))
    await two.lapse()
    await two.one.store.beat()
    await two.other.store.beat()
    assert (await two.one.store.read(state.counts)).queue.running == 1
    await two.lapse()
    await two.other.store.beat()
    assert (await two.one.store.read(state.counts)).queue.queued == 1


async def test_a_beat_that_meets_a_job_being_taken_leaves_its_lease_alone(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat reads the base just before the job is leased, and returns just after."""
    store, asked, taken = two.one.store, asyncio.Event(), asyncio.Event()
    renew, take = postgres_store.renew, jobs.take

    async def late(*given: Any) -> set[str]:
        good = await renew(*given)
        asked.set()
        await taken.wait()
        return good

    async def after_the_beat(*given: Any) -> LeasedJob | None:
        await asked.wait()
        return await take(*given)

    await two.one.lease(new_note("a"))
    await store.once(None, jobs.accept, new_note("b"))
    monkeypatch.setattr(postgres_store, "renew", late)
    monkeypatch.setattr(jobs, "take", after_the_beat)
    async with asyncio.timeout(ANSWER_SECONDS):
        taking = asyncio.ensure_future(store.write(jobs.take, "L"))
        await asyncio.sleep(0)  # lets it begin
        beating = asyncio.ensure_future(store.beat())
        assert await taking is not None
        taken.set()
        await beating
    await two.lapse()
    await store.beat()
    assert (await store.read(state.counts)).queue.running == 2


async def test_a_job_that_is_being_taken_when_the_engine_stops_is_handed_back(two: Two) -> None:
    """Its worker is stopped before the store."""
    job = await two.one.accept(new_note("a"))
    taking = asyncio.ensure_future(two.one.store.write(jobs.take, "L"))
    await asyncio.sleep(0)  # lets it begin
    taking.cancel()
    await asyncio.wait([taking])
    await two.one.store.close()
    standing = await two.other.store.read(jobs.find, job.id)
    assert (standing.status, standing.attempts) == ("queued", 0)


async def test_changes_that_wait_leave_room_for_searches_and_leases(two: Two) -> None:
    document = await two.one.note("a")
    store = two.one.store
    await two.one.lease(new_note("b"))
    changes = [store.once(None, documents.add_tags, document.id, [f"t{n}"], None) for n in range(12)]
    async with held_base(two, *changes, waiting=WRITERS) as done:
        assert len(await two.one.titles("a")) == 1
        await two.lapse()
        beating = asyncio.ensure_future(store.beat())
        await eventually_async(
            lambda: two.database.value("SELECT count(*) FROM jobs WHERE lease_until < now()"),
            lambda lapsed: lapsed == 0,
            what="the beat",
        )
    await asyncio.gather(beating, done)


async def test_a_job_whose_engines_died_keeps_its_file(two: Two) -> None:
    job = await two.uploaded()
    await two.one.accept(job)
    for number in range(3):
        assert await two.one.store.write(jobs.release) == min(number, 1)
        assert await two.one.store.write(jobs.take, f"L{number}") is not None
        await two.lapse()
    assert await two.other.store.write(jobs.release) == 1
    assert (await two.other.store.read(jobs.find, job.id)).status == "queued"
    assert await two.one.count("spool_files") == 1


async def test_a_failed_job_keeps_its_file_until_it_is_let_go(two: Two) -> None:
    job = await two.uploaded()
    leased = await two.one.lease(job)
    assert await two.one.store.write(jobs.fail, leased.lease, job.id, ERROR)
    assert await two.one.count("spool_files") == 1
    await two.other.store.write(jobs.let_go, [job.id])
    assert await two.one.count("spool_files") == 0


async def test_too_many_waiting_jobs_are_refused_by_all_engines_together() -> None:
    database = await new_database()
    bounds = Bounds(queued=5)
    async with opened(database, bounds=bounds) as one, opened(database, bounds=bounds) as other:
        asked = [base.accept(new_note(f"{n}")) for n in range(8) for base in (one, other)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(answer, m.Job) for answer in answers) == 5
    give_back(database)


async def test_an_engine_that_stops_hands_back_its_own_jobs_only(two: Two) -> None:
    mine = await two.one.lease(new_note("a"))
    await two.other.lease(new_note("b"))
    await two.one.store.close()
    assert (await two.other.store.read(jobs.find, mine.job.id)).status == "queued"
    again = await two.other.take("again")
    assert again.attempts == 1
    assert (await two.other.store.read(state.counts)).queue.running == 2


async def test_a_lease_committed_on_a_lost_connection_is_returned(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the leased job would have no worker, and its lease would be renewed forever."""
    kill = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE query = 'COMMIT;'"
    commit = Transaction.commit

    async def commit_and_lose(transaction: Transaction) -> None:
        await commit(transaction)
        # In a thread that blocks the loop, which must not notice the lost connection yet.
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(asyncio.run, two.database.execute(kill)).result(ANSWER_SECONDS)

    await two.one.accept(new_note("a"))
    with monkeypatch.context() as cut:
        cut.setattr(Transaction, "commit", commit_and_lose)
        leased = await two.one.take("mine")
    assert (await two.one.store.read(jobs.find, leased.job.id)).status == "running"


async def test_the_events_of_one_engine_reach_the_other(two: Two) -> None:
    events: asyncio.Queue[StoreEvent] = asyncio.Queue()
    two.other.store.subscribe(events.put_nowait)

    async def received() -> tuple[str, str | None]:
        async with asyncio.timeout(ANSWER_SECONDS):
            event = await events.get()
        return event.kind, event.job_id

    assert await received() == ("resumed", None)
    done = await two.one.ingest(new_note("a"), prepared("a"))
    assert [await received(), await received()] == [("queued", None), ("ended", done.id)]
    waiting = await two.one.accept(new_note("b"))
    await two.one.store.once(None, jobs.cancel, waiting.id)
    assert [await received(), await received()] == [("queued", None), ("cancelled", waiting.id)]
    await two.one.store.once(None, documents.clear)
    assert await received() == ("cleared", None)


async def test_an_engine_reconnects_to_a_server_that_stops_responding(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "_SILENT_SECONDS", 1.0)
    events: asyncio.Queue[StoreEvent] = asyncio.Queue()
    stopped: list[int] = []

    def stop(process: int) -> None:
        os.kill(process, signal.SIGSTOP)
        stopped.append(process)

    async def reading(read: Read) -> int:
        if len(stopped) <= CONNECTIONS:
            stop(await read.value("SELECT pg_backend_pid()"))
        return int(await read.value("SELECT 7"))

    two.other.store.subscribe(events.put_nowait)
    async with asyncio.timeout(JOB_SECONDS):
        assert (await events.get()).kind == "resumed"
        stop(two.other.store._listener)
        try:
            # The last one waits for a connection.
            reads = [two.other.store.read(reading) for _ in range(CONNECTIONS + 1)]
            assert set(await asyncio.gather(*reads)) == {7}
            assert (await events.get()).kind == "resumed"
        finally:
            for process in stopped:
                os.kill(process, signal.SIGCONT)


def while_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Do the work in a thread that blocks the loop, which a stopped process does not run either."""
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(asyncio.run, work).result(ANSWER_SECONDS)


@pytest.mark.parametrize("is_pooled", [False, True])
async def test_a_change_of_a_stopped_engine_lets_others_go_on_and_is_repeated(
    database: Database, is_pooled: bool
) -> None:
    limits: list[str] = []

    async def stopped(write: Write) -> None:
        limits.append(await write.value("SELECT current_setting('idle_in_transaction_session_timeout')"))
        await documents.add_tags(write, note.id, ["one"], None)
        if len(limits) == 1:
            shorter = "SELECT set_config('idle_in_transaction_session_timeout', ?, true)"
            await write.rows(shorter, (f"{SILENCE}s",))
            while_stopped(database.execute("SELECT FROM documents FOR UPDATE"))
            await state.generation(write)

    async with opened(database, pooler=database.address if is_pooled else None) as base:
        note = await base.note("a")
        await base.store.write(stopped)
        assert (await base.detail(note.id)).tags == ["one"]
    assert limits == [f"{STOPPED_SECONDS}s"] * 2


async def test_the_transaction_of_an_engine_that_is_stopped_while_it_sends_is_ended_by_another(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "STOPPED_SECONDS", SILENCE)
    monkeypatch.setattr(postgres_store, "_SILENT_SECONDS", 1.0)
    begun: list[str] = []
    sending = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY%' AND xact_start IS NOT NULL"

    async def other() -> None:
        async with opened(database) as base:
            base.store.subscribe(lambda _event: None)
            await eventually_async(lambda: database.value(sending), lambda count: count == 0)

    def records() -> Iterator[tuple[int, str]]:
        while_stopped(other())
        yield 1, ""

    async def stopped(write: Write) -> int:
        begun.append("transaction")
        if len(begun) == 1:
            await write.db.copy_records_to_table("word_orders", records=records())
        return await state.generation(write)

    async with opened(database) as base:
        await base.store.write(stopped)
    assert len(begun) == 2


async def test_an_engine_whose_role_may_not_end_sessions_listens_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(postgres_store, "_SILENT_SECONDS", SILENCE)
    database = await new_database()
    events: asyncio.Queue[StoreEvent] = asyncio.Queue()
    await database.execute(
        "REVOKE EXECUTE ON FUNCTION pg_terminate_backend FROM public, kb; "
        "CREATE ROLE confined LOGIN IN ROLE kb"
    )
    confined = address_of(database.url.replace("kb:", "confined:", 1))
    store = await postgres_store.open_postgres(confined, embedder=EMBEDDER)
    store.subscribe(events.put_nowait)
    looks = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'confined' AND query = 'SELECT 0'"
    await eventually_async(lambda: database.value(looks), bool)
    await store.close()
    assert events.qsize() == 1
    assert [each.message for each in caplog.records] == ["cannot end the transactions of stopped engines"]


async def test_engines_are_called_for_a_queued_job_until_one_has_room(two: Two) -> None:
    """Each once, the accepting one first."""
    called: list[str] = []
    ended: asyncio.Queue[str] = asyncio.Queue()
    busy = 0

    def hear(name: str, event: StoreEvent) -> bool:
        if event.kind == "queued":
            called.append(name)
        if event.kind == "ended":
            ended.put_nowait(name)
        return len(called) > busy

    async with opened(two.database) as third:
        engines = {"accepting": two.one, "other": two.other, "third": third}
        for name, engine in engines.items():
            engine.store.subscribe(partial(hear, name))
        await eventually_async(lambda: listeners(two.database), lambda count: count == 3, what="listeners")
        for busy in range(3):
            called.clear()
            await two.one.ingest(new_note(f"a{busy}"), prepared("a"))
            async with asyncio.timeout(ANSWER_SECONDS):
                assert {await ended.get() for _ in engines} == set(engines)  # sent after the call
            await eventually_async(lambda: len(called), lambda count: count > busy, what="calls")  # noqa: B023
            assert called[0] == "accepting"
            assert len(called) == len(set(called)) == busy + 1


def listeners(database: Database) -> Awaitable[int]:
    return database.value(
        "SELECT count(*) FROM pg_stat_activity "
        f"WHERE datname = current_database() AND application_name = '{LISTENER}' AND query LIKE 'LISTEN%'"
    )


async def test_the_end_of_an_update_calls_the_other_engine_to_the_next_one(two: Two) -> None:
    events: asyncio.Queue[StoreEvent] = asyncio.Queue()
    two.other.store.subscribe(events.put_nowait)
    async with asyncio.timeout(ANSWER_SECONDS):
        assert (await events.get()).kind == "resumed"
        note = await two.one.ingest(new_note("a"), prepared("a"))
        assert note.document_id is not None
        once = Idempotency("key", "caller", "operation", "same")
        await two.one.store.write(updates.accept, note.document_id, m.NotePatch(text="b"), once)
        update = await two.one.take("mine")
        await two.one.store.write(jobs.fail, update.lease, update.job.id, job_error("internal"))
        kinds = [(await events.get()).kind for _ in range(5)]
        assert kinds == ["queued", "ended", "queued", "queued", "ended"]


async def test_a_listener_that_was_cut_off_listens_again_and_says_so(two: Two) -> None:
    events: asyncio.Queue[StoreEvent] = asyncio.Queue()
    two.other.store.subscribe(events.put_nowait)
    async with asyncio.timeout(ANSWER_SECONDS):
        assert (await events.get()).kind == "resumed"
        await two.database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' "
            "AND datname = current_database()"
        )
        assert (await events.get()).kind == "resumed"
        await two.one.accept(new_note("a"))
        assert (await events.get()).kind == "queued"
