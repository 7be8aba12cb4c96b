"""The faults that are armed, and which of them a request meets.

Faults are consulted in the order in which they were armed. Delays add up; the first fault that replaces the
answer is the last one consulted, so that a fault behind it waits for its turn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from kb_contracts.api.operations import BY_ID
from kb_simulator.engine.state import State
from kb_simulator.harness.faults import (
    CATALOGUE,
    AnyEffect,
    Fault,
    Fixed,
    Latency,
    LogNormal,
    RateLimit,
    StaleRead,
    Uniform,
    When,
)
from kb_simulator.harness.recorded_request import RecordedRequest
from kb_simulator.seeded import Seeded


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request meets: the ids of the faults that fired, a delay in seconds, and who takes the answer.

    `stale` is the state that reads look at, None for the present one; `retry_after` is in seconds.
    """

    fired: tuple[str, ...] = ()
    delay: float = 0.0
    effect: AnyEffect | None = None
    stale: State | None = None
    retry_after: float = 0.0


NOTHING = Plan()
"""The plan of a request that meets no fault."""


class ArmedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault as the control plane shows it: how many requests it matched, and at how many it fired."""

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


@dataclass(slots=True)
class FaultRegistry:
    """The armed faults of one namespace. `state` gives the present state, for stale reads to keep."""

    seeded: Seeded
    state: Callable[[], State]
    _armed: dict[str, _Registration] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        return bool(self._armed)

    def arm(self, fault: Fault) -> ArmedFault:
        """Arm a fault; its id is its own, or its name with a number, which a run repeats.

        Raises:
            ValueError: another fault has that id.
        """
        self._numbers[fault.name] += 1
        fault_id = fault.id or f"{fault.name}-{self._numbers[fault.name]}"
        if fault_id in self._armed:
            raise ValueError(f"a fault with the id {fault_id!r} is armed already")
        effect = fault.effect or CATALOGUE[fault.name]
        before = self.state().copy() if isinstance(effect, StaleRead) else None
        armed = self._armed[fault_id] = _Registration(fault_id, fault, effect, before)
        return _summary(armed)

    def disarm(self, fault_id: str) -> ArmedFault:
        """Take a fault away. Raises KeyError where no such fault is armed."""
        return _summary(self._armed.pop(fault_id))

    def disarm_all(self) -> list[ArmedFault]:
        """Take all faults away, and tell what they did."""
        summaries = self.list()
        self._armed.clear()
        return summaries

    def list(self) -> list[ArmedFault]:
        """The armed faults in the order in which they are request."""
        return [_summary(armed) for armed in self._armed.values()]

    def decide(self, request: RecordedRequest, occurrence: int, elapsed: float) -> Plan:
        """What a request meets, the `occurrence`-th of its fingerprint; `elapsed` is in virtual seconds."""
        if not self._armed:
            return NOTHING
        fired: list[str] = []
        delay = 0.0
        for armed in self._armed.values():
            if not _is_candidate(armed, request) or not self._fires(armed, request, occurrence, elapsed):
                continue
            armed.fired[_counted(armed, request)] += 1
            fired.append(armed.id)
            if not isinstance(armed.effect, Latency):
                wait = max(0.0, armed.refuses_until - elapsed)
                return Plan(tuple(fired), delay, armed.effect, armed.before, wait)
            delay += self._seconds(armed, request, occurrence)
        return Plan(tuple(fired), delay) if fired else NOTHING

    def _fires(self, armed: _Registration, request: RecordedRequest, occurrence: int, elapsed: float) -> bool:
        counted = _counted(armed, request)
        armed.matched[counted] += 1
        if elapsed < armed.refuses_until:
            return True
        key = ("fault", armed.id, request.fingerprint, occurrence)
        due = _due(armed.fault.when, armed.matched[counted], armed.fired[counted], elapsed)
        if not due or self.seeded.roll(*key) >= _probability(armed.fault.when):
            return False
        if isinstance(armed.effect, RateLimit):
            armed.refuses_until = elapsed + armed.effect.seconds
        return True

    def _seconds(self, armed: _Registration, request: RecordedRequest, occurrence: int) -> float:
        key = ("delay", armed.id, request.fingerprint, occurrence)
        match armed.effect:
            case Latency(delay=Fixed(seconds=seconds)):
                return seconds
            case Latency(delay=Uniform(low=low, high=high)):
                return self.seeded.uniform(low, high, *key)
            case Latency(delay=LogNormal(median=median, sigma=sigma, most=most)):
                return min(most, self.seeded.lognormal(median, sigma, *key))
            case _:
                return 0.0


def _is_candidate(armed: _Registration, request: RecordedRequest) -> bool:
    if isinstance(armed.effect, StaleRead) and (
        request.operation is None or BY_ID[request.operation].mutates
    ):
        return False
    return not armed.fault.match.differs(request)


def _counted(armed: _Registration, request: RecordedRequest) -> str:
    return request.fingerprint if armed.fault.when.count == "request" else ""


def _due(when: When, matched: int, fired: int, elapsed: float) -> bool:
    """Whether all but chance lets the `matched`-th match fire, after `fired` firings."""
    return (
        (when.until is None or elapsed < when.until)
        and (when.times is None or fired < when.times)
        and (when.nth is None or matched == when.nth)
        and (when.every is None or matched % when.every == 0)
    )


def _probability(when: When) -> float:
    return 1.0 if when.probability is None else when.probability


def _summary(armed: _Registration) -> ArmedFault:
    return ArmedFault(
        id=armed.id, fault=armed.fault, matched=armed.matched.total(), fired=armed.fired.total()
    )
