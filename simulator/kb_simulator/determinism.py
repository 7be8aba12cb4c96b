"""Reproducible runs: random decisions derived from a seed and a key, and virtual time.

There is no stream of random numbers, and hence no order in which they must be drawn: a decision depends
only on the seed and its own key, not on other decisions or the order of requests.

Virtual time moves by command, jumps over waiting, or follows the wall clock:

    mode       effect of `sleep`                            time moves by
    ---------  -------------------------------------------  ---------------------------------------
    autojump   returns as soon as nothing else is ready     every sleep, by as much as it slept
    manual     waits for `advance`                          `advance` alone
    real       waits                                        the wall clock, and also `advance`

It starts at 2026-01-01T00:00:00Z in every mode, so that values derived from it are the same in every run. A
time is a whole number of microseconds since 1970, so that arithmetic on it is exact.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from uuid import UUID

_ROLL_BYTES = 7
_ROLL_STEPS = 1 << 53  # number of distinct floats between 0 and 1

Part = str | int
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""Start of virtual time."""


@dataclass(frozen=True, slots=True)
class Seeded:
    """Decisions under one seed. A key is a tuple of strings and integers; ("a", "b") differs from ("ab",)."""

    seed: int

    def roll(self, *key: Part) -> float:
        """A number from 0 (inclusive) to 1 (exclusive), uniform over keys."""
        return (int.from_bytes(self._digest(key, _ROLL_BYTES), "big") >> 3) / _ROLL_STEPS

    def uniform(self, low: float, high: float, *key: Part) -> float:
        """Return a number from `low` (inclusive) to `high` (exclusive)."""
        return low + (high - low) * self.roll(*key)

    def lognormal(self, median: float, sigma: float, *key: Part) -> float:
        """A log-normal number with this median; `sigma` is the deviation of the logarithm."""
        # Box-Muller; 1 - roll is never 0, so that its logarithm exists.
        radius = math.sqrt(-2.0 * math.log(1.0 - self.roll("radius", *key)))
        return median * math.exp(sigma * radius * math.cos(2.0 * math.pi * self.roll("angle", *key)))

    def uuid(self, *key: Part) -> str:
        """Return a UUID of version 4."""
        return str(UUID(bytes=self._digest(("uuid", *key), 16), version=4))

    def _digest(self, key: tuple[Part, ...], size: int) -> bytes:
        # Length prefixes keep ("a", "bc") and ("ab", "c") apart.
        parts = (str(part).encode("utf-8", "surrogatepass") for part in (self.seed, *key))
        return blake2b(b"".join(b"%d:%b" % (len(part), part) for part in parts), digest_size=size).digest()


def rfc3339(microseconds: int) -> str:
    """A time in the format of the API; `microseconds` since 1970-01-01T00:00:00Z."""
    return moment_of(microseconds).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def moment_of(microseconds: int) -> datetime:
    """The aware time that is `microseconds` after 1970-01-01T00:00:00Z."""
    return _UNIX + timedelta(microseconds=microseconds)


def microseconds_of(moment: datetime) -> int:
    """Return an aware time as microseconds since 1970-01-01T00:00:00Z."""
    return (moment - _UNIX) // _MICROSECOND


_EPOCH_MICROSECONDS = microseconds_of(EPOCH)


class ClockMode(StrEnum):
    AUTOJUMP = "autojump"
    MANUAL = "manual"
    REAL = "real"


class Clock:
    """A clock for one event loop.

    Seconds are virtual; `wall` is the clock that mode `real` follows, in seconds.

    Reading and advancing need no running loop; sleeping does.
    """

    def __init__(
        self, mode: ClockMode = ClockMode.AUTOJUMP, *, wall: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._mode = mode
        self._elapsed = 0.0  # at `_anchor`
        self._anchor = wall()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._endless: set[asyncio.Future[None]] = set()
        self._order = itertools.count()
        self._wakeup: asyncio.Handle | None = None

    @property
    def mode(self) -> ClockMode:
        """The clock's mode. Setting it at any moment does not change the present time."""
        return self._mode

    @mode.setter
    def mode(self, mode: ClockMode) -> None:
        self._settle()
        self._mode = mode
        self._arrange()

    @property
    def sleeping(self) -> int:
        """Number of pending sleeps."""
        futures = (*self._endless, *(future for _, _, future in self._sleepers))
        return sum(not future.done() for future in futures)

    def elapsed(self) -> float:
        """Virtual seconds since the clock started."""
        if self._mode is not ClockMode.REAL:
            return self._elapsed
        return self._elapsed + self._wall() - self._anchor

    def microseconds(self) -> int:
        """Now, in microseconds since 1970-01-01T00:00:00Z."""
        return _EPOCH_MICROSECONDS + round(self.elapsed() * 1_000_000)

    def advance(self, seconds: float) -> None:
        """Move time forward and wake the sleeps that are due, the earliest first.
        Raises ValueError: `seconds` is negative or not finite.
        """
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"time moves on by 0 or more finite seconds, not by {seconds}")
        self._settle()
        self._elapsed += seconds
        self._arrange()

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` of virtual time have passed; immediately for 0 or less."""
        if seconds > 0:
            await self.timer(seconds)

    def timer(self, seconds: float) -> asyncio.Future[None]:
        """Return a future that is done when `seconds` have passed, or earlier if its result is set.

        Infinite seconds never pass.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if math.isinf(seconds):
            self._endless.add(future)
            future.add_done_callback(self._endless.discard)
            return future
        heapq.heappush(self._sleepers, (self.elapsed() + seconds, next(self._order), future))
        self._arrange()
        return future

    def release(self) -> None:
        """End every sleep now, without moving time."""
        sleepers, self._sleepers = self._sleepers, []
        for future in (*(future for _, _, future in sleepers), *self._endless):
            _finish(future)
        self._arrange()

    def _settle(self) -> None:
        """Save the present time as the base for further counting, before the mode or the time changes."""
        self._elapsed, self._anchor = self.elapsed(), self._wall()

    def _arrange(self) -> None:
        """Wake the sleeps that are due, and schedule the next wake-up."""
        now = self.elapsed()
        while self._sleepers and (self._sleepers[0][0] <= now or self._sleepers[0][2].done()):
            _finish(heapq.heappop(self._sleepers)[2])
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        if not self._sleepers:
            return
        deadline, _, future = self._sleepers[0]
        if self._mode is ClockMode.AUTOJUMP:
            # Runs after all ready callbacks, so that sleeps begun in the same turn end in the order of their
            # deadlines.
            self._wakeup = future.get_loop().call_soon(self._jump)
        elif self._mode is ClockMode.REAL:
            self._wakeup = future.get_loop().call_later(deadline - now, self._arrange)

    def _jump(self) -> None:
        self._wakeup = None
        if self._sleepers:
            self._elapsed = max(self._elapsed, self._sleepers[0][0])
        self._arrange()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
