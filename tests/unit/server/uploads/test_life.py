"""Uploads under stress: on a full disk, among many, past their time, and between workers."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from kb_server.uploads.service import Limits, WriteBehind, batches
from kb_server.uploads.staging import Entry
from kb_server.uploads.upload import MEBIBYTE, NewUpload, Upload, UploadError
from tests.support.loop_clock import turns
from tests.support.patience import ANSWER_SECONDS
from tests.support.uploads import Desk, encoded, sha256


class TestFullDisk:
    @pytest.mark.parametrize("size", [5, 3 * MEBIBYTE])
    async def test_the_upload_stays_open_and_nothing_of_the_body_is_kept(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        async def body() -> AsyncIterator[bytes]:
            for at in range(0, size, MEBIBYTE):
                yield b"x" * min(MEBIBYTE, size - at)

        def full(_file: WriteBehind, _blocks: Sequence[bytes]) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        async with desk.another(limits=Limits(1 << 24, 1 << 25, 1 << 25, 600.0)) as big:
            new = NewUpload("a.pdf", size, ["collection:documents"], "collection:documents")
            started = await big.uploads.start(new, "me")
            before = desk.files()
            with monkeypatch.context() as patched:
                patched.setattr(WriteBehind, "_append", full)
                with pytest.raises(UploadError, match="No space left") as refused:
                    await big.uploads.receive(started.token, size, body())
            assert refused.value.code == "staging_failed"
            assert desk.files() == before
            assert (await big.uploads.receive(started.token, size, body())).total_size == size


class TestMany:
    """A busy server has hundreds of finished uploads, kept as long as a finish may be repeated."""

    async def test_finished_uploads_are_not_read_again_by_sweeps(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither a start nor a sweep reads them again, because such work would grow without limit."""
        for _ in range(5):
            await desk.uploads.finish(await desk.sent(b"abc"))
        await desk.uploads.sweep()
        looked_at: list[str] = []
        read = Entry.read

        def counted(entry: Entry) -> Upload:
            looked_at.append(entry.folder.name)
            return read(entry)

        monkeypatch.setattr(Entry, "read", counted)
        another = await desk.start(3)
        assert looked_at == []
        await desk.uploads.sweep()
        assert looked_at == [another]
        assert len(desk.ids()) == 6
        desk.clock.seconds += 600  # without waking the sweeper, which would be first
        assert await desk.uploads.sweep() == 6
        assert desk.ids() == []


