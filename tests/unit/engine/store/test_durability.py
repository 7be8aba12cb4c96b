"""A transaction is atomic across crashes, full disks, cancelled callers and concurrency."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import apsw
import pytest

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_engine.serving import running
from kb_engine.settings import EngineSettings
from kb_engine.start_errors import StartError
from kb_engine.store.port import BaseUnwritable
from kb_engine.store.repository import documents, jobs, state
from kb_engine.store.repository.transaction import answer_to
from kb_engine.store.sqlite import reserve
from kb_engine.store.sqlite import sqlite_store as store
from kb_engine.store.sqlite.connection import engine_error
from kb_engine.store.sqlite.sqlite_store import SqliteStore
from tests.support.disks import fill, small_disk, take_inodes
from tests.support.new_base import RESERVE_DIVISOR
from tests.support.patience import ANSWER_SECONDS
from tests.support.stores import (
    Base,
    all_documents,
    axis,
    key,
    left_by_a_crash,
    new_note,
    opened,
    prepared,
    refused,
)

LONG = "many words that take room " * 400
DISK = "24m"
CHUNKS = [f"chunk {number} " + "words that take room " * 100 for number in range(100)]


@pytest.fixture
async def base(tmp_path: Path) -> AsyncIterator[Base]:
    async with opened(tmp_path / "kb.db") as base:
        yield base


async def indexed(store: SqliteStore) -> tuple[int, int]:
    """Return the number of chunks in the base and in the index."""
    rows = await store._readers.run(lambda db: db.execute("SELECT count(*) FROM chunks").get)
    return rows, store._index.state.size


# --- crashes


async def test_acknowledged_documents_and_jobs_survive_a_crash(base: Base, tmp_path: Path) -> None:
    document = await base.note("kept words", tags=["t"], vectors=[axis(1)])
    accepted = await base.store.once(key(), jobs.accept, new_note("waits"))
    async with opened(left_by_a_crash(base, tmp_path / "after")) as later:
        assert (await later.detail(document.uid)).tags == ["t"]
        assert (await later.store.read(jobs.find, accepted.id)).status == "queued"
        assert await later.store.read(answer_to, key()) is not None
        assert (await later.find("kept")).total == 1
        assert (await later.find("", "vector", vector=axis(1))).results[0].score == 1.0


async def test_a_crash_inside_a_commit_leaves_nothing_of_it(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased = await base.lease(new_note("half"))
    after: list[Path] = []

    def crash(*_: object, **__: object) -> None:
        after.append(left_by_a_crash(base, tmp_path / "after"))
        raise ZeroDivisionError

    monkeypatch.setattr(jobs, "complete", crash)
    with pytest.raises(ZeroDivisionError):
        await base.commit(leased, prepared("half"))
    monkeypatch.undo()
    for path in after:
        async with opened(path) as later:
            assert await later.store.write(jobs.release) == 1
            assert (await all_documents(later)).total == 0
            assert await indexed(later.store) == (0, 0)


@pytest.mark.parametrize("broken", ["touch", "publish"])
async def test_a_mutation_that_fails_at_its_end_changes_nothing(
    base: Base, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    document = await base.note("first words", vectors=[axis(0)])

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    target, name = (documents, "raise_version") if broken == "touch" else (base.store._index, "stage")
    monkeypatch.setattr(target, name, fail)
    with pytest.raises(ZeroDivisionError):
        await base.update(document.id, "x", prepared("x", "y"), version=1, idempotency=key())
    monkeypatch.undo()
    assert await indexed(base.store) == (1, 1)
    assert (await base.detail(document.id)).version == 1
    assert await base.store.read(answer_to, key()) is None
    assert (await base.find("first")).total == 1
    await base.note("second")
    assert await indexed(base.store) == (2, 2)


# --- a full disk


async def bound_pages(base: Base, spare_pages: int = 0) -> None:
    """Limit the file to its current pages and a few more."""

    def bound(db: apsw.Connection) -> None:
        db.pragma("max_page_count", db.pragma("page_count") + spare_pages)

    await base.store._writer.run(bound)


async def test_a_full_disk_is_told_and_changes_nothing(base: Base) -> None:
    await base.note("before")
    leased = await base.lease(new_note(LONG))
    await bound_pages(base, spare_pages=2)
    for call in (
        base.commit(leased, prepared(*[LONG] * 20)),
        base.store.once(key(), jobs.accept, new_note(LONG * 20)),
    ):
        assert (await refused(call)).code == "storage_full"
    assert await indexed(base.store) == (1, 1)
    assert (await base.find("before")).total == 1
    assert await base.store.read(answer_to, key()) is None


async def test_a_full_disk_that_was_emptied_takes_the_same_work_again(base: Base) -> None:
    leased = await base.lease(new_note(LONG))
    await bound_pages(base)
    assert (await refused(base.commit(leased, prepared(*[LONG] * 20)))).code == "storage_full"
    await bound_pages(base, spare_pages=10_000)
    assert await base.commit(leased, prepared(*[LONG] * 20)) is not None
    assert await indexed(base.store) == (20, 20)


async def test_a_deletion_needs_no_room_that_is_not_there(base: Base) -> None:
    document = await base.note(LONG)
    await bound_pages(base, spare_pages=1)
    await base.store.once(None, documents.delete, document.id)
    assert await indexed(base.store) == (0, 0)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (apsw.SQLITE_FULL, "storage_full"),
        (apsw.SQLITE_IOERR_WRITE, "storage_full"),
        (apsw.SQLITE_IOERR_FSYNC, "storage_full"),
        (apsw.SQLITE_CORRUPT, "internal"),
        (apsw.SQLITE_BUSY, "not_ready"),
        (apsw.SQLITE_IOERR_READ, None),
    ],
)
def test_errors_of_the_disk_become_error_codes_of_the_contract(code: int, told: str | None) -> None:
    """A quota appears as a failed write. An unreadable disk is not reported as full."""
    failure = apsw.exception_for(code)
    assert isinstance(failure, apsw.Error)
    error = engine_error(failure)
    assert (error and error.code) == told


async def test_the_log_is_moved_into_the_base_as_it_grows(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between transactions, so that it restarts from its beginning."""
    monkeypatch.setattr(store, "CHECKPOINT_PAGES", 50)
    log = base.path.with_name("kb.db-wal")
    for number in range(60):
        await base.note(f"{number} {LONG}")
    assert log.stat().st_size < base.path.stat().st_size / 2


