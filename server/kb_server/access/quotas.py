"""Quotas of callers: calls per minute, bytes and documents per day. Days and minutes are in UTC.

The counts of a day are kept in a file that all workers of a data folder share, so they survive a restart.
Calls are too frequent for that: a worker reserves a share of the minute's calls in the file, and counts these
in memory. So the limit is never exceeded, but if several workers serve a key, some of the last quarter may be
reserved by a worker that gets no calls. A single worker reserves all at once.

If the file cannot be written, each process counts for itself, and the log says so.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kb_contracts.access.keys import Quotas
from kb_server.tool import ToolError

logger = logging.getLogger(__name__)

_MINUTE, _DAY = 60, 86_400
_MAX_BYTES = 1 << 22


class Used(msgspec.Struct):
    """The usage of one caller on the current day and in the current minute."""

    day: int = 0
    documents: int = 0
    bytes: int = 0
    minute: int = 0
    calls: int = 0

    def turn(self, now: float) -> None:
        """Reset the counts when a new day or minute has begun."""
        if self.day != (day := int(now // _DAY)):
            self.day, self.documents, self.bytes = day, 0, 0
        if self.minute != (minute := int(now // _MINUTE)):
            self.minute, self.calls = minute, 0


class _Share(msgspec.Struct):
    minute: int
    left: int


class FileMeter:
    """A `Meter`. `path` is the file shared by `workers` processes."""

    def __init__(self, path: Path, workers: int = 1, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._workers = workers
        self._now = now
        self._own: dict[str, Used] = {}
        """The usage known to this process, if the file cannot be used."""
        self._shares: dict[str, _Share] = {}
        self._has_failed = False

    def count_call(self, name: str, most: int) -> None:
        """Count a call of `name`; `most` calls are allowed per minute.
        Raises ToolError: `rate_limited`, with the seconds until the next minute.
        """
        now = self._now()
        share = self._shares.get(name)
        if share is None or share.minute != now // _MINUTE or share.left < 1:
            share = self._shares[name] = _Share(int(now // _MINUTE), self._take_calls(name, most, now))
        if share.left < 1:
            wait = math.ceil(_MINUTE - now % _MINUTE)
            raise ToolError(
                "rate_limited",
                f"This key may make {most} calls a minute. Try again in {wait} s.",
                retry_after=wait,
            )
        share.left -= 1

    def take(self, name: str, quotas: Quotas, documents: int, size: int) -> None:
        """Count documents and bytes of `name`, within its quotas; negative numbers return them.
        Raises ToolError: `quota_exceeded`, with the seconds until the next day; nothing was counted.
        """
        now = self._now()
        with self._used(name, now) as used:
            for what, more, most, had in (
                ("documents", documents, quotas.documents_per_day, used.documents),
                ("bytes", size, quotas.bytes_per_day, used.bytes),
            ):
                if most is not None and had + more > most:
                    wait = math.ceil(_DAY - now % _DAY)
                    raise ToolError(
                        "quota_exceeded",
                        f"This key may add {most} {what} a day. {max(0, most - had)} are left, {more} are "
                        f"wanted. The next day begins in {wait} s, at midnight UTC.",
                        retry_after=wait,
                        limit=most,
                        left=max(0, most - had),
                    )
            used.documents = max(0, used.documents + documents)
            used.bytes = max(0, used.bytes + size)

    def _take_calls(self, name: str, most: int, now: float) -> int:
        """Reserve and return the number of calls that this process may accept before it asks again, or 0."""
        wanted = most if self._workers == 1 else max(1, most // (4 * self._workers))
        with self._used(name, now) as used:
            taken = max(0, min(wanted, most - used.calls))
            used.calls += taken
        return taken

    @contextmanager
    def _used(self, name: str, now: float) -> Iterator[Used]:
        """Yield the usage of `name` for changing; saved unless the block raises."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            self._report(error)
            used = self._own.setdefault(name, Used())
            used.turn(now)
            yield used
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            users = _read(descriptor)
            used = users.setdefault(name, Used())
            for each in users.values():
                each.turn(now)
            yield used
            kept = {user: each for user, each in users.items() if each.documents or each.bytes or each.calls}
            try:
                data = msgspec.json.encode(kept)
                os.ftruncate(descriptor, os.pwrite(descriptor, data, 0))
            except OSError as error:
                self._report(error)
        finally:
            os.close(descriptor)

    def _report(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            words = "The usage of keys cannot be saved: quotas apply to this process only, until it ends"
            logger.error(words, extra={"file": str(self._path), "reason": error.strerror})


def _read(descriptor: int) -> dict[str, Used]:
    try:
        return msgspec.json.decode(os.pread(descriptor, _MAX_BYTES, 0) or b"{}", type=dict[str, Used])
    except (msgspec.DecodeError, UnicodeDecodeError):
        logger.warning("The saved usage of keys was damaged: counting restarts at zero")
        return {}
