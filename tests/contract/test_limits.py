"""Limits in engine and simulator: fixed windows for each user and operation, in memory that has a bound."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from aiohttp.test_utils import make_mocked_request

from kb_contracts.api.errors import EngineError
from kb_contracts.api.operations import BY_ID
from kb_contracts.api.ragler import LIMITS
from kb_contracts.http.mount import Incoming
from kb_engine.api.limits import RateLimits
from kb_simulator.engine.limits import Limits


@dataclass
class Clock:
    """Stands still until it is moved; seconds."""

    now: float = 1_000.0


@dataclass
class Limiting:
    """One of the two, and its time."""

    name: str
    clock: Clock = field(default_factory=Clock)

    def limits(self, **bound: int) -> RateLimits | Limits:
        """Limits on this clock."""
        if self.name == "engine":
            return RateLimits(lambda: self.clock.now, **bound)
        return Limits(lambda: round(self.clock.now * 1_000_000), **bound)


@pytest.fixture(params=["engine", "simulator"])
def limiting(request: pytest.FixtureRequest) -> Limiting:
    """Each of the two."""
    return Limiting(request.param)


def call(operation: str = "listCollections", user: str | None = "u", credential: str = "c") -> Incoming:
    """A call of one user."""
    http = make_mocked_request("GET", "/collections")
    made = Incoming(BY_ID[operation], {}, None, None, None, None, credential, http)
    return replace(made, user=user)


def is_taken(limits: RateLimits | Limits, incoming: Incoming) -> bool:
    """Whether a call is taken."""
    try:
        limits.count(incoming)
    except EngineError as error:
        if error.code != "rate_limited":
            raise
        return False
    return True


def calls_until_refused(limits: RateLimits | Limits, incoming: Incoming) -> int:
    """How many calls are taken before one is refused."""
    return next(taken for taken in range(1_000) if not is_taken(limits, incoming))


@pytest.mark.requirement("R50", "R51", "R52")
@pytest.mark.parametrize(
    ("operation", "limit"), [("vectorSearch", 100), ("listCollections", 20), ("getCollection", 50)]
)
def test_so_many_calls_are_taken(limiting: Limiting, operation: str, limit: int) -> None:
    assert LIMITS[operation] == limit
    assert calls_until_refused(limiting.limits(), call(operation)) == limit


@pytest.mark.requirement("R53")
def test_a_window_is_60_000_milliseconds_from_the_first_call(limiting: Limiting) -> None:
    """Not a millisecond less; what is refused in it neither counts nor extends it."""
    clock, limits = limiting.clock, limiting.limits()
    limits.count(call())
    clock.now += 59.999
    assert calls_until_refused(limits, call()) == 19
    assert calls_until_refused(limits, call()) == 0
    clock.now += 0.001
    assert calls_until_refused(limits, call()) == 20


def test_a_refusal_says_what_is_left_of_the_window(limiting: Limiting) -> None:
    """To the millisecond, rounded up: who comes back then is taken."""
    clock, limits = limiting.clock, limiting.limits()
    calls_until_refused(limits, call())
    clock.now += 12.3456
    with pytest.raises(EngineError) as refused:
        limits.count(call())
    left = refused.value.members["retry_after"]
    assert left == 47.655
    clock.now += left
    limits.count(call())


def test_users_are_counted_apart_and_without_one_the_credential(limiting: Limiting) -> None:
    """A user who is called as somebody's credential is not taken for it."""
    limits = limiting.limits()
    for incoming in (
        call(user="a"),
        call(user="b"),
        call(user="c"),
        call(user=None),
        call(user=None, credential="d"),
    ):
        assert calls_until_refused(limits, incoming) == 20
    assert calls_until_refused(limits, call(user="a", credential="d")) == 0


def test_a_flood_of_users_takes_no_more_than_its_memory(limiting: Limiting) -> None:
    """The oldest windows go first; those that have ended go at once."""
    clock, limits = limiting.clock, limiting.limits(most=100)
    assert calls_until_refused(limits, call(user="first")) == 20
    for number in range(99):
        limits.count(call(user=f"u{number}"))
    assert calls_until_refused(limits, call(user="first")) == 0
    one = call()
    for number in range(10_000):
        limits.count(replace(one, user=f"v{number}"))
    assert len(limits) == 100
    assert calls_until_refused(limits, call(user="first")) == 20
    clock.now += 60
    limits.count(call(user="later"))
    assert len(limits) == 1
