"""Faults as data: which requests they match, when they fire, and what they do.

name                    effect               done?  what the caller meets
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
hang                    hang                 no     nothing, until somebody gives up
reset_before_headers    reset                no     the connection reset, no byte of an answer
reset_mid_body          reset_after          yes    the connection reset within the body
content_length_long     content_length       yes    a body shorter than announced
content_length_short    content_length       yes    a body longer than announced
malformed_chunk         malformed_chunk      yes    a chunked body whose framing breaks
drip                    drip                 yes    the body, a few bytes at a time
not_json                http_status          no     200 with HTML
empty_body              empty_body           no     200 without a body
stale_read              stale_read           yes    reads as of the moment when the fault was armed
lost_ack                lost_ack             yes    the connection reset after the request was carried out

"Done": the operation is carried out. Only a mutation that is done and not acknowledged is duplicated by a
retry without an idempotency key.
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
    """A delay uniform from `low` (inclusive) to `high` (exclusive) seconds."""

    low: Seconds = 0.0
    high: Seconds = 2.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is over high ({self.high})")


class LogNormal(Data, frozen=True, tag_field="kind", tag="lognormal"):
    """A log-normal delay with `median` seconds and standard deviation `sigma` of its logarithm, at most
    `most`.
    """

    median: Seconds = 0.2
    sigma: Annotated[float, Meta(ge=0, le=10)] = 1.0
    most: Seconds = 60.0


class Latency(Effect, frozen=True, tag="latency"):
    """The operation is carried out after a delay."""

    delay: Fixed | Uniform | LogNormal = Fixed()


class Status(Effect, frozen=True, tag="status"):
    """A problem document with a `code` of the contract, its status, and the text `detail`."""

    code: str = "internal"
    detail: str = "This request was told to fail."
    retry_after: Seconds | None = None

    def __post_init__(self) -> None:
        check_known(self.code, ERRORS, "error code")


class HttpStatus(Effect, frozen=True, tag="http_status"):
    """A `status` with a page of HTML, as a proxy answers, or a login page in front of the engine."""

    status: Annotated[int, Meta(ge=200, le=599)] = 502


class RateLimit(Effect, frozen=True, tag="rate_limit"):
    """429 with `Retry-After`; further matches within `seconds` are refused too."""

    seconds: Annotated[float, Meta(gt=0, le=1e9)] = 2.0
    code: str = "queue_full"

    def __post_init__(self) -> None:
        check_known(
            self.code, {code: kind for code, kind in ERRORS.items() if kind.status == 429}, "code of 429"
        )


class Hang(Effect, frozen=True, tag="hang"):
    """No response, until the caller disconnects or the namespace is reset."""


class Reset(Effect, frozen=True, tag="reset"):
    """Reset the connection before any byte of the response, and before the operation is carried out."""


class ResetAfter(Effect, frozen=True, tag="reset_after"):
    """Reset the connection after the headers and `bytes` bytes of the body."""

    bytes: Annotated[int, Meta(ge=0, le=1 << 30)] = 16


class ContentLength(Effect, frozen=True, tag="content_length"):
    """`Content-Length` differs from the body's length by `off`: positive is too long, negative too short."""

    off: Annotated[int, Meta(ge=-(1 << 30), le=1 << 30)] = 64


class MalformedChunk(Effect, frozen=True, tag="malformed_chunk"):
    """`Transfer-Encoding: chunked`, whose second chunk has no valid size."""


class Drip(Effect, frozen=True, tag="drip"):
    """The body in pieces of `bytes`, with `seconds` before each."""

    bytes: Annotated[int, Meta(ge=1, le=1 << 30)] = 64
    seconds: Seconds = 0.1


class EmptyBody(Effect, frozen=True, tag="empty_body"):
    """200 without a body."""


class StaleRead(Effect, frozen=True, tag="stale_read"):
    """Reads see the state at the time when the fault was armed; mutations never match."""


class LostAck(Effect, frozen=True, tag="lost_ack"):
    """Carry the operation out, then reset the connection without a response."""


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
"""The faults by name, as in the table above. A fault may take a name and an effect of its own."""


class When(Data, frozen=True):
    """Condition on which a matching request meets the fault: all given members must hold; without any, each
    does.

    `nth` counts from 1; `every` is every second, third...; `times` the maximum of firings; `until` is in
    virtual seconds since the clock's start. `count` selects the counter: matches of the rule in order of
    arrival, or matches of each fingerprint, which is independent of that order.
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
    """A fault to arm. Without `effect`, the catalogue's fault of this `name`; without `id`, the id is
    generated.

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
    """Effect of the faults on a request: ids of fired faults, a delay in seconds, and the effect on the
    response.

    `stale` is the state that reads use, None for the present one; `retry_after` is in seconds.
    """

    fired: tuple[str, ...] = ()
    delay: float = 0.0
    effect: AnyEffect | None = None
    stale: State | None = None
    retry_after: float = 0.0


NOTHING = Plan()
"""Plan of a request without faults."""


class ArmedFault(msgspec.Struct, frozen=True, kw_only=True):
    """An armed fault in the control plane, with the number of matches and of firings."""

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
    """The armed faults of a namespace. `state` returns the present state, which an armed stale read keeps.

    Faults are evaluated in the order in which they were armed. Delays add up; evaluation ends at the first
    fault that replaces the response, so that later faults do not count this request.
    """

    seeded: Seeded
    state: Callable[[], State]
    _armed: dict[str, _Registration] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        return bool(self._armed)

    def arm(self, fault: Fault) -> ArmedFault:
        """Arm a fault; a generated id is its name with a number, equal in every run.

        Raises:
            ValueError: another fault has this id.
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
        """Disarm a fault. Raises KeyError if it is not armed."""
        return self._armed.pop(fault_id).summary()

    def disarm_all(self) -> list[ArmedFault]:
        """Disarm all faults; return their counts."""
        summaries = self.list()
        self._armed.clear()
        return summaries

    def list(self) -> list[ArmedFault]:
        """Return the armed faults in the order of evaluation."""
        return [armed.summary() for armed in self._armed.values()]

    def unfired(self) -> tuple[str, ...]:
        """Return a sentence for each armed fault that never fired and is not optional."""
        return tuple(
            f"{each.id} ({each.fault.match}) never fired; {each.matched} requests matched"
            for each in self.list()
            if not each.fired and not each.fault.optional
        )

    def decide(self, request: RecordedRequest, occurrence: int, elapsed: float) -> Plan:
        """Return the plan of a request, the `occurrence`-th of its fingerprint; `elapsed` is in virtual
        seconds.
        """
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
        # Only reads can be stale.
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