# --- a full disk that is real: a small file system of its own


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(reserve, "RESERVE_BYTES", reserve.RESERVE_BYTES * RESERVE_DIVISOR)
    with small_disk(tmp_path / "disk", DISK) as folder:
        yield folder


async def fill_with_notes(base: Base) -> list[int]:
    added: list[int] = []
    with suppress(EngineError):  # `expect_full` checks that the disk is full
        while True:
            added.append((await base.note(*CHUNKS, dedup_scope=f"{len(added)}")).id)
    return added


async def expect_full(base: Base) -> None:
    """The disk refuses a job, if not the first: a merge of the index may have freed room meanwhile."""

    async def accept() -> None:
        while True:
            await base.accept(new_note(" ".join(CHUNKS) * 50))

    assert (await refused(accept())).code == "storage_full"


@pytest.mark.process
@pytest.mark.parametrize("others", [False, True], ids=["with documents", "by another program"])
async def test_documents_can_be_deleted_on_a_full_disk(disk: Path, others: bool) -> None:
    async with opened(disk / "kb.db") as base:
        if others:
            added = [(await base.note(*CHUNKS, dedup_scope=f"{number}")).id for number in range(8)]
            fill(disk)
        else:
            added = await fill_with_notes(base)
        await expect_full(base)
        for number, document in enumerate(added[:4]):
            removed = await base.store.once(key(f"key {number}"), documents.delete, document)
            assert (removed.documents, removed.chunks) == (1, len(CHUNKS))
        assert (await base.store.once(key("all"), documents.clear)).documents == len(added) - 4
        assert (await base.find("words")).total == 0


