"""The dates of a search's filters: any common form of ISO 8601 in, RFC 3339 out."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time

from kb_server.tool import INVALID, ToolError

_SENT_AS_IT_IS = re.compile(
    r"\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:\d{2}))?", re.ASCII
)
_DATE = re.compile(r"\d{4}-?\d{2}-?\d{2}|\d{4}-?W\d{2}-?\d", re.ASCII)
_QUOTED_CHARS = 40


def span(date_from: str | None, date_to: str | None) -> tuple[str | None, str | None]:
    """Both ends as the backend gets them: a date, or a time with its offset (UTC where none was given).

    Raises:
        ToolError: `invalid_parameter` that names the end; `contradiction` where the last comes first.
    """
    first, last = _read(date_from, "filters.date_from"), _read(date_to, "filters.date_to")
    if first is not None and last is not None and _moment(last, time.max) < _moment(first, time.min):
        raise ToolError(
            "contradiction",
            "filters.date_to is before filters.date_from; nothing can lie between.",
            parameter="filters.date_to",
        )
    return _sent(date_from, first), _sent(date_to, last)


def _read(text: str | None, parameter: str) -> date | datetime | None:
    """A date, or an aware moment."""
    if text is None:
        return None
    try:
        if _DATE.fullmatch(text):
            return date.fromisoformat(text)
        if text.isascii() and "T" in text:
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        pass  # told below, as what is no date at all
    raise ToolError(
        INVALID,
        f"The parameter `{parameter}` takes a date or time as ISO 8601 has it, such as 2026-01-31 or "
        f"2026-01-31T09:30:00Z; got {text[:_QUOTED_CHARS]!r}.",
        parameter=parameter,
    )


def _moment(day: date | datetime, hour: time) -> datetime:
    return day if isinstance(day, datetime) else datetime.combine(day, hour, UTC)


def _sent(text: str | None, read: date | datetime | None) -> str | None:
    if text is None or read is None or _SENT_AS_IT_IS.fullmatch(text):
        return text
    return read.isoformat().replace("+00:00", "Z")
