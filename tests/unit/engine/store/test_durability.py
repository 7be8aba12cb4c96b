"""A transaction happens whole or not at all: over crashes, full disks, cancelled callers and crowds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from kb_contracts.api.errors import EngineError
from kb_engine.store.repository import documents, jobs, state
from kb_engine.store.repository.transaction import answer_to
from kb_engine.store.sqlite import store
from kb_engine.store.sqlite.connection import engine_error
from kb_engine.store.sqlite.store import SqliteStore
from tests.support.stores import (
    Base,
    all_documents,
    axis,
    key,
    left_by_a_crash,
    new_note,
    opened,
    prepared,
)

LONG = "many words that take room " * 400


@pytest.fixture
async def base(tmp_path: Path) -> AsyncIterator[Base]:
    """An empty base."""
    async with opened(tmp_path / "kb.db") as base:
        yield base


async def indexed(store: SqliteStore) -> tuple[int, int, int]:
    """How many chunks the rows, the words and the vectors know."""
    count = "SELECT (SELECT count(*) FROM chunks), (SELECT count(*) FROM words_docsize)"
    rows, words = await store._readers.run(lambda db: db.execute(count).get)
    return rows, words, store._index.snapshot.size


# --- crashes


async def test_what_was_acknowledged_survives_a_crash(base: Base, tmp_path: Path) -> None:
    """Documents, jobs, keys and everything that search needs."""
    document = await base.note("kept words", tags=["t"], vectors=[axis(1)])
    accepted = await base.store.once(key(), jobs.accept, new_note("waits"))
    async with opened(left_by_a_crash(base, tmp_path / "after")) as later:
        assert (await later.store.read(documents.detail, document.uid)).tags == ["t"]
        assert (await later.store.read(jobs.find, accepted.id)).status == "queued"
        assert await later.store.read(answer_to, key()) is not None
        assert (await later.find("kept")).total == 1
        assert (await later.find("", "vector", vector=axis(1))).results[0].score == 1.0


async def test_a_crash_inside_a_commit_leaves_nothing_of_it(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base is as it was before, and the job waits to be released."""
    leased = await base.lease(new_note("half"))
    after: list[Path] = []

    def crash(*_: object, **__: object) -> None:
        after.append(left_by_a_crash(base, tmp_path / "after"))
        raise ZeroDivisionError

    monkeypatch.setattr(jobs, "complete", crash)
    with pytest.raises(ZeroDivisionError):
        await base.store.write(documents.commit, leased, prepared("half"))
    monkeypatch.undo()
    for path in after:
        async with opened(path) as later:
            assert await later.store.write(jobs.release) == 1
            assert (await all_documents(later)).total == 0
            assert await indexed(later.store) == (0, 0, 0)


