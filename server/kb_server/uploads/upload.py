"""An upload and the checks on it, pure: the state on disk is passed to them.

An upload is open, and takes chunks or one body, until a finish hands it to the engine; meanwhile it is
finishing, and afterwards done, or open again if the engine did not accept it. An abort removes an open
upload. Finishing a done upload returns the same job; all other operations are refused unless it is open.

Only done is stored. Finishing is a lock held by the finishing process, so that a process that dies in the
middle leaves an open upload behind and not a stuck one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from kb_contracts.api.formats import UnsupportedFormat, format_of
from kb_server.tool import ToolError

MEBIBYTE = 1024 * 1024
CHUNK_BYTES = 8 * MEBIBYTE
MAX_CHUNKS = 10_000
MAX_FILENAME_CHARS = 255

_UNNAMEABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode categories: controls, surrogates, line and paragraph separators. Odd blanks are common in names."""

_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that make a name look like another one."""

_UNSENDABLE = re.compile(r'"\s*;|;.*;')
"""Sequences that some readers of multipart forms take for the end of a name."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAMED = 20
_LISTED = 100


STATUS: Mapping[str, int] = {
    "upload_not_found": 404,  # no such upload, or it expired, or the server was restarted
    "upload_finishing": 409,  # it is being handed to the engine
    "upload_done": 409,  # it was handed to the engine already
    "upload_receiving": 409,  # its body is arriving at the upload URL
    "contradiction": 409,  # chunks and the upload URL exclude each other
    "missing_chunks": 409,  # a gap between the chunks, or no chunk at all (`missing`)
    "chunks_mismatch": 409,  # more chunks than announced (`chunks_received`)
    "size_mismatch": 409,  # another number of bytes than announced (`received_bytes`, `total_size`)
    "sha256_mismatch": 409,  # the bytes are not the announced ones
    "upload_url_spent": 410,  # one whole body has arrived at this URL
    "invalid_base64": 400,  # a chunk's data is not strict base64
    "body_malformed": 400,  # the body at the upload URL is not in its Content-Encoding
    "body_incomplete": 400,  # the body at the upload URL broke off
    "invalid_parameter": 422,  # a value does not fit (`parameter`)
    "missing_required_parameter": 422,  # the end of the file is not given (`parameter`)
    "unsupported_format": 415,  # no engine takes this kind of file
    "chunk_too_large": 413,  # over the bytes of one chunk
    "size_exceeded": 413,  # more bytes than announced
    "upload_too_large": 413,  # over the bytes of one file
    "too_many_uploads": 429,  # too many open uploads of one caller
    "share_full": 429,  # too many bytes of one caller
    "staging_full": 507,  # no room for more bytes until other uploads are finished
    "staging_failed": 507,  # the server cannot use its staging folder
}
"""The codes of refusals, and the HTTP status of each at an upload URL."""


class UploadError(ToolError):
    """A refusal with a code of `STATUS`."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(code, message, **details)
        self.status = STATUS[code]


def not_found(upload_id: str) -> UploadError:
    """Return the error for an upload that does not exist (any more)."""
    return UploadError(
        "upload_not_found",
        f"Upload ID {upload_id[:80]!r} was not found: it never existed, it has expired, or the server was "
        "restarted. Start again with kb_upload_start.",
        upload_id=upload_id[:80],
    )


class State(StrEnum):
    """The state of an upload."""

    OPEN = "open"
    FINISHING = "finishing"
    DONE = "done"


class NewUpload(msgspec.Struct, frozen=True):
    """The description of a new upload; `total_size` in bytes, None if it is given at the end.

    `tags` are all tags of the document, `collection` is the name of its collection.
    """

    filename: str
    total_size: int | None
    tags: list[str]
    collection: str
    title: str | None = None
    source_path: str | None = None
    metadata: dict[str, Any] = {}
    sha256: str | None = None


class Upload(NewUpload, frozen=True, kw_only=True):
    """The record of an upload.

    `deadline` is a reading of the monotonic clock, `expires_at` the same moment for people. `token_sha256` is
    the only stored form of the upload URL's token. Uploads of one `caller` share a quota; only `owner` may
    use the upload. `job_id` is set when the engine has accepted the file.
    """

    id: str
    deadline: float
    expires_at: str
    caller: str
    owner: str
    token_sha256: str
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class Staged:
    """The received sizes of an upload, in bytes: of each chunk by its index, and of the body."""

    chunks: Mapping[int, int] = field(default_factory=dict)
    body: int | None = None

    @property
    def received(self) -> int:
        """The received bytes in all."""
        return sum(self.chunks.values()) if self.body is None else self.body


@dataclass(frozen=True, slots=True)
class End:
    """The facts given by a finish: the file's size in bytes, its SHA-256, and its number of chunks."""

    total_size: int | None = None
    sha256: str | None = None
    chunks: int | None = None


