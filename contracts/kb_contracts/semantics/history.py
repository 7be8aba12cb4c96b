"""Counts over time: the growth of a base by weeks, and the questions that found nothing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta

from kb_contracts.api import models as m

QUESTION_DAYS = 30
"""Number of days with a question in an answer."""
_WEEKS = 52
_WEEK = timedelta(days=7)


def is_question(request: m.SearchRequest) -> bool:
    """True for a search that counts as a new question."""
    return request.cursor is None and request.detail != "locations"


def growth_of(created: Iterable[tuple[str, int, int]], today: date) -> list[m.GrowthWeek]:
    """Return the totals at the end of each of the last weeks, from the first document on.

    `created` has a day (`2026-11-28`), its new documents and their passages. A day in the future counts as
    today.
    """
    this_week = _monday(today)
    new: dict[date, tuple[int, int]] = {}
    for day, documents, chunks in created:
        week = min(this_week, _monday(date.fromisoformat(day)))
        before = new.get(week, (0, 0))
        new[week] = before[0] + documents, before[1] + chunks
    if not new:
        return []
    first = max(min(new), this_week - (_WEEKS - 1) * _WEEK)
    growth = []
    for number in range((this_week - first) // _WEEK + 1):
        week = first + number * _WEEK
        until = [new[each] for each in new if each <= week]
        growth.append(
            m.GrowthWeek(
                week=week.isoformat(),
                documents=sum(documents for documents, _ in until),
                chunks=sum(chunks for _, chunks in until),
            )
        )
    return growth


def _monday(day: date) -> date:
    return day - timedelta(days=day.weekday())
