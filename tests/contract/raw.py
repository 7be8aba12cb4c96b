"""Multipart bodies made by hand, and a connection on which they can be sent by halves."""

from __future__ import annotations

import asyncio

BOUNDARY = "b0undary"
HEADERS = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def part(disposition: str, data: bytes, *, header: str = "") -> bytes:
    """One part of a body."""
    head = f"--{BOUNDARY}\r\nContent-Disposition: {disposition}\r\n{header}\r\n"
    return head.encode() + data + b"\r\n"


def file_part(data: bytes = b"granite", filename: str = "a.txt") -> bytes:
    """The part `file`."""
    return part(f'form-data; name="file"; filename="{filename}"', data)


END = f"--{BOUNDARY}--\r\n".encode()


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
            f"Content-Type: {HEADERS['Content-Type']}",
            *headers,
        )
        self._writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode())
        await self.reader.readuntil(b"100 Continue\r\n\r\n")

    async def write(self, data: bytes) -> None:
        """The next bytes."""
        self._writer.write(data)
        await self._writer.drain()
