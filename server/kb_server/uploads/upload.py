"""An upload as a state machine and pure checks; what lies on disk is told to them.

event      open       finishing          done
---------  ---------  -----------------  -----------------
chunk      open       upload_finishing   upload_done
body       open       upload_finishing   upload_done
finish     finishing  upload_finishing   done (same job)
accepted   -          done               -
failed     -          open               -
abort      aborted    upload_finishing   upload_done

Only done is written down, and what is aborted is removed. Finishing is a lock that the finisher holds, so
that a process that dies in the middle leaves an open upload behind and not a stuck one.
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
"""Characters that make a name read as another one."""

_UNSENDABLE = re.compile(r'"\s*;|;.*;')
"""What readers of multipart forms take for the end of a name."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAMED = 20
_LISTED = 100


STATUS: Mapping[str, int] = {
    "upload_not_found": 404,  # no such upload, or its time is over, or the server was started anew
    "upload_finishing": 409,  # it is being handed to the engine just now
    "upload_done": 409,  # it was handed to the engine already
    "upload_receiving": 409,  # its body is arriving at the upload URL just now
    "contradiction": 409,  # chunks and the upload URL exclude each other
    "missing_chunks": 409,  # a gap between the chunks, or nothing at all (`missing`)
    "size_mismatch": 409,  # another number of bytes than announced (`received_bytes`, `total_size`)
    "sha256_mismatch": 409,  # the bytes are not the announced ones
    "upload_url_spent": 410,  # one whole body has arrived at this URL
    "invalid_base64": 400,  # a chunk's data is not strict base64
    "body_incomplete": 400,  # the body at the upload URL broke off
    "invalid_parameter": 422,  # a value does not fit (`parameter`)
    "unsupported_format": 415,  # no engine takes this kind of file
    "chunk_too_large": 413,  # over the bytes of one chunk
    "size_exceeded": 413,  # more bytes than announced
    "upload_too_large": 413,  # over the bytes of one file
    "too_many_uploads": 429,  # too many open uploads of one caller
    "share_full": 429,  # too many bytes of one caller
    "staging_full": 507,  # no room for more bytes until others are finished
    "staging_failed": 507,  # the server cannot use its staging folder
}
"""What an upload can be refused for: codes, and the HTTP status of each at an upload URL."""


class UploadError(ToolError):
    """A refusal with a code of `STATUS`."""

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


class State(StrEnum):
    """The states of the table above."""

    OPEN = "open"
    FINISHING = "finishing"
    DONE = "done"
    ABORTED = "aborted"


class Event(StrEnum):
    """The events of the table above."""

    CHUNK = "chunk"
    BODY = "body"
    FINISH = "finish"
    ACCEPTED = "accepted"
    FAILED = "failed"
    ABORT = "abort"


_NEXT: Mapping[tuple[State, Event], State] = {
    (State.OPEN, Event.CHUNK): State.OPEN,
    (State.OPEN, Event.BODY): State.OPEN,
    (State.OPEN, Event.FINISH): State.FINISHING,
    (State.FINISHING, Event.ACCEPTED): State.DONE,
    (State.FINISHING, Event.FAILED): State.OPEN,
    (State.DONE, Event.FINISH): State.DONE,
    (State.OPEN, Event.ABORT): State.ABORTED,
}


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an upload from its start on; sizes in bytes.

    `deadline` is a reading of the monotonic clock, `expires_at` the same moment for people. `token_sha256`
    is all that is kept of the upload URL's token. `job_id` is set when the engine has accepted the file.
    """

    id: str
    filename: str
    total_size: int
    tags: list[str]
    collection: str
    deadline: float
    expires_at: str
    caller: str
    title: str | None = None
    source_path: str | None = None
    metadata: dict[str, Any] = {}
    sha256: str | None = None
    token_sha256: str | None = None
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class Staged:
    """What lies on disk of an upload: the size of each chunk by its index, and of the body, in bytes."""

    chunks: Mapping[int, int] = field(default_factory=dict)
    body: int | None = None

    @property
    def received(self) -> int:
        """Bytes in all."""
        return sum(self.chunks.values()) if self.body is None else self.body


def advance(state: State, event: Event, upload_id: str) -> State:
    """The state after `event`.

    Raises:
        UploadError: `upload_finishing` or `upload_done`.
    """
    if (following := _NEXT.get((state, event))) is not None:
        return following
    if state is State.DONE:
        raise UploadError(
            "upload_done",
            "This upload was finished already. kb_upload_finish gives its job; start another upload for "
            "another file.",
            upload_id=upload_id,
        )
    raise UploadError(
        "upload_finishing",
        "This upload is being handed to the engine by another call. Call kb_upload_finish in a moment for "
        "its job.",
        upload_id=upload_id,
    )


def check_chunk(upload: Upload, staged: Staged, index: int, size: int) -> int:
    """The bytes in all once a chunk of `size` bytes is stored; one of the same index is replaced.

    Raises:
        UploadError: `contradiction` or `size_exceeded`.
    """
    if staged.body is not None:
        raise UploadError(
            "contradiction", "The file came through the upload URL already. Call kb_upload_finish now."
        )
    total = staged.received - staged.chunks.get(index, 0) + size
    if total > upload.total_size:
        raise UploadError(
            "size_exceeded",
            f"With this chunk the upload would have {total} bytes, but {upload.total_size} were announced as "
            "total_size. Send the right bytes, or start again with the right total_size.",
            received_bytes=staged.received,
            total_size=upload.total_size,
        )
    return total


def check_chunk_shape(index: int, size: int) -> None:
    """Whether a chunk can be one of any upload.

    Raises:
        UploadError: `chunk_too_large` or `invalid_parameter`.
    """
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
            f"This chunk has {size} bytes; at most {CHUNK_BYTES} are taken. Cut the file into smaller ones.",
            max_bytes=CHUNK_BYTES,
        )


def check_body(upload: Upload, staged: Staged, announced: int | None) -> None:
    """Whether a body of `announced` bytes (None: not said) may arrive at the upload URL.

    Raises:
        UploadError: `upload_url_spent`, `contradiction` or `size_mismatch`.
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
            "This upload has begun with kb_upload_chunk. Go on with chunks, or start another upload.",
            upload_id=upload.id,
        )
    if announced is not None and announced != upload.total_size:
        raise size_mismatch(upload, announced)


