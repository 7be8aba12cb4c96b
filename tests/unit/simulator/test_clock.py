"""Virtual time moves as its mode says, and wakes sleepers in the order of their deadlines."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_simulator.determinism import EPOCH, Clock, ClockMode, microseconds_of, rfc3339


async def turn() -> None:
    """Let everything run that is ready."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_autojump_sleeps_take_no_time_and_move_the_clock() -> None:
    """An hour passes at once."""
    clock = Clock()
    async with asyncio.timeout(15):
        await clock.sleep(3600)
    assert clock.elapsed() == 3600


async def test_autojump_wakes_concurrent_sleepers_by_deadline() -> None:
    """The shorter sleep ends first, and each sees the time that it slept until."""
    clock = Clock()
    seen: list[tuple[float, float]] = []

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        seen.append((seconds, clock.elapsed()))

    await asyncio.gather(sleep(5), sleep(3), sleep(5))
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
    """And `advance` goes on top."""
    wall = [100.0]
    clock = Clock(ClockMode.REAL, wall=lambda: wall[0])
    wall[0] += 2.5
    clock.advance(10)
    wall[0] += 1
    assert clock.elapsed() == 13.5


async def test_a_real_sleep_ends_by_advance_too() -> None:
    """Whoever waits an hour need not."""
    clock = Clock(ClockMode.REAL)
    sleeper = asyncio.ensure_future(clock.sleep(3600))
    await turn()
    clock.advance(3600)
    async with asyncio.timeout(15):
        await sleeper


async def test_a_short_real_sleep_ends_by_itself() -> None:
    """The wall moves it."""
    clock = Clock(ClockMode.REAL)
    async with asyncio.timeout(15):
        await clock.sleep(0.001)
    assert clock.elapsed() >= 0.001


async def test_changing_the_mode_keeps_the_time() -> None:
    """What has passed has passed."""
    wall = [0.0]
    clock = Clock(ClockMode.REAL, wall=lambda: wall[0])
    wall[0] = 4.0
    clock.mode = ClockMode.MANUAL
    wall[0] = 99.0
    assert clock.elapsed() == 4.0


async def test_going_over_to_autojump_wakes_who_sleeps() -> None:
    """Nobody is left behind in another mode."""
    clock = Clock(ClockMode.MANUAL)
    sleeper = asyncio.ensure_future(clock.sleep(10))
    await turn()
    clock.mode = ClockMode.AUTOJUMP
    async with asyncio.timeout(15):
        await sleeper
    assert clock.elapsed() == 10


async def test_endless_sleeps_never_pass_and_are_released() -> None:
    """Autojump does not jump to the end of time."""
    clock = Clock()
    endless = clock.timer(math.inf)
    await clock.sleep(1)
    assert (endless.done(), clock.elapsed(), clock.sleeping) == (False, 1, 1)
    clock.release()
    assert (endless.done(), clock.sleeping) == (True, 0)


async def test_a_sleeper_that_gives_up_holds_up_nobody() -> None:
    """A cancelled sleep is passed over, and time does not jump to it."""
    clock = Clock()
    given_up = asyncio.ensure_future(clock.sleep(100))
    await asyncio.sleep(0)
    given_up.cancel()
    await clock.sleep(1)
    assert clock.elapsed() == 1


@pytest.mark.parametrize("seconds", [-1, math.inf, math.nan])
def test_time_does_not_go_back_or_to_its_end(seconds: float) -> None:
    """The error says what is taken."""
    with pytest.raises(ValueError, match="0 or more finite seconds"):
        Clock().advance(seconds)


def test_time_starts_where_it_is_said_to() -> None:
    """In every mode, so that timestamps repeat."""
    assert rfc3339(Clock(ClockMode.MANUAL).microseconds()) == "2026-01-01T00:00:00.000000Z"
    assert Clock().microseconds() == microseconds_of(EPOCH)


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_a_time_reads_as_it_was_written(moment: datetime) -> None:
    """Microseconds to RFC 3339 and back."""
    assert datetime.fromisoformat(rfc3339(microseconds_of(moment))) == moment
