"""The bytes of an upload on their way: decoded, written, hashed and read again, block by block."""

from __future__ import annotations

import asyncio
import binascii
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

from kb_server.uploads.errors import UploadError
from kb_server.uploads.upload import MEBIBYTE

BLOCK_BYTES = MEBIBYTE
"""What is held in memory of a file at a time."""


def decode_base64(data: str) -> bytes:
    """The bytes of a chunk.

    Raises:
        UploadError: `invalid_base64`; nothing is skipped or guessed.
    """
    try:
        if len(data) % 4:
            raise ValueError("not padded")  # the strict mode lets a fifth character pass where it is padding
        return binascii.a2b_base64(data, strict_mode=True)
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


def append(path: Path, block: bytes) -> None:
    """Write at the end of a file, which is made where it is missing."""
    with path.open("ab") as file:
        file.write(block)


async def gathered(blocks: AsyncIterator[bytes], size: int) -> AsyncIterator[bytes]:
    """The same bytes in blocks of at least `size`, so that each is worth a trip to a thread."""
    gathered = bytearray()
    async for block in blocks:
        gathered += block
        if len(gathered) >= size:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


async def read_blocks(paths: list[Path]) -> AsyncIterator[bytes]:
    """The files' bytes one after the other, never more than a block in memory."""
    for path in paths:
        file = await asyncio.to_thread(path.open, "rb")
        try:
            while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
                yield block
        finally:
            file.close()
