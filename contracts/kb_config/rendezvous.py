"""Discovery of a running engine or MCP server through its data folder, and detection of an unused engine.

    listening   holds the base URL, and is locked by the engine or server while it runs
    users       is locked by all users of the engine, with a shared lock
    starting    is locked by the process that starts an engine

The locks are `flock`'s: they end with their process, even if it is killed, so that no lock becomes stale. The
files are in the folder of the engine or server, which belongs to this user only.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from kb_config.shared import addresses

_PRIVATE = 0o600
_MOST_BYTES = 4096
_EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - addresses to listen on, never to connect to
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_PAUSE_SECONDS, _ANNOUNCING_SECONDS = 0.02, 1.0


class Lock:
    """A lock that is held until `release`, or until the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path, *, shared: bool = False) -> Lock | None:
        """Return the lock on `path`, unless it is held already. The file is created if it is missing.
        Raises OSError: the file cannot be created or opened.
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
        """Replace the content of the locked file by `text`."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def release(self) -> None:
        """Release the lock. The file remains: without it two processes could lock two files of one name."""
        os.close(self._descriptor)


class Rendezvous:
    """The files of an engine or a server in `folder`, which is `engine` or `server` in a data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def announce(self, url: str) -> Lock | None:
        """Announce the URL until the lock is released, unless another one is announced.

        Blocks for at most a second while other processes look for the URL, which takes the lock for a moment.
        Raises OSError: the folder cannot be written.
        """
        ends = time.monotonic() + _ANNOUNCING_SECONDS
        while (lock := Lock.take(self.folder / "listening")) is None:
            if self.url() is not None or time.monotonic() > ends:
                return None
            time.sleep(_PAUSE_SECONDS)
        lock.write(url)
        return lock

    def url(self) -> str | None:
        """Return the base URL that is announced, if its process runs."""
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
        """True if `url`, a single one, leads to the engine announced here, on this machine."""
        if len(addresses(url)) > 1:
            return False
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
        """Register as a user of the engine, unless it is shutting down because it was unused.
        Raises OSError: the folder cannot be created or written.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Lock.take(self.folder / "users", shared=True)

    def join(self, seconds: float = 1.0) -> str | None:
        """Return the engine's base URL and register as its user until this process ends.

        Blocks for at most `seconds`. Return None if no engine runs, or it shuts down. An engine that checks
        for users delays them for a moment.
        Raises OSError: the folder cannot be created or written.
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
        """For the engine: return a lock that excludes users, unless there are any."""
        return Lock.take(self.folder / "users")

    def begin(self) -> Lock | None:
        """For a process that is about to start an engine: return a lock, unless another process holds it."""
        return Lock.take(self.folder / "starting")
