"""A backend over HTTP: one pooled session, attempts, a circuit, and every fault of the transport ours.

The clients on top of it know the operations and their responses. This knows neither: it sends, as often as is
safe and no oftener, and passes each response to the reader that it was given. When to send again and whether
to send at all are decided by `RetryPolicy` and `Breaker`, without I/O and without a clock of their own.
"""

from __future__ import annotations

import asyncio
import os
import random
import unicodedata
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from secrets import token_hex
from typing import TypeVar

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from kb_contracts.api.models import FileFields
from kb_contracts.api.operations import AnyOperation, to_params
from kb_server.engine_client.errors import EngineBadAnswer, EngineFault, EngineTimeout, EngineUnreachable
from kb_server.engine_client.port import FileSource
from kb_server.engine_client.wire import MAX_BODY_BYTES, RawResponse, Wire
from kb_server.waiting import SYSTEM_CLOCK, Clock, jittered

T = TypeVar("T")

CONNECT_SECONDS = 5.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024

_CONNECTIONS = 512
"""So many that agents who wait for their jobs do not keep others from searching."""

_KEEP_ALIVE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request, built once and sent as often as it takes. `silence`: how long its response may keep still,
    in seconds."""

    operation: AnyOperation
    url: URL
    headers: Mapping[str, str]
    silence: float
    json: bytes | None = None
    file: MultipartFile | None = None


@dataclass(frozen=True, slots=True)
class MultipartFile:
    """The multipart body of a file, framed by hand so that its length is known before a byte is read.

    A length spares the engine a chunked body, which some HTTP servers do not take. The fields come first, so
    that the engine knows them when the file begins.
    """

    source: FileSource
    fields: FileFields
    boundary: str = field(default_factory=lambda: f"kb-{token_hex(16)}")

    @property
    def content_type(self) -> str:
        """The value of `Content-Type`."""
        return f"multipart/form-data; boundary={self.boundary}"

    @property
    def length(self) -> int:
        """The whole body, in bytes."""
        return len(self._head()) + self.source.size + len(self._tail())

    async def stream(self, progressed: Callable[[], None]) -> AsyncIterator[bytes]:
        """The body, block by block; `progressed` is called whenever the engine took one.

        Raises:
            OSError: the file cannot be read, or has another size than `source` says.
        """
        yield self._head()
        sent = 0
        async for block in self.source.blocks():
            progressed()
            sent += len(block)
            yield block
        progressed()
        if sent != self.source.size:
            raise OSError(f"the file has {sent} bytes instead of {self.source.size}")
        yield self._tail()

    def _head(self) -> bytes:
        opening = f"--{self.boundary}\r\nContent-Disposition: form-data; name="
        parts = [f'{opening}"{name}"\r\n\r\n{value}\r\n' for name, value in to_params(self.fields).items()]
        # A line break would end the header, and no reader understands any form of it. Quotation marks get
        # backslashes, which every reader understands; percent signs would stay in the name for some.
        bare = "".join("_" if unicodedata.category(char) == "Cc" else char for char in self.source.filename)
        quoted = bare.replace("\\", "\\\\").replace('"', '\\"')
        parts.append(f'{opening}"file"; filename="{quoted}"\r\n')
        parts.append("Content-Type: application/octet-stream\r\n\r\n")
        return "".join(parts).encode()

    def _tail(self) -> bytes:
        return f"\r\n--{self.boundary}--\r\n".encode()


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


class HttpTransport:
    """Sends to the backend at `url`, over connections that it keeps. The session is opened by the first call.

    `lost` is called when the backend could not be reached or kept silent: it may be another one afterwards.
    """

    def __init__(
        self,
        url: str,
        *,
        policy: RetryPolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        jitter: Callable[[], float] = random.random,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.base = str(URL(url).with_user(None).with_query(None).with_fragment(None)).rstrip("/")
        self._policy = policy or RetryPolicy()
        self._clock = clock
        self._jitter = jitter
        self._lost = lost
        self._breaker = Breaker()
        self._last_failure = ""
        self._session: aiohttp.ClientSession | None = None
        self._wire: Wire | None = None

    async def close(self) -> None:
        """Close the pool."""
        session, self._session, self._wire = self._session, None, None
        if session is not None:
            await session.close()

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
            result = read(await self._exchanged(request))
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

    async def _exchanged(self, request: EngineRequest) -> RawResponse:
        """Send once, with every fault of the transport turned into one of ours."""
        sending = _Sending(request)
        try:
            session, wire = self._opened()
            return await sending.exchange(session, wire)
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            if sending.own_fault is not None:
                raise sending.own_fault from None
            raise self._fault(error, request) from error

    def _fault(self, error: Exception, request: EngineRequest) -> EngineFault:
        match error:
            case aiohttp.ConnectionTimeoutError():
                reason = f"no connection within {CONNECT_SECONDS:g} s"
            case TimeoutError():
                return EngineTimeout(f"It said nothing for {request.silence:g} s.")
            case aiohttp.ClientPayloadError():
                return EngineBadAnswer("Its answer broke off in the middle.", broke_off=True)
            case aiohttp.ServerDisconnectedError():
                reason = "it closed the connection without an answer"
            # Why there is no connection, without addresses that may hold credentials.
            case aiohttp.ClientConnectorDNSError():
                reason = "its host name does not resolve"
            case aiohttp.ClientSSLError():
                reason = "TLS failed"
            case aiohttp.ClientConnectionError() | OSError():
                number = getattr(error, "errno", None)
                reason = os.strerror(number).lower() if isinstance(number, int) else "the connection broke"
            case _:
                # Damaged on its way, perhaps: a mutation that was done answers its key again.
                detail = f"It does not answer in HTTP as agreed ({type(error).__name__})."
                return EngineBadAnswer(detail, broke_off=True)
        return EngineUnreachable(reason, url=self.base)

    def _opened(self) -> tuple[aiohttp.ClientSession, Wire]:
        if self._session is None or self._wire is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=_KEEP_ALIVE_SECONDS),
                # Silence is watched by `_Sending`, also while a body goes out, where aiohttp does not.
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            self._wire = Wire(self._session, URL(self.base))
        return self._session, self._wire


@dataclass(slots=True)
class _Sending:
    """One exchange under one watch for silence: every block sent and every byte received pushes it on."""

    request: EngineRequest
    own_fault: OSError | None = None
    _watch: asyncio.Timeout | None = field(default=None)

    async def exchange(self, session: aiohttp.ClientSession, wire: Wire) -> RawResponse:
        """Send the request and read its answer whole.

        Raises:
            TimeoutError: silence. Otherwise whatever aiohttp raises.
        """
        request, method = self.request, self.request.operation.method
        try:
            async with asyncio.timeout(request.silence) as self._watch:
                # Other methods a session sends again by itself where a pooled connection turns out closed.
                if method == "POST" and request.json is not None and len(request.json) <= MAX_BODY_BYTES:
                    return await wire.post(request.url, request.headers, request.json, self._read)
                data = self._blocks(request.file) if request.file is not None else request.json
                async with session.request(
                    method, request.url, headers=request.headers, data=data, allow_redirects=False
                ) as response:
                    return RawResponse(
                        status=response.status,
                        content_type=response.content_type if "Content-Type" in response.headers else "",
                        body=await self._read(response.content),
                        retry_after=response.headers.get("Retry-After"),
                    )
        finally:
            self._watch = None

    async def _blocks(self, file: MultipartFile) -> AsyncIterator[bytes]:
        # aiohttp would report an unreadable file of ours as a broken connection; keep the true cause.
        try:
            async for block in file.stream(self._progressed):
                yield block
        except OSError as error:
            self.own_fault = error
            raise

    async def _read(self, content: aiohttp.StreamReader) -> bytes:
        blocks: list[bytes] = []
        length = 0
        while block := await content.readany():
            length += len(block)
            if length > MAX_ANSWER_BYTES:
                raise EngineBadAnswer(f"Its answer is over {MAX_ANSWER_BYTES} bytes.")
            blocks.append(block)
            if content.at_eof():
                break  # came whole, as nearly all do: there is no silence left to watch for
            self._progressed()
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def _progressed(self) -> None:
        if self._watch is not None and not self._watch.expired():
            self._watch.reschedule(asyncio.get_running_loop().time() + self.request.silence)
