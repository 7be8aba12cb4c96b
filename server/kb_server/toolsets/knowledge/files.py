"""Files of this machine, opened by a path that an agent names, only below the allowed folders.

The path is resolved first, symbolic links included, and refused if it leads out of the folders. Then the file
is opened from the folder downwards, name by name, without following any link: a link created between the two
steps is an error, never a way out. Later checks and reads use the opened file.
"""

from __future__ import annotations

import asyncio
import math
import os
import stat
from collections.abc import AsyncIterator, Sequence
from pathlib import Path, PurePath
from typing import BinaryIO

from kb_contracts.api import formats
from kb_server.engine_client.port import FileSource
from kb_server.tool import INVALID, ToolError
from kb_server.toolsets.knowledge.knowledge_tool import megabytes
from kb_server.uploads.upload import MEBIBYTE
from kb_server.waiting import to_its_end

FORMATS = ("pdf", "docx", "pptx", "xlsx", "html", "jpg", "png", "svg")

TAKE_OCR = tuple(name for name in FORMATS if formats.FORMATS[name].takes_ocr)
"""The formats with pages or pixels for OCR."""

_NAMES = {extension[1:]: each.name for each in formats.FORMATS.values() for extension in each.extensions}

# Without O_NONBLOCK the open of a pipe waits for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# A folder with search permission need not be readable: with O_PATH, if available, it is only passed through.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK_BYTES = MEBIBYTE


def format_of(path: str) -> str:
    """Return the format of the file at `path`, one of `FORMATS`, by its name only.
    Raises ToolError: `unsupported_format`.
    """
    extension = PurePath(path).suffix.lower()
    form = known(extension.removeprefix("."))
    if form in FORMATS:
        return form
    *most, last = (each.upper() for each in FORMATS)
    raise ToolError(
        "unsupported_format",
        f"Unsupported file format: {extension[:20] or 'no extension'}. Use {', '.join(most)}, or {last}",
        supported_formats=list(FORMATS),
    )


def known(name: str) -> str:
    """Return the canonical name of a format with several names."""
    return _NAMES.get(name, name)


def open_below(roots: Sequence[str], path: str) -> BinaryIO:
    """Open the regular file at `path`; a relative path begins at the working folder. Blocks.
    Raises ToolError: `path_not_allowed`, `file_not_found`, `file_not_readable` or `invalid_parameter`.
    """
    try:
        root, names = _place(roots, path)
        descriptor = _opened(root, names)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ToolError("file_not_found", f"There is no file at {path}", file_path=path) from error
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ToolError("file_not_readable", f"{path} is not a regular file", file_path=path)
    return os.fdopen(descriptor, "rb", buffering=0)


def unreadable(path: str, error: OSError) -> ToolError:
    """Return the error for a file that exists and cannot be read, or not to its end."""
    why = error.strerror or str(error)
    return ToolError("file_not_readable", f"The file {path} cannot be read: {why}", file_path=path)


def source(file: BinaryIO, filename: str, max_bytes: int) -> FileSource:
    """Return the open file as the engine client sends it; `filename` is its name for the engine.
    Raises ToolError: `file_too_large`.
    """
    size = os.fstat(file.fileno()).st_size
    if size > max_bytes:
        limit = megabytes(max_bytes)
        # Rounded up to a tenth: a size over the limit must not look like the limit.
        tenths = math.ceil(size * 10 / MEBIBYTE)
        raise ToolError(
            "file_too_large",
            f"File size ({tenths / 10:g} MB) exceeds maximum allowed size ({limit:g} MB)",
            max_size_mb=limit,
        )

    async def blocks() -> AsyncIterator[bytes]:
        # Read by position: each attempt begins anew, and later appended data is not read.
        sent = 0
        while block := await _read(file, min(_BLOCK_BYTES, size - sent), sent):
            sent += len(block)
            yield block

    return FileSource(filename, size, blocks)


def _place(roots: Sequence[str], path: str) -> tuple[Path, tuple[str, ...]]:
    """Return the allowed folder above `path`, and the names below it, fully resolved."""
    try:
        real = Path(os.path.realpath(path))
    except ValueError as error:
        raise ToolError(
            INVALID, "The parameter `file_path` contains a NUL character.", parameter="file_path"
        ) from error
    for root in roots:
        # A folder of an unknown user is none; `Path.expanduser` would raise.
        folder = Path(os.path.realpath(os.path.expanduser(root)))  # noqa: PTH111
        if real.is_relative_to(folder):
            return folder, real.relative_to(folder).parts
    message = f"{path} is not below a folder that this server may read: {', '.join(roots)} (KB_FILE_ROOTS)."
    if not roots:
        message = (
            "This server reads no local files by path. Its operator must set KB_FILE_ROOTS to the readable "
            "folders, comma-separated, and restart it."
        )
    raise ToolError("path_not_allowed", message, file_path=path)


def _opened(root: Path, names: tuple[str, ...]) -> int:
    """Return the descriptor of the file. Raises OSError: also if a name is a symbolic link."""
    folder = os.open(root, _FOLDER)
    try:
        for name in names[:-1]:
            inner = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(names[-1] if names else ".", _FILE, dir_fd=folder)
    finally:
        os.close(folder)


async def _read(file: BinaryIO, length: int, offset: int) -> bytes:
    # The file must stay open until the thread has read: its number may be another file's by then.
    return await to_its_end(asyncio.to_thread(os.pread, file.fileno(), length, offset))
