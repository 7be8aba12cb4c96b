"""Faults as data: which requests they match, when they fire, and what they do.

name                    effect               done?  answer to the caller
----------------------  -------------------  -----  -----------------------------------------------------
latency_fixed           latency              yes    the answer, late by a fixed time
latency_uniform         latency              yes    the answer, late by an even spread of times
latency_lognormal       latency              yes    the answer, late: mostly a little, at times a lot
internal_error          status               no     500 `internal`
not_ready               status               no     503 `not_ready`
embedder_unavailable    status               no     503 `embedder_unavailable`
storage_full            status               no     507 `storage_full`
queue_full              status               no     429 `queue_full`
bad_gateway             http_status          no     502 with a proxy's HTML, no problem document
rate_limit              rate_limit           no     429, and again until `Retry-After` has elapsed
expired_key             status               no     401, as after the key was changed
hang                    hang                 no     nothing, until the caller gives up
reset_before_headers    reset                no     the connection reset, no byte of an answer
reset_mid_body          reset_after          yes    the connection reset within the body
content_length_long     content_length       yes    a body shorter than announced
content_length_short    content_length       yes    a body longer than announced
malformed_chunk         malformed_chunk      yes    a chunked body with broken framing
drip                    drip                 yes    the body, a few bytes at a time
not_json                http_status          no     200 with HTML
empty_body              empty_body           no     200 without a body
stale_read              stale_read           yes    reads as of the moment when the fault was armed
lost_ack                lost_ack             yes    the connection reset after the request was carried out

"Done" tells if the operation runs. Only a mutation that is done but not acknowledged is duplicated by a retry
without an idempotency key.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kb_contracts.api.errors import ERRORS
from kb_contracts.api.operations import BY_ID
from kb_simulator.determinism import Seeded
from kb_simulator.engine.state import State
from kb_simulator.harness.journal import Data, Match, RecordedRequest, check_known

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]


# --- effects --------------------------------------------------------------------------------------


class Effect(Data, frozen=True, tag_field="kind"):
    """Base class of effects."""


class Fixed(Data, frozen=True, tag_field="kind", tag="fixed"):
    """A constant delay of `seconds`."""

    seconds: Seconds = 2.0


class Uniform(Data, frozen=True, tag_field="kind", tag="uniform"):
    """A uniform delay from `low` (inclusive) to `high` (exclusive) seconds."""

    low: Seconds = 0.0
    high: Seconds = 2.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is over high ({self.high})")


class LogNormal(Data, frozen=True, tag_field="kind", tag="lognormal"):
    """A log-normal delay of at most `most` seconds; `sigma` is the deviation of the logarithm."""

    median: Seconds = 0.2
    sigma: Annotated[float, Meta(ge=0, le=10)] = 1.0
    most: Seconds = 60.0


class Latency(Effect, frozen=True, tag="latency"):
    """The operation runs after a delay."""

    delay: Fixed | Uniform | LogNormal = Fixed()


class Status(Effect, frozen=True, tag="status"):
    """A problem document with a `code` of the contract, the status of that code, and the text `detail`."""

    code: str = "internal"
    detail: str = "This request was told to fail."
    retry_after: Seconds | None = None

    def __post_init__(self) -> None:
        check_known(self.code, ERRORS, "error code")


class HttpStatus(Effect, frozen=True, tag="http_status"):
    """An HTML page with `status`, as sent by a proxy, or by a login page in front of the engine."""

    status: Annotated[int, Meta(ge=200, le=599)] = 502


class RateLimit(Effect, frozen=True, tag="rate_limit"):
    """429 with `Retry-After`; further matches are refused too until `seconds` have passed."""

    seconds: Annotated[float, Meta(gt=0, le=1e9)] = 2.0
    code: str = "queue_full"

    def __post_init__(self) -> None:
        check_known(
            self.code, {code: kind for code, kind in ERRORS.items() if kind.status == 429}, "code of 429"
        )


class Hang(Effect, frozen=True, tag="hang"):
    """No answer until the caller disconnects or the namespace is reset."""


class Reset(Effect, frozen=True, tag="reset"):
    """The connection is reset before the first byte of the answer and before the operation runs."""


class ResetAfter(Effect, frozen=True, tag="reset_after"):
    """Reset the connection after the headers and `bytes` bytes of the body."""

    bytes: Annotated[int, Meta(ge=0, le=1 << 30)] = 16


class ContentLength(Effect, frozen=True, tag="content_length"):
    """`Content-Length` differs from the body by `off` bytes: too long if positive, too short if negative."""

    off: Annotated[int, Meta(ge=-(1 << 30), le=1 << 30)] = 64


class MalformedChunk(Effect, frozen=True, tag="malformed_chunk"):
    """`Transfer-Encoding: chunked` with an invalid size of the second chunk."""


class Drip(Effect, frozen=True, tag="drip"):
    """The body in pieces of `bytes`, with `seconds` before each."""

    bytes: Annotated[int, Meta(ge=1, le=1 << 30)] = 64
    seconds: Seconds = 0.1


class EmptyBody(Effect, frozen=True, tag="empty_body"):
    """200 without a body."""


class StaleRead(Effect, frozen=True, tag="stale_read"):
    """Reads are answered from the state at the time of arming; mutations never match."""


class LostAck(Effect, frozen=True, tag="lost_ack"):
    """The operation runs, then the connection is reset without an answer."""


AnyEffect = (
    Latency
    | Status
    | HttpStatus
    | RateLimit
    | Hang
    | Reset
    | ResetAfter
    | ContentLength
    | MalformedChunk
    | Drip
    | EmptyBody
    | StaleRead
    | LostAck
)

CATALOGUE: Mapping[str, AnyEffect] = {
    "latency_fixed": Latency(delay=Fixed()),
    "latency_uniform": Latency(delay=Uniform()),
    "latency_lognormal": Latency(delay=LogNormal()),
    "internal_error": Status(code="internal"),
    "not_ready": Status(code="not_ready", retry_after=1.0),
    "embedder_unavailable": Status(code="embedder_unavailable", retry_after=1.0),
    "storage_full": Status(code="storage_full"),
    "queue_full": Status(code="queue_full", retry_after=1.0),
    "bad_gateway": HttpStatus(status=502),
    "rate_limit": RateLimit(),
    "expired_key": Status(
        code="unauthorized", detail="The key has expired. Send the engine's present KB_API_KEY."
    ),
    "hang": Hang(),
    "reset_before_headers": Reset(),
    "reset_mid_body": ResetAfter(),
    "content_length_long": ContentLength(off=64),
    "content_length_short": ContentLength(off=-64),
    "malformed_chunk": MalformedChunk(),
    "drip": Drip(),
    "not_json": HttpStatus(status=200),
    "empty_body": EmptyBody(),
    "stale_read": StaleRead(),
    "lost_ack": LostAck(),
}
"""The faults by name, as in the table above. A `Fault` may also have its own name and effect."""


class When(Data, frozen=True):
    """Conditions on the matching requests.

    All given conditions must hold; without any, the fault fires each time.

    `nth` counts from 1; `every` n fires at each n-th request; `times` is the maximum number of firings;
    `until` is in virtual seconds since the clock's start. `count` selects the counter: all matches of the
    rule in order of arrival, or the matches of each request separately, which is independent of the order.
    """

    nth: Count | None = None
    every: Count | None = None
    times: Count | None = None
    probability: Annotated[float, Meta(ge=0, le=1)] | None = None
    until: Seconds | None = None
    count: Literal["rule", "request"] = "rule"

    def __str__(self) -> str:
        names = ("nth", "every", "times", "probability", "until")
        given = [f"{name} {value:g}" for name in names if (value := getattr(self, name)) is not None]
        by_itself = ", each request by itself" if self.count == "request" else ""
        return (", ".join(given) or "always") + by_itself


class Fault(Data, frozen=True):
    """A fault to arm. The default `effect` is the catalogue's for `name`; the default `id` is generated.

    A fault that never fires fails the test that armed it, unless it is `optional`.
    """

    name: str
    effect: AnyEffect | None = None
    match: Match = Match()
    when: When = When()
    id: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        if self.effect is None:
            check_known(self.name, CATALOGUE, "fault")

    def __str__(self) -> str:
        return f"{self.id or self.name} on {self.match}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The effect of the faults on one request.

    `fired` are the ids of the fired faults, `delay` is in seconds, and `effect` replaces the answer. `stale`
    is the state for reads, or None for the present state; `retry_after` is in seconds.
    """

    fired: tuple[str, ...] = ()
    delay: float = 0.0
    effect: AnyEffect | None = None
    stale: State | None = None
    retry_after: float = 0.0


