"""A backend over HTTP: kept connections, attempts, a circuit breaker, and faults of our own types.

    HttpTransport     attempts, circuit breaker
        Addresses     with several addresses: the least busy one, then another
            Pool      the connections to one address

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

from kb_config.shared import addresses
from kb_contracts.api.operations import GET_HEALTH, GET_READINESS, AnyOperation
from kb_server.engine_client.errors import EngineFault, EngineTimeout, EngineUnreachable
from kb_server.engine_client.http1 import BodyStream, Connection, RawResponse, reason_of
from kb_server.engine_client.multipart import MultipartFile
from kb_server.waiting import SYSTEM_CLOCK, Clock, jittered

T = TypeVar("T")

CONNECT_SECONDS = 5.0
HEALTH_SECONDS = 3.0
"""Maximum silence of a health check, in seconds."""

_CONNECTIONS = 512
"""Maximum number of connections: high enough that agents waiting for jobs do not block searches."""
_EYEBALLS_SECONDS = 0.25
"""Delay before the next address of a host is tried in parallel, in seconds."""
_FIRST_CHECK_SECONDS, _LAST_CHECK_SECONDS = 0.2, 10.0
"""Longest pause before the first health check of an address that failed, and before any, in seconds."""
SILENT_SECONDS = 5.0
"""Silence of an address with requests under way after which its health is checked, and of this check, in
seconds.
"""
_UNAVAILABLE = frozenset({502, 503, 504})
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
        self._break_offs = 0
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

    def break_off(self) -> None:
        """Break off all exchanges in progress: the host is silent."""
        self._break_offs += 1
        for connection in list(self._all):
            connection.break_off("it fell silent")

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
            return await self.at_once(request)
        finally:
            self._places.release()

    async def at_once(self, request: EngineRequest) -> RawResponse:
        """Like `exchange`, even beyond the maximum of connections."""
        if self._idle:
            kept, _ = self._idle.popitem()
            break_offs = self._break_offs
            try:
                return await self._over(kept, request)
            except EngineUnreachable:
                if kept.has_received or self._is_closed or break_offs < self._break_offs:
                    raise
            self._lost()
        return await self._over(await self._connect(request.read_timeout), request)

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


@dataclass(slots=True, eq=False)
class _Address:
    """The connections to one address; `turn` orders the addresses by their last use."""

    pool: Pool
    base: URL
    under_way: int = 0
    turn: int = 0
    responses: int = 0
    watching: asyncio.Task[None] | None = None
    """Runs while requests are under way."""
    checking: asyncio.Task[None] | None = None
    """Runs while the address is away."""

    @property
    def load(self) -> tuple[bool, int, int]:
        return self.checking is not None, self.under_way, self.turn

    async def check(self, operation: AnyOperation, seconds: float) -> int | None:
        """Return the status of the response to a check of its health, or None without a response.

        Requests that wait for their responses on all connections do not delay it.
        """
        line = f"GET {self.base.raw_path.rstrip('/')}{operation.path} HTTP/1.1\r\nHost: \r\n\r\n"
        request = EngineRequest(operation, self.named(line.encode()), seconds)
        try:
            return (await self.pool.at_once(request)).status
        except EngineFault:
            return None

    def named(self, lines: bytes) -> bytes:
        """Return the head of a request with the host of this address, its second line."""
        first, _, others = lines.split(b"\r\n", 2)
        return b"\r\n".join((first, f"Host: {self.base.host_port_subcomponent}".encode(), others))


class Addresses:
    """Connections to engines with one base at several addresses, whose URLs have the same path.

        state   chosen                              ends
        ------  ----------------------------------  ----------------------------------------------------
        ready   with the fewest requests under way  away, if it is unreachable, silent or unavailable
        away    after all ready ones have failed    ready, if it answers a request or its health check

    The request goes on to another address at once if it can be repeated: the address was unreachable or
    unavailable, or its response broke off and is not streamed. Each address is tried once.

    A host without power closes no connection, nor does a stopped process. So if requests are under way and
    there is no response for `SILENT_SECONDS`, the liveness of the process is checked; if that is silent, too,
    and another address is ready, all requests are broken off.
    """

    def __init__(
        self,
        pools: Mapping[URL, Pool],
        *,
        clock: Clock,
        jitter: Callable[[], float],
        lost: Callable[[], None],
    ) -> None:
        self._all = [_Address(pool, base) for base, pool in pools.items()]
        self._clock = clock
        self._jitter = jitter
        self._lost = lost
        self._turns = 0
        self._is_closed = False

    async def close(self) -> None:
        """Close all connections permanently; exchanges in progress fail, and go on to no other address."""
        self._is_closed = True
        for one in self._all:
            self._is_back(one)
            if one.watching is not None:
                one.watching.cancel()
            await one.pool.close()

    async def exchange(self, request: EngineRequest) -> RawResponse:
        """Send `request` to one address after the other; see `Pool.exchange`."""
        untried = list(self._all)
        while True:
            one = min(untried, key=lambda each: each.load)
            untried.remove(one)
            self._turns += 1
            one.turn = self._turns
            one.under_way += 1
            if one.watching is None:
                one.watching = asyncio.create_task(self._watch(one))
            request.lines = one.named(request.lines)
            try:
                response = await one.pool.exchange(request)
                one.responses += 1
            except EngineFault as fault:
                is_unanswered = isinstance(fault, EngineUnreachable)
                if fault.transient or isinstance(fault, EngineTimeout):
                    self._is_away(one)
                can_repeat = fault.transient and (is_unanswered or request.stream is None)
                if untried and can_repeat and not self._is_closed:
                    continue
                if isinstance(fault, EngineUnreachable):
                    fault.url = ", ".join(str(each.base) for each in self._all)
                raise
            finally:
                one.under_way -= 1
            if response.status not in _UNAVAILABLE:
                self._is_back(one)
                return response
            self._is_away(one)
            if not untried:
                return response

    def _is_away(self, one: _Address) -> None:
        self._lost()
        if one.checking is None and not self._is_closed:
            one.checking = asyncio.create_task(self._check(one))

    @staticmethod
    def _is_back(one: _Address) -> None:
        if one.checking is not None:
            one.checking.cancel()
            one.checking = None

    async def _check(self, one: _Address) -> None:
        """Check the health of an address until it is ready again, with growing pauses."""
        made = 0
        while True:
            made += 1
            pause = jittered(made, base=_FIRST_CHECK_SECONDS, cap=_LAST_CHECK_SECONDS, random=self._jitter)
            await self._clock.sleep(pause)
            if await one.check(GET_READINESS, HEALTH_SECONDS) not in {None, *_UNAVAILABLE}:
                one.checking = None
                return

    async def _watch(self, one: _Address) -> None:
        """Break off the requests of an address that falls silent; end when none is under way."""
        while one.under_way:
            before = one.responses
            await self._clock.sleep(SILENT_SECONDS)
            if not one.under_way or one.responses > before:
                continue
            if await one.check(GET_HEALTH, SILENT_SECONDS) is None and one.responses == before:
                self._is_away(one)
                if any(each.checking is None for each in self._all):
                    one.pool.break_off()
        one.watching = None


class HttpTransport:
    """Sends requests to the backend at `url`, over kept connections; the first call opens one.

    `url` may name several addresses of one backend, separated by commas. `tls` verifies a backend over HTTPS,
    by default with the system's authorities. With `exchange` requests are sent over that instead; attempts
    and circuit breaker also apply to an engine in this process. `lost` is called when the backend was
    unreachable or silent: it may have been replaced.
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
        bases = [
            str(URL(each).with_user(None).with_query(None).with_fragment(None)).rstrip("/")
            for each in addresses(url)
        ]
        self.base = bases[0]
        self.name = ", ".join(bases)
        self._policy = policy or RetryPolicy()
        self._clock = clock
        self._jitter = jitter
        self._lost = lost
        self._breaker = Breaker()
        self._last_failure = ""
        if exchange is None:
            pools = {URL(base): Pool(URL(base), lost=lost, tls=tls) for base in bases}
            several = Addresses(pools, clock=clock, jitter=jitter, lost=lost)
            exchange = several if len(pools) > 1 else pools[URL(self.base)]
        self._exchange = exchange

    async def close(self) -> None:
        """Close the pool, for good."""
        await self._exchange.close()

    async def send(self, request: EngineRequest, read: Callable[[RawResponse], T]) -> T:
        """Send until `read` accepts the response, within the limits of the policy and the circuit breaker.
        Raises EngineFault: the fault of the last attempt.
        """
        began, made = self._clock.monotonic(), 0
        while True:
            if self._breaker.state is not Circuit.CLOSED and not self._breaker.allows(
                now := self._clock.monotonic()
            ):
                wait = round(self._breaker.wait(now), 1)
                raise EngineUnreachable(self._last_failure, url=self.name, retry_after=wait)
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
