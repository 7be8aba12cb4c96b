"""The connections that a server keeps open, bounded so that no client can use up its descriptors.

```
              ┌── a request arrived ─────▶ ACTIVE ── it is answered ──▶ IDLE
  AWAITING ───┤                                                          │
   ▲          └── no complete header in time ──▶ closed                  │
   └───────────────────────── bytes of the next request ─────────────────┘
```

This module works on connections, `kb_http.admission` on requests. aiohttp has a time-out for a
connection that waits between requests, but no time-out for a header that never ends. The number of
connections is bounded in total and for each address. When a bound is reached, a new connection takes the
place of the connection that has been AWAITING longest, otherwise of the connection that has been IDLE
longest: open connections without requests do not lock out other clients. New connections keep their place for
a moment; further ones wait in the kernel meanwhile. If all are ACTIVE, a new one is a surplus connection: a
few of these are kept, to answer probes and to refuse requests with a proper response.

With a certificate, a connection is AWAITING from the first byte of its handshake; the time limit of headers
includes the handshake.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum, auto
from ipaddress import IPv6Address, ip_address
from typing import Any, cast

from kb_http.certificate import Certificate

log = logging.getLogger(__name__)

CONNECTIONS = 4096
HEADER_SECONDS = 10.0
BACKLOG = 4096
"""Maximum number of connections that the kernel queues."""

_SURPLUS = 64
PATIENCE_SECONDS = 0.25
"""Minimum time that a new connection keeps its place, in seconds. Further ones wait in the kernel."""
_AT_ONCE = 8
"""Maximum number of connections begun, and of connections ended, in one turn of the loop."""
_TURNS = 6
"""Turns of the loop after which the first data of a new connection, if sent at once, have been read."""
_SWEEP_SECONDS = 1.0
_CLOSING_SECONDS = 2.0
"""Maximum time that an encrypted connection waits for its peer's agreement to close, in seconds."""
_BACKEND_CONNECTIONS = 512
_OTHER_DESCRIPTORS = 256
"""Descriptors for connections just accepted and not yet counted, surplus connections, files and databases."""
_IPV6_NETWORK = 64


# --- limits --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits for the number of open connections and for the time of a header.

    `per_address` is the limit for one address if `is_bounded` is true for it: programs of this machine share
    one address, and so do all clients of one proxy.
    """

    connections: int = CONNECTIONS
    per_address: int = CONNECTIONS
    header_seconds: float = HEADER_SECONDS
    is_bounded: Callable[[str], bool] = lambda address: not is_loopback(address)


def connections_within_descriptors(wanted: int) -> int:
    """Return the number of connections, up to `wanted`, that this process has descriptors for.

    It raises the soft limit of the process for them. Each connection may need a second one to a backend, and
    some descriptors are reserved for other uses.
    """
    others = _BACKEND_CONNECTIONS + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted + others:
        most = wanted + others if hard == resource.RLIM_INFINITY else min(hard, wanted + others)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):  # some systems have a limit below the hard one
            most = soft
        soft = max(soft, most)
    return max(1, min(wanted, max(soft - others, (soft - _OTHER_DESCRIPTORS) // 2)))


def is_loopback(name: str) -> bool:
    """True if a host name or address is a loopback one, judged by its form."""
    try:
        return name == "localhost" or ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def owner_of(address: str) -> str:
    """Return the key for counting the connections of an address: for IPv6 its /64 network, since one host has
    it whole.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> _IPV6_NETWORK << _IPV6_NETWORK))


# --- connections ---------------------------------------------------------------------------------


class State(Enum):
    AWAITING = auto()
    ACTIVE = auto()
    IDLE = auto()
    CLOSED = auto()