UNSAID = End()


def check_open(state: State, upload_id: str) -> None:
    """Check that an upload in this `state` can still be changed.
    Raises UploadError: `upload_finishing` or `upload_done`.
    """
    if state is State.DONE:
        raise UploadError(
            "upload_done",
            "This upload was finished already. kb_upload_finish gives its job; start another upload for "
            "another file.",
            upload_id=upload_id,
        )
    if state is State.FINISHING:
        raise UploadError(
            "upload_finishing",
            "This upload is being handed to the engine by another call. Call kb_upload_finish in a moment "
            "for its job.",
            upload_id=upload_id,
        )


def check_size(total_size: int, most: int) -> None:
    """Check that a file of this size is accepted; `most` is the maximum.
    Raises UploadError: `invalid_parameter` or `upload_too_large`.
    """
    if total_size < 1:
        raise UploadError(
            "invalid_parameter", "total_size is the file's size in bytes, at least 1.", parameter="total_size"
        )
    if total_size > most:
        raise UploadError(
            "upload_too_large",
            f"The file has {total_size} bytes; at most {most} are accepted. Split it, or ask the operator "
            "of the server to raise KB_MAX_UPLOAD_BYTES.",
            max_bytes=most,
        )


def check_chunk(upload: Upload, staged: Staged, index: int, size: int, most: int) -> int:
    """Return the total bytes after storing a chunk of `size` bytes; one of the same index is replaced.

    `most` is the maximum size of any file.
    Raises UploadError: `contradiction`, `size_exceeded` or `upload_too_large`.
    """
    if staged.body is not None:
        raise UploadError(
            "contradiction", "The file was already sent to the upload URL. Call kb_upload_finish now."
        )
    total = staged.received - staged.chunks.get(index, 0) + size
    if upload.total_size is None:
        check_size(total, most)
    elif total > upload.total_size:
        raise UploadError(
            "size_exceeded",
            f"With this chunk the upload would have {total} bytes, but {upload.total_size} were announced as "
            "total_size. Send the right bytes, or start again with the right total_size.",
            received_bytes=staged.received,
            total_size=upload.total_size,
        )
    return total


def check_chunk_shape(index: int, size: int) -> None:
    """Check index and size of a chunk. Raises UploadError: `chunk_too_large` or `invalid_parameter`."""
    if not 0 <= index < MAX_CHUNKS:
        raise UploadError(
            "invalid_parameter",
            f"chunk_index counts from 0 to {MAX_CHUNKS - 1}; got {index}.",
            parameter="chunk_index",
        )
    if size == 0:
        raise UploadError("invalid_parameter", "A chunk has at least one byte.", parameter="data")
    if size > CHUNK_BYTES:
        raise UploadError(
            "chunk_too_large",
            f"This chunk has {size} bytes; at most {CHUNK_BYTES} are accepted. Split the file into smaller "
            "chunks.",
            max_bytes=CHUNK_BYTES,
        )


def check_body(upload: Upload, staged: Staged, announced: int | None) -> int:
    """Return the size of the body at the upload URL; `announced` is its length, or None.
    Raises UploadError: `upload_url_spent`, `contradiction` or `size_mismatch`.
    """
    if staged.body is not None:
        raise UploadError(
            "upload_url_spent",
            "The file has arrived already. Call kb_upload_finish now.",
            upload_id=upload.id,
        )
    if staged.chunks:
        raise UploadError(
            "contradiction",
            "This upload has begun with kb_upload_chunk. Continue with chunks, or start another upload.",
            upload_id=upload.id,
        )
    if upload.total_size is None:
        raise UploadError(
            "contradiction",
            "This upload was started without total_size. Send the file with kb_upload_chunk.",
            upload_id=upload.id,
        )
    if announced is not None and announced != upload.total_size:
        raise size_mismatch(upload.total_size, announced)
    return upload.total_size


