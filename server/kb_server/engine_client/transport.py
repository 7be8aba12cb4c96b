"""A backend over HTTP: one pooled session, attempts, a circuit, and every fault of the transport ours.

The clients on top of it know the operations and their responses. This knows neither: it sends, as often as is
safe and no oftener, and passes each response to the reader that it was given. When to send again and whether
to send at all are decided by `RetryPolicy` and `Breaker`, without I/O and without a clock of their own.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from secrets import token_hex
from typing import TypeVar

from yarl import URL

from kb_contracts.api.models import FileFields
from kb_contracts.api.operations import AnyOperation, to_params
from kb_server.engine_client.errors import EngineFault, EngineTimeout, EngineUnreachable
from kb_server.engine_client.http1 import RawResponse
from kb_server.engine_client.pool import Pool
from kb_server.engine_client.port import FileSource
from kb_server.waiting import SYSTEM_CLOCK, Clock, jittered

T = TypeVar("T")

_SMALL_BYTES = 64 * 1024
"""A body up to there is sent in one piece with its head; a larger one as the peer takes it."""


@dataclass(slots=True)  # not frozen: that would treble what making one costs
class EngineRequest:
    """One request, built once and sent as often as it takes.

    That is safe, for it changes nothing or carries an idempotency key. `lines` are its head, `silence` is how
    long its response may keep still, in seconds.
    """

    operation: AnyOperation
    lines: bytes = field(repr=False)  # the key is in it
    silence: float
    json: bytes = b""
    file: MultipartFile | None = None

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

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The body, block by block.

        Raises:
            OSError: the file cannot be read, or has another size than `source` says.
        """
        yield self._head()
        sent = 0
        async for block in self.source.blocks():
            sent += len(block)
            yield block
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
    """Sends to the backend at `url`, over connections that it keeps; the first call opens one.

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
        self._pool = Pool(URL(self.base), lost=lost)

    async def close(self) -> None:
        """Close the pool, for good."""
        await self._pool.close()

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
            result = read(await self._pool.exchange(request))
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