class Connection(asyncio.Protocol):
    """One connection: aiohttp's protocol, and the state that the table keeps for it."""

    __slots__ = (
        "_protocol",
        "bounded",
        "client",
        "handshake",
        "peer",
        "since",
        "state",
        "surplus",
        "table",
        "transport",
    )

    def __init__(self, table: ConnectionTable, protocol: asyncio.Protocol) -> None:
        self.table = table
        self._protocol = protocol
        self.state = State.AWAITING
        self.since = 0.0
        """Start of waiting for a header, in the loop's time."""
        self.surplus = False
        self.peer = ""
        self.bounded = False
        """True if its peer's address has a limit."""
        self.client: str | None = None
        """The address for which a proxy sent the request that is being handled."""
        self.transport: asyncio.Transport | None = None
        self.handshake: asyncio.Task[None] | None = None
        """The task of the TLS handshake; there is no transport before it has ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._protocol.connection_made(transport)
        if self.handshake is None:
            self.table.add(self, _address(transport.get_extra_info("peername")))
        self.handshake = None

    def connection_lost(self, error: Exception | None) -> None:
        self.table.remove(self)
        self.table.end_in_turn(self._protocol, error)

    def data_received(self, data: bytes) -> None:
        if self.state is State.IDLE:
            self.table.await_header(self)
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def is_sending(self) -> bool:
        """True if a response is still being sent."""
        return self.transport is not None and self.transport.get_write_buffer_size() > 0


def _address(peer: object) -> str:
    return str(peer[0]) if isinstance(peer, tuple) else ""


class ConnectionTable:
    """Creates the protocols of new connections, and closes connections beyond the limits.

    `awaiting`, `idle` and `surplus` are in the order in which connections entered that state. A request moves
    its connection itself: `kb_http.admission`.
    """

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        limits: ConnectionLimits,
        certificate: Certificate | None = None,
    ) -> None:
        """`make` is aiohttp's server; with a certificate, connections are encrypted."""
        self._make = make
        self.certificate = certificate
        self._limits = limits
        self._open = 0
        self._of: Counter[str] = Counter()
        self.awaiting: OrderedDict[Connection, None] = OrderedDict()
        self.idle: OrderedDict[Connection, None] = OrderedDict()
        self.surplus: OrderedDict[Connection, None] = OrderedDict()
        self._sweeping: asyncio.TimerHandle | None = None
        self._turns: deque[float] = deque(maxlen=_TURNS)
        self._lost: deque[tuple[asyncio.Protocol, Exception | None]] = deque()
        self._before = 0.0
        """Latest start of AWAITING at which a connection can be replaced by a new one, in the loop's time."""

    def __call__(self) -> Connection:
        return Connection(self, self._make())

    def add(self, connection: Connection, address: str) -> None:
        """Give a new connection a place, if necessary that of another one."""
        connection.bounded = self._limits.is_bounded(address)
        connection.peer = owner_of(address)
        if not self._take_place(connection, self._before):
            connection.surplus = True
            self.surplus[connection] = None
            if len(self.surplus) > _SURPLUS:
                self._close(next(iter(self.surplus)))
        self.await_header(connection)

    def acceptable(self, most: int) -> int:
        """Return the number of connections, up to `most`, that have room now."""
        now = asyncio.get_running_loop().time()
        self._turns.append(now)
        before = self._before = min(now - PATIENCE_SECONDS, self._turns[0])
        found = self._limits.connections - self._open + len(self.idle) + _SURPLUS - len(self.surplus)
        for connection in self.awaiting:
            if found >= most or connection.since > before:
                break
            found += 1
        return max(0, min(found, most))

    def remove(self, connection: Connection) -> None:
        if connection.state is State.CLOSED:
            return
        self.release_client(connection)
        connection.state = State.CLOSED
        self.awaiting.pop(connection, None)
        self.idle.pop(connection, None)
        if connection.surplus:
            del self.surplus[connection]
            return
        self._open -= 1
        if connection.bounded:
            self._give_back(connection.peer)

    def end_in_turn(self, protocol: asyncio.Protocol, error: Exception | None) -> None:
        """Report lost connections to aiohttp, a few in each turn of the loop.

        Closing cancels the request of a connection. If thousands close at once, the cancellations would delay
        all other requests.
        """
        if not self._lost:
            asyncio.get_running_loop().call_soon(self._end_some)
        self._lost.append((protocol, error))

    def _end_some(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._lost))):
            protocol, error = self._lost.popleft()
            protocol.connection_lost(error)
        if self._lost:
            asyncio.get_running_loop().call_soon(self._end_some)

    def await_header(self, connection: Connection) -> None:
        """Start the time limit of a header for the connection."""
        self.idle.pop(connection, None)
        if connection.state is State.CLOSED:
            return
        loop = asyncio.get_running_loop()
        connection.state, connection.since = State.AWAITING, loop.time()
        self.awaiting[connection] = None
        if self._sweeping is None:
            self._sweeping = loop.call_later(_SWEEP_SECONDS, self._sweep)

    def count_client(self, connection: Connection, client: str) -> bool:
        """Count a request of the connection for the address `client`; False if that is at its limit."""
        if self._limits.is_bounded(client):
            client = owner_of(client)
            if self._of[client] >= self._limits.per_address:
                return False
            self._of[client] += 1
            connection.client = client
        return True

    def release_client(self, connection: Connection) -> None:
        """Stop counting the connection's request for an address, once it has ended."""
        if connection.client is not None:
            self._give_back(connection.client)
            connection.client = None

    def promote(self, connection: Connection) -> None:
        """Give a surplus connection a regular place, if possible, now that it has a request."""
        if self._take_place(connection, asyncio.get_running_loop().time()):
            connection.surplus = False
            del self.surplus[connection]

    def _take_place(self, connection: Connection, before: float) -> bool:
        """Count a connection; at a limit, in place of one AWAITING since `before`, or of an IDLE one."""
        full = connection.bounded and self._of[connection.peer] >= self._limits.per_address
        if (full or self._open >= self._limits.connections) and not self._evict(
            connection.peer if full else None, before
        ):
            return False
        self._open += 1
        if connection.bounded:
            self._of[connection.peer] += 1
        return True

    def _evict(self, peer: str | None, before: float) -> bool:
        """Close the most expendable connection of `peer` (None: of any peer); True if there was one."""
        for connection in self.awaiting:
            if connection.since > before:
                break
            if not connection.surplus and peer in (None, connection.peer):
                self._close(connection)
                return True
        for connection in self.idle:
            if peer in (None, connection.peer) and not connection.is_sending():
                self._close(connection)
                return True
        return False

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._limits.header_seconds
        while self.awaiting and (connection := next(iter(self.awaiting))).since <= oldest:
            self._close(connection)
        self._sweeping = loop.call_later(_SWEEP_SECONDS, self._sweep) if self.awaiting else None

    def _close(self, connection: Connection) -> None:
        self.remove(connection)
        if connection.transport is not None:
            connection.transport.abort()  # frees its descriptor at once
        elif connection.handshake is not None:
            connection.handshake.cancel()

    def _give_back(self, address: str) -> None:
        self._of[address] -= 1
        if not self._of[address]:
            del self._of[address]


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
        places = self._table.acceptable(_AT_ONCE)
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
            address = _address(accepted.getpeername())
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


