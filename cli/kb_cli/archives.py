"""ZIP archives and mailboxes (mbox) as folders, for `kb add`: each member is a file of its own.

list the members ─▶ judge names, sizes, total ─▶ unpack one at a time into an unnamed temporary file

An archive may be hostile: its list of members, their number and their declared sizes are judged before
anything is unpacked, and a member never yields more than it declared. None is written under its own name.
"""

from __future__ import annotations

import io
import mailbox
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from pathlib import Path, PureWindowsPath
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import IO

from kb_cli.exclusion import HEAD_BYTES, HOLDS_CREDENTIALS, begins_as_key, is_named_as_credentials
from kb_config.shared import DEFAULT_UPLOAD_BYTES
from kb_contracts.api.formats import ARCHIVES

MOST_MEMBERS = 10_000
MOST_BYTES = 20 * DEFAULT_UPLOAD_BYTES
"""Maximum of an archive's unpacked size, in bytes."""

ENCRYPTED = "it is encrypted"
LEADS_OUT = "its name leads out of the archive"
LINK = "it is a link or a special file"
NESTED = "an archive inside an archive is not expanded"
REPEATED = "another member of the archive has the same name"
TOO_LARGE = f"it unpacks to more than {DEFAULT_UPLOAD_BYTES >> 20} MiB"
TOO_LARGE_IN_ALL = f"it unpacks to more than {MOST_BYTES >> 20} MiB; unpack or divide it"
TOO_MANY = f"it has more than {MOST_MEMBERS:,} members; unpack or divide it"
UNKNOWN_METHOD = "it is packed by a method that kb does not read"

_MOST_LIST_BYTES = 4 * 1024 * 1024
_MOST_LINE_BYTES = 1024 * 1024
_MAIL_HEAD_BYTES = 64 * 1024
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MESSAGE_ID = re.compile(r"<?(\w[\w.+=$%-]*@[\w.-]+)>?", re.ASCII)
_LONGEST_ID = 200
_END_OF_HEADER = re.compile(rb"\r?\n\r?\n")


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive; `name` is its path in it, `number` its position, `size` in bytes unpacked."""

    archive: Path
    name: str
    size: int
    number: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A member that is not sent. `is_failure`: it was to be read, unlike one that a folder's rules skip."""

    name: str
    reason: str
    is_failure: bool = False


class _Zip:
    def __init__(self, path: Path) -> None:
        self._path = path
        with ExitStack() as stack:
            content = stack.enter_context(_Bounded(io.FileIO(path)))
            self._file = stack.enter_context(zipfile.ZipFile(content))
            self._open = stack.pop_all()

    def close(self) -> None:
        self._open.close()

    def members(self) -> tuple[list[Member], list[LeftOut]]:
        entries = self._file.infolist()
        _check_number(sum(not entry.is_dir() for entry in entries))
        judged, left_out = self._judged(entries)
        _check_total(judged)
        members = []
        for member in judged:
            try:
                reason = HOLDS_CREDENTIALS if begins_as_key(self._head(member)) else None
            except _BROKEN as error:
                left_out.append(LeftOut(member.name, _broken(error), is_failure=True))
                continue
            if reason is None:
                members.append(member)
            else:
                left_out.append(LeftOut(member.name, reason))
        return members, left_out

    def _judged(self, entries: list[zipfile.ZipInfo]) -> tuple[list[Member], list[LeftOut]]:
        members: dict[str, Member] = {}
        left_out = []
        for number, entry in sorted(enumerate(entries), key=lambda each: each[1].filename):
            path = PureWindowsPath(entry.filename)  # both separators, and drives
            name = path.as_posix()
            if path.anchor or ".." in path.parts:
                left_out.append(LeftOut(entry.filename, LEADS_OUT, is_failure=True))
            elif entry.is_dir() or not path.name or any(part.startswith(".") for part in path.parts):
                continue
            elif (reason := _exclusion(entry, path)) is not None:
                left_out.append(LeftOut(name, reason))
            elif (reason := _refusal(entry)) is not None or name in members:
                left_out.append(LeftOut(name, reason or REPEATED, is_failure=True))
            else:
                members[name] = Member(self._path, name, entry.file_size, number)
        return list(members.values()), left_out

    def _head(self, member: Member) -> bytes:
        if member.size > DEFAULT_UPLOAD_BYTES:
            return b""
        with self._file.open(self._file.infolist()[member.number]) as content:
            return content.read(HEAD_BYTES)

    def copy(self, number: int, to: IO[bytes]) -> None:
        with self._file.open(self._file.infolist()[number]) as content:
            copyfileobj(content, to)


