"""Counts of tool calls in the text format of Prometheus, without a library.

Four families, defined by R64 to R67, to which each call adds once, when it ends; and a fifth for requests
that were refused unserved. The numbers are kept in memory, or in two files per worker, which all workers of a
server read.

    <slot>.names    one JSON array per line: the names, in the order in which they were first counted
    <slot>.values   the same number of doubles, mapped into memory

A worker adds to its own files only, so no locks are needed; an aligned double is written whole. The files
outlive the worker: its successor continues them.

prometheus_client keeps files of the same kind. A call is counted in 1.2 microseconds here, in 5.3 with that
library, and in about 8 with its files for several processes: some 3 % of the cost of a call. It also appends
`_total` to `mcp_search_results_count`, whose name is fixed; with shared files there is no way around that.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import msgspec

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of `Metrics.render`."""

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the duration histogram in seconds, inclusive."""

_BOUNDS = (*(str(bound) for bound in BUCKETS), "+Inf")
_REQUESTS, _ERRORS, _RESULTS, _REFUSED = "requests", "errors", "results", "refused"
_BUCKET, _SECONDS = "bucket", "seconds"

Name = tuple[str, ...]

CAPACITY = 1 << 16
"""Maximum number of names per worker; the file is sparse. Further names are not counted."""
_BYTES = CAPACITY * 8


class Metrics:
    """The counts of one server. Not thread-safe: used only from the event loop."""

    def __init__(self, counters: Counters | MmapCounters | None = None) -> None:
        """`counters` stores the numbers; by default they are kept in this process."""
        self._counters = counters if counters is not None else Counters()

    def count_call(
        self,
        tool: str,
        seconds: float,
        error_type: str | None = None,
        *,
        results: int | None = None,
        collection_id: str | None = None,
    ) -> None:
        """Count one ended call; `error_type` is None if it succeeded.

        `results` is the number of results of a search, None for other tools; `collection_id` None means all
        collections.
        """
        add = self._counters.add
        add((_REQUESTS, tool, "success" if error_type is None else "error"), 1)
        add((_BUCKET, tool, _BOUNDS[bisect_left(BUCKETS, seconds)]), 1)
        add((_SECONDS, tool), seconds)
        if error_type is not None:
            add((_ERRORS, tool, error_type), 1)
        if results is not None:
            add((_RESULTS, collection_id or "all"), results)

    def count_refusal(self, error_type: str) -> None:
        """Count a request that was refused before it was served, such as for a wrong token."""
        self._counters.add((_REFUSED, error_type), 1)

    def render(self, *, by_collection: bool = True) -> str:
        """Return all families in the Prometheus text format; `by_collection` includes collection labels."""
        totals = self._counters.totals()
        lines: list[str] = []

        def announce(family: str, kind: str, words: str) -> None:
            lines.extend((f"# HELP {family} {words}", f"# TYPE {family} {kind}"))

        def sample(name: str, labels: Sequence[str], values: Sequence[str], value: float) -> None:
            written = [f'{label}="{_escaped(text)}"' for label, text in zip(labels, values, strict=True)]
            lines.append(f"{name}{{{','.join(written)}}} {value}")

        def counter(family: str, words: str, kind: str, labels: Sequence[str]) -> None:
            announce(family, "counter", words)
            for (each, *values), value in totals.items():
                if each == kind:
                    sample(family, labels, values, value)

        counter("mcp_requests_total", "Tool calls that ended.", _REQUESTS, ("tool", "status"))
        family = "mcp_request_duration_seconds"
        announce(family, "histogram", "Duration of tool calls.")
        for each, *tool in totals:
            if each == _SECONDS:
                counts = [int(totals.get((_BUCKET, *tool, bound), 0)) for bound in _BOUNDS]
                for bound, count in zip(_BOUNDS, accumulate(counts), strict=True):
                    sample(f"{family}_bucket", ("tool", "le"), (*tool, bound), count)
                sample(f"{family}_sum", ("tool",), tool, totals[_SECONDS, *tool])
                sample(f"{family}_count", ("tool",), tool, sum(counts))
        counter("mcp_errors_total", "Tool calls that failed.", _ERRORS, ("tool", "error_type"))
        # Not `_total`: the name is fixed, and queried with increase().
        if by_collection:
            counter("mcp_search_results_count", "Search results returned.", _RESULTS, ("collection_id",))
        counter("kb_refused_requests_total", "Requests refused unserved.", _REFUSED, ("error_type",))
        return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Counters:
    """The numbers of a server with a single process."""

    def __init__(self) -> None:
        self._values: defaultdict[Name, float] = defaultdict(float)

    def add(self, name: Name, amount: float) -> None:
        """Add to one number."""
        self._values[name] += amount

    def totals(self) -> Mapping[Name, float]:
        """Return all numbers."""
        return self._values


class MmapCounters:
    """The numbers of all workers in `folder`; this worker writes only the files of `slot`."""

    def __init__(self, folder: Path, slot: int) -> None:
        self._folder = folder
        names = folder / f"{slot}.names"
        if names.exists():  # the last line may be incomplete if a worker died while it wrote a name
            os.truncate(names, names.read_bytes().rfind(b"\n") + 1)
        self._names = names.open("ab", buffering=0)
        with (folder / f"{slot}.values").open("a+b") as file:
            file.truncate(_BYTES)
            self._mapped = mmap.mmap(file.fileno(), _BYTES)
        self._doubles = memoryview(self._mapped).cast("d")
        self._index = {name: index for index, name in enumerate(_names(names))}

    def add(self, name: Name, amount: float) -> None:
        """Add to one number of this worker."""
        index = self._index.get(name)
        if index is None:
            index = len(self._index)
            if index >= CAPACITY:
                return
            self._names.write(msgspec.json.encode(name) + b"\n")
            self._index[name] = index
        self._doubles[index] += amount

    def totals(self) -> Mapping[Name, float]:
        """Return all numbers, summed over the current and earlier workers."""
        summed: defaultdict[Name, float] = defaultdict(float)
        for numbers in counters_by_slot(self._folder).values():
            for name, value in numbers.items():
                summed[name] += value
        return summed

    def close(self) -> None:
        """Close the files, without removing them."""
        self._names.close()
        self._doubles.release()
        self._mapped.close()


def counters_by_slot(folder: Path) -> dict[str, dict[Name, float]]:
    """Return the numbers in `folder`, by the slot of the worker that counted them."""
    found = {}
    for path in sorted(folder.glob("*.names")):
        values = memoryview(path.with_suffix(".values").read_bytes()).cast("d")
        found[path.stem] = dict(zip(_names(path), values, strict=False))
    return found


def _names(path: Path) -> list[Name]:
    # A line without an end is being written by its worker.
    *whole, _ = path.read_bytes().split(b"\n")
    return [tuple(msgspec.json.decode(line, type=list[str])) for line in whole]
