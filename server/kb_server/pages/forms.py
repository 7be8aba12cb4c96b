"""Forms from browsers (`multipart/form-data`): fields in memory, files in unnamed temporary files.

A file is written to an unnamed file of the data folder, so that it disappears with the request even if the
process is killed, and can be read again for every attempt of the engine client.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Self

from aiohttp import BodyPartReader, web
from aiohttp.http import HttpProcessingError

from kb_contracts.api.formats import UnsupportedFormat, format_of
from kb_contracts.api.models import MAX_NOTE_CHARS
from kb_server.engine_client.port import FileSource
from kb_server.tool import ToolError
from kb_server.uploads.upload import UploadError, check_filename
from mcp_aiohttp.options import BodyLimits

_FIELDS = 32
_FILES, _LEFT_OUT = 32, 500
_FIELD_BYTES = 5 * MAX_NOTE_CHARS
"""Maximum size of all fields together, in bytes: a note of up to four bytes a character, and more."""
_SMALL_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20
_SILENCE_SECONDS = BodyLimits().read_timeout

_BROKEN = (
    ValueError,
    AssertionError,
    LookupError,
    RuntimeError,  # a part named `_charset_`
    HttpProcessingError,
    web.RequestPayloadError,
    ConnectionError,
)
"""The exceptions that aiohttp raises for a body that it cannot read."""

Check = Callable[[web.Request, "Form"], None]


class FormError(ToolError):
    """The request is not a valid form, or is too large. `status` is the HTTP status, `field` the cause."""

    def __init__(self, message: str, status: int = 400, field: str = "") -> None:
        super().__init__("invalid_form", message, parameter=field)
        self.status = status


@dataclass
class Form:
    """A submitted form. Leave it as a context to free its files."""

    fields: dict[str, str] = field(default_factory=dict)
    files: list[FileSource] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """The names of files that were not taken, each with the reason."""
    is_own: bool = False
    """True once its token was found to be of the visitor's session."""
    _opened: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failed: object) -> None:
        self._opened.close()

    def __getitem__(self, name: str) -> str:
        """Return a field without white space around it; empty if it is missing."""
        return self.fields.get(name, "").strip()

    def text(self, name: str) -> str:
        """Return a field of several lines, with the CR LF of browsers converted to LF."""
        return self.fields.get(name, "").replace("\r\n", "\n")

    async def read(
        self,
        request: web.Request,
        folder: Path | None = None,
        most_bytes: int = 0,
        check: Check = lambda _request, _form: None,
    ) -> None:
        """Read the body of the request; `folder` takes the files, of at most `most_bytes` each.

        A file that is too large, of an unsupported format, or one too many is in `left_out`.

        Without a folder it is the unauthenticated form: small, without files, and with one short time-out.
        `check` is called once, with the fields before the first file.
        Raises FormError: it is not a form, too large, or stopped arriving for 20 seconds.
        """
        if request.content_type != "multipart/form-data":
            raise FormError("Send the form as multipart/form-data, as the page does.", 415)
        try:
            async with asyncio.timeout(_SILENCE_SECONDS) as patience:
                await self._read_parts(request, folder, most_bytes, check, patience)
        except TimeoutError as error:
            raise FormError("The form did not arrive in time. Send it again.", 408) from error
        except _BROKEN as error:
            raise FormError("The form broke off, or cannot be read.") from error

    async def _read_parts(
        self,
        request: web.Request,
        folder: Path | None,
        most_bytes: int,
        check: Check,
        patience: asyncio.Timeout,
    ) -> None:
        async def arriving(part: BodyPartReader) -> AsyncIterator[bytes]:
            while block := await part.read_chunk(_BLOCK_BYTES):
                if folder is not None:  # an unauthenticated form has to arrive within one time-out
                    patience.reschedule(asyncio.get_running_loop().time() + _SILENCE_SECONDS)
                yield block

        to_skip = 2 * most_bytes
        room = _FIELD_BYTES if folder is not None else _SMALL_BYTES
        reader = await request.multipart()
        while (part := await reader.next()) is not None:
            if not isinstance(part, BodyPartReader) or not part.name:
                raise FormError("The form cannot be read.")
            if part.filename is None:
                if len(self.fields) == _FIELDS:
                    raise FormError(f"The form has more than {_FIELDS} fields.", 413)
                value = await _field(arriving(part), room)
                room -= len(value)
                self.fields[part.name] = value.decode()
            elif part.filename:
                if folder is None or len(self.left_out) == _LEFT_OUT:
                    raise FormError(f"Send {_FILES} files at a time at most.", 413, "file")
                if not (self.files or self.left_out):
                    check(request, self)
                blocks = arriving(part)
                reason = _refused(part.filename)
                if len(self.files) == _FILES:
                    reason = f"A form takes {_FILES} files at most. Send this one again."
                if not reason:
                    reason = await self._take(blocks, part.filename, folder, most_bytes)
                if reason:
                    name = part.filename[:200].encode(errors="replace").decode()
                    self.left_out.append((name, reason))
                async for block in blocks:
                    to_skip -= len(block)
                    if to_skip < 0:
                        raise FormError("The files are too large. Leave out the largest.", 413, "file")
        if not (self.files or self.left_out):
            check(request, self)

    async def _take(self, blocks: AsyncIterator[bytes], filename: str, folder: Path, most_bytes: int) -> str:
        """Keep a file of the form. Return the reason why not; the rest of it is then still in `blocks`."""
        size = 0
        try:
            file = self._opened.enter_context(await asyncio.to_thread(_nameless, folder))
            async for block in blocks:
                size += len(block)
                if size > most_bytes:
                    file.close()
                    return f"It has more than {most_bytes} bytes."
                await asyncio.to_thread(file.write, block)
        except OSError as error:
            words = f"The data folder is not writable: {error.strerror}. Ask the operator of the server."
            raise FormError(words, 507) from error
        self.files.append(FileSource(check_filename(filename), size, partial(_blocks, file, size)))
        return ""


def _refused(name: str) -> str:
    """Return the reason for refusing a file of this name; empty if its format is supported."""
    try:
        format_of(check_filename(name))
    except UploadError as error:
        return error.message
    except UnsupportedFormat as error:
        return error.reason
    return ""


def _nameless(folder: Path) -> BinaryIO:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return tempfile.TemporaryFile(dir=folder, buffering=0)


async def _blocks(file: BinaryIO, size: int) -> AsyncIterator[bytes]:
    for offset in range(0, size, _BLOCK_BYTES):
        yield await asyncio.to_thread(os.pread, file.fileno(), _BLOCK_BYTES, offset)


async def _field(blocks: AsyncIterator[bytes], room: int) -> bytes:
    data = bytearray()
    async for block in blocks:
        data += block
        if len(data) > room:
            raise FormError("The fields of the form are too large.", 413)
    return bytes(data)
