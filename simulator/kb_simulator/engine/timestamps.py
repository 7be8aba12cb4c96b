"""Times inside the simulator: whole microseconds since 1970, so that arithmetic on them is exact."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def rfc3339(microseconds: int) -> str:
    """A time as it stands on the wire; `microseconds` since 1970-01-01T00:00:00Z."""
    moment = _UNIX + timedelta(microseconds=microseconds)
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def microseconds_of(moment: datetime) -> int:
    """An aware time as microseconds since 1970-01-01T00:00:00Z."""
    return (moment - _UNIX) // _MICROSECOND
