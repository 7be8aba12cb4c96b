"""The audit log: caller, action, documents, time, address and outcome of each request, without any texts.

    audit/engine-20260131T080000Z-4711-9f2c1a.000001.jsonl     one chain for each process,
                                             .000002.jsonl     in consecutive files

Each line is a JSON object that ends with its `hash`: the SHA-256 over the hash of the previous line and the
line without its own hash. So a line that is changed, removed or inserted breaks the chain after it. A chain
cannot prove by itself that its end was not cut off, or that it was not rewritten completely: for that, export
the last lines (`kb audit --heads`) to a place that writers of the folder cannot change, and compare later
(`kb audit --check --known`).

A line is written before the response is sent, in one appending write. It survives a `kill -9`, but not a
power failure within the next second. If it cannot be written, as on a full disk, the response is sent
nevertheless: the log of the process reports it, and the next line has the number of missing ones.

Files are removed at the configured age. The chain of the process that removes a file records it, so that a
check can distinguish removal from a gap.
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
from typing import Annotated, ClassVar

import msgspec

from kb_config.audit_chains import EXPIRED, START, Entry, Head, chains, file_name, head_of
from kb_config.logs import utc_text
from kb_config.settings import Setting, Settings, expanded

log = logging.getLogger(__name__)

MEBIBYTE = 1024 * 1024
MAX_DOCUMENTS = 50
"""Maximum number of documents in a line; `found` has the number of documents in a longer response."""
OPENED, CLOSED = "log opened", "log closed"
_MAX_CHARS = 300


class AuditSettings(Settings, frozen=True, kw_only=True):
    """The audit settings of server and engine."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "KB_AUDIT_FILE_BYTES": "a new file of the audit log begins at 64 MiB"
    }
    audit: Annotated[
        bool, Setting("KB_AUDIT", "write an audit log of callers, actions and documents, without texts")
    ] = False
    audit_folder: Annotated[
        str, Setting("KB_AUDIT_FOLDER", "folder of the audit log; empty: audit in the data folder")
    ] = ""
    audit_days: Annotated[
        float,
        Setting(
            "KB_AUDIT_DAYS",
            "retention time of a file of the audit log after its last line, in days; 0: unlimited",
        ),
        msgspec.Meta(ge=0),
    ] = 0.0

    def folder(self, home: Path) -> Path:
        """Return the folder of the log for this data folder."""
        return expanded("KB_AUDIT_FOLDER", self.audit_folder) if self.audit_folder else home / "audit"

    def open(self, home: Path, part: str) -> AuditLog | None:
        """Return the log of this process, or None if it is disabled. Raises OSError: it cannot be written."""
        if not self.audit:
            return None
        return AuditLog(self.folder(home), part, days=self.audit_days)


class AuditLog:
    """The chain of this process. `write` may be called on any thread."""

    def __init__(
        self, folder: Path, part: str, *, file_bytes: int = 64 * MEBIBYTE, days: float = 0.0
    ) -> None:
        """Begin a chain in this folder, which is created if it is missing. Raises OSError."""
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
        """The last line of the chain."""
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
        """Append a line; values from callers are cut to 300 characters."""
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
        """End the chain; nothing can be written after that."""
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
                os.ftruncate(self._descriptor, self._size)  # the disk is full: remove the partial line
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
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # a locked file is in use, and never expires
        self._files += 1
        return descriptor

    def _expire(self) -> None:
        """Remove files beyond the configured age, and record their last lines."""
        if not self._days:
            return
        oldest = datetime.now(UTC) - timedelta(days=self._days)
        for chain, files in chains(self._folder).items():
            for path in files:
                if datetime.fromtimestamp(path.stat().st_mtime, UTC) >= oldest or _is_open(path):
                    break  # the files after it are newer
                if (head := head_of(chain, path)) is not None:
                    self.write(EXPIRED, detail={"chain": chain, "number": head.number, "hash": head.hash})
                path.unlink(missing_ok=True)


def _encoded(entry: Entry) -> bytes:
    try:
        return msgspec.json.encode(entry)
    except UnicodeEncodeError:  # half a surrogate pair, in a value from a caller
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
