"""Times as text: their order is that of the moments."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from kb_engine.store.repository.transaction import following, parse, stamp

MOMENTS = st.datetimes(timezones=st.just(UTC), max_value=datetime(9999, 12, 30))


@given(MOMENTS, MOMENTS)
def test_text_order_is_time_order(first: datetime, second: datetime) -> None:
    """So that SQLite can compare them."""
    assert (stamp(first) < stamp(second)) == (first < second)


@given(MOMENTS)
def test_a_stamp_is_read_back(moment: datetime) -> None:
    assert parse(stamp(moment)) == moment


@given(MOMENTS, MOMENTS)
def test_what_follows_is_later(now: datetime, earlier: datetime) -> None:
    assert following(stamp(now), stamp(earlier)) > stamp(earlier)


def test_a_stamp_is_in_utc_with_a_z() -> None:
    moment = datetime(2026, 1, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    assert stamp(moment) == "2025-12-31T23:30:00.000000Z"
