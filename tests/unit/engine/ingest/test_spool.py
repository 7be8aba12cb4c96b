"""The spool: complete files stay, incomplete ones are removed."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from kb_contracts.api.errors import EngineError
from kb_engine.spool import FolderSpool


@pytest.fixture
def spool(tmp_path: Path) -> FolderSpool:
    return FolderSpool(tmp_path)


async def nothing() -> set[str]:
    return set()


async def receive(spool: FolderSpool, name: str) -> None:
    async with spool.receive(name) as file:
        await file.write(b"ab")
        await file.write(b"c")


async def test_a_received_file_is_whole(spool: FolderSpool) -> None:
    await receive(spool, "one")
    assert spool.path("one").read_bytes() == b"abc"
    assert await spool.size() == 3
    await spool.remove("one")
    await spool.remove("one")
    assert await spool.size() == 0


@pytest.mark.parametrize("failure", [ValueError, asyncio.CancelledError])
async def test_a_file_that_was_cut_off_is_gone(spool: FolderSpool, failure: type[BaseException]) -> None:
    async def cut_off() -> None:
        async with spool.receive("one") as file:
            await file.write(b"ab")
            raise failure

    with pytest.raises(failure):
        await cut_off()
    assert not spool.path("one").exists()


async def test_a_full_disk_is_storage_full(spool: FolderSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(EngineError) as raised:
        await receive(spool, "one")
    assert raised.value.code == "storage_full"
    assert not spool.path("one").exists()


async def test_a_sweep_takes_what_no_job_needs(spool: FolderSpool) -> None:
    for name in ("needed", "orphan"):
        await receive(spool, name)

    async def needed() -> set[str]:
        return {"needed"}

    assert await spool.sweep(needed) == 1
    assert [path.name for path in spool.folder.iterdir()] == ["needed"]


async def test_a_sweep_leaves_a_file_whose_job_is_being_accepted(spool: FolderSpool) -> None:
    await receive(spool, "early")
    with spool.hold("early"):
        assert await spool.sweep(nothing) == 0

    async def needed() -> set[str]:
        await receive(spool, "late")  # arrives and is accepted after the folder was listed
        return {"early"}

    assert await spool.sweep(needed) == 0
    assert spool.path("late").exists()
