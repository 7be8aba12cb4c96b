"""Uploads in the database: complete or absent, for every engine, and removed with their job."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kb_contracts.api.models import JobError
from kb_engine.ingest.failed_jobs import FailedJobBounds, FailedJobs
from kb_engine.store.postgres import postgres_store as store
from kb_engine.store.postgres.postgres_store import PostgresSpool
from kb_engine.store.repository import documents, jobs
from tests.support.postgres import Database, give_back, new_database
from tests.support.stores import Base, new_file, opened, prepared, refused

pytestmark = pytest.mark.process


@dataclass
class Spooled:
    base: Base
    spool: PostgresSpool
    database: Database
    folder: Path

    async def receive(self, name: str, data: bytes = b"abc") -> None:
        async with self.spool.receive(name) as file:
            await file.write(data)

    async def content(self, name: str) -> bytes:
        async with self.spool.open(name) as path:
            return path.read_bytes()

    async def age(self) -> None:
        await self.database.execute("UPDATE spool_files SET touched_at = now() - interval '1 hour'")


@pytest.fixture
async def spooled(tmp_path: Path) -> AsyncIterator[Spooled]:
    database = await new_database()
    async with opened(database) as base:
        yield Spooled(base, base.store.spool(tmp_path), database, tmp_path)
    give_back(database)


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 35])
async def test_a_file_comes_back_whole_whatever_its_parts(
    spooled: Spooled, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 10)
    data = bytes(range(size))
    async with spooled.spool.receive("one") as file:
        for start in range(0, size, 7):
            await file.write(data[start : start + 7])
    assert await spooled.content("one") == data
    assert await spooled.spool.size() == size
    assert list(spooled.folder.iterdir()) == []


async def cut_off(spooled: Spooled, failure: type[BaseException]) -> None:
    """Interrupt a file after a part of it is stored."""
    async with spooled.spool.receive("one") as file:
        await file.write(b"x" * (store.PART_BYTES + 1))
        raise failure


@pytest.mark.parametrize("failure", [RuntimeError, asyncio.CancelledError])
async def test_a_file_that_was_cut_off_is_gone(spooled: Spooled, failure: type[BaseException]) -> None:
    with pytest.raises(failure):
        await cut_off(spooled, failure)
    assert await spooled.base.count("spool_parts") == 0
    with pytest.raises(FileNotFoundError):
        await spooled.content("one")


async def test_a_spooled_file_is_removed_only_at_the_end_of_its_job(spooled: Spooled) -> None:
    """If a client is wrongly told of a failure, its clean-up does not remove the file of an accepted job."""
    await spooled.receive("one")
    leased = await spooled.base.lease(new_file("a", spool="one"))
    await spooled.spool.remove("one")
    assert await spooled.content("one") == b"abc"
    await spooled.base.commit(leased, prepared("a"))
    assert await spooled.spool.size() == 0


async def test_a_cancelled_or_cleared_job_takes_its_file_along(spooled: Spooled) -> None:
    for name in ("one", "two"):
        await spooled.receive(name)
        await spooled.base.accept(new_file(name, spool=name))
    (_, first) = (await spooled.base.store.read(jobs.page, None, 10, 0)).jobs
    await spooled.base.store.once(None, jobs.cancel, first.id)
    assert await spooled.base.count("spool_files") == 1
    await spooled.base.store.once(None, documents.clear)
    assert await spooled.base.count("spool_files") == 0


async def test_files_that_nobody_receives_any_more_are_removed(spooled: Spooled) -> None:
    for name in ("orphan", "held", "accepted"):
        await spooled.receive(name)
    await spooled.base.accept(new_file("a", spool="accepted"))
    await spooled.age()
    with spooled.spool.hold("held"):
        await spooled.base.store.beat()
    assert await spooled.base.store.read(jobs.spooled) == {"accepted"}
    with pytest.raises(FileNotFoundError):
        await spooled.content("orphan")
    assert await spooled.content("held") == await spooled.content("accepted") == b"abc"


async def slowly(spooled: Spooled) -> None:
    """Receive a file that another engine takes for an orphan."""
    async with spooled.spool.receive("slow") as file:
        await spooled.age()
        await spooled.base.store.beat()
        await file.write(b"more")


async def test_a_file_swept_while_it_comes_is_refused_and_not_accepted_by_halves(spooled: Spooled) -> None:
    assert (await refused(slowly(spooled))).code == "not_ready"


async def test_copies_of_ended_engines_are_swept_and_no_others(spooled: Spooled) -> None:
    """A running process locks its copy; a young copy may not be locked yet."""
    left, young = spooled.folder / "part-left", spooled.folder / "part-young"
    for path in (left, young):
        path.write_bytes(b"abc")
    os.utime(left, (0, 0))
    await spooled.receive("one")
    async with spooled.spool.open("one") as held:
        os.utime(held, (0, 0))
        assert await spooled.spool.sweep(lambda: spooled.base.store.read(jobs.spooled)) == 1
        assert held.read_bytes() == b"abc"
    assert list(spooled.folder.iterdir()) == [young]


async def test_failed_jobs_keep_their_file_if_the_local_disk_is_full(spooled: Spooled) -> None:
    await spooled.receive("one")
    leased = await spooled.base.lease(new_file("one", spool="one"))
    error = JobError("internal", "It failed.")
    assert await spooled.base.store.write(jobs.fail, leased.lease, leased.job.id, error)
    bounds = FailedJobBounds(seconds=1e9, bytes=1 << 40)
    keeper = FailedJobs(spooled.base.store, spooled.spool, bounds, free_bytes=lambda _: 0)
    await keeper.make_room(1 << 20)
    assert (await spooled.base.store.read(jobs.find, leased.job.id)).retryable
    assert await spooled.content("one") == b"abc"
