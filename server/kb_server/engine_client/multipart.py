"""The multipart body of a file for `POST /jobs`, block by block."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from secrets import token_hex

from kb_contracts.api.models import FileFields
from kb_contracts.api.operations import to_params
from kb_server.engine_client.port import FileSource

FILE_TYPE = "application/octet-stream"
"""The media type of every file: the engine determines the format from the file's name."""


@dataclass(frozen=True, slots=True)
class MultipartFile:
    """The multipart body of a file, framed by hand so that its length is known before a byte is read.

    With a length the engine need not read a chunked body, which some HTTP servers do not accept. The fields
    come first, so that the engine knows them when the file begins.
    """

    source: FileSource
    fields: FileFields
    boundary: str = field(default_factory=lambda: f"kb-{token_hex(16)}")

    @property
    def content_type(self) -> str:
        """The value of `Content-Type`."""
        return f"multipart/form-data; boundary={self.boundary}"

    @property
    def length(self) -> int:
        """The whole body, in bytes."""
        return len(self._head()) + self.source.size + len(self._tail())

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The body, block by block.
        Raises OSError: the file cannot be read, or has another size than `source` says.
        """
        yield self._head()
        async for block in self.blocks():
            yield block
        yield self._tail()

    async def blocks(self) -> AsyncGenerator[bytes, None]:
        """The file alone. Raises as `stream`."""
        sent = 0
        async for block in self.source.blocks():
            sent += len(block)
            yield block
        if sent != self.source.size:
            raise OSError(f"the file has {sent} bytes instead of {self.source.size}")

    @property
    def texts(self) -> dict[str, str]:
        """The fields that differ from their defaults."""
        return to_params(self.fields)

    @property
    def filename(self) -> str:
        """The file name for a header, without control characters: a line break would end the header."""
        return "".join("_" if unicodedata.category(char) == "Cc" else char for char in self.source.filename)

    def _head(self) -> bytes:
        opening = f"--{self.boundary}\r\nContent-Disposition: form-data; name="
        parts = [f'{opening}"{name}"\r\n\r\n{value}\r\n' for name, value in self.texts.items()]
        # Quotation marks are escaped with backslashes, which every reader understands; some readers would
        # keep percent signs in the name.
        quoted = self.filename.replace("\\", "\\\\").replace('"', '\\"')
        parts.append(f'{opening}"file"; filename="{quoted}"\r\n')
        parts.append(f"Content-Type: {FILE_TYPE}\r\n\r\n")
        return "".join(parts).encode()

    def _tail(self) -> bytes:
        return f"\r\n--{self.boundary}--\r\n".encode()
