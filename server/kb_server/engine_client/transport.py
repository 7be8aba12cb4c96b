"""A backend over HTTP: one pooled session, attempts, a circuit, and every fault of the transport ours.

The clients on top of it know the operations and their responses. This knows neither: it sends, as often as is
safe and no oftener, and passes each response to the reader that it was given.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from kb_server.clock import SYSTEM_CLOCK, Clock
from kb_server.engine_client.body import MultipartFile
from kb_server.engine_client.breaker import Breaker, Circuit
from kb_server.engine_client.errors import (
    EngineBadAnswer,
    EngineFault,
    EngineTimeout,
    EngineUnreachable,
)
from kb_server.engine_client.request import EngineRequest
from kb_server.engine_client.responses import RawResponse
from kb_server.engine_client.retries import RetryPolicy
from kb_server.engine_client.wire import MAX_BODY_BYTES, Wire

T = TypeVar("T")

CONNECT_SECONDS = 5.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024

_CONNECTIONS = 512
"""So many that agents who wait for their jobs do not keep others from searching."""

_KEEP_ALIVE_SECONDS = 30.0


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
            if self._breaker.state is not Circuit.CLOSED:
                self._admit()
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

    def _admit(self) -> None:
        now = self._clock.monotonic()
        if not self._breaker.allows(now):
            raise EngineUnreachable(
                self._last_failure, url=self.base, retry_after=round(self._breaker.wait(now), 1)
            )

    async def _exchanged(self, request: EngineRequest) -> RawResponse:
        """Send once, with every fault of the transport turned into one of ours."""
        sending = _Sending(request)
        try:
            session = self._opened()
            return await sending.exchange(session, self._wire)
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            if sending.own_fault is not None:
                raise sending.own_fault from None
            raise self._fault(error, request) from error

    def _fault(self, error: Exception, request: EngineRequest) -> EngineFault:
        match error:
            case aiohttp.ConnectionTimeoutError():
                return self._unreachable(f"no connection within {CONNECT_SECONDS:g} s")
            case TimeoutError():
                return EngineTimeout(f"It said nothing for {request.silence:g} s.")
            case aiohttp.ClientPayloadError():
                return EngineBadAnswer("Its answer broke off in the middle.", broke_off=True)
            case aiohttp.ServerDisconnectedError():
                return self._unreachable("it closed the connection without an answer")
            case aiohttp.ClientConnectionError() | OSError():
                return self._unreachable(_reason(error))
            case _:
                # Damaged on its way, perhaps: a mutation that was done answers its key again.
                detail = f"It does not answer in HTTP as agreed ({type(error).__name__})."
                return EngineBadAnswer(detail, broke_off=True)

    def _unreachable(self, reason: str) -> EngineUnreachable:
        return EngineUnreachable(reason, url=self.base)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=_KEEP_ALIVE_SECONDS),
                # Silence is watched by `_Sending`, also while a body goes out, where aiohttp does not.
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            self._wire = Wire(self._session, URL(self.base))
        return self._session


@dataclass(slots=True)
class _Sending:
    """One exchange under one watch for silence: every block sent and every byte received pushes it on."""

    request: EngineRequest
    own_fault: OSError | None = None
    _watch: asyncio.Timeout | None = field(default=None)

    async def exchange(self, session: aiohttp.ClientSession, wire: Wire | None) -> RawResponse:
        """Send the request and read its answer whole.

        Raises:
            TimeoutError: silence. Otherwise whatever aiohttp raises.
        """
        try:
            async with asyncio.timeout(self.request.silence) as self._watch:
                if wire is not None and self._is_small_post:
                    request = self.request
                    return await wire.post(request.url, request.headers, request.json or b"", self._read)
                return await self._exchange(session)
        finally:
            self._watch = None

    async def _exchange(self, session: aiohttp.ClientSession) -> RawResponse:
        request = self.request
        data = self._blocks(request.file) if request.file is not None else request.json
        async with session.request(
            request.operation.method,
            request.url,
            headers=request.headers,
            data=data,
            allow_redirects=False,
        ) as response:
            return RawResponse(
                status=response.status,
                content_type=response.content_type if "Content-Type" in response.headers else "",
                body=await self._read(response.content),
                retry_after=response.headers.get("Retry-After"),
            )

    async def _blocks(self, file: MultipartFile) -> AsyncIterator[bytes]:
        # aiohttp would report an unreadable file of ours as a broken connection; keep the true cause.
        try:
            async for block in file.stream(self._progressed):
                yield block
        except OSError as error:
            self.own_fault = error
            raise

    @property
    def _is_small_post(self) -> bool:
        request = self.request
        # Other methods a session sends again by itself where a pooled connection turns out to be closed.
        return (
            request.operation.method == "POST"
            and request.json is not None
            and len(request.json) <= MAX_BODY_BYTES
        )

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


def _reason(error: Exception) -> str:
    """Why there is no connection, in a few words and without addresses that may hold credentials."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its host name does not resolve"
    if isinstance(error, aiohttp.ClientSSLError):
        return "TLS failed"
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if isinstance(number, int) else "the connection broke"