class Listener:
    """Listening sockets on `address`, from which connections are accepted."""

    def __init__(self, table: ConnectionTable, sockets: list[socket.socket]) -> None:
        self.address: tuple[str, int] = sockets[0].getsockname()[:2]
        self._intakes: list[Intake] = []
        for each in sockets:

            def accept(listening: socket.socket = each) -> socket.socket | None:
                try:
                    return listening.accept()[0]
                except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                    return None

            each.setblocking(False)
            self._intakes.append(Intake(table, each, accept))
            self._intakes[-1].start()

    def close(self) -> None:
        for intake in self._intakes:
            intake.stop()


async def listen(table: ConnectionTable, host: str, port: int) -> Listener:
    """Listen on all addresses of `host`, or on every address if it is empty; port 0 is any free one.

    Raises:
        OSError: the address is not an address of this machine, or is in use.
    """
    infos = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with ExitStack() as stack:
        sockets = []
        for family, _, _, _, address in dict.fromkeys(infos):
            listening = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
            sockets.append(listening)
        stack.pop_all()
    return Listener(table, sockets)


# --- what is logged of connections --------------------------------------------------------------


class _Malformed(logging.Filter):
    """Removes the records of requests that could not be parsed, and logs a line for each instead."""

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a record of an unparsable request."""
        # Imported here: settings name bounds of this module, and a stdio server must import no HTTP server.
        from aiohttp.http_exceptions import HttpProcessingError
        from aiohttp.web_protocol import RequestPayloadError

        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError | RequestPayloadError):
            return True
        log.info("Refused a request that is not HTTP: %s", type(error).__name__)
        return False


_MALFORMED = _Malformed()


def connection_log() -> logging.Logger:
    """Return the logger for `web.AppRunner(logger=...)`. It logs exceptions of handlers with tracebacks."""
    logger = logging.getLogger("aiohttp.server.connections")
    logger.addFilter(_MALFORMED)  # added once, regardless of the number of calls
    return logger
