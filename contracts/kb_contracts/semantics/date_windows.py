"""The dates of a search's filters, from RFC 3339 to aware moments in UTC."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time

from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import Filters
from kb_contracts.api.ragler import VectorFilters

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


def date_window(filters: Filters | VectorFilters) -> tuple[datetime | None, datetime | None]:
    """The first and the last moment, both inclusive; a date as the end means the whole UTC day.

    Raises:
        EngineError: `invalid_parameter` with the member's name; `contradiction` where the end comes first.
    """
    start = _moment(filters.date_from, "filters.date_from", time.min)
    end = _moment(filters.date_to, "filters.date_to", time.max)
    if start and end and end < start:
        raise EngineError(
            "contradiction",
            "filters.date_to is before filters.date_from; nothing can lie between.",
            parameter="filters.date_to",
        )
    return start, end


def _moment(text: str | None, parameter: str, hour: time) -> datetime | None:
    if text is None:
        return None
    cause: Exception | None = None
    try:
        if _DATE.fullmatch(text):
            return datetime.combine(date.fromisoformat(text), hour, UTC)
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:  # the thirtieth of February, or a time before the year 1
        cause = error
    raise EngineError(
        "invalid_parameter",
        f"{parameter} is {text[:40]!r}; write a date like 2025-01-31 or a time like 2025-01-31T09:30:00Z.",
        parameter=parameter,
    ) from cause
