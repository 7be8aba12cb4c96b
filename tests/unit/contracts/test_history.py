"""Growth of a base by weeks."""

from __future__ import annotations

from datetime import date

import pytest

from kb_contracts.semantics.history import growth_of


@pytest.mark.parametrize(
    ("created", "weeks"),
    [
        ([], []),
        ([("2026-11-28", 2, 5)], [("2026-11-23", 2, 5)]),
        (
            [("2026-11-23", 1, 1), ("2026-11-08", 1, 4), ("2026-12-31", 1, 1)],
            [("2026-11-02", 1, 4), ("2026-11-09", 1, 4), ("2026-11-16", 1, 4), ("2026-11-23", 3, 6)],
        ),
    ],
    ids=["empty", "this week", "weeks without a document, and a day in the future"],
)
def test_totals_are_those_at_the_end_of_each_week(
    created: list[tuple[str, int, int]], weeks: list[tuple[str, int, int]]
) -> None:
    found = growth_of(created, date(2026, 11, 28))
    assert [(each.week, each.documents, each.chunks) for each in found] == weeks


def test_documents_of_earlier_years_are_counted_and_their_weeks_left_out() -> None:
    found = growth_of([("1999-01-01", 7, 9)], date(2026, 11, 28))
    assert (len(found), found[0].documents, found[0].week, found[-1].week) == (
        52,
        7,
        "2025-12-01",
        "2026-11-23",
    )
