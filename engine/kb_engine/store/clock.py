"""Timestamps of a base, and the clock of a store."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]
Elapsed = Callable[[], float]  # returns seconds from an arbitrary start; only differences have a meaning


# Timestamps in the base are RFC 3339, UTC, `Z`, always with six decimals, so that text order is time order.


def stamp(moment: datetime) -> str:
    """Format a timezone-aware datetime as a timestamp of the base."""
    # isoformat, because strftime does not pad years before 1000.
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)


def following(now: str, earlier: str) -> str:
    """Return `now`, or one microsecond after `earlier` if the clock stood still or went back."""
    return now if now > earlier else stamp(parse(earlier) + timedelta(microseconds=1))


def seconds_between(start: str, end: str) -> float:
    """Return the seconds from `start` to `end`; 0 if the clock was set back in between."""
    return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())


class SteadyClock:
    """The system's clock, and times that do not follow it when it is set forward.

    A clock that is days ahead, and corrected later, must not expire versions and idempotency keys. So a store
    counts from the time at which it was opened, by a clock that cannot be set:

        ()       the time of the system                                all other timestamps
        steady   opened + elapsed, or the system's if that is earlier  expiry of versions
        counted  the later of opened and newest key, + elapsed         timestamps of idempotency keys
        seen     the earlier of the two + elapsed, or `steady`         expiry of idempotency keys

    The newest key is that of the base when it was opened. Time without an engine is not counted for keys,
    since a wrong clock at the start looks the same: each key is kept for 24 hours or longer. Only a clock
    that is ahead during two starts, with a key in between, expires keys early.
    """

    def __init__(self, clock: Clock, elapsed: Elapsed, newest: str | None = None) -> None:
        """`newest` is the timestamp of the latest idempotency key in the base, or None."""
        self._clock = clock
        self._elapsed = elapsed
        self._since = elapsed()
        self._opened = clock()
        self._newest = None if newest is None else parse(newest)

    def __call__(self) -> datetime:
        return self._clock()

    def steady(self) -> datetime:
        """Return the time of the system, without forward jumps since the store was opened."""
        return min(self._clock(), self._opened + self._passed)

    def counted(self) -> datetime:
        """Return a time that advances evenly, and is later than all keys of the base."""
        return max(self._opened, self._newest or self._opened) + self._passed

    def seen(self) -> datetime:
        """Return the latest time that has certainly been reached."""
        return min(self.steady(), min(self._opened, self._newest or self._opened) + self._passed)

    @property
    def _passed(self) -> timedelta:
        return timedelta(seconds=self._elapsed() - self._since)


def elapsed_seconds() -> float:
    """Return seconds of a clock that cannot be set; on Linux it also runs while the machine sleeps."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)
