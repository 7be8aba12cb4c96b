"""The staging folder: the files of uploads on disk, shared by the workers of one instance.

    <home>/staging/                     0700
        <instance>/                     one running server; its workers share it
            .alive                      each live worker holds a shared lock on it
            .quota                      locked while room is reserved
            token-<sha256>              the id of the upload whose URL has this token
            <upload id>/
                .lock                   locked while its state is read or changed
                .finishing  .receiving  locked during the operation
                upload.json             its record; replaced by renaming
                chunk-<index>  body     written under another name and renamed
            done/<upload id>/           the same, handed over; not searched when an upload begins

A lock ends with its process. So a folder whose `.alive` can be locked exclusively has no server, and the next
server that starts removes it.

All functions here block; callers run them in a thread.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Self, TypeVar

import msgspec

from kb_server.uploads.upload import Staged, State, Upload, UploadError, not_found

T = TypeVar("T")

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_UNFINISHED = re.compile(r"\.[0-9a-f]{16}")
_ALIVE = ".alive"
_RECORD = "upload.json"
_FINISHING = ".finishing"
_RECEIVING = ".receiving"
_DONE = "done"
_LEDGER = "ledger.json"
_CHUNK = "chunk-"
_TOKEN = "token-"  # noqa: S105 - the beginning of a file name


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """The share of an open upload in the quota: `bytes` is the received size, for its `caller`."""

    caller: str
    deadline: float
    bytes: int = 0


Ledger = dict[str, Holding]
"""The open uploads by their ids."""

_decode_ledger = msgspec.json.Decoder(Ledger).decode


class Lock:
    """A lock on a file, until it is released, its context is left, or the process ends."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, path: Path, *, shared: bool = False, wait: bool = True) -> bool:
        """Lock `path`, which is created if missing; False if it is locked elsewhere and `wait` is false.
        Raises OSError: its folder is gone, or cannot be written.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        try:
            fcntl.flock(descriptor, mode)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def is_on(self, path: Path) -> bool:
        """True if the locked file is still the one at `path`."""
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock, if held. Closing is enough: no other descriptor shares this open file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def remove_dead(root: Path) -> list[str]:
    """Remove the folders of servers that no longer run; return their names."""
    folders = list(root.iterdir()) if root.is_dir() else []
    return [folder.name for folder in folders if folder.is_dir() and _remove_if_dead(folder)]


def _remove_if_dead(folder: Path) -> bool:
    with Lock() as lock:
        try:
            if not lock.acquire(folder / _ALIVE, wait=False):
                return False
            shutil.rmtree(folder, ignore_errors=True)
        except FileNotFoundError:  # removed by another process just now
            return False
    return True


class Entry:
    """One upload's folder. Its methods are called under its lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> Upload:
        """Return the upload.

        Raises UploadError: `upload_not_found`, it was removed meanwhile, or its record is damaged.
        """
        try:
            return msgspec.json.decode((self.folder / _RECORD).read_bytes(), type=Upload)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise not_found(self.folder.name) from error

    def write(self, upload: Upload) -> None:
        """Replace the record of the upload."""
        _put(self.folder, _RECORD, msgspec.json.encode(upload))

    def put_chunk(self, index: int, data: bytes) -> None:
        """Store or replace a chunk, whole or not at all."""
        _put(self.folder, f"{_CHUNK}{index}", data)

    def adopt_body(self, unfinished: Path) -> None:
        """Make the file `unfinished` the upload's body."""
        unfinished.replace(self.folder / "body")

    def staged(self) -> Staged:
        """Return the sizes of the received chunks and body."""
        body = self.folder / "body"
        return Staged(
            chunks={_index(found): found.stat().st_size for found in self._chunks()},
            body=body.stat().st_size if body.exists() else None,
        )

    def content(self) -> list[Path]:
        """Return the parts of the file, in order."""
        body = self.folder / "body"
        return [body] if body.exists() else [Path(found) for found in sorted(self._chunks(), key=_index)]

    def state(self, upload: Upload) -> State:
        """Return the state; finishing is a lock held by another call."""
        if upload.job_id is not None:
            return State.DONE
        return State.FINISHING if self._is_held(_FINISHING) else State.OPEN

    def is_receiving(self) -> bool:
        """True if a body is arriving now."""
        return self._is_held(_RECEIVING)

    def hold_finishing(self, lock: Lock) -> bool:
        """Mark the upload as finishing while `lock` is held; False if it is already."""
        return lock.acquire(self.folder / _FINISHING, wait=False)

    def hold_receiving(self, lock: Lock) -> bool:
        """Mark the upload as receiving while `lock` is held; False if it is already."""
        if not lock.acquire(self.folder / _RECEIVING, wait=False):
            return False
        for path in self.folder.iterdir():
            if _UNFINISHED.fullmatch(path.name):  # left by a process that died while writing
                path.unlink(missing_ok=True)
        return True

    def _is_held(self, name: str) -> bool:
        with Lock() as lock:
            return (self.folder / name).exists() and not lock.acquire(self.folder / name, wait=False)

    def _chunks(self) -> list[os.DirEntry[str]]:
        with os.scandir(self.folder) as found:
            return [each for each in found if each.name.startswith(_CHUNK)]


