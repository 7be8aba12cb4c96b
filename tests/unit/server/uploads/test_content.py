"""A body on its way to disk: what fails is told, and nobody leaves while a thread still writes."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from kb_server.uploads.service import WriteBehind, batches

BATCHES = [[b"one", b"two"], [b"three"], [b"four"]]


class _Fails(WriteBehind):
    """Has no space left from its `first`-th write on, counted from 1."""

    def __init__(self, path: Path, first: int) -> None:
        super().__init__(path)
        self._left = first

    def _append(self, blocks: Sequence[bytes]) -> None:
        self._left -= 1
        if self._left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super()._append(blocks)


async def poured(file: WriteBehind) -> None:
    """Every batch, and the end."""
    async with file:
        for batch in BATCHES:
            await file.write(batch)


def descriptors() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_blocks_arrive_in_their_order(tmp_path: Path) -> None:
    await poured(WriteBehind(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"onetwothreefour"


@pytest.mark.parametrize("first", [1, 2, 3])
async def test_a_full_disk_is_told_whichever_write_meets_it(tmp_path: Path, first: int) -> None:
    """The last as well, which nobody waits for but the end of the context."""
    before = descriptors()
    with pytest.raises(OSError, match="No space left"):
        await poured(_Fails(tmp_path / "file", first))
    assert descriptors() == before


async def test_a_fault_of_the_sender_is_not_hidden_by_one_of_the_disk(tmp_path: Path) -> None:
    """What ended the body is what its sender is told."""

    async def breaks_off(file: WriteBehind) -> None:
        async with file:
            await file.write(BATCHES[0])
            raise ValueError("broke off")

    with pytest.raises(ValueError, match="broke off"):
        await breaks_off(_Fails(tmp_path / "file", 1))


async def test_a_file_that_is_there_already_is_not_written_over(tmp_path: Path) -> None:
    """Two bodies must never share one."""
    (tmp_path / "file").write_bytes(b"another's")
    with pytest.raises(FileExistsError):
        await poured(WriteBehind(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"another's"


async def test_who_is_cancelled_twice_leaves_only_when_the_thread_is_done(tmp_path: Path) -> None:
    """Else what is removed here would be made again by the thread."""
    path, writing, go_on = tmp_path / "file", threading.Event(), threading.Event()
    before = descriptors()

    class Slow(WriteBehind):
        def _append(self, blocks: Sequence[bytes]) -> None:
            writing.set()
            go_on.wait(10)
            super()._append(blocks)

    async def pours() -> None:
        try:
            async with Slow(path) as file:
                await file.write([b"late"])
        finally:
            path.unlink(missing_ok=True)

    task = asyncio.create_task(pours())
    await asyncio.to_thread(writing.wait, 10)
    for _ in range(2):
        task.cancel()
        left, _ = await asyncio.wait([task], timeout=0.05)
        assert not left
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not path.exists()
    assert descriptors() == before


async def test_batches_have_their_size_and_lose_nothing() -> None:
    """The last is what is left."""

    async def blocks() -> AsyncIterator[bytes]:
        for size in (3, 4, 1, 9, 2):
            yield b"x" * size

    found = [[len(block) for block in batch] async for batch in batches(blocks(), 7)]
    assert found == [[3, 4], [1, 9], [2]]
