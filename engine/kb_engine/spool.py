"""Uploaded files between their acceptance and the end of their job, one file a job.

    receive ──▶ sealed (fsync) ──▶ job accepted ──▶ job ends ──▶ removed; after a failure kept for a while
       └─ failed, cut off, cancelled ──▶ removed         kill -9 ──▶ kept, or swept at the next start

A file belongs to the job of the same name. Only `sweep` looks for files that belong to none. Here they lie in
a folder; where engines share a database they lie there, see `kb_engine.store.postgres.store`.
"""

from __future__ import annotations

import asyncio
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from kb_contracts.api.errors import EngineError
from kb_engine.disk import sync

T = TypeVar("T")

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class SpoolFile(Protocol):
    """A file that is being received; a sink for `kb_contracts.http.multipart`."""

    async def write(self, data: bytes) -> None:
        """Append bytes. Raises `storage_full`."""


class Spool(ABC):
    """The uploads that wait for, or are in, their job; `held` are those whose job is not accepted yet."""

    def __init__(self) -> None:
        self.held: set[str] = set()

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Keep `sweep` away from a file whose job is not accepted yet."""
        self.held.add(name)
        try:
            yield
        finally:
            self.held.discard(name)

    @abstractmethod
    def receive(self, name: str) -> AbstractAsyncContextManager[SpoolFile]:
        """A new file to write; durable when the block ends well, gone when it does not.

        Raises:
            EngineError: `storage_full`.
        """

    @abstractmethod
    def open(self, name: str) -> AbstractAsyncContextManager[Path]:
        """The file on this machine's disk, for the length of a block. Raises FileNotFoundError."""

    @abstractmethod
    async def has(self, name: str) -> bool:
        """Whether there is a file of that name."""

    @abstractmethod
    async def remove(self, name: str) -> None:
        """Delete the file of that name, if there is one and no job has it."""

    @abstractmethod
    async def sweep(self, needed: Callable[[], Awaitable[set[str]]]) -> int:
        """Delete the files that no job needs; how many.

        `needed` is asked after the folder was read: a file accepted in between is then among the needed.
        """

    @abstractmethod
    async def size(self) -> int:
        """Bytes of all files."""


class _FolderFile:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    async def write(self, data: bytes) -> None:
        await on_disk(lambda: self._file.write(data))

    async def seal(self) -> None:
        """Make what was written survive a power cut. Raises `storage_full`."""
        await on_disk(self._sync)

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())


class FolderSpool(Spool):
    """A folder of uploads."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def path(self, name: str) -> Path:
        return self.folder / name

    @asynccontextmanager
    async def receive(self, name: str) -> AsyncIterator[SpoolFile]:
        """A new file to write, synced to the disk when the block ends well."""
        path = self.path(name)
        file = await on_disk(lambda: path.open("xb"))
        try:
            received = _FolderFile(file)
            yield received
            await received.seal()
            await on_disk(lambda: sync(self.folder))
        except BaseException:  # also a cancelled request leaves nothing behind
            _close(file)
            path.unlink(missing_ok=True)
            raise
        _close(file)

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
    """Do `work` on a thread. Raises `storage_full` where it finds no space."""
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        raise no_space(error) from error


def no_space(error: OSError) -> Exception:
    """`storage_full` where that is what the error says, else the error."""
    if error.errno not in _NO_SPACE:
        return error
    return EngineError(
        "storage_full", "No space is left for the file; free some or remove documents.", retry_after=60.0
    )


def _close(file: BinaryIO) -> None:
    try:
        file.close()
    except OSError:  # what could not be flushed belongs to a file that is thrown away, or was synced before
        return
