"""Counts of tool calls in the text format of Prometheus, without a library.

Four families, as R64 to R67 name them; each call adds to them once, when it ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from kb_server.observability.counters import CounterStore, InProcessCounters, Name

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of `Metrics.render`."""

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the duration histogram in seconds, inclusive."""

_BOUNDS = (*(str(bound) for bound in BUCKETS), "+Inf")
_REQUESTS, _ERRORS, _RESULTS = "requests", "errors", "results"
_BUCKET, _SECONDS = "bucket", "seconds"

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """The counts of one server. Not for threads: it is touched from the event loop alone."""

    def __init__(self, counters: CounterStore | None = None) -> None:
        """`counters` are where the numbers are kept; without, in this process."""
        self._counters = counters if counters is not None else InProcessCounters()

    def count_call(self, tool: str, seconds: float, error_type: str | None = None) -> None:
        """Count one ended call; `error_type` is None where it succeeded."""
        add = self._counters.add
        add((_REQUESTS, tool, "success" if error_type is None else "error"), 1)
        add((_BUCKET, tool, _BOUNDS[bisect_left(BUCKETS, seconds)]), 1)
        add((_SECONDS, tool), seconds)
        if error_type is not None:
            add((_ERRORS, tool, error_type), 1)

    def count_results(self, collection_id: str | None, results: int) -> None:
        """Add the results of one search; `collection_id` None searched all collections."""
        self._counters.add((_RESULTS, collection_id or "all"), results)

    def render(self) -> str:
        """All families in the Prometheus text format."""
        return "".join(f"{line}\n" for line in _lines(self._counters.totals()))


def _lines(totals: Mapping[Name, float]) -> Iterator[str]:
    yield from _heading("mcp_requests_total", "counter", "Tool calls that ended.")
    yield from _samples("mcp_requests_total", totals, _REQUESTS, ("tool", "status"))
    yield from _heading("mcp_request_duration_seconds", "histogram", "Duration of tool calls.")
    for name in totals:
        if name[0] == _SECONDS:
            yield from _histogram("mcp_request_duration_seconds", totals, name[1])
    yield from _heading("mcp_errors_total", "counter", "Tool calls that failed.")
    yield from _samples("mcp_errors_total", totals, _ERRORS, ("tool", "error_type"))
    # Not `_total`: the name is promised as it is, and queried with increase().
    yield from _heading("mcp_search_results_count", "counter", "Search results returned.")
    yield from _samples("mcp_search_results_count", totals, _RESULTS, ("collection_id",))


def _histogram(family: str, totals: Mapping[Name, float], tool: str) -> Iterator[str]:
    counts = [int(totals.get((_BUCKET, tool, bound), 0)) for bound in _BOUNDS]
    for bound, count in zip(_BOUNDS, accumulate(counts), strict=True):
        yield _sample(f"{family}_bucket", (("tool", tool), ("le", bound)), count)
    yield _sample(f"{family}_sum", (("tool", tool),), totals[_SECONDS, tool])
    yield _sample(f"{family}_count", (("tool", tool),), sum(counts))


def _samples(family: str, totals: Mapping[Name, float], kind: str, labels: tuple[str, ...]) -> Iterator[str]:
    for name, value in totals.items():
        if name[0] == kind:
            yield _sample(family, tuple(zip(labels, name[1:], strict=True)), value)


def _heading(name: str, kind: str, words: str) -> Iterable[str]:
    return (f"# HELP {name} {words}", f"# TYPE {name} {kind}")


def _sample(name: str, labels: Labels, value: float) -> str:
    written = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{written}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
