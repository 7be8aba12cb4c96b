"""What an upload can be refused for: codes, and the HTTP statuses of the same refusals at an upload URL.

code                  status  what happened
--------------------  ------  ----------------------------------------------------------------------
upload_not_found        404   no such upload, or its time is over, or the server was started anew
upload_finishing        409   it is being handed to the engine just now
upload_done             409   it was handed to the engine already
upload_receiving        409   its body is arriving at the upload URL just now
contradiction           409   chunks and the upload URL exclude each other
missing_chunks          409   a gap between the chunks, or nothing at all (`missing`)
size_mismatch           409   another number of bytes than announced (`received_bytes`, `total_size`)
sha256_mismatch         409   the bytes are not the announced ones
upload_url_spent        410   one whole body has arrived at this URL
invalid_base64          400   a chunk's data is not strict base64
body_incomplete         400   the body at the upload URL broke off
invalid_parameter       422   a value does not fit (`parameter`)
unsupported_format      415   no engine takes this kind of file
chunk_too_large         413   over the bytes of one chunk
size_exceeded           413   more bytes than announced
upload_too_large        413   over the bytes of one file
too_many_uploads        429   too many open uploads of one caller
share_full              429   too many bytes of one caller
staging_full            507   no room for more bytes until others are finished
staging_failed          507   the server cannot use its staging folder
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kb_server.tool import ToolError

STATUS: Mapping[str, int] = {
    "upload_not_found": 404,
    "upload_finishing": 409,
    "upload_done": 409,
    "upload_receiving": 409,
    "contradiction": 409,
    "missing_chunks": 409,
    "size_mismatch": 409,
    "sha256_mismatch": 409,
    "upload_url_spent": 410,
    "invalid_base64": 400,
    "body_incomplete": 400,
    "invalid_parameter": 422,
    "unsupported_format": 415,
    "chunk_too_large": 413,
    "size_exceeded": 413,
    "upload_too_large": 413,
    "too_many_uploads": 429,
    "share_full": 429,
    "staging_full": 507,
    "staging_failed": 507,
}


class UploadError(ToolError):
    """A refusal with a code of the table above."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(code, message, **details)
        self.status = STATUS[code]


def not_found(upload_id: str) -> UploadError:
    """There is no such upload (any more)."""
    return UploadError(
        "upload_not_found",
        f"Upload ID {upload_id[:80]!r} was not found: it never was, its time is over, or the server was "
        "restarted. Start again with kb_upload_start.",
        upload_id=upload_id[:80],
    )