@pytest.mark.process
async def test_deletions_make_room_on_a_full_disk(disk: Path) -> None:
    async with opened(disk / "kb.db") as base:
        added = await fill_with_notes(base)
        for _ in range(3):
            for document in added[:4]:
                await base.store.once(None, documents.delete, document)
            added = added[4:]
            for number in range(3):
                added.append((await base.note(*CHUNKS, dedup_scope=f"{document} {number}")).id)


@pytest.mark.process
async def test_versions_and_trash_make_room_first(disk: Path) -> None:
    """A base with versions takes nearly as many notes as one without."""
    counts = []
    for removed in (0, 6):
        async with opened(disk / "kb.db") as base:
            for number in range(removed):
                gone = await base.note(*CHUNKS, dedup_scope=f"gone {number}")
                await base.store.write(documents.delete, gone.id)
            assert await base.count("versions") == removed
            counts.append(len(await fill_with_notes(base)))
            assert await base.count("versions") == 0
            made_room = [issue for issue in base.store.issues if "made room" in issue]
            assert len(made_room) == bool(removed)
        for path in disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert counts[1] >= counts[0] - 2, counts


async def test_a_waiting_job_can_be_cancelled_on_a_full_disk(disk: Path) -> None:
    async with opened(disk / "kb.db") as base:
        job = await base.accept(new_note("waits"))
        fill(disk)
        await expect_full(base)
        assert (await base.store.once(key(), jobs.cancel, job.id)).status == "cancelled"


async def test_a_base_on_a_full_disk_opens_and_documents_can_be_deleted(disk: Path) -> None:
    """People first try to restart the engine."""
    async with opened(disk / "kb.db") as base:
        document = await base.note(*CHUNKS)
        fill(disk)
    fill(disk)
    async with opened(disk / "kb.db") as base:
        assert (await base.find("words")).total == len(CHUNKS)
        fill(disk)
        assert (await base.store.once(key(), documents.delete, document.id)).documents == 1


# --- writes that wait together


@asynccontextmanager
async def one_transaction(base: Base) -> AsyncIterator[list[None]]:
    """Hold the writer thread until the end of the block; yield a list with one item for each commit."""
    commits: list[None] = []
    free = threading.Event()

    def committed() -> bool:
        commits.append(None)
        return False

    def wait(db: apsw.Connection) -> None:
        db.set_commit_hook(committed)
        assert free.wait(ANSWER_SECONDS)

    busy = asyncio.ensure_future(base.store._writer.run(wait))
    yield commits
    free.set()
    await busy


async def begun(*calls: Awaitable[object]) -> list[asyncio.Future[object]]:
    """Return the calls as futures, which now wait for the thread."""
    futures: list[asyncio.Future[object]] = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    return futures


async def test_writes_that_wait_are_committed_together(base: Base, tmp_path: Path) -> None:
    leased = [await base.lease(new_note(str(number))) for number in range(10)]
    async with one_transaction(base) as commits:
        pending = await begun(
            *(base.commit(each, prepared(each.job.text or "")) for each in leased),
            *(base.accept(new_note(f"next {number}")) for number in range(10)),
        )
    await asyncio.gather(*pending)
    assert len(commits) == 1
    assert await indexed(base.store) == (10, 10)
    async with opened(left_by_a_crash(base, tmp_path / "after")) as later:
        assert (await later.store.read(state.counts)).queue.queued == 10
        assert await indexed(later.store) == (10, 10)


async def test_a_write_that_fails_is_in_nobodys_way(base: Base) -> None:
    document = await base.note("first")
    async with one_transaction(base):
        pending = await begun(
            base.accept(new_note("a")),
            base.store.once(None, documents.add_tags, document.id, ["t"], 9),
            base.accept(new_note("b")),
        )
    first, refusal, last = await asyncio.gather(*pending, return_exceptions=True)
    assert isinstance(refusal, EngineError)
    assert refusal.code == "version_conflict"
    assert [isinstance(each, m.Job) for each in (first, last)] == [True, True]
    assert (await base.store.read(state.counts)).queue.queued == 2