class Staging:
    """The folder of one instance."""

    def __init__(self, root: Path, instance: str) -> None:
        self.root = root
        self.folder = root / instance
        self._alive = Lock()

    def open(self) -> None:
        """Create the folder and lock it. Raises OSError: the data folder cannot be written."""
        while True:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.folder.mkdir(exist_ok=True, mode=0o700)
            with suppress(FileNotFoundError):
                self._alive.acquire(self.folder / _ALIVE, shared=True)
                if self._alive.is_on(self.folder / _ALIVE):
                    # Only now: until it is locked, another server may be removing the content of the folder.
                    (self.folder / _DONE).mkdir(exist_ok=True, mode=0o700)
                    return
                self._alive.release()
            # A server that started at the same moment took the new folder for a dead one: try again.

    def close(self) -> None:
        """Release the folder; the last worker removes it."""
        self._alive.release()
        _remove_if_dead(self.folder)

    def create(self, upload: Upload, admit: Callable[[Ledger], None]) -> None:
        """Add an upload, unless `admit` raises for the shares of the open uploads."""
        with self._ledger() as ledger:
            admit(ledger)
            unfinished = self.folder / f".{upload.id}"
            unfinished.mkdir(mode=0o700)
            Entry(unfinished).write(upload)
            _write(self._token_file(upload.token_sha256), upload.id.encode())
            unfinished.rename(self.folder / upload.id)
            ledger[upload.id] = Holding(caller=upload.caller, deadline=upload.deadline)

    def hold(self, upload_id: str, size: int, admit: Callable[[Ledger], None]) -> None:
        """Reserve `size` bytes in all for an open upload, unless `admit` raises for the current shares.
        Raises UploadError: `upload_not_found`, it was removed or has become done.
        """
        with self._ledger() as ledger:
            if (holding := ledger.get(upload_id)) is None:
                raise not_found(upload_id)
            admit(ledger)
            ledger[upload_id] = msgspec.structs.replace(holding, bytes=size)

    def holdings(self) -> Ledger:
        """A copy of what the open uploads hold."""
        with self._ledger() as ledger:
            return dict(ledger)

    def _let_go(self, upload_id: str) -> None:
        with self._ledger() as ledger:
            ledger.pop(upload_id, None)

    @contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        """Yield the shares of the open uploads; saved unless the block raises."""
        path = self.folder / _LEDGER
        with Lock() as lock:
            lock.acquire(self.folder / ".quota")
            ledger = _decode_ledger(path.read_bytes()) if path.exists() else {}
            yield ledger
            if ledger:
                _put(self.folder, _LEDGER, msgspec.json.encode(ledger))
            else:
                path.unlink(missing_ok=True)

    def ids(self) -> list[str]:
        """Return the ids of all uploads, including done ones."""
        folders = (self.folder, self.folder / _DONE)
        return [path.name for folder in folders for path in folder.iterdir() if _ID.fullmatch(path.name)]

    def with_entry(self, upload_id: str, work: Callable[[Entry], T]) -> T:
        """Do `work` with exclusive access to the upload.
        Raises UploadError: `upload_not_found`, also if `upload_id` is not a valid id.
        """
        while (folder := self._find(upload_id)) is not None:
            with Lock() as lock:
                try:
                    lock.acquire(folder / ".lock")
                except FileNotFoundError:
                    if folder.exists():
                        raise
                if lock.is_on(folder / ".lock"):
                    return work(Entry(folder))
            # While waiting for the lock the upload was removed, or has become done: try again.
        raise not_found(upload_id)

    def retire(self, entry: Entry) -> None:
        """Move an upload to the done ones, without its bytes; the last step under its lock."""
        for path in entry.content():
            path.unlink(missing_ok=True)
        self._let_go(entry.folder.name)
        entry.folder.rename(self.folder / _DONE / entry.folder.name)

    def unfinished(self, upload_id: str) -> Path:
        """Return a new name in the upload's folder, for an incomplete file."""
        return self.folder / upload_id / f".{token_hex(8)}"

    def remove(self, entry: Entry, upload: Upload) -> None:
        """Remove an upload with all its files."""
        self._let_go(upload.id)  # first: a body in transfer ends when it finds no reservation
        self._token_file(upload.token_sha256).unlink(missing_ok=True)
        # Renamed first: a process that waits for the lock would create the lock file again in a partly
        # removed folder.
        going = entry.folder.rename(self.folder / f".{upload.id}")
        shutil.rmtree(going, ignore_errors=True)

    def by_token(self, token: str) -> str:
        """Return the id of the upload whose URL has this token.
        Raises UploadError: `upload_not_found`; the token is not repeated.
        """
        digest = hash_token(token)
        try:
            upload_id = self._token_file(digest).read_text("ascii")
        except FileNotFoundError:
            upload_id = ""
        upload = self.peek(upload_id) if upload_id else None
        # The name of the file has matched; the decisive comparison takes the same time for any token.
        if upload is None or not hmac.compare_digest(upload.token_sha256, digest):
            raise UploadError(
                "upload_not_found",
                "There is no upload at this URL: it has ended, or the server was restarted. Start again with "
                "kb_upload_start.",
            )
        return upload_id

    def free_bytes(self) -> int:
        """Return the free bytes on the disk."""
        return shutil.disk_usage(self.folder).free

    def peek(self, upload_id: str) -> Upload | None:
        """Return the current record of an upload, without its lock."""
        for _ in range(2):
            if (folder := self._find(upload_id)) is not None:
                with suppress(UploadError):  # it has become done just now: look there
                    return Entry(folder).read()
        return None

    def _find(self, upload_id: str) -> Path | None:
        if not _ID.fullmatch(upload_id):
            return None
        places = (self.folder / upload_id, self.folder / _DONE / upload_id)
        return next((folder for folder in places if folder.exists()), None)

    def _token_file(self, digest: str) -> Path:
        return self.folder / f"{_TOKEN}{digest}"


def hash_token(token: str) -> str:
    """Return the stored form of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _index(chunk: os.DirEntry[str]) -> int:
    return int(chunk.name.removeprefix(_CHUNK))


def _put(folder: Path, name: str, data: bytes) -> None:
    """Write a file whole or not at all: under another name, then renamed."""
    unfinished = folder / f".{token_hex(8)}"
    try:
        _write(unfinished, data)
        unfinished.replace(folder / name)
    finally:
        unfinished.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
