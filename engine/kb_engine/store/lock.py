"""One process owns a base: an advisory lock on a file beside it, which the system drops with the process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from kb_engine.store.failures import BaseInUse, BaseUnwritable


class BaseLock:
    """The lock on `<path>.lock`, held from construction to `release`. The file holds the owner's number."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(
                path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            why = f"{error.strerror}: {error.filename}. Choose a folder that this user may write."
            raise BaseUnwritable(path, why) from error
        self._own(path)

    def _own(self, path: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(self._file, 20, 0).strip()
            os.close(self._file)
            raise BaseInUse(path, int(pid) if pid.isdigit() else None) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let go. The file stays: removing it would let two processes lock two files of one name."""
        os.close(self._file)
