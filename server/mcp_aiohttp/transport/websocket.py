"""MCP over WebSocket (RFC 6455): a connection is one client, and carries the same messages as stdio.

The checks are those of every request: key, Host and Origin are checked before the upgrade, and browsers send
Origin with every upgrade, so a page of another site cannot open a connection. Messages are text; an invalid
message is answered with an error, and an invalid frame closes the connection:

| code | why |
|---|---|
| 1001 | the server stops; calls in flight were given time to end |
| 1002 | an invalid frame, or a compressed one: compression is not negotiated |
| 1003 | a binary message |
| 1007 | a text that is not UTF-8 |
| 1008 | the token of the connection was revoked |
| 1009 | a message over the limit |
| 1011 | an internal error |

Many calls run at once. Each counts as in flight until its answer is sent, and calls over the limit are
refused, so that a client that sends and does not read cannot fill memory; reading goes on meanwhile, because
a cancel must take effect. When the connection ends, its calls are cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from time import perf_counter
from typing import Any

import anyio
from aiohttp import WSCloseCode, WSMsgType, hdrs, web
from anyio.abc import ObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from mcp_aiohttp.authentication import TrustedProxies
from mcp_aiohttp.guard import CALLER, route_of
from mcp_aiohttp.options import STALLED_SECONDS, Bounds, SocketLimits
from mcp_aiohttp.protocol import jsonrpc
from mcp_aiohttp.protocol.caller import Caller
from mcp_aiohttp.protocol.kernel import HostedServer
from mcp_aiohttp.protocol.session import Session, session

log = logging.getLogger(__name__)

SUBPROTOCOL = "mcp"
VERSION = "13"
CLOSE_SECONDS = 1.0
"""Maximum time that a peer may take to confirm the close, or to read its reason, in seconds."""
_GRACE = 0.9
"""The share of the stop time in which calls may end; the rest is for cancelling and closing."""

_RETRY_SECONDS = 5
_BY_READER = frozenset((WSCloseCode.PROTOCOL_ERROR, WSCloseCode.INVALID_TEXT, WSCloseCode.MESSAGE_TOO_BIG))


CallerOf = Callable[[web.Request], Awaitable[Caller]]
"""Authenticates the sender of a request; raises Refusal if the request is not permitted."""


class SocketPlaces:
    """The limits of open WebSockets, on all endpoints together, and from one address."""

    def __init__(self, limits: SocketLimits, proxies: TrustedProxies) -> None:
        self._limits = limits
        self._proxies = proxies
        self._open = 0
        self._of: Counter[str] = Counter()

    @contextmanager
    def taken(self, http: web.Request) -> Iterator[None]:
        """Hold one place within the block.
        Raises Refusal: 503, the limit is reached.
        """
        address = self._proxies.client_of(http) or http.remote or ""
        owner = self._limits.owner_of(address) if self._proxies.is_bounded(address) else None
        limit, words = self._limits.open, "are open, the maximum of this server."
        full = self._open >= limit
        if not full and owner is not None:
            limit, words = self._limits.per_address, "are open from your address."
            full = self._of[owner] >= limit
        if full:
            raise jsonrpc.Refusal(
                503,
                jsonrpc.TOO_MANY_CONNECTIONS,
                "too_many_websockets",
                f"{limit} WebSockets {words} Close some, or send messages by POST.",
                headers={hdrs.RETRY_AFTER: str(_RETRY_SECONDS)},
                details={"limit": limit},
            )
        self._open += 1
        if owner is not None:
            self._of[owner] += 1
        try:
            yield
        finally:
            self._open -= 1
            if owner is not None:
                self._of[owner] -= 1
                if not self._of[owner]:
                    del self._of[owner]


class WebSockets:
    def __init__(
        self, server: HostedServer, limits: SocketLimits, places: SocketPlaces, caller_of: CallerOf
    ) -> None:
        # aiohttp warns if no subprotocol is shared, and quotes the client's offer: some clients put a token
        # there.
        logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)
        self._server = server
        self._limits = limits
        self._places = places
        self._caller_of = caller_of
        self._open: set[_Connection] = set()
        self._grace: float | None = None
        """Seconds that calls may take to end, once the server stops."""

    async def serve(self, http: web.Request, max_bytes: int) -> web.StreamResponse:
        """Serve one connection until it ends; a message has at most `max_bytes`.
        Raises Refusal: 426 or 400, the handshake is not one of RFC 6455; 503, the limit of open
        WebSockets is reached.
        """
        with self._places.taken(http):
            # aiohttp refuses a message as long as its limit, and without compression there are no bombs.
            socket = _Socket(
                timeout=CLOSE_SECONDS,
                autoping=False,
                heartbeat=self._limits.heartbeat,
                protocols=(SUBPROTOCOL,),
                compress=False,
                max_msg_size=max_bytes + 1,
                writer_limit=_NEVER,
            )
            _check_handshake(http, socket)
            connection = _Connection(
                http, socket, _Outbox(http, socket, await socket.prepare(http)), self._caller_of
            )
            self._open.add(connection)
            if self._grace is not None:
                # its upgrade was in progress when the open connections were stopped
                connection.stop(self._grace)
            try:
                await connection.serve(self._server, self._limits.bounds)
            finally:
                self._open.discard(connection)
            return socket

    def stop(self, seconds: float) -> None:
        """Take no further message; calls in flight may end within `seconds`, then connections are closed."""
        self._grace = seconds * _GRACE
        for connection in self._open:
            connection.stop(self._grace)


def _check_handshake(http: web.Request, socket: _Socket) -> None:
    if http.headers.get(hdrs.SEC_WEBSOCKET_VERSION) != VERSION:
        words = "Open the WebSocket with `Sec-WebSocket-Version: 13`."
        headers: dict[str, str] = {hdrs.SEC_WEBSOCKET_VERSION: VERSION, hdrs.UPGRADE: "websocket"}
        raise jsonrpc.Refusal(426, jsonrpc.BAD_HANDSHAKE, "upgrade_required", words, headers=headers)
    try:
        is_handshake = bool(socket.can_prepare(http))
    except ValueError:  # a key that is not even ASCII
        is_handshake = False
    if not is_handshake:
        words = (
            "This is not a WebSocket handshake: `Connection: Upgrade` or a `Sec-WebSocket-Key` is missing."
        )
        raise jsonrpc.Refusal(400, jsonrpc.BAD_HANDSHAKE, "bad_handshake", words)


class _Socket(web.WebSocketResponse):
    """A WebSocket response whose close does not wait for a peer that does not read."""

    refused: int | None = None
    """The close code that was sent to the peer after an invalid frame."""

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = False) -> bool:
        """Close the connection; after an invalid frame, only send the close code.

        If a connection is closed while its peer still sends, it is reset, and data sent to the peer is lost.
        """
        if code in _BY_READER and self.refused is None:
            self.refused = code
            with suppress(ConnectionError):
                await self.send_frame(struct.pack("!H", code), WSMsgType.CLOSE)
            return True
        return await super().close(code=code, message=message, drain=drain)


_AT_ONCE = struct.pack("ii", 1, 0)
"""`SO_LINGER`: on, for no seconds."""


def hang_up(transport: asyncio.Transport) -> None:
    """End the connection to a peer that does not read.

    Unsent data is dropped, by the system too, which would otherwise keep it while the peer's side is open;
    and a peer that only writes would wait to be read.
    """
    if (connection := transport.get_extra_info("socket")) is not None:
        connection.setsockopt(SOL_SOCKET, SO_LINGER, _AT_ONCE)
    transport.abort()


_NEVER = 1 << 62
"""Limit of aiohttp's writer, in bytes: large enough that it never waits.

