"""Dates of a search's filters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import Filters
from kb_contracts.semantics.search import date_window


def test_a_date_is_a_whole_utc_day() -> None:
    """From its first moment to its last, both inclusive."""
    assert date_window(Filters(date_from="2025-01-31", date_to="2025-01-31")) == (
        datetime(2025, 1, 31, tzinfo=UTC),
        datetime(2025, 1, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    )


def test_a_time_is_that_moment_wherever_it_was_told() -> None:
    """The offset is taken into account; letters may be small."""
    start, end = date_window(Filters(date_from="2025-01-01t01:30:00+02:00", date_to="2025-01-01 00:00:00.5z"))
    assert start == datetime(2024, 12, 31, 23, 30, tzinfo=UTC)
    assert end == datetime(2025, 1, 1, microsecond=500_000, tzinfo=UTC)


def test_nothing_asked_is_no_bound() -> None:
    """On either side."""
    assert date_window(Filters()) == (None, None)


@given(
    moment=st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1)),
    offset=st.integers(-23, 23),
)
def test_every_rfc_3339_time_is_understood(moment: datetime, offset: int) -> None:
    """As Python writes it, whatever its offset."""
    aware = moment.replace(tzinfo=timezone(timedelta(hours=offset)))
    start, _ = date_window(Filters(date_from=aware.isoformat()))
    assert start == aware


@given(text=st.text(max_size=30))
def test_other_text_is_refused_by_name(text: str) -> None:
    """Never a crash, whatever it is."""
    assume(not text[:4].isdigit())
    with pytest.raises(EngineError) as raised:
        date_window(Filters(date_to=text))
    assert raised.value.code == "invalid_parameter"
    assert raised.value.members["parameter"] == "filters.date_to"


def test_an_end_before_the_start_is_told() -> None:
    """The same moment for both is a span."""
    date_window(Filters(date_from="2025-01-01T00:00:00Z", date_to="2025-01-01T00:00:00Z"))
    with pytest.raises(EngineError, match="before"):
        date_window(Filters(date_from="2025-01-02", date_to="2025-01-01"))