def check_whole(upload: Upload, staged: Staged) -> None:
    """Whether all bytes are there.

    Raises:
        UploadError: `missing_chunks` or `size_mismatch`.
    """
    missing = missing_chunks(staged)
    if missing:
        named = ", ".join(map(str, missing[:_NAMED])) + (", …" if len(missing) > _NAMED else "")
        raise UploadError(
            "missing_chunks",
            f"These chunks are missing: {named}. Send them with kb_upload_chunk, then finish again.",
            missing=missing[:_LISTED],
            missing_total=len(missing),
        )
    if staged.received != upload.total_size:
        raise size_mismatch(upload, staged.received)


def missing_chunks(staged: Staged) -> list[int]:
    """The indexes that no chunk has, up to the last that was sent; the first where nothing was sent."""
    if staged.body is not None:
        return []
    return [index for index in range(max(staged.chunks, default=0) + 1) if index not in staged.chunks]


def size_mismatch(upload: Upload, received: int) -> UploadError:
    """Another number of bytes than announced."""
    remedy = "Send what is missing" if received < upload.total_size else "Send the right bytes"
    return UploadError(
        "size_mismatch",
        f"{received} bytes were received, but {upload.total_size} were announced as total_size. {remedy}, or "
        "start again with the right total_size.",
        received_bytes=received,
        total_size=upload.total_size,
    )


def check_sha256(value: str | None) -> str | None:
    """A SHA-256 in lower-case hexadecimal, or None where none was given.

    Raises:
        UploadError: `invalid_parameter`.
    """
    if value is None or _SHA256.fullmatch(value.lower()):
        return value and value.lower()
    raise UploadError("invalid_parameter", "sha256 is 64 hexadecimal digits.", parameter="sha256")


def sha256_mismatch(what: str, expected: str, actual: str) -> UploadError:
    """The bytes are not the announced ones."""
    return UploadError(
        "sha256_mismatch",
        f"The SHA-256 of {what} is {actual}, but {expected} was announced. Send it again.",
        sha256=actual,
    )


def check_filename(filename: str) -> str:
    """A bare file name. It is handed to the engine and never used as a path here.

    Raises:
        UploadError: `invalid_parameter`.
    """
    name = filename.strip()
    if not name or name in {".", ".."} or "/" in name or "\\" in name:
        raise _filename("a bare name such as report.pdf, without folders")
    if len(name) > MAX_FILENAME_CHARS:
        raise _filename(f"at most {MAX_FILENAME_CHARS} characters")
    if any(unicodedata.category(char) in _UNNAMEABLE or char in _BIDI for char in name):
        raise _filename("no control characters")
    if _UNSENDABLE.search(name):
        raise _filename("no `;` after a quotation mark, and one at the most: it would not arrive whole")
    return name


def check_format(filename: str) -> None:
    """Whether files of this kind are taken in: an engine would refuse another once it had arrived.

    Raises:
        UploadError: `unsupported_format`.
    """
    try:
        format_of(filename)
    except UnsupportedFormat as error:
        raise UploadError(error.code, error.message, parameter="filename") from error


def _filename(takes: str) -> UploadError:
    return UploadError("invalid_parameter", f"filename takes {takes}.", parameter="filename")
