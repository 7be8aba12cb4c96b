"""Counts of tool calls in the text format of Prometheus, without a library.

Four families, as R64 to R67 name them; each call adds to them once, when it ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of `Metrics.render`."""

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the duration histogram in seconds, inclusive."""

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """The counts of one process. Not for threads: it is touched from the event loop alone."""

    def __init__(self) -> None:
        self._requests: defaultdict[Labels, float] = defaultdict(float)
        self._errors: defaultdict[Labels, float] = defaultdict(float)
        self._results: defaultdict[Labels, float] = defaultdict(float)
        self._durations: dict[str, _Histogram] = {}

    def count_call(self, tool: str, seconds: float, error_type: str | None = None) -> None:
        """Count one ended call; `error_type` is None where it succeeded."""
        status = "success" if error_type is None else "error"
        self._requests[("tool", tool), ("status", status)] += 1
        self._durations.setdefault(tool, _Histogram()).observe(seconds)
        if error_type is not None:
            self._errors[("tool", tool), ("error_type", error_type)] += 1

    def count_results(self, collection_id: str | None, results: int) -> None:
        """Add the results of one search; `collection_id` None searched all collections."""
        self._results[("collection_id", collection_id or "all"),] += results

    def render(self) -> str:
        """All families in the Prometheus text format."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield from _family("mcp_requests_total", "counter", "Tool calls that ended.", self._requests)
        yield from _heading("mcp_request_duration_seconds", "histogram", "Duration of tool calls.")
        for tool, histogram in self._durations.items():
            yield from histogram.lines("mcp_request_duration_seconds", tool)
        yield from _family("mcp_errors_total", "counter", "Tool calls that failed.", self._errors)
        # Not `_total`: the name is promised as it is, and queried with increase().
        yield from _family("mcp_search_results_count", "counter", "Search results returned.", self._results)


class _Histogram:
    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, tool: str) -> Iterator[str]:
        bounds = (*(str(bound) for bound in BUCKETS), "+Inf")
        for bound, count in zip(bounds, accumulate(self._counts), strict=True):
            yield _sample(f"{name}_bucket", (("tool", tool), ("le", bound)), count)
        yield _sample(f"{name}_sum", (("tool", tool),), self._sum)
        yield _sample(f"{name}_count", (("tool", tool),), sum(self._counts))


def _family(name: str, kind: str, words: str, samples: dict[Labels, float]) -> Iterator[str]:
    yield from _heading(name, kind, words)
    for labels, value in samples.items():
        yield _sample(name, labels, value)


def _heading(name: str, kind: str, words: str) -> Iterable[str]:
    return (f"# HELP {name} {words}", f"# TYPE {name} {kind}")


def _sample(name: str, labels: Labels, value: float) -> str:
    written = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{written}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
