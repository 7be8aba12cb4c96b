"""The audit log: who did what to which document, when, from where, and with what outcome. It holds no texts.

    audit/engine-20260131T080000Z-4711-9f2c1a.000001.jsonl     a chain a process, in files that follow
                                             .000002.jsonl     one another

Each line is a JSON object that ends with its `hash`: the SHA-256 over the hash of the line before and over
the line as it stands without it. So a line that was changed, taken out or put in breaks the chain behind it.
What no chain can show by itself is that its end was cut off, or all of it written anew: for that the last
lines are exported (`kb audit --heads`) to where whoever can write to the folder cannot, and compared later
(`kb audit --check --known`).

A line is written before its answer is sent, in one write that appends; it outlives a `kill -9`, and not a
power cut of the second before. Where it cannot be written, on a full disk, the answer goes out all the same:
the log of the process says so, and the next line that can be written says how many are missing.

Files go when they are older than is wanted. What was removed stands in the chain of who removed it, so that
a check tells that from a gap.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from kb_config.audit_chains import EXPIRED, START, Entry, Head, chains, file_name, head_of
from kb_config.logs import utc_text
from kb_config.settings import Setting, Settings

log = logging.getLogger(__name__)

MEBIBYTE = 1024 * 1024
MAX_DOCUMENTS = 50
"""So many are named in a line; of a longer answer `found` says how many there were."""
OPENED, CLOSED = "log opened", "log closed"
_MAX_CHARS = 300


class AuditSettings(Settings, frozen=True, kw_only=True):
    """What server and engine know of the audit log."""

    audit: Annotated[bool, Setting("KB_AUDIT", "write who did what to which document, with no texts")] = False
    audit_folder: Annotated[
        str, Setting("KB_AUDIT_FOLDER", "where; empty: in the folder audit of the data folder")
    ] = ""
    audit_file_bytes: Annotated[
        int,
        Setting("KB_AUDIT_FILE_BYTES", "bytes of a file, after which another is begun"),
        msgspec.Meta(ge=4096),
    ] = 64 * MEBIBYTE
    audit_days: Annotated[
        float,
        Setting("KB_AUDIT_DAYS", "days that a file is kept after its last line; 0: for ever"),
        msgspec.Meta(ge=0),
    ] = 0.0

    def folder(self, home: Path) -> Path:
        """Where the log lies for this data folder."""
        return Path(self.audit_folder).expanduser() if self.audit_folder else home / "audit"

    def open(self, home: Path, part: str) -> AuditLog | None:
        """The log of this process; None where none is wanted. Raises OSError: it cannot be written."""
        if not self.audit:
            return None
        return AuditLog(self.folder(home), part, file_bytes=self.audit_file_bytes, days=self.audit_days)


class AuditLog:
    """The chain of this process. `write` may be called on any thread."""

    def __init__(
        self, folder: Path, part: str, *, file_bytes: int = 64 * MEBIBYTE, days: float = 0.0
    ) -> None:
        """Begin a chain in this folder, which is made where it is missing. Raises OSError."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        begun = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        self.chain = f"{part}-{begun}-{os.getpid()}-{secrets.token_hex(3)}"
        self._folder, self._part, self._file_bytes, self._days = folder, part, file_bytes, days
        self._guard = threading.Lock()
        self._hash = START
        self._count = self._lost = self._files = 0
        self._descriptor = self._begin_file()
        self._size = 0
        self.write(OPENED, detail={"pid": os.getpid()})
        self._expire()

    @property
    def head(self) -> Head:
        """Its last line."""
        return Head(self.chain, self._count, self._hash.hex())

    def write(
        self,
        action: str,
        outcome: str = "ok",
        *,
        who: str = "",
        user: str = "",
        address: str = "",
        documents: Sequence[str] = (),
        found: int | None = None,
        collection: str = "",
        correlation_id: str = "",
        detail: Mapping[str, str | int] | None = None,
    ) -> None:
        """Append a line; what callers choose is cut to 300 characters."""
        with self._guard:
            entry = Entry(
                number=self._count + 1,
                at=utc_text(time.time(), 6),
                part=self._part,
                action=action,
                outcome=outcome,
                who=who[:_MAX_CHARS],
                user=user[:_MAX_CHARS],
                address=address[:_MAX_CHARS],
                documents=documents[:MAX_DOCUMENTS],
                found=found,
                collection=collection[:_MAX_CHARS],
                correlation_id=correlation_id[:_MAX_CHARS],
                detail=detail or {},
                lost=self._lost,
            )
            files = self._files
            self._append(_encoded(entry))
            is_new = self._files > files
        if is_new:
            self._expire()

    def close(self) -> None:
        """End the chain; nothing is written after that."""
        self.write(CLOSED)
        with self._guard:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _append(self, body: bytes) -> None:
        digest = hashlib.sha256(self._hash + body).digest()
        line = b'%b,"hash":"%b"}\n' % (body[:-1], digest.hex().encode())
        try:
            if self._size and self._size + len(line) > self._file_bytes:
                following = self._begin_file()
                os.close(self._descriptor)
                self._descriptor, self._size = following, 0
            if os.write(self._descriptor, line) < len(line):
                os.ftruncate(self._descriptor, self._size)  # the disk is full: no half of a line stays
                raise OSError(f"no room for a line of {len(line)} bytes")
        except OSError as error:
            if not self._lost:
                log.error("The audit log cannot be written", extra={"reason": str(error)})
            self._lost += 1
            return
        self._size += len(line)
        self._hash, self._count, self._lost = digest, self._count + 1, 0

    def _begin_file(self) -> int:
        path = self._folder / file_name(self.chain, self._files + 1)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        fcntl.flock(
            descriptor, fcntl.LOCK_SH
        )  # while this process lives nobody takes the file for an old one
        self._files += 1
        return descriptor

    def _expire(self) -> None:
        """Remove what is older than is wanted, and say what it was."""
        if not self._days:
            return
        oldest = datetime.now(UTC) - timedelta(days=self._days)
        for chain, files in chains(self._folder).items():
            for path in files:
                if datetime.fromtimestamp(path.stat().st_mtime, UTC) >= oldest or _is_open(path):
                    break  # those behind it are younger
                if (head := head_of(chain, path)) is not None:
                    self.write(EXPIRED, detail={"chain": chain, "number": head.number, "hash": head.hash})
                path.unlink(missing_ok=True)


def _encoded(entry: Entry) -> bytes:
    try:
        return msgspec.json.encode(entry)
    except UnicodeEncodeError:  # half a surrogate pair, in what a caller chose
        plain = {
            name: ascii(value) if isinstance(value, str) and not value.isascii() else value
            for name, value in msgspec.structs.asdict(entry).items()
        }
        return msgspec.json.encode(msgspec.convert(plain, Entry))


def _is_open(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
