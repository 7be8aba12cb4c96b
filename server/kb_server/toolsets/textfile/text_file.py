"""A file of plain text as a data source. Whatever stands at the path, reading it ends."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from kb_server.toolsets.textfile.source import NotConfigured, SourceError, Text

MAX_BYTES = 100 * 1024 * 1024
"""Files over this are refused: each call answers with the whole text, twice, from memory."""

_PIECE_BYTES = 1 << 20
# Without O_NONBLOCK the open of a pipe waits for a writer, and the server with it.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class TextFile:
    """The file at `path`, in strict UTF-8.

    The content is the decoded bytes and nothing else: line endings stay as they are, and so does a
    byte order mark (it is the character U+FEFF, and counts as one). `path` empty: none is configured.
    """

    def __init__(self, path: str, *, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes

    @property
    def name(self) -> str:
        """The path as it was configured."""
        return self._path

    def read(self) -> Text:
        """The file's text.

        Raises:
            SourceError: there is no file, or it is no regular file, too large, unreadable or not UTF-8.
        """
        if not self._path:
            raise NotConfigured("No file is configured. Set KB_TEXT_FILE, or start with --file PATH.")
        name = Path(self._path).name
        try:
            with _opened(Path(self._path).expanduser()) as descriptor:
                return self._read(descriptor, name)
        except (OSError, ValueError, RuntimeError) as error:
            raise SourceError(_reason(error, name)) from error

    def _read(self, descriptor: int, name: str) -> Text:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise SourceError(f"{name} is not a regular file.")
        data = bytearray()
        while piece := os.read(descriptor, _PIECE_BYTES):
            data += piece
            if len(data) > self._max_bytes:
                raise SourceError(f"{name} is too large: at most {self._max_bytes} bytes are served.")
        return Text(
            content=data.decode("utf-8"),
            # Not st_size: what is told belongs to the bytes that were read, even if the file grew meanwhile.
            size=len(data),
            modified=datetime.fromtimestamp(facts.st_mtime, UTC),
        )


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, _FLAGS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _reason(error: Exception, name: str) -> str:
    """The failure in words that an agent may read: the file's name, but not where it lies."""
    match error:
        case FileNotFoundError():
            return f"{name} does not exist."
        case PermissionError():
            return f"{name} may not be read: permission denied."
        case UnicodeDecodeError():
            return f"{name} is not UTF-8: the byte at offset {error.start} does not belong there."
        case OSError():
            return f"{name} could not be read: {error.strerror or 'input/output error'}."
        case _:
            return f"{name!r} is not a usable path."
