"""Uploaded files between their acceptance and the end of their job, one file a job.

    receive ──▶ sealed (fsync) ──▶ job accepted ──▶ job ends ──▶ removed; after a failure kept for a while
       └─ failed, cut off, cancelled ──▶ removed         kill -9 ──▶ kept, or swept at the next start

A file belongs to the job of the same name. Only `sweep` looks for orphans. Here the files are in a folder;
engines that share a PostgreSQL database keep them there, see `kb_engine.store.postgres.postgres_store`.
"""

from __future__ import annotations

import asyncio
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from kb_contracts.api.errors import EngineError
from kb_engine.disk import sync

T = TypeVar("T")

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class SpoolFile(Protocol):
    """A file that is being received; a sink for `kb_http.multipart`."""

    async def write(self, data: bytes) -> None:
        """Append bytes. Raises `storage_full`."""


class Spool(ABC):
    """Uploads whose job has not ended; `held` are the names of uploads whose job is not accepted yet."""

    folder: Path | None = None
    """The folder of the files; None if they are in a database."""

    def __init__(self) -> None:
        self.held: set[str] = set()

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Protect a file from `sweep` until its job is accepted."""
        self.held.add(name)
        try:
            yield
        finally:
            self.held.discard(name)

    @abstractmethod
    def receive(self, name: str) -> AbstractAsyncContextManager[SpoolFile]:
        """Yield a new file to write; it is durable if the block ends normally, and removed otherwise.
        Raises EngineError: `storage_full`.
        """

    @abstractmethod
    def open(self, name: str) -> AbstractAsyncContextManager[Path]:
        """Yield the path of the file on this machine while the block runs. Raises FileNotFoundError."""

    @abstractmethod
    async def has(self, name: str) -> bool:
        """True if the file exists."""

    @abstractmethod
    async def remove(self, name: str) -> None:
        """Delete the file, if it exists and no job uses it."""

    @abstractmethod
    async def sweep(self, needed: Callable[[], Awaitable[set[str]]]) -> int:
        """Delete the files that no job needs; return their number.

        `needed` is called after the folder was listed, so that a file accepted in between is not deleted.
        """

    @abstractmethod
    async def size(self) -> int:
        """Total size of the files, in bytes."""


class _FolderFile:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    async def write(self, data: bytes) -> None:
        await on_disk(lambda: self._file.write(data))


class FolderSpool(Spool):
    """A folder of uploads."""

    folder: Path

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def path(self, name: str) -> Path:
        return self.folder / name

    @asynccontextmanager
    async def receive(self, name: str) -> AsyncIterator[SpoolFile]:
        """Yield a new file to write; it is synced to the disk when the block ends normally."""
        path = self.path(name)
        file = await on_disk(lambda: path.open("xb"))

        def seal() -> None:
            file.flush()
            os.fsync(file.fileno())
            sync(self.folder)

        try:
            yield _FolderFile(file)
            await on_disk(seal)
        except BaseException:  # a cancelled request must leave no file either
            path.unlink(missing_ok=True)
            raise
        finally:
            with suppress(OSError):  # the file was discarded, or is synced
                file.close()

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[Path]:
        yield self.path(name)

    async def has(self, name: str) -> bool:
        return await asyncio.to_thread(self.path(name).exists)

    async def remove(self, name: str) -> None:
        await asyncio.to_thread(self.path(name).unlink, missing_ok=True)

    async def sweep(self, needed: Callable[[], Awaitable[set[str]]]) -> int:
        held = set(self.held)
        present = await asyncio.to_thread(self._names)
        orphans = present - held - await needed()
        for name in orphans:
            await self.remove(name)
        return len(orphans)

    async def size(self) -> int:
        return await asyncio.to_thread(self._size)

    def _names(self) -> set[str]:
        return {entry.name for entry in os.scandir(self.folder) if entry.is_file()}

    def _size(self) -> int:
        total = 0
        for name in self._names():
            try:
                total += self.path(name).stat().st_size
            except FileNotFoundError:  # its job ended meanwhile
                continue
        return total


async def on_disk(work: Callable[[], T]) -> T:
    """Run `work` on a thread. Raises `storage_full` if the disk is full."""
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        raise no_space(error) from error


def no_space(error: OSError) -> Exception:
    """Return a `storage_full` if the disk is full, or the error itself."""
    if error.errno not in _NO_SPACE:
        return error
    return EngineError(
        "storage_full", "No space is left for the file; free some or remove documents.", retry_after=60.0
    )
