"""Metrics: the text that Prometheus reads."""

from __future__ import annotations

import re

from kb_server.observability import Metrics


def samples(metrics: Metrics) -> dict[str, float]:
    """Each sample line as name with labels, and value."""
    lines = [line for line in metrics.render().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r'[a-z_]+\{([a-z_]+="[^\n]*",?)*\} [0-9.e+-]+', line) for line in lines)
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_a_success_and_an_error_are_counted_apart() -> None:
    metrics = Metrics()
    metrics.count_call("kb_search", 0.01)
    metrics.count_call("kb_search", 0.02, "timeout")
    seen = samples(metrics)
    assert seen['mcp_requests_total{tool="kb_search",status="success"}'] == 1
    assert seen['mcp_requests_total{tool="kb_search",status="error"}'] == 1
    assert seen['mcp_errors_total{tool="kb_search",error_type="timeout"}'] == 1


def test_the_histogram_is_cumulative_with_the_promised_buckets() -> None:
    """0.1, 0.5 and 1.0 seconds are among them, bounds inclusive; sum and count agree."""
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
    """Under exactly the promised name; `all` where no collection was given."""
    metrics = Metrics()
    metrics.count_call("search", 0.125, results=3)
    metrics.count_call("search", 0.125, results=2, collection_id="c1")
    metrics.count_call("search", 0.125, results=0, collection_id="c1")
    seen = samples(metrics)
    assert seen['mcp_search_results_count{collection_id="all"}'] == 3
    assert seen['mcp_search_results_count{collection_id="c1"}'] == 2


def test_labels_are_escaped() -> None:
    """A quote or a line break in a label does not break the text."""
    metrics = Metrics()
    metrics.count_call("search", 0.125, results=1, collection_id='a"b\\c\nd')
    assert r'collection_id="a\"b\\c\nd"' in metrics.render()


def test_before_the_first_call_the_families_are_announced() -> None:
    """A scrape at start is well-formed."""
    text = Metrics().render()
    assert "# TYPE mcp_request_duration_seconds histogram\n" in text
    assert text.count("# HELP") == 4
