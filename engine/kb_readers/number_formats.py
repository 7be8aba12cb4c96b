"""The numbers in a workbook's cells as a reader of it sees them: days, times, durations, percentages."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta
from functools import partial
from typing import TypeAlias

Formatter: TypeAlias = Callable[[str], str]
"""A number as the file has it into the words for people; raises ValueError when it is none."""

_DAY_SECONDS = 86_400
_DAYS = 2_958_465  # up to the end of the year 9999
_MOST_HOURS = 1_000_000

# What a format code puts out as it is, colours and languages, and the word for no format.
_LITERAL = re.compile(r'"[^"]*"|\\.|[_*].|\[(?!(?:h+|m+|s+)\])[^\]]*\]|general|standard', re.IGNORECASE)
_ELAPSED = re.compile(r"\[(?:h+|m+|s+)\]", re.IGNORECASE)
_TIME = re.compile(r"[dmyhs]", re.IGNORECASE)
_WHOLE = re.compile(r"-?[0-9]{1,15}")

# The formats that have a number and no code.
_PERCENTAGES = frozenset([9, 10])
_TIMES = frozenset([*range(14, 23), *range(27, 37), 45, 47, *range(50, 59)])
_DURATIONS = frozenset([46])


def formatter(number: int, code: str, *, from_1904: bool) -> Formatter:
    """What the number format `number` makes of a number; `code` is its code in the file, or "".

    Days are counted from 1900, or from 1904 as some workbooks do.
    """
    first_section = _LITERAL.sub("", code).partition(";")[0]
    if number in _DURATIONS if not code else _ELAPSED.search(first_section):
        return _duration
    if number in _TIMES if not code else _TIME.search(first_section):
        return partial(_moment, from_1904=from_1904)
    if number in _PERCENTAGES if not code else "%" in first_section:
        return _percentage
    return plain


def plain(raw: str) -> str:
    """A number with the 15 digits that a workbook keeps."""
    return raw if _WHOLE.fullmatch(raw) else f"{float(raw):.15g}"


def _percentage(raw: str) -> str:
    return f"{float(raw) * 100:.15g}%"


def _duration(raw: str) -> str:
    hours = float(raw) * 24
    if not 0 <= hours < _MOST_HOURS:
        return plain(raw)
    minutes, seconds = divmod(round(hours * 3600), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def _moment(raw: str, *, from_1904: bool) -> str:
    """A day, with the time where it has one; without a day the time alone."""
    value = float(raw)
    if not 0 <= value < _DAYS:
        return plain(raw)
    days, seconds = divmod(round(value * _DAY_SECONDS), _DAY_SECONDS)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}"
    if seconds % 60:
        clock += f":{seconds % 60:02}"
    if value < 1:
        return clock
    day = _first_day(days, from_1904) + timedelta(days)
    return f"{day.isoformat()} {clock}" if seconds else day.isoformat()


def _first_day(days: int, from_1904: bool) -> date:
    """Day 0. Counting from 1900, workbooks know a 29 February in that year, which is day 60."""
    if from_1904:
        return date(1904, 1, 1)
    return date(1899, 12, 30) if days >= 60 else date(1899, 12, 31)