def check_whole(upload: Upload, staged: Staged, end: End = UNSAID) -> None:
    """Check that all bytes have arrived.
    Raises UploadError: `missing_required_parameter`, `missing_chunks`, `chunks_mismatch` or `size_mismatch`.
    """
    if (upload.total_size, upload.sha256) == (None, None) and end == UNSAID:
        raise UploadError(
            "missing_required_parameter",
            "This upload was started without total_size: pass total_size, sha256 or chunks, so that the end "
            "of the file is known.",
            parameter="total_size",
        )
    if missing := missing_chunks(staged, end.chunks):
        named = ", ".join(map(str, missing[:_NAMED])) + (", …" if len(missing) > _NAMED else "")
        raise UploadError(
            "missing_chunks",
            f"These chunks are missing: {named}. Send them with kb_upload_chunk, then finish again.",
            missing=missing[:_LISTED],
            missing_total=len(missing),
        )
    if end.chunks is not None and staged.body is None and len(staged.chunks) > end.chunks:
        raise UploadError(
            "chunks_mismatch",
            f"{len(staged.chunks)} chunks were received, but {end.chunks} were announced as chunks. Pass the "
            "right number, or start again.",
            chunks_received=len(staged.chunks),
        )
    for announced in (upload.total_size, end.total_size):
        if announced is not None and staged.received != announced:
            raise size_mismatch(announced, staged.received)


def missing_chunks(staged: Staged, count: int | None = None) -> list[int]:
    """Return the missing indexes below `count` and below the last chunk sent; at least the first."""
    if staged.body is not None:
        return []
    end = max(max(staged.chunks, default=0) + 1, count or 0)
    return [index for index in range(end) if index not in staged.chunks]


def size_mismatch(announced: int, received: int) -> UploadError:
    """Return the error for a size that differs from the announced one."""
    remedy = "Send the missing bytes" if received < announced else "Send the right bytes"
    return UploadError(
        "size_mismatch",
        f"{received} bytes were received, but {announced} were announced as total_size. {remedy}, or "
        "start again with the right total_size.",
        received_bytes=received,
        total_size=announced,
    )


def check_sha256(value: str | None) -> str | None:
    """Return a SHA-256 in lower-case hexadecimal, or None if it is not given.
    Raises UploadError: `invalid_parameter`.
    """
    if value is None or _SHA256.fullmatch(value.lower()):
        return value and value.lower()
    raise UploadError("invalid_parameter", "sha256 is 64 hexadecimal digits.", parameter="sha256")


def sha256_mismatch(what: str, expected: str, actual: str) -> UploadError:
    """Return the error for bytes that differ from the announced ones."""
    return UploadError(
        "sha256_mismatch",
        f"The SHA-256 of {what} is {actual}, but {expected} was announced. Send it again.",
        sha256=actual,
    )


def check_filename(filename: str) -> str:
    """Return a bare file name. It is handed to the engine and never used as a path here.
    Raises UploadError: `invalid_parameter`.
    """
    name, takes = filename.strip(), ""
    if not name or name in {".", ".."} or "/" in name or "\\" in name:
        takes = "a bare name such as report.pdf, without folders"
    elif len(name) > MAX_FILENAME_CHARS:
        takes = f"at most {MAX_FILENAME_CHARS} characters"
    elif any(unicodedata.category(char) in _UNNAMEABLE or char in _BIDI for char in name):
        takes = "no control characters"
    elif _UNSENDABLE.search(name):
        takes = "no `;` after a quotation mark, and one at the most: it would not arrive whole"
    if takes:
        raise UploadError("invalid_parameter", f"filename takes {takes}.", parameter="filename")
    return name


def check_format(filename: str) -> None:
    """Check that this kind of file is accepted: an engine would refuse it only after its arrival.
    Raises UploadError: `unsupported_format`.
    """
    try:
        format_of(filename)
    except UnsupportedFormat as error:
        raise UploadError(error.code, error.message, parameter="filename") from error
