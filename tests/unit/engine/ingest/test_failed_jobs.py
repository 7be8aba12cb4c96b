"""Retention of failed jobs: limits of age and size, and removal if an upload needs the room."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kb_contracts.api.errors import EngineError
from kb_engine.ingest.failed_jobs import FailedJobBounds, FailedJobs
from kb_engine.store.clock import stamp
from kb_engine.store.port import Bounds, FailedJob
from kb_engine.store.repository import documents, versions
from kb_engine.store.sqlite.originals import originals_of
from tests.support.disks import small_disk
from tests.support.ingesting import Parts, parts_in

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def kept(name: str, size: int, *, age: float) -> FailedJob:
    return FailedJob(name, name, size, stamp(NOW - timedelta(seconds=age)))


@pytest.mark.parametrize(
    ("seconds", "size", "gone"),
    [
        (100, 100, ""), (25, 100, "a"), (100, 5, "a"), (100, 4, "ab"), (0, 100, "abc"), (99, 0, "abc"),
        (20, 100, "a"),
    ],
    ids=["within", "too old", "too much", "one too large", "no time", "no room", "one just within"],
)  # fmt: skip
def test_the_oldest_failures_go_first(seconds: float, size: int, gone: str) -> None:
    failures = [kept("a", 1, age=30), kept("b", 4, age=20), kept("c", 1, age=10)]
    assert [job.id for job in FailedJobBounds(seconds, size).exceeded(failures, NOW)] == list(gone)


async def failed(parts: Parts, *names: str) -> list[str]:
    """Like `unreadable`; then stop the workers."""
    ids = await unreadable(parts, *names)
    await parts.workers.stop()
    return ids


async def unreadable(parts: Parts, *names: str) -> list[str]:
    """Submit files that cannot be read; return the ids of their jobs."""
    ids = []
    for name in names:
        ids.append(await parts.accept_file(name, b"\xff\xff\xff"))
        assert (await parts.ended(ids[-1])).status == "failed"
    return ids


def spooled(parts: Parts) -> set[str]:
    return {path.name for path in parts.spool.folder.iterdir()}


async def test_failed_jobs_over_the_limit_lose_their_file_and_are_not_retryable(parts: Parts) -> None:
    old, young = await failed(parts, "a.txt", "b.txt")
    keeper = FailedJobs(parts.store, parts.spool, FailedJobBounds(1e9, 5))
    assert await keeper.sweep() == 1
    assert spooled(parts) == {young}
    assert [(await parts.job(job_id)).retryable for job_id in (old, young)] == [False, True]
    with pytest.raises(EngineError, match="no longer kept") as refused:
        await keeper.retry(old, None)
    assert refused.value.code == "job_not_retryable"


async def test_on_a_full_disk_the_oldest_failures_make_room(parts: Parts) -> None:
    first, second, third = await failed(parts, "a.txt", "b.txt", "c.txt")
    disk = 1 << 30

    def free(folder: Path) -> int:
        return disk - sum(1 << 29 for _ in folder.iterdir())

    keeper = FailedJobs(parts.store, parts.spool, FailedJobBounds(1e9, 1 << 40), free_bytes=free)
    await keeper.make_room(1 << 20)
    assert spooled(parts) == {third}
    await keeper.make_room(1 << 20)
    assert spooled(parts) == {third}
    assert not (await parts.job(second)).retryable
    assert not (await parts.job(first)).retryable


async def test_a_job_whose_file_is_lost_cannot_be_tried_again(parts: Parts) -> None:
    """A retry is refused, because it could not succeed."""
    (job_id,) = await failed(parts, "a.txt")
    parts.spool.path(job_id).unlink()
    keeper = FailedJobs(parts.store, parts.spool, FailedJobBounds(1e9, 1 << 30))
    with pytest.raises(EngineError) as refused:
        await keeper.retry(job_id, None)
    assert refused.value.code == "job_not_retryable"
    assert not (await parts.job(job_id)).retryable


async def test_on_a_full_disk_the_files_of_versions_go_first(tmp_path: Path) -> None:
    """Only versions and removed documents lose their files; current documents keep theirs."""
    async with parts_in(tmp_path, bounds=Bounds(originals=True)) as parts:
        (failure,) = await unreadable(parts, "a.txt")
        for number in range(2):
            job = await parts.ended(await parts.accept_file(f"{number}.txt", f"granite {number}".encode()))
        await parts.workers.stop()
        assert job.document_id is not None
        await parts.store.write(documents.delete, job.document_id)
        folder, disk = originals_of(tmp_path / "kb.sqlite"), 1 << 30

        def free(_: Path) -> int:
            return disk - (1 << 29) * len([*folder.iterdir()])

        assert len([*folder.iterdir()]) == 2
        bounds = FailedJobBounds(1e9, 1 << 40)
        keeper = FailedJobs(parts.store, parts.spool, bounds, free_bytes=free)
        await keeper.make_room(1 << 20)
        assert len([*folder.iterdir()]) == 1
        assert (await parts.job(failure)).retryable
        assert (await parts.store.read(versions.trash, 10, 0)).total == 0
        assert "made room" in parts.store.issues[0]
        await keeper.make_room(1 << 30)
        assert not (await parts.job(failure)).retryable
        assert len([*folder.iterdir()]) == 1


@pytest.mark.process
async def test_versions_stay_if_their_files_are_on_another_disk_than_uploads(tmp_path: Path) -> None:
    with small_disk(tmp_path / "spool", "8m"):
        async with parts_in(tmp_path, bounds=Bounds(originals=True)) as parts:
            job = await parts.ended(await parts.accept_file("a.txt", b"granite"))
            assert job.document_id is not None
            await parts.store.write(documents.delete, job.document_id)
            bounds = FailedJobBounds(1e9, 1 << 40)
            keeper = FailedJobs(parts.store, parts.spool, bounds, free_bytes=lambda _: 0)
            await keeper.make_room(1 << 20)
            assert (await parts.store.read(versions.trash, 10, 0)).total == 1
            assert len([*originals_of(tmp_path / "kb.sqlite").iterdir()]) == 1


@pytest.mark.process
async def test_versions_stay_if_their_files_are_behind_a_link_to_another_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "large", "8m"):
        originals_of(tmp_path / "kb.sqlite").symlink_to(tmp_path / "large")
        async with parts_in(tmp_path, bounds=Bounds(originals=True)) as parts:
            job = await parts.ended(await parts.accept_file("a.txt", b"granite"))
            assert job.document_id is not None
            await parts.store.write(documents.delete, job.document_id)
            keeper = FailedJobs(
                parts.store, parts.spool, FailedJobBounds(1e9, 1 << 40), free_bytes=lambda _: 0
            )
            await keeper.make_room(1 << 20)
            assert (await parts.store.read(versions.trash, 10, 0)).total == 1
