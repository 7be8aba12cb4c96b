"""Decisions are keyed and time is virtual, so that every run gives the same, in any order."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime
from statistics import mean, median
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_simulator.determinism import EPOCH, Clock, ClockMode, Seeded, microseconds_of, rfc3339
from tests.support.patience import ANSWER_SECONDS

KEYS = st.lists(st.one_of(st.text(max_size=8), st.integers()), max_size=4)


@given(st.integers(), KEYS)
def test_a_decision_repeats_whatever_was_decided_before(seed: int, key: list[str | int]) -> None:
    """There is no shared stream of random numbers."""
    first = Seeded(seed)
    first.roll("something else")
    assert first.roll(*key) == Seeded(seed).roll(*key)


@given(KEYS)
def test_a_roll_lies_from_nought_to_one(key: list[str | int]) -> None:
    """One is never reached, so that a probability of 1 always holds."""
    assert 0.0 <= Seeded(7).roll(*key) < 1.0


def test_parts_of_a_key_do_not_run_together() -> None:
    """("ab", "c") is not ("a", "bc")."""
    assert Seeded(7).roll("ab", "c") != Seeded(7).roll("a", "bc")


def test_rolls_are_spread_evenly() -> None:
    rolls = [Seeded(7).roll(number) for number in range(5_000)]
    assert abs(mean(rolls) - 0.5) < 0.02
    assert all(400 < sum(tenth <= roll * 10 < tenth + 1 for roll in rolls) < 600 for tenth in range(10))


def test_a_lognormal_number_has_its_median() -> None:
    numbers = [Seeded(7).lognormal(0.2, 1.0, number) for number in range(2_000)]
    assert abs(median(numbers) - 0.2) < 0.02
    assert min(numbers) > 0


def test_a_uuid_is_one_of_version_4() -> None:
    assert UUID(Seeded(7).uuid("job", 1)).version == 4


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("mode", "seconds"), [(ClockMode.AUTOJUMP, 3600), (ClockMode.REAL, 0.001)])
async def test_an_autojump_sleep_and_a_short_real_one_end_by_themselves(
    mode: ClockMode, seconds: float
) -> None:
    clock = Clock(mode)
    async with asyncio.timeout(ANSWER_SECONDS):
        await clock.sleep(seconds)
    assert clock.elapsed() == seconds or mode is ClockMode.REAL
    assert clock.elapsed() >= seconds


async def test_autojump_wakes_concurrent_sleepers_by_deadline() -> None:
    clock = Clock()
    seen: list[tuple[float, float]] = []

    async def slept(seconds: float) -> None:
        await clock.sleep(seconds)
        seen.append((seconds, clock.elapsed()))

    await asyncio.gather(slept(5), slept(3), slept(5))
    assert seen == [(3, 3), (5, 5), (5, 5)]


async def test_manual_sleeps_wait_for_advance() -> None:
    clock = Clock(ClockMode.MANUAL)
    sleeper = asyncio.ensure_future(clock.sleep(10))
    await turn()
    clock.advance(9.999)
    await turn()
    assert (sleeper.done(), clock.sleeping) == (False, 1)
    clock.advance(0.001)
    await turn()
    assert (sleeper.done(), clock.sleeping) == (True, 0)


async def test_real_time_follows_the_wall() -> None:
    wall = [100.0]
    clock = Clock(ClockMode.REAL, wall=lambda: wall[0])
    wall[0] += 2.5
    clock.advance(10)
    wall[0] += 1
    assert clock.elapsed() == 13.5


@pytest.mark.parametrize(
    ("mode", "wake"),
    [
        (ClockMode.REAL, lambda clock: clock.advance(3600)),
        (ClockMode.MANUAL, lambda clock: setattr(clock, "mode", ClockMode.AUTOJUMP)),
    ],
    ids=["real time is advanced", "manual goes over to autojump"],
)
async def test_a_sleep_ends_early_where_its_clock_moves(
    mode: ClockMode, wake: Callable[[Clock], None]
) -> None:
    clock = Clock(mode)
    sleeper = asyncio.ensure_future(clock.sleep(3600))
    await turn()
    wake(clock)
    async with asyncio.timeout(ANSWER_SECONDS):
        await sleeper
    assert clock.elapsed() >= 3600


async def test_changing_the_mode_keeps_the_time() -> None:
    wall = [0.0]
    clock = Clock(ClockMode.REAL, wall=lambda: wall[0])
    wall[0] = 4.0
    clock.mode = ClockMode.MANUAL
    wall[0] = 99.0
    assert clock.elapsed() == 4.0


async def test_endless_sleeps_never_pass_and_are_released() -> None:
    """Autojump does not jump to the end of time."""
    clock = Clock()
    endless = clock.timer(math.inf)
    await clock.sleep(1)
    assert (endless.done(), clock.elapsed(), clock.sleeping) == (False, 1, 1)
    clock.release()
    assert (endless.done(), clock.sleeping) == (True, 0)


async def test_a_sleeper_that_gives_up_holds_up_nobody() -> None:
    clock = Clock()
    given_up = asyncio.ensure_future(clock.sleep(100))
    await asyncio.sleep(0)
    given_up.cancel()
    await clock.sleep(1)
    assert clock.elapsed() == 1


@pytest.mark.parametrize("seconds", [-1, math.inf, math.nan])
def test_time_does_not_go_back_or_to_its_end(seconds: float) -> None:
    with pytest.raises(ValueError, match="0 or more finite seconds"):
        Clock().advance(seconds)


def test_time_starts_where_it_is_said_to() -> None:
    """In every mode, so that timestamps are repeatable."""
    assert rfc3339(Clock(ClockMode.MANUAL).microseconds()) == "2026-01-01T00:00:00.000000Z"
    assert Clock().microseconds() == microseconds_of(EPOCH)


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_a_time_reads_as_it_was_written(moment: datetime) -> None:
    assert datetime.fromisoformat(rfc3339(microseconds_of(moment))) == moment
