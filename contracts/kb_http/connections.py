"""The connections that a server keeps open, bounded so that no client can use up its descriptors, and the
admission of their requests.

```
              ┌── a request arrived ─────▶ ACTIVE ── it is answered ──▶ IDLE
  AWAITING ───┤                                                          │
   ▲          └── no complete header in time ──▶ closed                  │
   └───────────────────────── bytes of the next request ─────────────────┘
```

aiohttp has a time-out for a connection that waits between requests, but no time-out for a header that never
ends. The number of connections is bounded in total and for each address. When a bound is reached, a new
connection takes the place of the connection that has been AWAITING longest, otherwise of the connection that
has been IDLE longest: open connections without requests do not lock out other clients. New connections keep
their place for a moment; further ones wait in the kernel meanwhile. If all are ACTIVE, a new one is a surplus
connection: a few of these are kept, to answer probes and to refuse requests with a proper response.

With a certificate, a connection is AWAITING from the first byte of its handshake; the time limit of headers
includes the handshake.

Each request marks its connection ACTIVE, and IDLE afterwards. Without room for it, the request is refused.
When the server stops:

    signal to stop ─▶ stop listening ─▶ wait for bodies ─▶ refuse incomplete requests ─▶ clean up

Once a runner is cleaned up, aiohttp drops arriving data: it would wait in vain for the rest of a body, and
then close the connection. The sender would not know whether to send the request again; a refusal says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from kb_http.certificate import Certificate
from kb_http.limits import ConnectionLimits, owner_of

log = logging.getLogger(__name__)

RETRY_SECONDS = 5
"""Time after which a refused caller is asked to try again, in seconds."""

ARRIVING_SECONDS = 5.0
"""Maximum time for bodies to arrive once a server stops, in seconds."""

LINGER_SECONDS = 2.0
"""Time that a runner reads on in a refused body, in seconds. A connection that is closed while its peer still
sends is reset, and the response may be lost. A stop allows the same time to undo partial work for such a
body.
"""
PATIENCE_SECONDS = 0.25
"""Minimum time that a new connection keeps its place, in seconds. Further ones wait in the kernel."""
AT_ONCE = 8
"""Maximum number of connections begun, and of connections ended, in one turn of the loop."""
_SURPLUS = 64
_TURNS = 6
"""Turns of the loop after which the first data of a new connection, if sent at once, have been read."""
_SWEEP_SECONDS = 1.0


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
            self.table.add(self, address_of(transport.get_extra_info("peername")))
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


def address_of(peer: object) -> str:
    return str(peer[0]) if isinstance(peer, tuple) else ""


class ConnectionTable:
    """Creates the protocols of new connections, and closes connections beyond the limits.

    `awaiting`, `idle` and `surplus` are in the order in which connections entered that state.
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
        self._release_client(connection)
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
        for _ in range(min(AT_ONCE, len(self._lost))):
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

    def begin_request(self, connection: Connection, client: str | None) -> bool:
        """Mark the connection ACTIVE; False if there is no room for its request.

        `client` is the address for which a proxy sent the request, if any.
        """
        if connection.state is State.CLOSED:
            return True
        self.awaiting.pop(connection, None)
        self.idle.pop(connection, None)
        connection.state = State.ACTIVE
        if connection.surplus:
            self._promote(connection)
        if client is not None and not self._count_client(connection, client):
            return False
        return not connection.surplus

    def end_request(self, connection: Connection) -> None:
        """Mark the connection IDLE, and stop counting its request for an address."""
        self._release_client(connection)
        if connection.state is not State.CLOSED:
            connection.state = State.IDLE
            if not connection.surplus:
                self.idle[connection] = None

    def _count_client(self, connection: Connection, client: str) -> bool:
        """Count a request of the connection for the address `client`; False if that is at its limit."""
        if self._limits.is_bounded(client):
            client = owner_of(client)
            if self._of[client] >= self._limits.per_address:
                return False
            self._of[client] += 1
            connection.client = client
        return True

    def _release_client(self, connection: Connection) -> None:
        if connection.client is not None:
            self._give_back(connection.client)
            connection.client = None

    def _promote(self, connection: Connection) -> None:
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