NOTHING = Plan()
"""The plan of a request without faults."""


class ArmedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault as the control plane shows it, with the numbers of matched requests and of firings."""

    id: str
    fault: Fault
    matched: int
    fired: int


@dataclass(slots=True)
class _Registration:
    id: str
    fault: Fault
    effect: AnyEffect
    before: State | None
    matched: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    refuses_until: float = -math.inf

    def summary(self) -> ArmedFault:
        return ArmedFault(
            id=self.id, fault=self.fault, matched=self.matched.total(), fired=self.fired.total()
        )


@dataclass(slots=True)
class FaultRegistry:
    """The armed faults of one namespace. `state` returns the present state, which stale reads copy.

    Faults are consulted in the order of arming. Delays add up. The first fault that replaces the answer ends
    the search, so that a later fault waits for another request.
    """

    seeded: Seeded
    state: Callable[[], State]
    _armed: dict[str, _Registration] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        return bool(self._armed)

    def arm(self, fault: Fault) -> ArmedFault:
        """Arm a fault. The default id is its name with a number, which is the same in every run.
        Raises ValueError: another fault has this id.
        """
        self._numbers[fault.name] += 1
        fault_id = fault.id or f"{fault.name}-{self._numbers[fault.name]}"
        if fault_id in self._armed:
            raise ValueError(f"a fault with the id {fault_id!r} is armed already")
        effect = fault.effect or CATALOGUE[fault.name]
        before = self.state().copy() if isinstance(effect, StaleRead) else None
        armed = self._armed[fault_id] = _Registration(fault_id, fault, effect, before)
        return armed.summary()

    def disarm(self, fault_id: str) -> ArmedFault:
        """Remove a fault. Raises KeyError: no such fault is armed."""
        return self._armed.pop(fault_id).summary()

    def disarm_all(self) -> list[ArmedFault]:
        """Remove all faults and return their summaries."""
        summaries = self.list()
        self._armed.clear()
        return summaries

    def list(self) -> list[ArmedFault]:
        """Return the armed faults in the order of evaluation."""
        return [armed.summary() for armed in self._armed.values()]

    def unfired(self) -> tuple[str, ...]:
        """Describe the armed faults that never fired and are not optional."""
        return tuple(
            f"{each.id} ({each.fault.match}) never fired; {each.matched} requests matched"
            for each in self.list()
            if not each.fired and not each.fault.optional
        )

    def decide(self, request: RecordedRequest, occurrence: int, elapsed: float) -> Plan:
        """Plan the answer to the `occurrence`-th request of a fingerprint, at `elapsed` virtual seconds."""
        if not self._armed:
            return NOTHING
        fired: list[str] = []
        delay = 0.0
        for armed in self._armed.values():
            counted = request.fingerprint if armed.fault.when.count == "request" else ""
            if not self._fires(armed, request, occurrence, counted, elapsed):
                continue
            armed.fired[counted] += 1
            fired.append(armed.id)
            key = ("delay", armed.id, request.fingerprint, occurrence)
            match armed.effect:
                case Latency(delay=Fixed(seconds=seconds)):
                    delay += seconds
                case Latency(delay=Uniform(low=low, high=high)):
                    delay += self.seeded.uniform(low, high, *key)
                case Latency(delay=LogNormal(median=median, sigma=sigma, most=most)):
                    delay += min(most, self.seeded.lognormal(median, sigma, *key))
                case effect:
                    wait = max(0.0, armed.refuses_until - elapsed)
                    return Plan(tuple(fired), delay, effect, armed.before, wait)
        return Plan(tuple(fired), delay) if fired else NOTHING

    def _fires(
        self, armed: _Registration, request: RecordedRequest, occurrence: int, counted: str, elapsed: float
    ) -> bool:
        when, effect = armed.fault.when, armed.effect
        # A stale read applies to reads only.
        written = request.operation is None or BY_ID[request.operation].mutates
        if (isinstance(effect, StaleRead) and written) or armed.fault.match.differs(request):
            return False
        armed.matched[counted] += 1
        if elapsed < armed.refuses_until:
            return True
        matched, probability = armed.matched[counted], 1.0 if when.probability is None else when.probability
        fires = (
            (when.until is None or elapsed < when.until)
            and (when.times is None or armed.fired[counted] < when.times)
            and (when.nth is None or matched == when.nth)
            and (when.every is None or matched % when.every == 0)
            and self.seeded.roll("fault", armed.id, request.fingerprint, occurrence) < probability
        )
        if fires and isinstance(effect, RateLimit):
            armed.refuses_until = elapsed + effect.seconds
        return fires
