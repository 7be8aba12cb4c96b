"""Metrics in Prometheus's text format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from kb_server.observability.metrics import Metrics, MmapCounters


def samples(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.render().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r'[a-z_]+\{([a-z_]+="[^\n]*",?)*\} [0-9.e+-]+', line) for line in lines)
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_the_histogram_is_cumulative_with_the_promised_buckets() -> None:
    metrics = Metrics()
    for seconds in (0.1, 0.3, 0.7, 100.0):
        metrics.count_call("t", seconds)
    seen = samples(metrics)

    def bucket(bound: str) -> float:
        return seen[f'mcp_request_duration_seconds_bucket{{tool="t",le="{bound}"}}']

    assert [bucket(bound) for bound in ("0.05", "0.1", "0.5", "1.0", "60.0", "+Inf")] == [0, 1, 2, 3, 3, 4]
    assert seen['mcp_request_duration_seconds_count{tool="t"}'] == 4
    assert seen['mcp_request_duration_seconds_sum{tool="t"}'] == 101.1


def test_search_results_add_up_by_collection() -> None:
    metrics = Metrics()
    metrics.count_call("search", 0.125, results=3)
    metrics.count_call("search", 0.125, results=2, collection_id="c1")
    metrics.count_call("search", 0.125, results=0, collection_id="c1")
    seen = samples(metrics)
    assert seen['mcp_search_results_count{collection_id="all"}'] == 3
    assert seen['mcp_search_results_count{collection_id="c1"}'] == 2


def test_labels_are_escaped() -> None:
    metrics = Metrics()
    metrics.count_call("search", 0.125, results=1, collection_id='a"b\\c\nd')
    assert r'collection_id="a\"b\\c\nd"' in metrics.render()


def test_before_the_first_call_the_families_are_announced() -> None:
    text = Metrics().render()
    assert "# TYPE mcp_request_duration_seconds histogram\n" in text
    assert text.count("# HELP") == 5


@pytest.fixture
def counters_of(tmp_path: Path) -> Iterator[Callable[[int], MmapCounters]]:
    with ExitStack() as stack:
        yield lambda slot: stack.enter_context(closing(MmapCounters(tmp_path, slot)))


def test_a_worker_counts_on_where_the_one_before_it_ended(counters_of: Callable[[int], MmapCounters]) -> None:
    """A decreasing counter would look like a restart of the whole server."""
    before = counters_of(0)
    before.add(("a",), 1)
    after = counters_of(0)
    after.add(("b",), 1)
    after.add(("a",), 1)
    assert after.totals() == {("a",): 2, ("b",): 1}


def test_a_name_that_is_half_written_is_not_read(
    tmp_path: Path, counters_of: Callable[[int], MmapCounters]
) -> None:
    counters = counters_of(0)
    counters.add(("a",), 1)
    with (tmp_path / "0.names").open("ab") as names:
        names.write(b'["b')
    assert counters.totals() == {("a",): 1}
    after = counters_of(0)
    after.add(("c",), 1)
    assert after.totals() == {("a",): 1, ("c",): 1}


def test_names_beyond_the_capacity_are_not_counted(
    counters_of: Callable[[int], MmapCounters], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels that callers can invent must not grow without limit."""
    monkeypatch.setattr("kb_server.observability.metrics.CAPACITY", 1)
    counters = counters_of(0)
    counters.add(("a",), 1)
    counters.add(("b",), 1)
    assert counters.totals() == {("a",): 1}


def test_metrics_over_shared_cells_read_as_those_of_one_process(
    counters_of: Callable[[int], MmapCounters],
) -> None:
    alone, shared, other = Metrics(), Metrics(counters_of(0)), Metrics(counters_of(1))
    for metrics in (alone, shared):
        metrics.count_call("t", 0.125)
        metrics.count_call("search", 0.125, results=3)
    alone.count_call("t", 0.25, "timeout")
    other.count_call("t", 0.25, "timeout")
    assert sorted(shared.render().splitlines()) == sorted(alone.render().splitlines())