def _exclusion(entry: zipfile.ZipInfo, path: PureWindowsPath) -> str | None:
    if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
        return LINK
    if path.suffix.lower() in ARCHIVES:
        return NESTED
    return HOLDS_CREDENTIALS if is_named_as_credentials(path.name) else None


def _refusal(entry: zipfile.ZipInfo) -> str | None:
    if entry.flag_bits & 1:
        return ENCRYPTED
    return None if entry.compress_type in _METHODS else UNKNOWN_METHOD


class _Bounded(io.BufferedReader):
    """A file of which `zipfile` cannot read a list of members of any size into memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MOST_LIST_BYTES:
            raise OSError(TOO_MANY)
        return super().read(size)


class _Mbox:
    def __init__(self, path: Path) -> None:
        self._path = path
        if path.stat().st_size > MOST_BYTES:
            raise OSError(TOO_LARGE_IN_ALL)
        with path.open("rb") as content:
            _check_number(sum(line.startswith(b"From ") for line in _lines(content)))
        self._box = mailbox.mbox(path, create=False)
        self._keys = self._box.keys()

    def close(self) -> None:
        self._box.close()

    def members(self) -> tuple[list[Member], list[LeftOut]]:
        members: dict[str, Member] = {}
        for number, key in enumerate(self._keys):
            with self._box.get_file(key) as message:
                name = _message_id(message.read(_MAIL_HEAD_BYTES))
                message.seek(0, io.SEEK_END)
                size = message.tell()
            if not name or name in members:
                name = f"{number + 1}.eml"
            members[name] = Member(self._path, name, size, number)
        return list(members.values()), []

    def copy(self, number: int, to: IO[bytes]) -> None:
        with self._box.get_file(self._keys[number]) as message:
            copyfileobj(message, to)


def _lines(content: IO[bytes]) -> Iterator[bytes]:
    while line := content.readline(_MOST_LINE_BYTES):
        if len(line) == _MOST_LINE_BYTES:
            raise OSError(f"it has a line of {_MOST_LINE_BYTES >> 20} MiB, so it is no mailbox")
        yield line


def _message_id(head: bytes) -> str | None:
    """Return a file name made of the Message-ID, or None if that could not be one."""
    header = BytesHeaderParser().parsebytes(_END_OF_HEADER.split(head, maxsplit=1)[0])
    found = _MESSAGE_ID.fullmatch(str(header["Message-ID"]).strip())
    return f"{found[1]}.eml" if found and len(found[1]) <= _LONGEST_ID else None


def _check_number(members: int) -> None:
    if members > MOST_MEMBERS:
        raise OSError(TOO_MANY)


def _check_total(members: list[Member]) -> None:
    # A larger member is refused by itself.
    if sum(each.size for each in members if each.size <= DEFAULT_UPLOAD_BYTES) > MOST_BYTES:
        raise OSError(TOO_LARGE_IN_ALL)


_BROKEN = (
    zipfile.BadZipFile, zlib.error, struct.error, mailbox.Error,
    EOFError, KeyError, IndexError, NotImplementedError, OverflowError, ValueError,
)  # fmt: skip
"""Exceptions of `zipfile` and `mailbox` for damaged files."""


def _broken(error: Exception) -> str:
    return f"it is damaged: {error}"


@contextmanager
def _damage() -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise OSError(_broken(error)) from error


class Archives(AbstractContextManager["Archives"]):
    """Reads the members of archives, one archive open at a time."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._open: _Zip | _Mbox | None = None

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open.close()
        self._path = self._open = None

    def members(self, path: Path) -> tuple[list[Member], list[LeftOut]]:
        """Return the members that a folder's rules admit, and those left out; hidden ones are in neither.
        Raises OSError: it cannot be read, or is above a limit.
        """
        with _damage():
            return self._opened(path).members()

    def unpack(self, member: Member) -> io.RawIOBase:
        """Return a temporary file with the content of a member.
        Raises OSError: it is damaged, or above the limit.
        """
        if member.size > DEFAULT_UPLOAD_BYTES:
            raise OSError(TOO_LARGE)
        with ExitStack() as stack:
            unpacked = io.BufferedRandom(stack.enter_context(TemporaryFile(buffering=0)))
            with _damage():
                self._opened(member.archive).copy(member.number, unpacked)
            unpacked.seek(0)
            stack.pop_all()
        return unpacked.detach()

    def _opened(self, path: Path) -> _Zip | _Mbox:
        if self._open is None or self._path != path:
            self.__exit__()
            self._open = _Mbox(path) if path.suffix.lower() == ".mbox" else _Zip(path)
            self._path = path
        return self._open
