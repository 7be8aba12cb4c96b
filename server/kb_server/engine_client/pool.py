"""Connections to one host, kept and used again: the socket's side of `http1`.

A connection carries one exchange at a time and watches its own deadline, with one timer for all of its life:
a deadline that moves on with every block is a number, and the timer looks at it when it is due.

state    bytes                     end of the connection             deadline
-------  ------------------------  --------------------------------  -----------------------
idle     close: nobody asked       leaves the pool                   close: kept long enough
at work  to the reader             a response, or why there is none  EngineTimeout
closed   -                         -                                 -

An exchange closes its connection unless the response was read whole and the request sent whole: what is left
of either must not be the next one's.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

import aiohappyeyeballs
from yarl import URL

from kb_server.engine_client.errors import EngineBadAnswer, EngineTimeout, EngineUnreachable
from kb_server.engine_client.http1 import RawResponse, ResponseReader

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 300.0
"""How long a body may take to arrive, however it drips."""

_CONNECTIONS = 512
"""So many that agents who wait for their jobs do not keep others from searching."""
_IDLE_SECONDS = 30.0
"""Less than servers keep them: aiohttp 75 s, uvicorn and Node only 5, which `_Connection.kept` is for."""
_NEVER = float("inf")
_EYEBALLS_SECONDS = 0.25
"""After which the next address of a host is tried beside the one before."""


class Outgoing(Protocol):
    """A request that may be sent twice: it changes nothing, or carries an idempotency key."""

    @property
    def silence(self) -> float:
        """Seconds that its response may keep still."""

    @property
    def head(self) -> bytes:
        """The request, as far as it is sent in one piece."""

    def rest(self) -> AsyncGenerator[bytes, None] | None:
        """What follows, block by block, from its beginning at every call; None where nothing does."""


class Pool:
    """Exchanges with the host of `base`, a URL.

    `lost` is called when a kept connection had gone without an answer: the host may have been replaced.
    """

    def __init__(self, base: URL, *, lost: Callable[[], None]) -> None:
        self._base = base
        self._lost = lost
        self._tls: ssl.SSLContext | None = None
        self._places = asyncio.Semaphore(_CONNECTIONS)
        self._is_closed = False
        self._all: set[_Connection] = set()
        self._idle: dict[_Connection, None] = {}
        """In the order in which they were given back; the last is taken first, so that others expire."""

    async def close(self) -> None:
        """Close all connections, for good; exchanges on their way fail."""
        self._is_closed = True
        leaving = list(self._all)
        for connection in leaving:
            connection.abort()
        for connection in leaving:
            await connection.gone

    async def exchange(self, request: Outgoing) -> RawResponse:
        """Send `request` and read its response whole; once more where a kept connection had gone.

        Raises:
            EngineUnreachable: there is no connection, or it broke before an answer.
            EngineTimeout: silence.
            EngineBadAnswer: what came is not HTTP as agreed, or did not come whole.
            OSError: of `rest` of the request, which is not the host's fault.
        """
        if self._places.locked():
            await self._wait_for_place(request.silence)
        else:
            await self._places.acquire()
        try:
            if self._idle:
                kept, _ = self._idle.popitem()
                try:
                    return await self._over(kept, request)
                except EngineUnreachable:
                    if kept.has_received or self._is_closed:
                        raise
                self._lost()
            return await self._over(await self._connect(request.silence), request)
        finally:
            self._places.release()

    async def _over(self, connection: _Connection, request: Outgoing) -> RawResponse:
        response = await connection.exchange(request.head, request.rest(), request.silence)
        if connection.is_reusable:
            connection.rest()
            self._idle[connection] = None
        else:
            connection.abort()
        return response

    async def _wait_for_place(self, silence: float) -> None:
        try:
            async with asyncio.timeout(silence):
                await self._places.acquire()
        except TimeoutError:
            raise EngineTimeout(f"All {_CONNECTIONS} connections waited for it for {silence:g} s.") from None

    async def _connect(self, silence: float) -> _Connection:
        loop, base = asyncio.get_running_loop(), self._base
        seconds = min(CONNECT_SECONDS, silence)
        secure = base.scheme == "https"
        if secure and self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        try:
            async with asyncio.timeout(seconds):
                addresses = await loop.getaddrinfo(base.raw_host, base.port, type=socket.SOCK_STREAM)
                found = await aiohappyeyeballs.start_connection(
                    addresses, happy_eyeballs_delay=_EYEBALLS_SECONDS, loop=loop
                )
                _, connection = await loop.create_connection(
                    lambda: _Connection(loop, str(base), self._forget),
                    sock=found,
                    ssl=self._tls,
                    server_hostname=base.raw_host if secure else None,
                )
        except TimeoutError:
            raise EngineUnreachable(f"no connection within {seconds:g} s", url=str(base)) from None
        except (OSError, UnicodeError) as error:
            raise EngineUnreachable(_reason(error), url=str(base)) from error
        if self._is_closed:
            connection.abort()
            raise EngineUnreachable("the client was closed", url=str(base))
        self._all.add(connection)
        return connection

    def _forget(self, connection: _Connection) -> None:
        self._all.discard(connection)
        self._idle.pop(connection, None)


class _Connection(asyncio.Protocol):
    """One connection to `url`; `forget` is called when it has gone."""

    _transport: asyncio.WriteTransport

    def __init__(
        self, loop: asyncio.AbstractEventLoop, url: str, forget: Callable[[_Connection], None]
    ) -> None:
        self._loop = loop
        self._url = url
        self._forget = forget
        self._reader = ResponseReader()
        self._answer: asyncio.Future[RawResponse] | None = None
        self._drained: asyncio.Future[None] | None = None
        """While the peer takes no more."""
        self._is_sent = True
        self._silence = 0.0
        self._latest = self._deadline = _NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._wakes = _NEVER
        """When the timer looks."""
        self.gone: asyncio.Future[None] = loop.create_future()

    @property
    def is_reusable(self) -> bool:
        """Whether another exchange may follow the one that has ended."""
        return self._reader.reusable and self._is_sent and not self._transport.is_closing()

    @property
    def has_received(self) -> bool:
        """Whether anything has come in this exchange."""
        return self._reader.received > 0

    async def exchange(
        self, head: bytes, rest: AsyncGenerator[bytes, None] | None, silence: float
    ) -> RawResponse:
        """Send, and read the response whole; one that comes before all is sent is the response too.

        Raises:
            EngineFault: as `Pool.exchange` has it. Otherwise what `rest` raises.
        """
        answer: asyncio.Future[RawResponse] = self._loop.create_future()
        self._answer = answer
        self._reader.begin()
        self._silence = silence
        self._latest = _NEVER
        self._extend()
        self._transport.write(head)
        self._is_sent = rest is None
        sending = None
        if rest is not None:
            sending = self._loop.create_task(self._send(rest))
            sending.add_done_callback(self._sent)
        try:
            return await answer
        except BaseException:
            self.abort()
            if answer.done() and not answer.cancelled():
                answer.exception()  # cancelled and failed at once: it is not to be reported as lost
            raise
        finally:
            self._answer = None
            if sending is not None and not sending.done():
                sending.cancel()
                await asyncio.wait([sending])

    def rest(self) -> None:
        """Wait for the next exchange, for so long."""
        self._silence = _IDLE_SECONDS
        self._extend()

    def abort(self) -> None:
        """Close at once; what is not sent yet is dropped."""
        self._transport.abort()

    async def _send(self, blocks: AsyncGenerator[bytes, None]) -> None:
        async with aclosing(blocks) as blocks:
            async for block in blocks:
                self._transport.write(block)
                if self._drained is not None:
                    await self._drained
                self._extend()
        self._is_sent = True

    def _sent(self, sending: asyncio.Task[None]) -> None:
        if not sending.cancelled() and (error := sending.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _end(self, error: Exception | None) -> None:
        self._forget(self)
        if self._answer is None or self._answer.done():
            return
        try:
            response = self._reader.end() if error is None else None
            if response is not None:
                self._answer.set_result(response)
            elif self._reader.in_body:
                self._fail(self._reader.broken_off())
            else:
                self._fail(EngineUnreachable(_reason(error), url=self._url))
        except EngineBadAnswer as fault:
            self._fail(fault)

    # --- the deadline -----------------------------------------------------------------------------

    def _extend(self) -> None:
        """Something moved: from now on silence is counted anew."""
        deadline = self._deadline = min(self._loop.time() + self._silence, self._latest)
        if deadline < self._wakes:
            self._wake_at(deadline)

    def _wake_at(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wakes = moment
        self._timer = self._loop.call_at(moment, self._look)

    def _look(self) -> None:
        self._wakes = _NEVER
        if self._loop.time() < self._deadline:
            self._wake_at(self._deadline)
        elif self._answer is None:
            self._forget(self)
            self.abort()
        elif self._deadline == self._latest:
            self._fail(EngineTimeout(f"Its answer had not arrived whole after {ANSWER_SECONDS:g} s."))
        else:
            self._fail(EngineTimeout(f"It said nothing for {self._silence:g} s."))

    # --- what the event loop calls ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # TCP's

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self._forget(self)
            self.abort()
            return
        had_begun = self._reader.in_body
        try:
            response = self._reader.feed(data)
        except EngineBadAnswer as fault:
            self._fail(fault)
            return
        if response is not None:
            self._answer.set_result(response)
        elif self._reader.in_body:  # a head that drips moves nothing
            if not had_begun:
                self._latest = self._loop.time() + ANSWER_SECONDS
            self._extend()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error)
        self.resume_writing()
        if self._timer is not None:
            self._timer.cancel()
        if not self.gone.done():
            self.gone.set_result(None)

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)


def _reason(error: Exception | None) -> str:
    """Why there is no connection, without addresses, which may hold credentials."""
    match error:
        case None:
            return "it closed the connection without an answer"
        case socket.gaierror() | UnicodeError():
            return "its host name does not resolve"
        case ssl.SSLError():
            return "TLS failed"
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if isinstance(number, int) else "the connection broke"