async def test_clearing_removes_a_document_added_in_the_same_transaction(base: Base) -> None:
    leased = [await base.lease(new_note(text)) for text in ("a", "b")]
    async with one_transaction(base) as commits:
        pending = await begun(
            base.commit(leased[0], prepared("a")),
            base.store.once(None, documents.clear),
            base.commit(leased[1], prepared("b")),
        )
    await asyncio.gather(*pending)
    assert len(commits) == 1
    assert await indexed(base.store) == (0, 0)  # the second job was cancelled with the first's document
    await base.note("c")
    assert await indexed(base.store) == (1, 1)


async def test_a_write_fails_where_the_base_cannot_be_opened(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it can, the next write succeeds; no write waits forever."""

    def locked(_path: Path) -> apsw.Connection:
        raise apsw.BusyError("locked")

    with monkeypatch.context() as patch:
        patch.setattr(store, "connect", locked)
        refusal = await refused(base.accept(new_note("a")))
    assert refusal.code == "not_ready"
    await base.accept(new_note("b"))
    assert (await base.store.read(state.counts)).queue.queued == 1


async def test_a_large_commit_does_not_wait_for_the_next_one(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "GROUP_CHUNKS", 2)
    leased = [await base.lease(new_note(text)) for text in ("a", "b")]
    async with one_transaction(base) as commits:
        pending = await begun(*(base.commit(each, prepared("x", "y")) for each in leased))
    await asyncio.gather(*pending)
    assert len(commits) == 2


# --- cancelled callers


async def test_a_caller_that_gives_up_leaves_no_half_transaction(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased = await base.lease(new_note("a"))
    began, go = threading.Event(), threading.Event()
    insert = documents.insert

    def slowly(*args: object) -> object:
        began.set()
        assert go.wait(ANSWER_SECONDS)
        return insert(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(documents, "insert", slowly)
    committing = asyncio.ensure_future(base.commit(leased, prepared("a")))
    assert await asyncio.to_thread(began.wait, ANSWER_SECONDS)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    go.set()
    assert (await base.store.once(None, documents.add_tags, 1, ["t"], 1)).version == 2
    assert (await base.store.read(jobs.find, leased.job.id)).status == "completed"
    assert await indexed(base.store) == (1, 1)


async def test_work_that_had_not_begun_when_its_caller_gave_up_is_never_done(base: Base) -> None:
    free = threading.Event()
    busy = asyncio.ensure_future(base.store._writer.run(lambda _: free.wait(ANSWER_SECONDS)))
    waiting = asyncio.ensure_future(base.accept(new_note("a")))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    free.set()
    await busy
    assert (await base.store.read(state.counts)).queue.queued == 0


async def test_closing_the_store_waits_for_pending_writes(tmp_path: Path) -> None:
    async with opened(tmp_path / "kb.db") as base:
        pending = [asyncio.ensure_future(base.accept(new_note(str(n)))) for n in range(20)]
        await asyncio.sleep(0)
        await base.store.close()
        await asyncio.gather(*pending)
    async with opened(tmp_path / "kb.db") as base:
        assert (await base.store.read(state.counts)).queue.queued == 20


@pytest.mark.process
@pytest.mark.parametrize("left", range(4))
async def test_without_inodes_an_engine_starts_or_is_refused_in_one_line(tmp_path: Path, left: int) -> None:
    """Whatever file is the first that cannot be made; with inodes it starts again."""
    with small_disk(tmp_path / "disk", "64m", inodes=64) as disk:
        settings = EngineSettings(home=disk / "home", embedder="hash", port=0)

        async def start() -> None:
            async with running(settings):
                pass

        await start()
        take_inodes(disk, left)
        try:
            await start()
        except (BaseUnwritable, StartError) as error:
            said = str(error)
            assert ("has no inodes free" in said, "Remove files there" in said, "\n" in said) == (
                True,
                True,
                False,
            )
        else:
            assert left
        for other in disk.glob("other *"):
            other.unlink()
        await start()
