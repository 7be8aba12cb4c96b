"""A backend over HTTP: kept connections, attempts, a circuit breaker, and faults of our own types.

The clients above know the operations and their responses. The transport knows neither: it repeats a request
as often as is safe and allowed, and passes each response to the given reader. `RetryPolicy` and `Breaker`
decide on repeating and blocking, without I/O and without a clock of their own.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar

import aiohappyeyeballs
from yarl import URL

from kb_contracts.api.operations import AnyOperation
from kb_server.engine_client.errors import EngineFault, EngineTimeout, EngineUnreachable
from kb_server.engine_client.http1 import BodyStream, Connection, RawResponse, reason_of
from kb_server.engine_client.multipart import MultipartFile
from kb_server.waiting import SYSTEM_CLOCK, Clock, jittered

T = TypeVar("T")

CONNECT_SECONDS = 5.0

_CONNECTIONS = 512
"""Maximum number of connections: high enough that agents waiting for jobs do not block searches."""
_EYEBALLS_SECONDS = 0.25
"""Delay before the next address of a host is tried in parallel, in seconds."""
_SMALL_BYTES = 64 * 1024
"""Maximum size of a body that is sent in one piece with its head, in bytes; else it goes in blocks."""


@dataclass(slots=True)  # not frozen: that would triple the cost of creating one
class EngineRequest:
    """One request, built once and sent as often as needed.

    Repeating is safe: it changes nothing or carries an idempotency key. `lines` is its head, made from
    `path`, `query` and `headers`; `headers` omits the headers common to all requests. `read_timeout` is the
    time-out for a silent response, in seconds.
    """

    operation: AnyOperation
    lines: bytes = field(repr=False)  # contains the key
    read_timeout: float
    json: bytes = b""
    file: MultipartFile | None = None
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: BodyStream | None = None
    """Receives the body of a success if it is not read whole; the request is then sent once."""
    has_left: bool = False
    """True if part of it may have reached the engine."""

    @property
    def head(self) -> bytes:
        """The part that is sent in one piece."""
        return self.lines + self.json if len(self.json) <= _SMALL_BYTES else self.lines

    def rest(self) -> AsyncGenerator[bytes, None] | None:
        """Return the blocks that follow the head, if any."""
        if self.file is not None:
            return self.file.stream()
        return _blocks(self.json) if len(self.json) > _SMALL_BYTES else None


async def _blocks(body: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), _SMALL_BYTES):
        yield body[start : start + _SMALL_BYTES]


class Circuit(StrEnum):
    """The states of a `Breaker`."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True)
