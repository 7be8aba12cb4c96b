"""Percentiles, slopes, shapes and histories: the arithmetic behind every figure of a report."""

from __future__ import annotations

import pytest

from kb_load.history import moments
from kb_load.plan import CURVES, Plan, ShapeName
from kb_load.sampling import Sample, slope
from kb_load.stats import percentile, table


def sample(seconds: float, mib: float) -> Sample:
    return Sample(seconds=seconds, name="server", resident_mib=mib, cpu=0.0, sockets=0)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 51), (0.95, 95), (0.99, 99), (1.0, 100)])
def test_a_percentile_is_one_of_the_values(share: float, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == value


def test_nothing_has_no_percentile() -> None:
    """A figure that was not measured must not look like zero."""
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_table_keeps_its_columns_apart() -> None:
    """The first to the left, the others to the right."""
    assert table(["name", "ms"], [["a", "1.0"], ["longer", "12.5"]]) == (
        "name      ms\na        1.0\nlonger  12.5"
    )


def test_a_slope_is_in_mib_a_minute() -> None:
    """One MiB every ten seconds is six a minute."""
    assert slope([sample(second, second / 10) for second in range(0, 100, 10)]) == pytest.approx(6.0)


def test_a_slope_leaves_out_the_first_seconds() -> None:
    """What a process takes at its start is no growth."""
    samples = [sample(0, 0), sample(10, 50), sample(20, 50), sample(30, 50)]
    assert slope(samples, skip=10) == pytest.approx(0.0)


def test_one_moment_has_no_slope() -> None:
    with pytest.raises(ValueError, match="two samples"):
        slope([sample(1, 1), sample(1, 2)])


@pytest.mark.parametrize("shape", list(CURVES))
def test_a_shape_reaches_its_peak_never_passes_it_and_ends(shape: ShapeName) -> None:
    plan = Plan(shape, 50, 100)
    users = [plan.users(second) for second in range(100)]
    assert all(count is not None and 1 <= count <= 50 for count in users)
    assert 50 in users
    assert plan.users(100) is None


def test_a_ramp_never_goes_down() -> None:
    plan = Plan("ramp", 50, 100)
    users = [plan.users(second) or 0 for second in range(100)]
    assert users == sorted(users)


def test_a_spike_comes_back() -> None:
    plan = Plan("spike", 50, 100)
    assert [plan.users(second) for second in (10, 50, 90)] == [10, 50, 10]


@pytest.mark.parametrize(("peak", "seconds"), [(0, 60), (5_001, 60), (1, 4), (1, 24 * 3600 + 1)])
def test_a_plan_out_of_bounds_is_refused(peak: int, seconds: int) -> None:
    """Nothing runs without an end, or with more users than a machine can hold."""
    with pytest.raises(ValueError, match=r"users|seconds"):
        Plan("steady", peak, seconds)


def test_a_history_is_of_all_calls_together_and_begins_with_the_first() -> None:
    """Rows of single tools are left out, and `N/A` is nothing."""
    row = {
        "Timestamp": "1000", "User Count": "5", "Name": "Aggregated", "Requests/s": "2.5", "Failures/s": "0",
        "50%": "10", "95%": "N/A", "99%": "30", "Total Request Count": "0",
    }  # fmt: skip
    rows = [
        row,
        {**row, "Timestamp": "1002", "Total Request Count": "4"},
        {**row, "Timestamp": "1003", "Total Request Count": "9", "Name": "kb_search"},
        {**row, "Timestamp": "1004", "Total Request Count": "9"},
    ]
    found = moments(rows)
    assert [moment.seconds for moment in found] == [0, 2]
    assert (found[0].users, found[0].rate, found[0].p50, found[0].p95) == (5, 2.5, 10, 0)
