"""Uploads: bytes from agents, staged on disk until they are complete, then streamed to the engine.

    kb_upload_start ---> start
    kb_upload_chunk ---> chunk  -.
    PUT /uploads/... --> receive -+--> staging folder --> finish --> Engine.send_file, streamed from disk
    kb_upload_finish --> finish -'         |
    kb_upload_abort, DELETE /uploads/... --+--> removed

Blocking work is done in threads, one at a time per upload. The quota counts bytes that have arrived. An
announced size reserves no room; bytes that do not fit are refused, and can be sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import BinaryIO, Self, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

import msgspec
import pybase64

from kb_contracts.access.keys import ANYBODY
from kb_contracts.api.models import FileFields, Job
from kb_server.engine_client.port import Engine, FileSource
from kb_server.uploads.staging import Entry, Ledger, Lock, Staging, hash_token, remove_dead
from kb_server.uploads.upload import (
    CHUNK_BYTES,
    MEBIBYTE,
    UNSAID,
    End,
    NewUpload,
    State,
    Upload,
    UploadError,
    check_body,
    check_chunk,
    check_chunk_shape,
    check_filename,
    check_format,
    check_open,
    check_sha256,
    check_size,
    check_whole,
    not_found,
    sha256_mismatch,
    size_mismatch,
)
from kb_server.waiting import SYSTEM_CLOCK, Clock, to_its_end

T = TypeVar("T")
logger = logging.getLogger(__name__)

OPEN_UPLOADS = 64
IDLE_SECONDS = 60.0
"""Time without a byte after which an upload gives way to another, where callers share their places."""
TOKEN_BYTES = 32
BLOCK_BYTES = MEBIBYTE
"""Block size for writing, reading and hashing files, in bytes; an arriving body has two in memory."""

_SPARE_BYTES = 64 * MEBIBYTE
_HOLD_AHEAD = 4 * MEBIBYTE
"""Bytes of the quota reserved ahead of a body, once it has brought as many."""
_SWEEP_SECONDS = 15.0
_MAKE_ROOM = "Finish an open upload, or abort one: DELETE on its upload_url, or kb_upload_abort (kb-extra)."


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of uploads, in bytes and seconds; `share_bytes` and `open_uploads` are per caller."""

    file_bytes: int
    staging_bytes: int
    share_bytes: int
    seconds: float
    open_uploads: int = OPEN_UPLOADS


@dataclass(frozen=True, slots=True)
class Started:
    """A new upload; its `token` is returned once and not stored."""

    upload: Upload
    token: str


@dataclass(frozen=True, slots=True)
class Received:
    """The received bytes and chunks."""

    bytes: int
    chunks: int
    total_size: int | None


@dataclass(frozen=True, slots=True)
class Finished:
    """The engine's job. `job` is its first answer, None if an earlier call received it."""

    upload: Upload
    job_id: str
    job: Job | None