`_Outbox` waits instead, before it writes and in one place.
"""


class _Outbox(ObjectSendStream[SessionMessage]):
    """The output of a connection: one message at a time, each when the one before it has nearly left."""

    def __init__(self, http: web.Request, socket: _Socket, writer: Any) -> None:
        self._http = http
        self._socket = socket
        self._writer = writer
        self._turn = asyncio.Lock()
        self._draining: asyncio.Task[None] | None = None

    async def send(self, item: SessionMessage) -> None:
        """Send a message of the SDK's.
        Raises anyio.BrokenResourceError: the peer no longer reads.
        """
        message = item.message
        match message:
            case JSONRPCResponse():
                data = jsonrpc.result_bytes(message.id, message.result)
            case JSONRPCError():
                error = message.error
                data = jsonrpc.error_bytes(message.id, error.code, error.message, error.data)
            case JSONRPCNotification():
                data = jsonrpc.notification_bytes(message.method, message.params)
            case JSONRPCRequest():
                data = jsonrpc.request_bytes(message.id, message.method, message.params)
        await self.write(data)

    async def write(self, data: bytes, kind: WSMsgType = WSMsgType.TEXT) -> None:
        """Send a frame.
        Raises anyio.BrokenResourceError: the peer no longer reads.
        """
        async with self._turn:
            await self._room()
            if self._socket.closed or self._socket.refused is not None:
                raise anyio.BrokenResourceError
            try:
                await self._socket.send_frame(data, kind)
            except ConnectionError:
                raise anyio.BrokenResourceError from None

    async def _room(self) -> None:
        """Wait until the connection accepts more output; hang up after `STALLED_SECONDS` without progress."""
        transport = self._http.transport
        if transport is None:
            raise anyio.BrokenResourceError
        if self._draining is None and self._http.protocol.writing_paused:
            # A task of its own: if it were cancelled in the middle, aiohttp's drain() would never return
            # again.
            self._draining = asyncio.get_running_loop().create_task(self._drained())
        while self._draining is not None:
            left = transport.get_write_buffer_size()
            await asyncio.wait((self._draining,), timeout=STALLED_SECONDS)
            if self._draining.done():
                self._draining = None
            elif transport.get_write_buffer_size() >= left:
                hang_up(transport)
                raise anyio.BrokenResourceError

    async def _drained(self) -> None:
        with suppress(ConnectionError):  # the next write meets it
            await self._writer.drain()

    async def aclose(self) -> None:
        """Do nothing: the code that opened the connection closes it."""


@dataclass(eq=False, slots=True)
class _Connection:
    http: web.Request
    socket: _Socket
    outbox: _Outbox
    caller_of: CallerOf
    taken: int = 0
    """Number of messages received."""
    stopping: bool = False
    grace: float = 0.0
    """Seconds that calls in flight may take to end once no message is taken."""
    code: int | None = None
    """The code that it was closed with, by either side."""
    reading: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    began: float = field(default_factory=perf_counter)

    def stop(self, grace: float) -> None:
        self.stopping, self.grace = True, grace
        self.reading.cancel()

    async def serve(self, server: HostedServer, bounds: Bounds) -> None:
        try:
            await self._close(await self._converse(server, bounds))
        except Exception:  # the boundary: an HTTP answer is no longer possible after the upgrade
            log.exception("A WebSocket failed unexpectedly", extra=self._fields())
            await self._close(WSCloseCode.INTERNAL_ERROR)
        finally:
            transport = self.http.transport
            if transport is not None and transport.get_write_buffer_size():
                hang_up(transport)
            if transport is None:
                # The peer has left, which cancels the handler. Without this call a timer of the heartbeat
                # would keep all objects of the connection alive until the next ping.
                await self.socket.close()
            log.info("A WebSocket ended", extra=self._fields())

    async def _converse(self, server: HostedServer, bounds: Bounds) -> int:
        """Serve until there is no more to read; return the code to close with.

        The headers of the upgrade apply to all calls: its correlation id is used for each call without one.
        """
        caller, outbox = self.http[CALLER], self.outbox
        async with session(server, outbox, caller=caller, bounds=bounds, write=outbox.write) as client:
            try:
                code = await self._read(client)
            except anyio.BrokenResourceError:
                code = WSCloseCode.OK  # the peer is gone
            await client.settled(self.grace)
        return code

    async def _read(self, client: Session) -> int:
        while not self.stopping:
            with anyio.CancelScope() as self.reading:
                message = await self.socket.receive()
            if self.reading.cancelled_caught:
                break
            match message.type:
                case WSMsgType.TEXT:
                    try:
                        client.recognise(await self.caller_of(self.http))
                    except jsonrpc.Refusal:  # its token was valid at the upgrade, and is no longer
                        return WSCloseCode.POLICY_VIOLATION
                    self.taken += 1
                    await client.take(message.data.encode())
                case WSMsgType.BINARY:
                    return WSCloseCode.UNSUPPORTED_DATA
                case WSMsgType.PING:
                    await self.outbox.write(message.data, WSMsgType.PONG)
                case WSMsgType.PONG:
                    pass
                case _:
                    return WSCloseCode.OK  # closed by the peer, or after an invalid frame
        return WSCloseCode.GOING_AWAY

    async def _close(self, code: int) -> None:
        self.code = self.socket.refused or self.socket.close_code or code
        if self.socket.refused is not None:
            await asyncio.sleep(CLOSE_SECONDS)  # cut short, like the whole method, if the peer hangs up
            if self.http.transport is not None:
                self.http.transport.close()
        await self.socket.close(code=code)

    def _fields(self) -> dict[str, Any]:
        return {
            "route": route_of(self.http),
            "code": self.code or self.socket.close_code,
            "messages": self.taken,
            "seconds": round(perf_counter() - self.began, 3),
        }
