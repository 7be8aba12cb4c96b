"""WebSocket clients: aiohttp's, and raw frames, including invalid ones."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from tests.protocol.conftest import Served
from tests.support.mcp_messages import for_the_kernel, initialize, modern, request
from tests.support.patience import ANSWER_SECONDS

INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@dataclass
class Wire:
    socket: aiohttp.ClientWebSocketResponse

    async def send(self, *messages: Any) -> None:
        """Write each message as a text frame; strings are sent unchanged."""
        for message in messages:
            await self.socket.send_str(message if isinstance(message, str) else json.dumps(message))

    async def receive(self) -> dict[str, Any]:
        frame = await self.socket.receive(timeout=ANSWER_SECONDS)
        assert frame.type is aiohttp.WSMsgType.TEXT, frame
        message: dict[str, Any] = json.loads(frame.data)
        return message

    async def ask(self, message: Any) -> dict[str, Any]:
        await self.send(message)
        return await self.receive()

    async def greet(self, version: str = "2025-06-18") -> dict[str, Any]:
        """Perform the handshake and return the result of `initialize`."""
        answer = await self.ask(initialize(version))
        await self.send(INITIALIZED)
        result: dict[str, Any] = answer["result"]
        return result

    async def closed(self) -> int | None:
        frame = await self.socket.receive(timeout=ANSWER_SECONDS)
        assert frame.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED), frame
        return self.socket.close_code


Connect = Callable[..., Awaitable[Wire]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Return a function that opens WebSockets.

    `await connect(served or URL, path="/mcp", headers=..., protocols=...)`.
    """
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def open_(served: Served | str, path: str = "/mcp", **options: Any) -> Wire:
            base = served if isinstance(served, str) else served.base
            socket = await session.ws_connect(base + path, **{"max_msg_size": 0, **options})
            stack.push_async_callback(socket.close)
            return Wire(socket)

        yield open_


ERAS = ["handshake", "modern"]
WAYS = ["fast path", "loop"]

Shape = Callable[[dict[str, Any]], dict[str, Any]]


async def opened(wire: Wire, era: str, way: str = "fast path") -> Shape:
    """Perform the handshake if the era has one; return a function that gives messages the form of the era.

    With `way="loop"` the messages do not use the fast path.
    """
    shape: Shape = modern if era == "modern" else dict
    if era == "handshake":
        await wire.greet()
    await wire.ask(shape(request("tools/list")))

    def shaped(message: dict[str, Any]) -> dict[str, Any]:
        return shape(for_the_kernel(message) if way == "loop" else message)

    return shaped


def given_up(request_id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}


# --- raw frames -------------------------------------------------------------------------------------

TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10


def upgrade(path: str = "/mcp", **changed: str | None) -> bytes:
    """Return an upgrade request; `changed` are headers with underscores, None omits one."""
    headers: dict[str, str | None] = {
        "host": "localhost",
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec_websocket_version": "13",
        "sec_websocket_key": base64.b64encode(os.urandom(16)).decode(),
        **changed,
    }
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode()


def frame(kind: int, payload: bytes = b"", *, final: bool = True, reserved: int = 0) -> bytes:
    """Return a client's frame, masked with zeros; `reserved` are the three RSV bits."""
    first = (0x80 if final else 0) | (reserved << 4) | kind
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + bytes(4) + payload


@dataclass
class Bare:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, served: Served, path: str = "/mcp") -> Bare:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(upgrade(path))
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), ANSWER_SECONDS)
        assert answer.startswith(b"HTTP/1.1 101 ")
        return cls(reader, writer)

    async def receive(self) -> tuple[int, bytes]:
        """Return the kind and the payload of the next frame."""
        async with asyncio.timeout(ANSWER_SECONDS):
            first, size = await self.reader.readexactly(2)
            if size == 126:
                (size,) = struct.unpack("!H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
            return first & 0x0F, await self.reader.readexactly(size)

    async def message(self) -> dict[str, Any]:
        kind, payload = await self.receive()
        assert kind == TEXT, (kind, payload)
        message: dict[str, Any] = json.loads(payload)
        return message

    async def closed(self) -> int:
        kind, payload = await self.receive()
        assert kind == CLOSE, (kind, payload)
        code: int = struct.unpack("!H", payload[:2])[0]
        return code


def text_frame(message: Any) -> bytes:
    return frame(TEXT, json.dumps(message).encode())
