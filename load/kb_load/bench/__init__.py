"""Benchmarks behind `kb bench`: each compares in one run, in turns, and names the machine it ran on.

A benchmark is a module of this package with `run(*, ..., note) -> report`, `text(report)` and, where there is
something to draw, `plot(report, path)`; it has a line below. Its options are the parameters of `run` that are
annotated with an `Option`.
"""

from __future__ import annotations

from dataclasses import dataclass

BENCHMARKS = {
    "hosts": "one search tool on this server, the official SDK, FastMCP and a bare handler",
    "workers": "what a call costs one process of kb serve, and two that share a port",
    "uploads": "chunked and direct uploads beside bare handlers of the same work",
    "engine": "taking in, and searches as the base grows",
    "startup": "kb stdio, from its start to its first answer",
    "ingestion": "notes and kb_search while files are taken in",
    "connections": "a server whose connections strangers hold on to",
}
"""What each compares, by name."""


@dataclass(frozen=True, slots=True)
class Option:
    """A parameter of `run` as the command line takes it; the bounds are inclusive."""

    help: str
    low: int = 1
    high: int = 1_000
