"""The body of a request, read whole into memory within bounds: a fake has nowhere to spool to."""

from __future__ import annotations

import msgspec
from aiohttp import web

from kb_contracts.api.errors import EngineError
from kb_contracts.api.formats import Format
from kb_contracts.api.operations import AnyOperation
from kb_contracts.http.mount import JSON_BODY_BYTES
from kb_contracts.http.multipart import receive_file
from kb_readers import ExtractionFailed, format_of, require_reader
from kb_simulator.engine.call import Upload

_ENVELOPE_BYTES = 8 * 1024 * 1024  # what the other parts of a multipart body may take beside the file


async def read_body(
    request: web.Request, operation: AnyOperation | None, max_upload_bytes: int
) -> tuple[bytes, Upload | None]:
    """The body that the fingerprint is made of, and the file in it, where the operation takes one.

    Raises:
        EngineError: as `receive_file`, `payload_too_large` or `unsupported_format`.
    """
    if request.content_type == "multipart/form-data":
        if operation is None or operation.multipart is None:
            return b"", None
        upload = await _receive(request, max_upload_bytes)
        return _canonical(upload), upload
    if not request.can_read_body:
        return b"", None
    try:
        return await request.read(), None
    except web.HTTPRequestEntityTooLarge as error:
        raise EngineError("payload_too_large", f"A JSON body has at most {JSON_BODY_BYTES} bytes.") from error


class _Memory:
    def __init__(self) -> None:
        self.data = bytearray()

    async def write(self, data: bytes) -> None:
        """Take the next bytes."""
        self.data += data


async def _receive(request: web.Request, max_bytes: int) -> Upload:
    if (request.content_length or 0) > max_bytes + _ENVELOPE_BYTES:
        raise EngineError("payload_too_large", f"The file is over the limit of {max_bytes} bytes.")
    memory = _Memory()
    formats: list[Format] = []

    async def open_sink(filename: str) -> _Memory:
        formats.append(_format(filename))  # before the first byte: an unknown kind is refused at once
        return memory

    received = await receive_file(request, open_sink, max_bytes=max_bytes)
    return Upload(received, formats[0], bytes(memory.data))


def _format(filename: str) -> Format:
    try:
        fmt = format_of(filename)
        require_reader(fmt)
    except ExtractionFailed as error:
        raise EngineError(error.code, error.message, parameter="file") from error
    return fmt


def _canonical(upload: Upload) -> bytes:
    """What two uploads of the same have in common: not the boundary, nor the order of the parts."""
    fields = msgspec.structs.asdict(upload.received.fields)
    return msgspec.json.encode(
        {**fields, "file": [upload.received.filename, upload.received.sha256]}, order="sorted"
    )