class TestTime:
    @pytest.mark.requirement("K41")
    async def test_after_ten_minutes_chunks_and_entry_are_removed(self, desk: Desk) -> None:
        upload_id = await desk.start(6)
        await desk.send(upload_id, b"abc")
        await asyncio.wait_for(desk.clock.slept.wait(), ANSWER_SECONDS)
        desk.clock.slept.clear()
        desk.clock.advance(600)
        await asyncio.wait_for(desk.clock.slept.wait(), ANSWER_SECONDS)
        assert desk.files() == []
        with pytest.raises(UploadError, match="was not found"):
            await desk.uploads.finish(upload_id)

    async def test_a_sweep_that_fails_does_not_end_the_sweeping(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await desk.start(3)
        await asyncio.wait_for(desk.clock.slept.wait(), ANSWER_SECONDS)
        for read in (None, Entry.read):  # the first sweep fails: no record can be read
            desk.clock.slept.clear()
            monkeypatch.setattr(Entry, "read", read)
            desk.clock.advance(600)
            await asyncio.wait_for(desk.clock.slept.wait(), ANSWER_SECONDS)
        assert desk.files() == []

    @pytest.mark.parametrize("content", [b"{", b'{"filename": "\xff"}'])
    async def test_a_damaged_record_keeps_no_other_upload(
        self, desk: Desk, tmp_path: Path, content: bytes
    ) -> None:
        damaged, _ = await desk.start(3), await desk.start(3)
        [record] = tmp_path.rglob(f"{damaged}/upload.json")
        record.write_bytes(content)
        desk.clock.seconds += 600
        assert await desk.uploads.sweep() == 1
        assert desk.ids() == [damaged]

    @pytest.mark.requirement("K41")
    async def test_one_second_before_it_is_there(self, desk: Desk) -> None:
        await desk.start(3)
        desk.clock.advance(1)
        upload_id = await desk.start(3)
        desk.clock.advance(599)
        await desk.send(upload_id, b"abc")
        await desk.uploads.sweep()
        assert desk.ids() == [upload_id]
        await desk.uploads.finish(upload_id)

    async def test_an_expired_upload_is_not_found_before_it_is_swept(self, desk: Desk) -> None:
        upload_id = await desk.start(3)
        desk.clock.advance(600)
        with pytest.raises(UploadError, match="was not found"):
            await desk.send(upload_id, b"abc")

    @pytest.mark.requirement("K42")
    async def test_after_a_restart_an_upload_is_lost(self, desk: Desk) -> None:
        upload_id = await desk.sent(b"abc")
        desk.uploads._staging._alive.release()  # the effect of the end of a process
        async with desk.another() as restarted:
            with pytest.raises(UploadError, match=r"restarted\. Start again with kb_upload_start"):
                await restarted.uploads.finish(upload_id)
            assert desk.files() == []


class TestWorkers:
    async def test_an_upload_started_by_one_worker_is_finished_by_another(self, desk: Desk) -> None:
        upload_id = await desk.start(6)
        async with desk.another("one") as second:
            await second.uploads.chunk(upload_id, 0, encoded(b"abc"))
            await desk.uploads.chunk(upload_id, 1, encoded(b"def"))
            finished = await second.uploads.finish(upload_id)
        assert (await desk.uploads.finish(upload_id)).job_id == finished.job_id
        assert desk.engine.journal.files() == [sha256(b"abcdef")]

    async def test_a_quota_is_one_for_all_workers(self, desk: Desk) -> None:
        await desk.sent(bytes(1_000), caller="one")
        async with desk.another("one") as second:
            await second.sent(bytes(1_000), caller="two")
            with pytest.raises(UploadError, match="room"):
                await desk.start(1_000, caller="three")

    async def test_unfinished_bodies_of_a_dead_worker_are_removed(self, desk: Desk) -> None:
        new = NewUpload("a.txt", 1_000, ["collection:documents"], "collection:documents")
        started = await desk.uploads.start(new, "me")
        staging = desk.uploads._staging
        staging.unfinished(started.upload.id).write_bytes(bytes(900))
        staging.hold(started.upload.id, 900, lambda _ledger: None)

        async def body() -> AsyncIterator[bytes]:
            yield bytes(1_000)

        await desk.uploads.receive(started.token, 1_000, body())
        assert [name for name in desk.files() if name.startswith(".")] == []
        await desk.start(500)


BATCHES = [[b"one", b"two"], [b"three"], [b"four"]]


class _Fails(WriteBehind):
    def __init__(self, path: Path, first: int) -> None:
        super().__init__(path)
        self._left = first

    def _append(self, blocks: Sequence[bytes]) -> None:
        self._left -= 1
        if self._left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super()._append(blocks)


async def poured(file: WriteBehind) -> None:
    async with file:
        for batch in BATCHES:
            await file.write(batch)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_blocks_arrive_in_their_order(tmp_path: Path) -> None:
    await poured(WriteBehind(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"onetwothreefour"


@pytest.mark.parametrize("first", [1, 2, 3])
async def test_a_full_disk_is_told_whichever_write_meets_it(tmp_path: Path, first: int) -> None:
    """This includes the last write, which only the end of the context waits for."""
    before = descriptors()
    with pytest.raises(OSError, match="No space left"):
        await poured(_Fails(tmp_path / "file", first))
    assert descriptors() == before


async def test_a_fault_of_the_sender_is_not_hidden_by_one_of_the_disk(tmp_path: Path) -> None:
    async def breaks_off(file: WriteBehind) -> None:
        async with file:
            await file.write(BATCHES[0])
            raise ValueError("broke off")

    with pytest.raises(ValueError, match="broke off"):
        await breaks_off(_Fails(tmp_path / "file", 1))


async def test_a_file_that_is_there_already_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"another's")
    with pytest.raises(FileExistsError):
        await poured(WriteBehind(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"another's"


async def test_a_write_cancelled_twice_waits_for_its_thread(tmp_path: Path) -> None:
    """Otherwise the thread would create the removed file again."""
    path, writing, go_on = tmp_path / "file", threading.Event(), threading.Event()
    before = descriptors()

    class Slow(WriteBehind):
        def _append(self, blocks: Sequence[bytes]) -> None:
            writing.set()
            go_on.wait(ANSWER_SECONDS)
            super()._append(blocks)

    async def pours() -> None:
        try:
            async with Slow(path) as file:
                await file.write([b"late"])
        finally:
            path.unlink(missing_ok=True)

    task = asyncio.create_task(pours())
    await asyncio.to_thread(writing.wait, ANSWER_SECONDS)
    for _ in range(2):
        task.cancel()
        await turns()
        assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not path.exists()
    assert descriptors() == before


async def test_batches_have_their_size_and_lose_nothing() -> None:
    async def blocks() -> AsyncIterator[bytes]:
        for size in (3, 4, 1, 9, 2):
            yield b"x" * size

    found = [[len(block) for block in batch] async for batch in batches(blocks(), 7)]
    assert found == [[3, 4], [1, 9], [2]]
