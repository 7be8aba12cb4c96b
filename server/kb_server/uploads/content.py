"""The bytes of an upload on their way: decoded, written, hashed and read again, block by block."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import BinaryIO, Self

import pybase64

from kb_server.shielding import to_its_end
from kb_server.uploads.errors import UploadError
from kb_server.uploads.upload import MEBIBYTE

BLOCK_BYTES = MEBIBYTE
"""What is written, read or hashed of a file at a time; a body that arrives has two of them in memory."""


def decode_base64(data: str) -> bytes:
    """The bytes of a chunk.

    Raises:
        UploadError: `invalid_base64`; nothing is skipped or guessed.
    """
    try:
        return pybase64.b64decode(data, validate=True)
    except ValueError as error:
        raise UploadError(
            "invalid_base64",
            "data is not strict base64: A-Z, a-z, 0-9, + and /, padded with =, without line breaks, blanks "
            "or a data: prefix. Encode the chunk again.",
            parameter="data",
        ) from error


def hash_files(paths: list[Path]) -> str:
    """The SHA-256 of the files' bytes, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()


class WriteBehind:
    """A new file at `path`: while some blocks of it are written in a thread, the next may be gathered.

    An asynchronous context, which is not left before the thread is done with the file. `write` and leaving
    raise `OSError` where blocks could not be written, those of the call before among them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._writing: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        """The file is made when there is something to write."""
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the file; on the way of an exception, its own faults are passed over."""
        with suppress(OSError) if kind is not None else nullcontext():
            try:
                await self._settled()
            finally:
                if self._file is not None:
                    await to_its_end(asyncio.to_thread(self._file.close))  # writes what it still holds

    async def write(self, blocks: Sequence[bytes]) -> None:
        """Append `blocks` as soon as those before are written."""
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
    """The same blocks, so many together that they have `size` bytes: each is worth a trip to a thread."""
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
    """The files' bytes one after the other, never more than a block in memory."""
    for path in paths:
        file = await asyncio.to_thread(path.open, "rb")
        try:
            while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
                yield block
        finally:
            file.close()