@pytest.mark.parametrize("broken", ["touch", "publish"])
async def test_a_mutation_that_fails_at_its_end_changes_nothing(
    base: Base, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Rows, words and vectors stay in step, and the next mutation works."""
    document = await base.note("first words", vectors=[axis(0)])

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    target = (documents, "raise_version") if broken == "touch" else (base.store._index, "stage")
    monkeypatch.setattr(*target, fail)
    with pytest.raises(ZeroDivisionError):
        await base.update(document.id, "x", prepared("x", "y"), version=1, idempotency=key())
    monkeypatch.undo()
    assert await indexed(base.store) == (1, 1, 1)
    assert (await base.store.read(documents.detail, document.id)).version == 1
    assert await base.store.read(answer_to, key()) is None
    assert (await base.find("first")).total == 1
    await base.note("second")
    assert await indexed(base.store) == (2, 2, 2)


# --- a full disk


async def fill(base: Base, spare_pages: int = 0) -> None:
    """No more pages than there are, and a few."""

    def bound(db: apsw.Connection) -> None:
        db.pragma("max_page_count", db.pragma("page_count") + spare_pages)

    await base.store._writer.run(bound)


async def test_a_full_disk_is_told_and_changes_nothing(base: Base) -> None:
    """Whatever was to be written."""
    await base.note("before")
    leased = await base.lease(new_note(LONG))
    await fill(base, spare_pages=2)
    with pytest.raises(EngineError) as committing:
        await base.store.write(documents.commit, leased, prepared(*[LONG] * 20))
    with pytest.raises(EngineError) as accepting:
        await base.store.once(key(), jobs.accept, new_note(LONG * 20))
    assert [committing.value.code, accepting.value.code] == ["storage_full"] * 2
    assert await indexed(base.store) == (1, 1, 1)
    assert (await base.find("before")).total == 1
    assert await base.store.read(answer_to, key()) is None


async def test_a_full_disk_that_was_emptied_takes_the_same_work_again(base: Base) -> None:
    """The job still runs under its lease."""
    leased = await base.lease(new_note(LONG))
    await fill(base)
    with pytest.raises(EngineError):
        await base.store.write(documents.commit, leased, prepared(*[LONG] * 20))
    await fill(base, spare_pages=10_000)
    assert await base.store.write(documents.commit, leased, prepared(*[LONG] * 20)) is not None
    assert await indexed(base.store) == (20, 20, 20)


async def test_documents_can_be_deleted_on_a_full_disk(base: Base) -> None:
    """How else would there be room again?"""
    document = await base.note(LONG)
    await fill(base, spare_pages=1)
    await base.store.once(None, documents.delete, document.id)
    assert await indexed(base.store) == (0, 0, 0)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (apsw.SQLITE_FULL, "storage_full"),
        (apsw.SQLITE_IOERR_WRITE, "storage_full"),
        (apsw.SQLITE_IOERR_FSYNC, "storage_full"),
        (apsw.SQLITE_CORRUPT, "internal"),
        (apsw.SQLITE_BUSY, "not_ready"),
    ],
)
def test_what_the_disk_says_becomes_a_code_of_the_contract(code: int, told: str) -> None:
    """A quota shows itself as a failed write."""
    error = engine_error(apsw.exception_for(code))
    assert error is not None
    assert error.code == told


def test_a_disk_that_cannot_be_read_is_not_called_full() -> None:
    """That would send people to the wrong place."""
    assert engine_error(apsw.exception_for(apsw.SQLITE_IOERR_READ)) is None


async def test_the_log_is_moved_into_the_base_as_it_grows(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between transactions, so that it starts again from its beginning."""
    monkeypatch.setattr(store, "CHECKPOINT_PAGES", 50)
    log = base.path.with_name("kb.db-wal")
    for number in range(60):
        await base.note(f"{number} {LONG}")
    assert log.stat().st_size < base.path.stat().st_size / 2


# --- cancelled callers


async def test_a_caller_that_gives_up_leaves_no_half_transaction(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had begun ends whole, and what comes after finds the base free."""
    leased = await base.lease(new_note("a"))
    began, go = threading.Event(), threading.Event()
    insert = documents.insert

    def slowly(*args: object) -> object:
        began.set()
        assert go.wait(10)
        return insert(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(documents, "insert", slowly)
    committing = asyncio.ensure_future(base.store.write(documents.commit, leased, prepared("a")))
    await asyncio.to_thread(began.wait, 10)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    go.set()
    assert (await base.store.once(None, documents.add_tags, 1, ["t"], 1)).version == 2
    assert (await base.store.read(jobs.find, leased.job.id)).status == "completed"
    assert await indexed(base.store) == (1, 1, 1)


async def test_work_that_had_not_begun_when_its_caller_gave_up_is_never_done(base: Base) -> None:
    """The queue of the writing thread forgets it."""
    free = threading.Event()
    busy = asyncio.ensure_future(base.store._writer.run(lambda _: free.wait(10)))
    waiting = asyncio.ensure_future(base.store.once(None, jobs.accept, new_note("a")))
    await asyncio.sleep(0)
    waiting.cancel()
    free.set()
    await busy
    assert (await base.store.read(state.counts)).queue.queued == 0


async def test_closing_waits_for_what_is_under_way(tmp_path: Path) -> None:
    """Nothing that was begun is lost."""
    async with opened(tmp_path / "kb.db") as base:
        pending = [
            asyncio.ensure_future(base.store.once(None, jobs.accept, new_note(str(n)))) for n in range(20)
        ]
        await asyncio.sleep(0)
        await base.store.close()
        await asyncio.gather(*pending)
    async with opened(tmp_path / "kb.db") as base:
        assert (await base.store.read(state.counts)).queue.queued == 20