class Uploads:
    """The uploads of one instance.

    Raises (all methods but `close`): `UploadError`; `EngineFault` if the engine is called.
    """

    def __init__(
        self, home: Path, instance: str, limits: Limits, engine: Engine, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._staging = Staging(home / "staging", instance)
        self._limits = limits
        self._engine = engine
        self._clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._opening = asyncio.Lock()
        self._deadlines: dict[str, float] = {}
        self._sweeper: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop sweeping and release the staging folder; the last worker of the instance removes it."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
            self._sweeper = None
            await asyncio.to_thread(self._staging.close)

    async def start(
        self, new: NewUpload, caller: str, *, owner: str = ANYBODY, most_open: int | None = None
    ) -> Started:
        """Begin an upload; refused if there is no room for its bytes now, though no room is reserved.

        Only `owner` may continue it; without keys, an idle upload gives way to the new one. `most_open` is
        the maximum number of open uploads of that caller, if it is lower than the general one.
        """
        if new.total_size is not None:
            check_size(new.total_size, self._limits.file_bytes)
        filename = check_filename(new.filename)
        check_format(filename)
        token = token_urlsafe(TOKEN_BYTES)
        expires = self._clock.now() + timedelta(seconds=self._limits.seconds)
        checked = {"filename": filename, "sha256": check_sha256(new.sha256)}
        upload = Upload(
            **{**msgspec.structs.asdict(new), **checked},
            id=str(uuid4()),
            token_sha256=hash_token(token),
            caller=caller,
            owner=owner,
            deadline=self._clock.monotonic() + self._limits.seconds,
            expires_at=expires.isoformat(timespec="seconds").replace("+00:00", "Z"),
        )

        def admit(ledger: Ledger) -> None:
            now, most = self._clock.monotonic(), self._limits.open_uploads
            if most_open is not None:
                most = min(most, most_open)
            mine = sum(each.caller == caller and now < each.deadline for each in ledger.values())
            if mine >= most:
                raise UploadError(
                    "too_many_uploads",
                    f"{mine} of your uploads are open; at most {most} may be. {_MAKE_ROOM}",
                    max_open=most,
                )
            # For a file of unknown size, admit the first byte.
            self._admit_bytes(ledger, upload.total_size or 1, caller)

        await self._open()
        try:
            await self._in_thread(partial(self._staging.create, upload, admit))
        except UploadError as error:
            # A place of one caller alone is nobody else's loss.
            shared = error.code == "too_many_uploads" and owner == ANYBODY
            if not shared or not await self._make_place(caller):
                raise
            await self._in_thread(partial(self._staging.create, upload, admit))
        return Started(upload, token)

    async def _make_place(self, caller: str) -> bool:
        """Remove the oldest upload of `caller` without a byte for `IDLE_SECONDS`; True if there was one."""
        latest = self._clock.monotonic() + self._limits.seconds - IDLE_SECONDS
        holdings = await self._in_thread(self._staging.holdings)

        def remove_if_idle(entry: Entry) -> bool:
            upload = entry.read()
            if entry.is_receiving() or entry.state(upload) is not State.OPEN or entry.staged().received:
                return False
            self._staging.remove(entry, upload)
            return True

        idle = sorted(
            (each.deadline, upload_id)
            for upload_id, each in holdings.items()
            if each.caller == caller and not each.bytes and each.deadline <= latest
        )
        for _, upload_id in idle:
            with suppress(UploadError):  # it was removed meanwhile
                if await self._exclusively(upload_id, remove_if_idle):
                    return True
        return False

    async def chunk(
        self, upload_id: str, index: int, data: str, sha256: str | None = None, *, owner: str = ANYBODY
    ) -> Received:
        """Store one chunk, given as strict base64; the same index again replaces it."""
        expected = check_sha256(sha256)
        if (least := len(data) * 3 // 4 - 2) > CHUNK_BYTES:
            check_chunk_shape(index, least)  # not worth decoding
        decoded = await asyncio.to_thread(_decoded, index, data, expected)

        def store(entry: Entry) -> Received:
            upload = self._changeable(entry, owner)
            if entry.is_receiving():
                raise _receiving(upload.id)
            most = self._limits.file_bytes
            self._hold(upload, check_chunk(upload, entry.staged(), index, len(decoded), most))
            entry.put_chunk(index, decoded)
            staged = entry.staged()
            return Received(staged.received, len(staged.chunks), upload.total_size)

        return await self._exclusively(upload_id, store)

    async def receive(self, token: str, announced: int | None, blocks: AsyncIterator[bytes]) -> Upload:
        """Receive the whole file from `blocks`; a body that breaks off is removed.

        `announced` is the body's length in bytes, if it is known beforehand.
        """
        await self._open()
        upload_id = await self._in_thread(partial(self._staging.by_token, token))
        unfinished = self._staging.unfinished(upload_id)

        def admit(entry: Entry) -> tuple[Upload, int]:
            upload = self._changeable(entry)
            total_size = check_body(upload, entry.staged(), announced)
            if not entry.hold_receiving(receiving):
                raise _receiving(upload.id)
            # Checked before the body comes, but reserved only as it arrives: a slow body does not block other
            # uploads.
            self._hold(upload, 0, to_come=total_size)
            return upload, total_size

        def adopt(entry: Entry) -> None:
            check_body(self._changeable(entry), entry.staged(), None)
            entry.adopt_body(unfinished)

        def discard() -> None:
            unfinished.unlink(missing_ok=True)  # freeing the space takes time
            self._hold(upload, 0)

        with Lock() as receiving:
            upload, total_size = await self._exclusively(upload_id, admit)
            try:
                await self._pour(upload, total_size, unfinished, blocks)
                await self._exclusively(upload_id, adopt)
            except BaseException:
                with suppress(UploadError):  # it was removed meanwhile
                    await self._in_thread(discard)
                raise
        return upload

    async def _pour(
        self, upload: Upload, total_size: int, unfinished: Path, blocks: AsyncIterator[bytes]
    ) -> None:
        size = held = 0
        left = upload.deadline - self._clock.monotonic()
        try:
            async with asyncio.timeout(left), WriteBehind(unfinished) as file:
                async for batch in batches(blocks, BLOCK_BYTES):
                    size += sum(map(len, batch))
                    if size > total_size:
                        raise size_mismatch(total_size, size)
                    if size > held:
                        held = size if size <= _HOLD_AHEAD else min(total_size, size + _HOLD_AHEAD)
                        await self._in_thread(partial(self._hold, upload, held))
                    await file.write(batch)
        except (TimeoutError, FileNotFoundError) as error:  # it expired, or was aborted just now
            raise not_found(upload.id) from error
        except OSError as error:
            raise _unusable(error) from error
        if size != total_size:
            raise size_mismatch(total_size, size)

    async def finish(self, upload_id: str, end: End = UNSAID, *, owner: str = ANYBODY) -> Finished:
        """Hand the file to the engine; a repeated call returns the same job. A failure changes nothing."""
        expected = check_sha256(end.sha256)

        def begin(entry: Entry) -> tuple[Upload, list[Path], int]:
            upload = self._current(entry, owner)
            if upload.job_id is not None:
                return upload, [], 0
            check_open(entry.state(upload), upload.id)
            if entry.is_receiving():
                raise _receiving(upload.id)
            staged = entry.staged()
            check_whole(upload, staged, end)
            entry.hold_finishing(finishing)
            return upload, entry.content(), staged.received

        def accepted(entry: Entry) -> None:
            entry.write(msgspec.structs.replace(entry.read(), job_id=job.id))
            self._staging.retire(entry)

        with Lock() as finishing:
            upload, paths, size = await self._exclusively(upload_id, begin)
            if upload.job_id is not None:
                return Finished(upload, upload.job_id, None)
            if announced := [value for value in (upload.sha256, expected) if value is not None]:
                actual = await self._in_thread(partial(_hash_of, paths))
                for value in announced:
                    if value != actual:
                        raise sha256_mismatch("the file", value, actual)
            source = FileSource(upload.filename, size, partial(read_blocks, paths))
            fields = FileFields(
                title=upload.title,
                tags=upload.tags,
                metadata=upload.metadata,
                source_path=upload.source_path,
                dedup_scope=upload.collection,
            )
            job = await self._engine.send_file(source, fields, idempotency_key=upload.id)
            await self._exclusively(upload_id, accepted)
        return Finished(upload, job.id, job)

    async def abort(self, upload_id: str, *, owner: str | None = ANYBODY) -> Upload:
        """Remove an open upload, with all received data; a body in transfer is refused."""

        def remove(entry: Entry) -> Upload:
            upload = self._changeable(entry, owner)
            self._staging.remove(entry, upload)
            return upload

        return await self._exclusively(upload_id, remove)

    async def abort_by_token(self, token: str) -> Upload:
        """Abort the upload whose URL has this token; see `abort`."""
        await self._open()
        return await self.abort(await self._in_thread(partial(self._staging.by_token, token)), owner=None)

    async def sweep(self) -> int:
        """Remove expired uploads, unless they are in use; return their number."""

        def remove_if_over(entry: Entry) -> bool:
            upload = entry.read()
            busy = entry.state(upload) is State.FINISHING or entry.is_receiving()
            if busy or not self._is_over(upload):
                return False
            self._staging.remove(entry, upload)
            return True

        removed = 0
        for upload_id in await self._in_thread(self._overdue):
            with suppress(UploadError):
                removed += await self._exclusively(upload_id, remove_if_over)
        return removed

    def _overdue(self) -> list[str]:
        """Return the expired uploads. An upload's deadline is constant, and read once."""
        deadlines = {}
        for upload_id in self._staging.ids():
            deadline = self._deadlines.get(upload_id)
            if deadline is None and (upload := self._staging.peek(upload_id)) is not None:
                deadline = upload.deadline
            if deadline is not None:
                deadlines[upload_id] = deadline
        self._deadlines = deadlines
        now = self._clock.monotonic()
        return [upload_id for upload_id, deadline in deadlines.items() if now >= deadline]

    async def _sweep_for_ever(self) -> None:
        while True:
            await self._clock.sleep(min(_SWEEP_SECONDS, self._limits.seconds / 4))
            try:
                await self.sweep()
            except Exception:  # boundary: the next sweep tries again
                logger.exception("removing expired uploads from the staging folder failed")

    def _admit_bytes(self, ledger: Ledger, more: int, caller: str) -> None:
        """Check that `more` bytes of `caller` fit beside the staged ones."""
        held = [each.bytes for each in ledger.values() if each.caller == caller]
        if more > (left := self._limits.share_bytes - sum(held)):
            raise UploadError(
                "share_full",
                f"{more} bytes more would be over your share of the staging folder: of "
                f"{self._limits.share_bytes} bytes {max(0, left)} are free. {_MAKE_ROOM} Then send it again.",
                free_bytes=max(0, left),
                share_bytes=self._limits.share_bytes,
            )
        held_by_all = sum(each.bytes for each in ledger.values())
        quota = self._limits.staging_bytes - held_by_all
        free = self._staging.free_bytes()
        room = max(0, min(quota, free - _SPARE_BYTES))
        if more > room:
            is_disk = free - _SPARE_BYTES < quota
            why = f" Of {free} bytes on the disk {_SPARE_BYTES} are kept free." if is_disk else ""
            advice = _MAKE_ROOM if held_by_all else "The operator of the server must free space."
            raise UploadError(
                "staging_full",
                f"There is room for {room} more bytes, but {more} are needed.{why} {advice} Or try again in "
                "some minutes.",
                free_bytes=room,
            )

    def _hold(self, upload: Upload, size: int, *, to_come: int = 0) -> None:
        """Reserve `size` bytes in all for the upload, if there is room for them and for `to_come` more."""

        def admit(ledger: Ledger) -> None:
            more = size + to_come - ledger[upload.id].bytes
            if more > 0:
                self._admit_bytes(ledger, more, upload.caller)

        self._staging.hold(upload.id, size, admit)

    async def _open(self) -> None:
        async with self._opening:
            if self._sweeper is None:
                await self._in_thread(partial(remove_dead, self._staging.root))
                await self._in_thread(self._staging.open)
                self._sweeper = asyncio.create_task(self._sweep_for_ever(), name="uploads-sweeper")

    async def _exclusively(self, upload_id: str, work: Callable[[Entry], T]) -> T:
        """Run `work` in a thread, with exclusive access to the upload.

        The lock here keeps waiting calls from occupying threads.
        """
        await self._open()
        lock = self._locks.get(upload_id)
        if lock is None:
            lock = self._locks[upload_id] = asyncio.Lock()
        async with lock:
            return await self._in_thread(partial(self._staging.with_entry, upload_id, work))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking `work`; a cancelled caller waits for its end, so that no lock is lost."""
        try:
            return await to_its_end(asyncio.to_thread(work))
        except OSError as error:
            raise _unusable(error) from error

    def _current(self, entry: Entry, owner: str | None) -> Upload:
        """Return the upload for its owner; None stands for the holder of its URL."""
        upload = entry.read()
        if self._is_over(upload) or owner not in (None, upload.owner):
            raise not_found(upload.id)
        return upload

    def _changeable(self, entry: Entry, owner: str | None = None) -> Upload:
        upload = self._current(entry, owner)
        check_open(entry.state(upload), upload.id)
        return upload

    def _is_over(self, upload: Upload) -> bool:
        return self._clock.monotonic() >= upload.deadline


def _decoded(index: int, data: str, expected: str | None) -> bytes:
    """Return the bytes of a chunk from strict base64."""
    try:
        decoded = pybase64.b64decode(data, validate=True)
    except ValueError as error:
        raise UploadError(
            "invalid_base64",
            "data is not strict base64: A-Z, a-z, 0-9, + and /, padded with =, without line breaks, blanks "
            "or a data: prefix. Encode the chunk again.",
            parameter="data",
        ) from error
    check_chunk_shape(index, len(decoded))
    if expected is not None and (actual := hashlib.sha256(decoded).hexdigest()) != expected:
        raise sha256_mismatch(f"chunk {index}", expected, actual)
    return decoded


def _hash_of(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def _unusable(error: OSError) -> UploadError:
    return UploadError(
        "staging_failed",
        f"The server cannot use its staging folder ({error.strerror or 'no reason given'}). The operator "
        "must check the folder of KB_HOME.",
    )


def _receiving(upload_id: str) -> UploadError:
    return UploadError(
        "upload_receiving",
        "The upload URL is receiving the file. Wait for the end of the transfer, then call kb_upload_finish.",
        upload_id=upload_id,
    )


class WriteBehind:
    """A new file at `path`: while a thread writes some blocks, the next ones may be gathered.

    An asynchronous context, which ends only after the thread has finished with the file. `write` and leaving
    raise `OSError` if blocks could not be written, including the blocks of the previous call.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._writing: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self  # the file is created with the first block

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the file; after an exception, errors of closing are ignored."""
        with suppress(OSError) if kind is not None else nullcontext():
            try:
                await self._settled()
            finally:
                if self._file is not None:
                    await to_its_end(asyncio.to_thread(self._file.close))  # writes the buffered data

    async def write(self, blocks: Sequence[bytes]) -> None:
        """Append `blocks` as soon as earlier blocks are written."""
        await self._settled()
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._append, blocks))

    async def _settled(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            await to_its_end(writing)

    def _append(self, blocks: Sequence[bytes]) -> None:
        if self._file is None:
            self._file = self._path.open("xb")
        self._file.writelines(blocks)


async def batches(blocks: AsyncIterator[bytes], size: int) -> AsyncIterator[list[bytes]]:
    """Yield the blocks in batches of at least `size` bytes, so that each is worth a call of a thread."""
    batch: list[bytes] = []
    length = 0
    async for block in blocks:
        batch.append(block)
        length += len(block)
        if length >= size:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


async def read_blocks(paths: list[Path]) -> AsyncIterator[bytes]:
    """Yield the files' bytes one after the other, with at most one block in memory."""
    for path in paths:
        file = await asyncio.to_thread(path.open, "rb")
        try:
            while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
                yield block
        finally:
            file.close()
