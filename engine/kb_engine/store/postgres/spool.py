"""Uploads in the database, in parts, so that whichever engine takes a job has its file.

    receive ──▶ parts ──▶ job accepted ──▶ job ends ──▶ removed with it, in its transaction; a failed job's
       |                                               when it is kept no longer
       └─ failed, cut off, cancelled ──▶ removed        kill -9 ──▶ swept when nobody keeps it any more

Parts come and go one at a time, so that a file takes a megabyte of memory here, however large it is.
"""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import asyncpg

from kb_contracts.api.errors import EngineError
from kb_engine.spool import HeldFiles, SpoolFile, on_disk
from kb_engine.store.postgres.connection import (
    Connections,
    Db,
    as_engine_errors,
    changed,
    not_ready,
    rows,
    value,
)

PART_BYTES = 1024 * 1024

_PART = "INSERT INTO spool_parts (name, part, data) VALUES (?, ?, ?)"
_ONE_PART = "SELECT data FROM spool_parts WHERE name = ? AND part = ?"
_GROWN = "UPDATE spool_files SET size_bytes = size_bytes + ?, touched_at = clock_timestamp() WHERE name = ?"


_COPY = "part-"
_YOUNG_SECONDS = 60.0  # another engine on this folder may have made a copy and not yet locked it


class PostgresSpool(HeldFiles):
    """A `Spool` in the tables `spool_files` and `spool_parts`; `folder` has the files that are just read."""

    def __init__(self, connections: Connections, folder: Path) -> None:
        super().__init__()
        self._connections = connections
        self._folder = folder

    @asynccontextmanager
    async def receive(self, name: str) -> AsyncIterator[SpoolFile]:
        """A new file to write; each part is committed as it is full."""
        await self._do("INSERT INTO spool_files (name) VALUES (?)", (name,))
        try:
            received = _Parts(self._append, name)
            yield received
            await received.end()
        except BaseException:  # also a cancelled request leaves nothing behind
            with suppress(EngineError):  # else it is swept
                await asyncio.shield(self.remove(name))
            raise

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[Path]:
        """A copy on this machine's disk."""
        if not await self.has(name):
            raise FileNotFoundError(f"the spool has no file {name}")
        with NamedTemporaryFile(dir=self._folder, prefix=_COPY) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # let go by the end of this process, whatever ends it
            part = 0
            while (data := await self._ask(_ONE_PART, (name, part))) is not None:
                await on_disk(partial(file.write, data))
                part += 1
            await on_disk(file.flush)
            yield Path(file.name)

    async def has(self, name: str) -> bool:
        return await self._ask("SELECT true FROM spool_files WHERE name = ?", (name,)) is not None

    async def remove(self, name: str) -> None:
        """Delete the file, unless a job has it: what is accepted goes with its job alone."""
        await self._do("DELETE FROM spool_files WHERE name = ? AND NOT accepted", (name,))

    async def sweep(self, needed: Callable[[], Awaitable[set[str]]]) -> int:  # noqa: ARG002
        """Delete the copies that ended engines have left on this disk; how many.

        Which files jobs need is known in the database, and `keep` looks there with every beat.
        """
        return await asyncio.to_thread(self._sweep_copies)

    def _sweep_copies(self) -> int:
        before = time.time() - _YOUNG_SECONDS
        left = [path for path in self._folder.glob(f"{_COPY}*") if path.stat().st_mtime < before]
        return sum(map(_remove_unlocked, left))

    async def keep(self, seconds: float) -> int:
        """Tell that this engine's files are still coming, and remove those of the dead; how many.

        `seconds` after its last sign of life nobody is receiving a file any more.
        """
        touch = "UPDATE spool_files SET touched_at = clock_timestamp() WHERE name = ANY (?::text[])"
        if self.held:
            await self._do(touch, (list(self.held),))
        gone = (
            "DELETE FROM spool_files WHERE NOT accepted "
            "AND touched_at < clock_timestamp() - make_interval(secs => ?)"
        )
        return await self._do(gone, (seconds,))

    async def size(self) -> int:
        return int(await self._ask("SELECT coalesce(sum(size_bytes), 0)::bigint FROM spool_files", ()))

    async def _append(self, name: str, part: int, data: bytes) -> None:
        async with self._one() as db, db.transaction():
            try:
                await rows(db, _PART, (name, part, data))
            except asyncpg.ForeignKeyViolationError as error:
                raise not_ready("The upload came too slowly and was given up. Send it again.") from error
            await rows(db, _GROWN, (len(data), name))

    async def _ask(self, sql: str, values: Sequence[Any]) -> Any:
        async with self._one() as db:
            return await value(db, sql, values)

    async def _do(self, sql: str, values: Sequence[Any]) -> int:
        async with self._one() as db:
            return await changed(db, sql, values)

    @asynccontextmanager
    async def _one(self) -> AsyncIterator[Db]:
        with as_engine_errors():
            async with self._connections.one() as db:
                yield db


def _remove_unlocked(path: Path) -> bool:
    """Delete a copy that no process holds; whether it was one."""
    with suppress(OSError), path.open("rb") as file:  # gone already, or held
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
        return True
    return False


class _Parts:
    """Gathers what is written into parts of one size."""

    def __init__(self, append: Callable[[str, int, bytes], Awaitable[None]], name: str) -> None:
        self._append = append
        self._name = name
        self._gathered = bytearray()
        self._count = 0

    async def write(self, data: bytes) -> None:
        self._gathered += data
        while len(self._gathered) >= PART_BYTES:
            await self._flush(PART_BYTES)

    async def end(self) -> None:
        if self._gathered:
            await self._flush(len(self._gathered))

    async def _flush(self, size: int) -> None:
        await self._append(self._name, self._count, bytes(self._gathered[:size]))
        del self._gathered[:size]
        self._count += 1
