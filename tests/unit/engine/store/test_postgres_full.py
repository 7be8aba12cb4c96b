"""A full disk for a database: its tablespace is on a small file system."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from kb_contracts.api.errors import EngineError
from kb_engine.store.repository import documents
from tests.support.disks import fill, small_disk
from tests.support.postgres import Database, server
from tests.support.stores import SEARCH_PATH, Base, opened, refused

pytestmark = pytest.mark.process

DISK = "40m"


@pytest.fixture
def disk() -> Iterator[Path]:
    """A disk that belongs to the server's user."""
    folder = Path(tempfile.mkdtemp(prefix="kb-disk-"))
    folder.chmod(0o755)
    with small_disk(folder / "small", DISK, owner=server().folder) as small:
        yield small
    shutil.rmtree(folder)


@pytest.fixture
async def small(disk: Path) -> AsyncIterator[Database]:
    """A database with its tables on that disk; the server's log is elsewhere."""
    running = await asyncio.to_thread(server)
    await running.run(f"CREATE TABLESPACE small LOCATION '{disk}'")
    await running.run("CREATE DATABASE kb_small TEMPLATE kb_template TABLESPACE small")
    await running.run("CHECKPOINT")  # until then the files of a copy have holes
    yield Database(running, "kb_small")
    await running.run("DROP DATABASE kb_small WITH (FORCE)")
    await running.run("DROP TABLESPACE small")


def noise(number: int) -> str:
    """Return a text that does not compress."""
    return os.urandom(100_000).hex() + str(number)


Count = Callable[[str], Awaitable[int]]


@pytest.fixture
async def count(small: Database) -> AsyncIterator[Count]:
    """Return a function that counts a table's rows, over a connection opened before the disk is full.

    A new connection may first have to write a file of the catalogue.
    """
    db = await asyncpg.connect(small.url, server_settings={"search_path": SEARCH_PATH})
    try:
        yield lambda table: db.fetchval(f"SELECT count(*) FROM {table}")
    finally:
        await db.close()


async def fill_with_notes(base: Base, count: Count) -> int:
    """Fill the disk; return the number of documents that fitted."""
    with suppress(EngineError):
        for number in range(1_000):
            await base.note(noise(number))
    return await count("documents")


async def test_versions_and_trash_make_room_first(small: Database, count: Count) -> None:
    async with opened(small) as base:
        for number in range(8):
            gone = await base.note(noise(number))
            await base.store.write(documents.delete, gone.id)
        assert await count("versions") == 8
        assert base.store.issues == []
        assert await fill_with_notes(base, count) > 8
        assert await count("versions") == 0
        (issue,) = base.store.issues
        assert "versions and removed documents made room" in issue
        assert (await refused(base.note(noise(1) * 20))).code == "storage_full"


async def test_an_upload_is_given_the_room_of_versions(
    small: Database, disk: Path, tmp_path: Path, count: Count
) -> None:
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
        assert await count("versions") == 0
