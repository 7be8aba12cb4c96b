"""A connection on which an upload can be sent by halves."""

from __future__ import annotations

import asyncio

from kb_verify.files import MULTIPART


class Raw:
    """A connection of its own, to send by halves; closed at the end of the block."""

    def __init__(self, port: int | None) -> None:
        self._port = port

    async def __aenter__(self) -> Raw:
        self.reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def begin(self, length: int, *headers: str) -> None:
        """The head of an upload of so many bytes; return when the engine handles it."""
        lines = (
            "POST /api/v1/jobs HTTP/1.1",
            "Host: x",
            "Expect: 100-continue",
            f"Content-Length: {length}",
            *(f"{name}: {value}" for name, value in MULTIPART.items()),
            *headers,
        )
        self._writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode())
        await self.reader.readuntil(b"100 Continue\r\n\r\n")

    async def write(self, data: bytes) -> None:
        """The next bytes."""
        self._writer.write(data)
        await self._writer.drain()
