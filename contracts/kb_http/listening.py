"""Listening sockets: connections are accepted in turns, as the table of connections has room for them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

from aiohttp import web

from kb_http.certificate import Certificate
from kb_http.connections import AT_ONCE, PATIENCE_SECONDS, ConnectionTable, address_of
from kb_http.limits import CONNECTIONS, ConnectionLimits, connections_within_descriptors

BACKLOG = 4096
"""Maximum number of connections that the kernel queues."""
_CLOSING_SECONDS = 2.0
"""Maximum time that an encrypted connection waits for its peer's agreement to close, in seconds."""


class Intake:
    """Accepts connections from a socket in turns, as long as the table has room.

    `take` returns the next connection, or None if no connection waits, and raises OSError if there is no
    descriptor for it. asyncio's own server would accept all waiting connections before the first of them is
    counted.
    """

    def __init__(
        self, table: ConnectionTable, source: socket.socket, take: Callable[[], socket.socket | None]
    ) -> None:
        self._table = table
        self._source = source
        self._take = take
        self._beginning: set[asyncio.Task[None]] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._source.fileno(), self._turn)

    def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._source.fileno())
        if self._resuming is not None:
            self._resuming.cancel()
        for handshake in self._handshakes:
            handshake.cancel()
        self._source.close()

    def _pause(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._source.fileno())
        self._resuming = loop.call_later(PATIENCE_SECONDS / 10, self.start)

    def _turn(self) -> None:
        places = self._table.acceptable(AT_ONCE)
        if not places:
            self._pause()
            return
        for _ in range(places - len(self._beginning)):
            try:
                connection = self._take()
            except OSError:
                self._pause()
                return
            if connection is None:
                return
            certificate = self._table.certificate
            if certificate is None:
                self._start(self._begin(connection), self._beginning)
            else:
                self._start(self._begin_encrypted(connection, certificate.context()), self._handshakes)

    def _start(self, beginning: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> None:
        task = asyncio.get_running_loop().create_task(beginning)
        among.add(task)
        task.add_done_callback(among.discard)

    async def _begin(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        with suppress(OSError):  # the client has left before it was served
            await asyncio.get_running_loop().connect_accepted_socket(self._table, accepted)

    async def _begin_encrypted(self, accepted: socket.socket, context: ssl.SSLContext) -> None:
        accepted.setblocking(False)
        try:
            address = address_of(accepted.getpeername())
        except OSError:  # the client has closed it
            accepted.close()
            return
        connection = self._table()
        connection.handshake = asyncio.current_task()
        self._table.add(connection, address)
        try:
            with suppress(OSError):  # the client speaks no TLS, does not trust the certificate, or has left
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection, accepted, ssl=context, ssl_shutdown_timeout=_CLOSING_SECONDS
                )
        finally:
            if connection.transport is None:
                self._table.remove(connection)


@asynccontextmanager
async def listening(
    runner: web.AppRunner,
    host: str,
    port: int,
    limits: ConnectionLimits | None = None,
    certificate: Certificate | None = None,
) -> AsyncIterator[tuple[str, int]]:
    """Accept connections for a runner that was set up; yield an address that is listened on.

    It listens on all addresses of `host`, or on every address if it is empty; port 0 is any free one. Without
    `limits` all connections that the process has descriptors for may come from one address.
    Raises OSError: the address is not an address of this machine, or is in use.
    """
    assert runner.server is not None, "a runner that was set up has a server"
    if limits is None:
        most = connections_within_descriptors(CONNECTIONS)
        limits = ConnectionLimits(most, most)
    table = ConnectionTable(runner.server, limits, certificate)
    infos = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with ExitStack() as stack:
        sockets = []
        for family, _, _, _, address in dict.fromkeys(infos):
            source = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            source.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                source.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            source.bind(address)
            source.listen(BACKLOG)
            source.setblocking(False)
            sockets.append(source)
        for source in sockets:
            intake = Intake(table, source, partial(_accepted, source))
            intake.start()
            stack.callback(intake.stop)
        yield sockets[0].getsockname()[:2]


def _accepted(source: socket.socket) -> socket.socket | None:
    try:
        return source.accept()[0]
    except (BlockingIOError, ConnectionAbortedError, InterruptedError):
        return None
