"""The file of `POST /jobs`, read as it arrives, in a multipart body or from a caller in this process.

It goes to a sink block by block, and is never whole in memory.
"""

from __future__ import annotations

import hashlib
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from email.message import Message
from typing import Any, Protocol

import msgspec
from aiohttp import BodyPartReader, MultipartReader, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from kb_contracts.api.errors import EngineError
from kb_contracts.api.formats import format_of
from kb_contracts.api.models import FileFields
from kb_contracts.semantics.encodings import ToUtf8, codec_of
from kb_http.requests import SentFile, misfit

_FIELD_BYTES = 262_144
_FILENAME_CHARS = 255
_PARTS = 16
_READ_BYTES = 1 << 18
_JSON_FIELDS = frozenset({"tags", "metadata"})
_BOOLEAN_FIELDS = frozenset({"force_ocr"})
_BOOLEANS = {"true": True, "false": False}


class Sink(Protocol):
    """Destination of a file's bytes. The caller discards it when the request fails."""

    async def write(self, data: bytes) -> None:
        """Write the next bytes."""


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A file that arrived completely. `filename` is a bare name; `size` is in bytes.

    A text in another declared encoding arrives as UTF-8: size and hash are those of the converted text.
    """

    fields: FileFields
    filename: str
    size: int
    sha256: str

    @property
    def identity(self) -> tuple[str, str, FileFields]:
        """The content of the request, of which a retry has the same."""
        return self.filename, self.sha256, self.fields


async def receive_file(
    source: web.Request | SentFile, open_sink: Callable[[str, str], Awaitable[Sink]], *, max_bytes: int
) -> ReceivedFile:
    """Read the file and its fields, which a request may have in any order.

    `open_sink(filename, content_type)` is called when the file begins.
    Raises EngineError: `invalid_request`, `payload_too_large`, or the errors of the fields' models.
    """
    if isinstance(source, SentFile):
        fields = {name: _field(name, text.encode()) for name, text in source.fields.items()}
        filename = bare_name(source.filename)
        sink = await open_sink(filename, source.content_type)
        conversion = _conversion(filename, source.content_type)
        file = (filename, *await _pour(source.blocks, sink, max_bytes, conversion))
    else:
        fields, file = await _receive_parts(source, open_sink, max_bytes)
    try:
        converted = msgspec.convert(fields, FileFields, strict=False)
    except msgspec.ValidationError as error:
        raise misfit(error, FileFields) from error
    return ReceivedFile(converted, *file)


async def _receive_parts(
    request: web.Request, open_sink: Callable[[str, str], Awaitable[Sink]], max_bytes: int
) -> tuple[dict[str, Any], tuple[str, int, str]]:
    fields: dict[str, Any] = {}
    file: tuple[str, int, str] | None = None
    parts = 0
    try:
        reader = await request.multipart()
        while (part := await _next_part(reader)) is not None:
            parts += 1
            name = part.name if isinstance(part, BodyPartReader) else None
            if not isinstance(part, BodyPartReader) or name is None or parts > _PARTS:
                raise EngineError(
                    "invalid_request", "Send the part `file` and at most one part for each field."
                )
            if name == "file":
                if file is not None:
                    raise EngineError("invalid_parameter", "Send one file a request.", parameter="file")
                filename = bare_name(part.filename)
                content_type = part.headers.get(hdrs.CONTENT_TYPE, "")
                sink = await open_sink(filename, content_type)
                conversion = _conversion(filename, content_type)
                file = (filename, *await _pour(_blocks(part), sink, max_bytes, conversion))
            elif name in fields:
                raise EngineError("invalid_parameter", f"Part {name!r} stands twice.", parameter=name)
            else:
                fields[name] = _field(name, await _raw_field(part))
    except (ValueError, AssertionError, LookupError, RequestPayloadError) as error:
        raise EngineError("invalid_request", f"The body is not valid multipart/form-data: {error}") from error
    if file is None:
        raise EngineError("missing_parameter", "The part `file` is required.", parameter="file")
    return fields, file


async def _next_part(reader: MultipartReader) -> MultipartReader | BodyPartReader | None:
    try:
        return await reader.next()
    except (HttpProcessingError, RuntimeError) as error:  # a part's header, or a part named `_charset_`
        raise ValueError("the header of a part cannot be read") from error


async def _blocks(part: BodyPartReader) -> AsyncIterator[bytes]:
    while data := await part.read_chunk(_READ_BYTES):
        yield bytes(data)


def _conversion(filename: str, content_type: str) -> ToUtf8 | None:
    """Return the conversion of a text whose content type declares another encoding than UTF-8, or None."""
    message = Message()
    message["Content-Type"] = content_type
    label = message.get_content_charset()
    if label is None or not format_of(filename, content_type).is_text:
        return None
    codec = codec_of(label)
    if codec is None:
        raise EngineError(
            "invalid_parameter", f"The charset of the file is not known: {label[:40]}.", parameter="file"
        )
    return None if codec == "utf-8" else ToUtf8(codec)


async def _pour(
    blocks: AsyncIterator[bytes], sink: Sink, max_bytes: int, conversion: ToUtf8 | None
) -> tuple[int, str]:
    digest = hashlib.sha256()
    received = size = 0
    mark = 0 if conversion is None else len(BOM_UTF8)

    async def write(data: bytes, *, final: bool = False) -> None:
        nonlocal size
        if conversion is not None:
            try:
                data = conversion.convert(data, final=final)
            except UnicodeDecodeError as error:
                raise EngineError(
                    "undecodable_text",
                    f"The file is not {conversion.codec.upper()} text, although its content type says so.",
                    parameter="file",
                ) from error
        size += len(data)
        if max(size - mark, received) > max_bytes:
            raise EngineError("payload_too_large", f"The file is over the limit of {max_bytes} bytes.")
        digest.update(data)
        await sink.write(data)

    async for data in blocks:
        received += len(data)
        await write(data)
    if conversion is not None:
        await write(b"", final=True)
    return size, digest.hexdigest()


async def _raw_field(part: BodyPartReader) -> bytes:
    raw = bytearray()
    while data := await part.read_chunk(_READ_BYTES):
        raw += data
        if len(raw) > _FIELD_BYTES:
            break
    return bytes(raw)


def _field(name: str, raw: bytes) -> Any:
    if len(raw) > _FIELD_BYTES:
        raise EngineError("payload_too_large", f"Part {name!r} is over {_FIELD_BYTES} bytes.")
    if name in _JSON_FIELDS:
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise EngineError(
                "invalid_parameter", f"Part {name!r} is not JSON: {error}", parameter=name
            ) from error
    text = raw.decode("utf-8")
    if name not in _BOOLEAN_FIELDS:
        return text
    if (value := _BOOLEANS.get(text.lower())) is None:
        raise EngineError("invalid_parameter", f"Part {name!r} takes true or false.", parameter=name)
    return value


def bare_name(filename: str | None) -> str:
    """Return the last component of a client's file name; the name is never used as a path.
    Raises EngineError: `missing_parameter` or `invalid_parameter`.
    """
    name = (filename or "").replace("\\", "/").rsplit("/", 1)[-1].strip()
    if not name.isascii() and any("\ud800" <= char <= "\udfff" for char in name):
        # The header had bytes that are not UTF-8; such a name can be neither stored nor shown.
        raise EngineError("invalid_parameter", "The filename is not UTF-8; rename it.", parameter="file")
    if not name or name in {".", ".."}:
        raise EngineError("missing_parameter", "The part `file` needs a filename.", parameter="file")
    if len(name) > _FILENAME_CHARS or any(ord(char) < 32 or ord(char) == 127 for char in name):
        raise EngineError(
            "invalid_parameter",
            f"A filename has at most {_FILENAME_CHARS} characters and no control characters.",
            parameter="file",
        )
    return name
