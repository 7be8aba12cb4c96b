"""A site behind the connections of kb_http, and a peer that sends raw bytes to it."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack

from aiohttp import web

from kb_http.certificate import Certificate
from kb_http.connections import Admission
from kb_http.limits import ConnectionLimits
from kb_http.listening import listening
from tests.support.patience import ANSWER_SECONDS, SILENCE

HEAD = "GET {path} HTTP/1.1\r\nHost: a\r\n"
MOVED_SECONDS = 1_000 * ANSWER_SECONDS
"""Time limit of an answer and of an idle connection, in seconds; some tests advance the clock by the header
time-out again and again.
"""


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def request(self, path: str = "/", *headers: str) -> None:
        lines = "".join(f"{header}\r\n" for header in headers)
        self.send(f"{HEAD.format(path=path)}{lines}\r\n".encode())

    async def response(self) -> tuple[int, str]:
        async with asyncio.timeout(MOVED_SECONDS):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
            return int(head.split(" ")[1]), (await self._reader.readexactly(length)).decode()

    async def status_of(self, path: str = "/", *headers: str) -> int:
        self.request(path, *headers)
        return (await self.response())[0]

    async def closed(self) -> bytes:
        async with asyncio.timeout(MOVED_SECONDS):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""

    def close(self) -> None:
        self._writer.close()


class Site:
    """A server: `/` responds at once, `/slow` after its release, `/probe` is for probes."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.release = asyncio.Event()
        self.slow = asyncio.Semaphore(0)
        self.cancelled: list[int] = []
        """Turn of the loop in which each cancelled request was cancelled."""
        self.turn = 0
        self.port = 0

    async def start(self, limits: ConnectionLimits, certificate: Certificate | None) -> None:
        app = web.Application()
        admission = Admission(
            lambda _request: web.Response(status=503, text="no room"),
            lambda _request: web.Response(status=503, text="unfinished"),
            is_probe=lambda request: request.path == "/probe",
            client_of=lambda request: request.headers.get("X-Client"),
        )
        admission.install(app)
        app.add_routes([web.get(path, self._fast) for path in ("/", "/probe")])
        app.add_routes([web.get("/slow", self._slow)])
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=MOVED_SECONDS,
            shutdown_timeout=SILENCE,
        )
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        _, self.port = await self._stack.enter_async_context(
            listening(runner, "127.0.0.1", 0, limits, certificate)
        )

    async def connect(self, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Peer:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(address, 0), ssl=tls
        )
        peer = Peer(reader, writer)
        self._stack.callback(peer.close)
        return peer

    async def busy(self, count: int, address: str = "127.0.0.1", *headers: str) -> list[Peer]:
        peers = [await self.connect(address) for _ in range(count)]
        for peer in peers:
            peer.request("/slow", *headers)
        async with asyncio.timeout(ANSWER_SECONDS):
            for _ in peers:
                await self.slow.acquire()
        return peers

    async def _fast(self, _request: web.Request) -> web.Response:
        return web.Response(text="good")

    async def _slow(self, _request: web.Request) -> web.Response:
        self.slow.release()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.append(self.turn)
            raise
        return web.Response(text="good")
