"""A backend over HTTP: connections that are kept, attempts, a circuit, and every fault of the transport ours.

The clients on top of it know the operations and their responses. This knows neither: it sends, as often as is
safe and no oftener, and passes each response to the reader that it was given. When to send again and whether
to send at all are decided by `RetryPolicy` and `Breaker`, without I/O and without a clock of their own.
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
"""So many that agents who wait for their jobs do not keep others from searching."""
_EYEBALLS_SECONDS = 0.25
"""After which the next address of a host is tried beside the one before."""
_SMALL_BYTES = 64 * 1024
"""A body up to there is sent in one piece with its head; a larger one as the peer takes it."""


@dataclass(slots=True)  # not frozen: that would treble what making one costs
class EngineRequest:
    """One request, built once and sent as often as it takes.

    That is safe, for it changes nothing or carries an idempotency key. `lines` are its head; what they were
    made of are `path`, `query` and `headers`, the last without those that all requests have. `silence` is how
    long its response may keep still, in seconds.
    """

    operation: AnyOperation
    lines: bytes = field(repr=False)  # the key is in it
    silence: float
    json: bytes = b""
    file: MultipartFile | None = None
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: BodyStream | None = None
    """Where the body of a success goes that is not read whole; then it is sent once."""
    has_left: bool = False
    """Whether some of it may have reached the engine."""

    @property
    def head(self) -> bytes:
        """What is sent in one piece."""
        return self.lines + self.json if len(self.json) <= _SMALL_BYTES else self.lines

    def rest(self) -> AsyncGenerator[bytes, None] | None:
        """What follows it, block by block."""
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
                lest a long probe hold
                all others up

    A failure is an engine that could not be reached or kept silent; an engine that answers, whatever it
    answers, is a success.
    """

    threshold: int = 5
    cooldown: float = 2.0
    state: Circuit = Circuit.CLOSED
    failures: int = 0
    opened_at: float = 0.0

    def allows(self, now: float) -> bool:
        """Whether a call may go out; a True while not closed makes that call a probe."""
        if self.state is Circuit.CLOSED:
            return True
        if self.wait(now) > 0:
            return False
        self.state, self.opened_at = Circuit.HALF_OPEN, now
        return True

    def wait(self, now: float) -> float:
        """Seconds until a probe may go out; 0 where calls may."""
        return max(0.0, self.opened_at + self.cooldown - now) if self.state is not Circuit.CLOSED else 0.0

    def succeeded(self) -> None:
        """The engine answered."""
        self.state, self.failures = Circuit.CLOSED, 0

    def failed(self, now: float) -> None:
        """The engine could not be reached."""
        self.failures += 1
        if self.state is not Circuit.CLOSED or self.failures >= self.threshold:
            self.state, self.opened_at = Circuit.OPEN, now

    def abandoned(self) -> None:
        """The caller left before the outcome: the next call may be the probe."""
        if self.state is Circuit.HALF_OPEN:
            self.state, self.opened_at = Circuit.OPEN, self.opened_at - self.cooldown


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At the most `attempts` calls, none begun later than `deadline` seconds after the first.

    Exponential back-off: a wait is `jittered` between `base` and `cap`, and never less than the engine's own
    `Retry-After`. Seconds throughout.
    """

    attempts: int = 4
    deadline: float = 20.0
    base: float = 0.1
    cap: float = 2.0

    def delay(
        self, fault: EngineFault, *, made: int, elapsed: float, random: Callable[[], float]
    ) -> float | None:
        """Seconds to wait before the next attempt, after `made` of them; None where there is none."""
        if not fault.transient or made >= self.attempts:
            return None
        wait = max(jittered(made, base=self.base, cap=self.cap, random=random), fault.retry_after or 0.0)
        return wait if elapsed + wait < self.deadline else None


class Exchange(Protocol):
    """What sends a request once."""

    async def exchange(self, request: EngineRequest) -> RawResponse:
        """The response to `request`. Raises `EngineFault`, and OSError of its file."""

    async def close(self) -> None:
        """Exchange nothing any more."""


class Pool:
    """Exchanges with the host of `base`, a URL; `tls` verifies it, else what the system trusts does.

    `lost` is called when a kept connection had gone without an answer: the host may have been replaced.
    """

    def __init__(self, base: URL, *, lost: Callable[[], None], tls: ssl.SSLContext | None = None) -> None:
        self._base = base
        self._lost = lost
        self._tls = tls
        self._places = asyncio.Semaphore(_CONNECTIONS)
        self._is_closed = False
        self._all: set[Connection] = set()
        self._idle: dict[Connection, None] = {}
        """In the order in which they were given back; the last is taken first, so that others expire."""

    async def close(self) -> None:
        """Close all connections, for good; exchanges on their way fail."""
        self._is_closed = True
        leaving = list(self._all)
        for connection in leaving:
            connection.abort()
        for connection in leaving:
            await connection.gone

    async def exchange(self, request: EngineRequest) -> RawResponse:
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

    async def _over(self, connection: Connection, request: EngineRequest) -> RawResponse:
        request.has_left = True
        response = await connection.exchange(request.head, request.rest(), request.silence, request.stream)
        if connection.is_open:
            self._idle[connection] = None
        return response

    async def _wait_for_place(self, silence: float) -> None:
        try:
            async with asyncio.timeout(silence):
                await self._places.acquire()
        except TimeoutError:
            raise EngineTimeout(f"All {_CONNECTIONS} connections waited for it for {silence:g} s.") from None

    async def _connect(self, silence: float) -> Connection:
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
    """Sends to the backend at `url`, over connections that it keeps; the first call opens one.

    `tls` is what a backend over HTTPS is verified by, else what the system trusts is. With `exchange` it
    sends over that instead; attempts and circuit stay, also for an engine in this process. `lost` is called
    when the backend could not be reached or kept silent: it may be another one afterwards.
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
        """Send until `read` takes the response, or as often as the policy and the circuit let it.

        Raises:
            EngineFault: that of the last attempt.
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
        """Send once, and tell the circuit how it went, which has no say in whether."""
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
        except BaseException:  # cancelled, or our own file unreadable: it says nothing about the backend
            self._breaker.abandoned()
            raise
        self._breaker.succeeded()
        return result
