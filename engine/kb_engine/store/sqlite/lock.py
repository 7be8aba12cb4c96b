"""One process owns a base: advisory locks, which the system drops with the process.

The file that holds the data is locked, so that no other name of it lets a second process in: one byte far
behind all data, for the open file rather than the process, so that SQLite's own locks are left alone.
`<path>.lock` is locked too, because SQLite's log goes by the name: a file that is put under the name of an
open base must not be opened with the log of the other.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

from kb_engine.store.failures import BaseInUse, BaseLinked, BaseUnwritable, NotABase
from kb_engine.store.sqlite.connection import connect

PRIVATE = 0o600
_BEHIND_ALL_DATA = 1 << 62
_FLAGS = os.O_RDWR | os.O_CLOEXEC
_SET_LOCK = getattr(fcntl, "F_OFD_SETLK", None)
"""Absent where the system has no locks of open files; there the name alone is locked."""


class BaseLock:
    """The locks on the base at `path`, held from construction to `release`; the base is made where none is.

    `path` is the real one, without symbolic links. `<path>.lock` holds the owner's number.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        # Held to the end: closing any descriptor of the file would drop the locks of SQLite in this process.
        self._held = [_own_name(self.path)]
        try:
            if not self.path.exists():
                _make(self.path)
            self._held.append(_own_file(self.path))
            _leave_number(self._held[0])
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let go. The file stays: removing it would let two processes lock two files of one name."""
        while self._held:
            os.close(self._held.pop())


def _own_name(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path.with_name(path.name + ".lock"), _FLAGS | os.O_CREAT, PRIVATE)
    except OSError as error:
        why = f"{error.strerror}: {error.filename}. Choose a folder that this user may write."
        raise BaseUnwritable(path, why) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = os.pread(file, 20, 0).strip()
        os.close(file)
        raise BaseInUse(path, int(pid) if pid.isdigit() else None) from error
    return file


def _make(path: Path) -> None:
    """A base without a table, whole or not at all: a file without a byte is never one that was just made."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    # What people note down is for them alone; SQLite gives its other files the same mode.
    new.touch(mode=PRIVATE)
    connect(new).close()
    new.rename(path)


def _own_file(path: Path) -> int:
    file = os.open(path, _FLAGS)
    try:
        _lock_byte(path, file)
        found = os.fstat(file)
        if found.st_size == 0:
            why = "it is an empty file. Restore it from a copy, or remove it to begin a new base."
            raise NotABase(path, why)
        if found.st_nlink > 1:
            raise BaseLinked(path)
    except BaseException:
        os.close(file)
        raise
    return file


def _lock_byte(path: Path, file: int) -> None:
    if _SET_LOCK is None:
        return
    # struct flock: type, whence, start, length, process.
    wanted = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, _BEHIND_ALL_DATA, 1, 0)
    try:
        fcntl.fcntl(file, _SET_LOCK, wanted)
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            raise BaseInUse(path, None) from error
        if error.errno != errno.EINVAL:  # the system knows of no such locks after all
            raise


def _leave_number(file: int) -> None:
    with suppress(OSError):  # it is for people alone, and the disk may be full
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
