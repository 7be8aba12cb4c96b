"""The multipart body of a file, framed by hand so that its length is known before a byte is read.

A length spares the engine a chunked body, which some HTTP servers do not take.
"""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from secrets import token_hex

from kb_contracts.api.models import FileFields
from kb_contracts.api.operations import to_params
from kb_server.engine_client.port import FileSource

_CRLF = b"\r\n"


@dataclass(frozen=True, slots=True)
class MultipartFile:
    """One request body: the fields first, so that the engine knows them when the file begins."""

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

    async def stream(self, progressed: Callable[[], None]) -> AsyncIterator[bytes]:
        """The body, block by block; `progressed` is called whenever the engine took one.

        Raises:
            OSError: the file cannot be read, or has another size than `source` says.
        """
        yield self._head()
        sent = 0
        async for block in self.source.blocks():
            progressed()
            sent += len(block)
            yield block
        progressed()
        if sent != self.source.size:
            raise OSError(f"the file has {sent} bytes instead of {self.source.size}")
        yield self._tail()

    def _head(self) -> bytes:
        parts = [self._field(name, value) for name, value in to_params(self.fields).items()]
        parts.append(
            self._part(f'form-data; name="file"; filename="{_quoted(self.source.filename)}"')
            + b"Content-Type: application/octet-stream\r\n\r\n"
        )
        return b"".join(parts)

    def _field(self, name: str, value: str) -> bytes:
        return self._part(f'form-data; name="{name}"') + _CRLF + value.encode() + _CRLF

    def _part(self, disposition: str) -> bytes:
        return f"--{self.boundary}\r\nContent-Disposition: {disposition}\r\n".encode()

    def _tail(self) -> bytes:
        return f"\r\n--{self.boundary}--\r\n".encode()


def _quoted(filename: str) -> str:
    # Backslashes, which every multipart reader understands; percent signs would stay in the name for some.
    # A line break would end the header, and no reader understands any form of it.
    bare = "".join("_" if unicodedata.category(char) == "Cc" else char for char in filename)
    return bare.replace("\\", "\\\\").replace('"', '\\"')
