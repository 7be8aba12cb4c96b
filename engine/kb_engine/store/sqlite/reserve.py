"""Disk space reserved for deletions."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import apsw

from kb_engine.disk import NO_INODES, lacks_inodes

T = TypeVar("T")

RESERVE_BYTES = 16 * 1024 * 1024
_BLOCK = 4096

logger = logging.getLogger(__name__)


class Reserve:
    """Disk space reserved in a file beside the base at `path`, so that documents can be deleted on a full
    disk.

    A deletion writes to the write-ahead log before it frees anything. If the disk has no space for that, the
    reserve is removed, the deletion is done, the log is checkpointed and truncated, and a new reserve is
    taken. While the base is being opened there is no reserve, so that an engine starts on a full disk too.
    After other writes that find the disk full the log is checkpointed as well, because deletions may have
    left space in it.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.with_name(path.name + ".reserve")

    def take(self, least: int = 0) -> None:
        """Reserve half of the free space, from `least` to `RESERVE_BYTES` bytes."""
        self.give()
        if lacks_inodes(self._file):  # SQLite needs those that are left for its log
            logger.warning("no disk space is reserved for deletions", extra={"error": NO_INODES})
            return
        try:
            free = shutil.disk_usage(self._file.parent).free
            size = min(RESERVE_BYTES, max(least, free // 2 // _BLOCK * _BLOCK))
            file = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if size and hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file, 0, size)
            finally:
                os.close(file)
        except OSError as error:
            logger.warning("no disk space is reserved for deletions", extra={"error": str(error)})

    def give(self) -> None:
        with suppress(OSError):
            self._file.unlink()

    def spend(self, work: Callable[[], T], db: apsw.Connection) -> T:
        """Run `work`, which frees space, in the space of the reserve."""
        self.give()
        try:
            return work()
        finally:
            # Committed changes are safe in the log; if there is less space than before, the reserve is
            # smaller.
            _move_log(db)
            self.take()

    def move_log(self, work: Callable[[], T], db: apsw.Connection) -> T:
        """Run `work` after a checkpoint of the log; the reserve keeps its size."""
        size = self._file.stat().st_size if self._file.exists() else 0
        self.give()
        _move_log(db)
        self.take(size)
        return work()


def expect_room(folder: Path) -> None:
    """Leave the space for deletions, which is free for a moment while one of them runs.
    Raises OSError: no more than that space is free.
    """
    if shutil.disk_usage(folder).free <= RESERVE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _move_log(db: apsw.Connection) -> None:
    with suppress(apsw.Error):
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
