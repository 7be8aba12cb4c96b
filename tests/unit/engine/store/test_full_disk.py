"""On a disk that is really full documents can be deleted, and what was deleted makes room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kb_contracts.api.errors import EngineError
from kb_engine.store.repository import documents, jobs
from tests.support.stores import Base, key, new_note, opened

DISK = "24m"
CHUNKS = [f"chunk {number} " + "words that take room " * 100 for number in range(100)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "none", str(folder)]
    mounted = subprocess.run(mounting, capture_output=True, check=False, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Leave not a byte, as another program does."""
    with (disk / "others").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(os.urandom(4096))


async def fill_with_notes(base: Base) -> list[int]:
    """Add notes until there is no more room; the documents."""
    added: list[int] = []
    with suppress(EngineError):  # that it is full is for `expect_full` to say
        while True:
            added.append((await base.note(*CHUNKS, sha256=f"{len(added)}")).id)
    return added


async def expect_full(base: Base) -> None:
    """Nothing can be added."""
    with pytest.raises(EngineError) as caught:
        await base.store.once(None, jobs.accept, new_note(" ".join(CHUNKS) * 50))
    assert caught.value.code == "storage_full"


@pytest.mark.parametrize("others", [False, True], ids=["with documents", "by another program"])
async def test_documents_can_be_deleted_on_a_full_disk(disk: Path, others: bool) -> None:
    async with opened(disk / "kb.db") as base:
        if others:
            added = [(await base.note(*CHUNKS, sha256=f"{number}")).id for number in range(8)]
            fill(disk)
        else:
            added = await fill_with_notes(base)
        await expect_full(base)
        for number, document in enumerate(added[:4]):
            removed = await base.store.once(key(f"key {number}"), documents.delete, document)
            assert (removed.documents, removed.chunks) == (1, len(CHUNKS))
        assert (await base.store.once(key("all"), documents.clear)).documents == len(added) - 4
        assert (await base.find("words")).total == 0


async def test_what_was_deleted_makes_room(disk: Path) -> None:
    async with opened(disk / "kb.db") as base:
        added = await fill_with_notes(base)
        for _ in range(3):
            for document in added[:4]:
                await base.store.once(None, documents.delete, document)
            added = added[4:]
            for number in range(3):
                added.append((await base.note(*CHUNKS, sha256=f"{document} {number}")).id)


async def test_a_waiting_job_can_be_cancelled_on_a_full_disk(disk: Path) -> None:
    """Its file then gives room."""
    async with opened(disk / "kb.db") as base:
        job = await base.store.once(None, jobs.accept, new_note("waits"))
        fill(disk)
        await expect_full(base)
        assert (await base.store.once(key(), jobs.cancel, job.id)).status == "cancelled"


async def test_a_base_on_a_full_disk_opens_and_documents_can_be_deleted(disk: Path) -> None:
    """Stopping and starting the engine is what people try first."""
    async with opened(disk / "kb.db") as base:
        document = await base.note(*CHUNKS)
        fill(disk)
    fill(disk)
    async with opened(disk / "kb.db") as base:
        assert (await base.find("words")).total == len(CHUNKS)
        fill(disk)
        assert (await base.store.once(key(), documents.delete, document.id)).documents == 1