# --- admission of requests ------------------------------------------------------------------------


class Admission:
    """The outermost middleware of an application that is served by a `ConnectionTable`."""

    def __init__(
        self,
        no_room: Callable[[web.Request], web.Response],
        unfinished: Callable[[web.Request], web.Response],
        *,
        is_probe: Callable[[web.Request], bool],
        client_of: Callable[[web.Request], str | None] | None = None,
        is_futile: Callable[[web.Request], bool] = lambda _request: False,
    ) -> None:
        """`no_room` and `unfinished` make the responses to refused requests.

        A probe is answered even without room. `client_of` returns the address for which a proxy sent a
        request. A request for which `is_futile` is true is refused at once when the server stops: its result
        would be lost with the server.
        """
        self._no_room = no_room
        self._unfinished = unfinished
        self._is_probe = is_probe
        self._client_of = client_of
        self._is_futile = is_futile
        self._arriving: dict[asyncio.Task[Any], web.Request] = {}
        self._refused: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()

    def install(self, app: web.Application) -> None:
        """Become the outermost middleware of `app`, and make `stop_listening` find it."""
        app[_ADMISSION] = self
        app.middlewares.insert(0, self._middleware)

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        connection = transport.get_protocol() if transport is not None else None
        has_room = True
        if isinstance(connection, Connection):
            client = self._client_of(request) if self._client_of is not None else None
            has_room = connection.table.begin_request(connection, client)
        task = None if request.content.is_eof() else asyncio.current_task()
        if task is not None:
            self._arriving[task] = request
            request.content.on_eof(partial(self._arrived, task))
        try:
            if has_room or self._is_probe(request):
                response = await handler(request)
            else:
                response = self._no_room(request)
        except asyncio.CancelledError:
            if task is None or task not in self._refused:
                raise
            task.uncancel()
            response = self._unfinished(request)
            response.force_close()
        finally:
            if task is not None:
                self._refused.discard(task)
                self._arrived(task)
            if isinstance(connection, Connection):
                connection.table.end_request(connection)
        if not has_room:
            response.force_close()
        return response

    async def settle(self, seconds: float = ARRIVING_SECONDS) -> None:
        """Return when no body is arriving; refuse requests whose body has not arrived within `seconds`."""
        self._cut([task for task, request in self._arriving.items() if self._is_futile(request)])
        await self._until(lambda: not self._arriving, seconds)
        self._cut(list(self._arriving))
        await self._until(lambda: not self._refused, LINGER_SECONDS)

    def _cut(self, tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            del self._arriving[task]
            self._refused.add(task)
            task.cancel()

    def _arrived(self, task: asyncio.Task[Any]) -> None:
        self._arriving.pop(task, None)
        self._changed.set()

    async def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()


_ADMISSION = web.AppKey("_ADMISSION", Admission)


async def stop_listening(runner: web.AppRunner) -> None:
    """Let bodies arrive after the last connection was accepted; then the runner can be cleaned up."""
    await runner.app[_ADMISSION].settle()


# --- what is logged of connections --------------------------------------------------------------


class _Malformed(logging.Filter):
    """Removes the records of requests that could not be parsed, and logs a line for each instead."""

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a record of an unparsable request."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError | web.RequestPayloadError):
            return True
        log.info("Refused a request that is not HTTP: %s", type(error).__name__)
        return False


_MALFORMED = _Malformed()


def connection_log() -> logging.Logger:
    """Return the logger for `web.AppRunner(logger=...)`. It logs exceptions of handlers with tracebacks."""
    logger = logging.getLogger("aiohttp.server.connections")
    logger.addFilter(_MALFORMED)  # added once, regardless of the number of calls
    return logger
