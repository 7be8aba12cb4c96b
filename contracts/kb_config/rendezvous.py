"""How an engine and those who use it find each other in a data folder, and when nobody needs it any more.

    listening   holds the engine's base URL, and is locked by the engine for as long as it runs
    users       is locked by everybody who uses the engine, together
    starting    is locked by the one who starts an engine

The locks are `flock`'s: they end with their process, however that ends, so that nothing here goes stale. The
files lie in the engine's folder, which is for this user alone.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

_PRIVATE = 0o600
_MOST_BYTES = 4096
_EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - what is listened on, never asked
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_PAUSE_SECONDS = 0.02


class Lock:
    """A lock that is held until `release`, or until the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path, *, shared: bool = False) -> Lock | None:
        """The lock on `path`, which is made where it is not there; None where another holds it.

        Raises:
            OSError: the file cannot be made or opened.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, _PRIVATE)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def write(self, text: str) -> None:
        """Make `text` all that the locked file holds."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def release(self) -> None:
        """Let go. The file stays: removing it would let two processes lock two files of one name."""
        os.close(self._descriptor)


class Rendezvous:
    """That of the engine whose data is in `folder`, which is `engine` in a data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def announce(self, url: str) -> Lock | None:
        """Say where the engine listens, until the lock is released; None where another engine says so.

        Raises:
            OSError: the folder cannot be written.
        """
        lock = Lock.take(self.folder / "listening")
        if lock is not None:
            lock.write(url)
        return lock

    def url(self) -> str | None:
        """Where the engine listens; None where none runs, or not yet."""
        path = self.folder / "listening"
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return os.pread(descriptor, _MOST_BYTES, 0).decode(errors="replace") or None
            finally:
                os.close(descriptor)
        return None

    def is_at(self, url: str) -> bool:
        """Whether the engine that announces itself here is reached by `url` on this machine."""
        announced, wanted = urlsplit(self.url() or ""), urlsplit(url)
        try:
            same_port = announced.port is not None and announced.port == wanted.port
        except ValueError:
            return False
        return same_port and (
            announced.hostname == wanted.hostname
            or (announced.hostname in _EVERYWHERE and wanted.hostname in _LOOPBACK)
        )

    def use(self) -> Lock | None:
        """Count as somebody who uses the engine; None while an engine ends because nobody did.

        Raises:
            OSError: the folder cannot be made or written.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Lock.take(self.folder / "users", shared=True)

    def join(self, seconds: float = 1.0) -> str | None:
        """Where the engine listens, and count as its user until this process ends. Blocks, for so long.

        None: none runs, or it ends. An engine that looks whether anybody uses it holds others up a moment.

        Raises:
            OSError: the folder cannot be made or written.
        """
        ends = time.monotonic() + seconds
        while (url := self.url()) is not None:
            if self.use() is not None:
                return url
            if time.monotonic() > ends:
                break
            time.sleep(_PAUSE_SECONDS)
        return None

    def claim(self) -> Lock | None:
        """For the engine: a lock under which nobody uses it; None where somebody does."""
        return Lock.take(self.folder / "users")

    def begin(self) -> Lock | None:
        """For one who is about to start an engine; None where another one is."""
        return Lock.take(self.folder / "starting")