class Breaker:
    """A circuit breaker: refuses calls for a while after too many failures in a row. Times in seconds.

        state       allows                     success   failure                      abandoned
        ----------  -------------------------  --------  ---------------------------  ---------
        closed      yes                        closed    open, at the `threshold`-th  closed
        open        after `cooldown`: one      closed    open, from now               open
                    call, as half-open
        half-open   one more each `cooldown`,  closed    open, from now               open
                    so that a slow probe
                    does not block all calls

    A failure is an engine that is unreachable or silent; any answer of the engine is a success.
    """

    threshold: int = 5
    cooldown: float = 2.0
    state: Circuit = Circuit.CLOSED
    failures: int = 0
    opened_at: float = 0.0

    def allows(self, now: float) -> bool:
        """True if a call may be sent; in a state other than closed this call is a probe."""
        if self.state is Circuit.CLOSED:
            return True
        if self.wait(now) > 0:
            return False
        self.state, self.opened_at = Circuit.HALF_OPEN, now
        return True

    def wait(self, now: float) -> float:
        """Return the seconds until a probe may be sent; 0 if calls are allowed."""
        return max(0.0, self.opened_at + self.cooldown - now) if self.state is not Circuit.CLOSED else 0.0

    def succeeded(self) -> None:
        """Record that the engine answered."""
        self.state, self.failures = Circuit.CLOSED, 0

    def failed(self, now: float) -> None:
        """Record that the engine could not be reached."""
        self.failures += 1
        if self.state is not Circuit.CLOSED or self.failures >= self.threshold:
            self.state, self.opened_at = Circuit.OPEN, now

    def abandoned(self) -> None:
        """Record that the caller left before the outcome: the next call may be the probe."""
        if self.state is Circuit.HALF_OPEN:
            self.state, self.opened_at = Circuit.OPEN, self.opened_at - self.cooldown


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most `attempts` calls, each begun within `deadline` seconds after the first.

    Exponential backoff: a delay is `jittered` between `base` and `cap`, and never less than the engine's own
    `Retry-After`. All times in seconds.
    """

    attempts: int = 4
    deadline: float = 20.0
    base: float = 0.1
    cap: float = 2.0

    def delay(
        self, fault: EngineFault, *, made: int, elapsed: float, random: Callable[[], float]
    ) -> float | None:
        """Return the seconds to wait before the next attempt, after `made` attempts, or None to stop."""
        if not fault.transient or made >= self.attempts:
            return None
        wait = max(jittered(made, base=self.base, cap=self.cap, random=random), fault.retry_after or 0.0)
        return wait if elapsed + wait < self.deadline else None


class Exchange(Protocol):
    """Sends a request once."""

    async def exchange(self, request: EngineRequest) -> RawResponse:
        """Return the response to `request`. Raises `EngineFault`, and OSError of its file."""

    async def close(self) -> None:
        """Close; no exchange may follow."""


class Pool:
    """Connections to the host of `base`, a URL; `tls` verifies it, by default with the system's authorities.

    `lost` is called when a kept connection was closed without an answer: the host may have been replaced.
    """

    def __init__(self, base: URL, *, lost: Callable[[], None], tls: ssl.SSLContext | None = None) -> None:
        self._base = base
        self._lost = lost
        self._tls = tls
        self._places = asyncio.Semaphore(_CONNECTIONS)
        self._is_closed = False
        self._all: set[Connection] = set()
        self._idle: dict[Connection, None] = {}
        """In the order of their return; the last is used first, so that idle ones expire."""

    async def close(self) -> None:
        """Close all connections permanently; exchanges in progress fail."""
        self._is_closed = True
        leaving = list(self._all)
        for connection in leaving:
            connection.abort()
        for connection in leaving:
            await connection.gone

    async def exchange(self, request: EngineRequest) -> RawResponse:
        """Send `request` and read its whole response; retry once if a kept connection was closed.

        Raises:
            EngineUnreachable: there is no connection, or it broke before an answer.
            EngineTimeout: silence.
            EngineBadAnswer: the response is not valid HTTP, or incomplete.
            OSError: the request's own file cannot be read.
        """
        if self._places.locked():
            await self._wait_for_place(request.read_timeout)
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
            return await self._over(await self._connect(request.read_timeout), request)
        finally:
            self._places.release()

    async def _over(self, connection: Connection, request: EngineRequest) -> RawResponse:
        request.has_left = True
        response = await connection.exchange(
            request.head, request.rest(), request.read_timeout, request.stream
        )
        if connection.is_open:
            self._idle[connection] = None
        return response

    async def _wait_for_place(self, read_timeout: float) -> None:
        try:
            async with asyncio.timeout(read_timeout):
                await self._places.acquire()
        except TimeoutError:
            raise EngineTimeout(
                f"All {_CONNECTIONS} connections waited for it for {read_timeout:g} s."
            ) from None

    async def _connect(self, read_timeout: float) -> Connection:
        loop, base = asyncio.get_running_loop(), self._base
        seconds = min(CONNECT_SECONDS, read_timeout)
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
                    lambda: Connection(loop, str(base), self._forget),
                    sock=found,
                    ssl=self._tls if secure else None,
                    server_hostname=base.raw_host if secure else None,
                )
        except TimeoutError:
            raise EngineUnreachable(f"no connection within {seconds:g} s", url=str(base)) from None
        except (OSError, UnicodeError) as error:
            raise EngineUnreachable(reason_of(error), url=str(base)) from error
        if self._is_closed:
            connection.abort()
            raise EngineUnreachable("the client was closed", url=str(base))
        self._all.add(connection)
        return connection

    def _forget(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._idle.pop(connection, None)


class HttpTransport:
    """Sends requests to the backend at `url`, over kept connections; the first call opens one.

    `tls` verifies a backend over HTTPS, by default with the system's authorities. With `exchange` requests
    are sent over that instead; attempts and circuit breaker also apply to an engine in this process. `lost`
    is called when the backend was unreachable or silent: it may have been replaced.
    """

    def __init__(
        self,
        url: str,
        *,
        policy: RetryPolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        jitter: Callable[[], float] = random.random,
        lost: Callable[[], None] = lambda: None,
        exchange: Exchange | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.base = str(URL(url).with_user(None).with_query(None).with_fragment(None)).rstrip("/")
        self._policy = policy or RetryPolicy()
        self._clock = clock
        self._jitter = jitter
        self._lost = lost
        self._breaker = Breaker()
        self._last_failure = ""
        self._exchange = exchange or Pool(URL(self.base), lost=lost, tls=tls)

    async def close(self) -> None:
        """Close the pool, for good."""
        await self._exchange.close()

    async def send(self, request: EngineRequest, read: Callable[[RawResponse], T]) -> T:
        """Send until `read` accepts the response, within the limits of the policy and the circuit breaker.

        Raises:
            EngineFault: the fault of the last attempt.
        """
        began, made = self._clock.monotonic(), 0
        while True:
            if self._breaker.state is not Circuit.CLOSED and not self._breaker.allows(
                now := self._clock.monotonic()
            ):
                wait = round(self._breaker.wait(now), 1)
                raise EngineUnreachable(self._last_failure, url=self.base, retry_after=wait)
            made += 1
            try:
                return await self.send_once(request, read)
            except EngineFault as fault:
                elapsed = self._clock.monotonic() - began
                delay = self._policy.delay(fault, made=made, elapsed=elapsed, random=self._jitter)
                if delay is None:
                    raise
            await self._clock.sleep(delay)

    async def send_once(self, request: EngineRequest, read: Callable[[RawResponse], T]) -> T:
        """Send once; record the result in the circuit breaker without checking it."""
        try:
            result = read(await self._exchange.exchange(request))
        except (EngineUnreachable, EngineTimeout) as fault:
            self._breaker.failed(self._clock.monotonic())
            self._last_failure = fault.detail
            self._lost()
            raise
        except EngineFault:
            self._breaker.succeeded()
            raise
        except BaseException:  # cancelled, or our own file unreadable: not a result of the backend
            self._breaker.abandoned()
            raise
        self._breaker.succeeded()
        return result
