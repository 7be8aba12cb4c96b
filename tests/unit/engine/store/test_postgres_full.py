"""A database on a disk that is really full: a small file system of its own, as a tablespace."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kb_contracts.api.errors import EngineError
from kb_engine.store.repository import documents
from tests.support.disks import fill, small_disk
from tests.support.postgres import Database, server
from tests.support.stores import Base, opened, refused

pytestmark = pytest.mark.process

DISK = "40m"


@pytest.fixture
def disk() -> Iterator[Path]:
    """A disk of the server's user, who can reach it."""
    folder = Path(tempfile.mkdtemp(prefix="kb-disk-"))
    folder.chmod(0o755)
    with small_disk(folder / "small", DISK, owner=server().folder) as small:
        yield small
    shutil.rmtree(folder)


@pytest.fixture
async def small(disk: Path) -> AsyncIterator[Database]:
    """A database with its tables on that disk, which the server's log is not on."""
    running = await asyncio.to_thread(server)
    await running.run(f"CREATE TABLESPACE small LOCATION '{disk}'")
    await running.run("CREATE DATABASE kb_small TEMPLATE kb_template TABLESPACE small")
    await running.run("CHECKPOINT")  # until then the files of a copy have holes
    yield Database(running, "kb_small")
    await running.run("DROP DATABASE kb_small WITH (FORCE)")
    await running.run("DROP TABLESPACE small")


def noise(number: int) -> str:
    """A text that does not shrink when it is kept."""
    return os.urandom(100_000).hex() + str(number)


async def fill_with_notes(base: Base) -> int:
    """How many documents there was room for."""
    with suppress(EngineError):
        for number in range(1_000):
            await base.note(noise(number))
    return await base.count("documents")


async def test_versions_and_trash_make_room_first(small: Database) -> None:
    async with opened(small) as base:
        for number in range(8):
            gone = await base.note(noise(number))
            await base.store.write(documents.delete, gone.id)
        assert await base.count("versions") == 8
        assert base.store.issues == []
        assert await fill_with_notes(base) > 8
        assert await base.count("versions") == 0
        (issue,) = base.store.issues
        assert "versions and removed documents made room" in issue
        assert (await refused(base.note(noise(1) * 20))).code == "storage_full"


async def test_an_upload_is_given_the_room_of_versions(small: Database, disk: Path, tmp_path: Path) -> None:
    async with opened(small) as base:
        for number in range(8):
            gone = await base.note(noise(number))
            await base.store.write(documents.delete, gone.id)
        fill(disk)
        data = os.urandom(600_000)
        spool = base.store.spool(tmp_path)
        async with spool.receive("one") as received:
            await received.write(data)
        async with spool.open("one") as path:
            assert path.read_bytes() == data
        assert await base.count("versions") == 0
