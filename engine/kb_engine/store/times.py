"""Times as the base keeps them: RFC 3339, UTC, `Z`, always six decimals, so that text order is time order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"
TICK = timedelta(microseconds=1)


def stamp(moment: datetime) -> str:
    """The text of an aware moment."""
    # isoformat, because strftime does not pad years before 1000.
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse(text: str) -> datetime:
    return datetime.strptime(text, FORMAT).replace(tzinfo=UTC)


def following(now: str, earlier: str) -> str:
    """`now`, or the instant after `earlier` where the clock did not move on (or went back)."""
    return now if now > earlier else stamp(parse(earlier) + TICK)


def seconds_between(start: str, end: str) -> float:
    """The seconds from one to the other; none where a clock was put back in between."""
    return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())
