"""What a passage and a call cost: the constants of `docs/scaling.md` and of the curve.

`table()` is printed by `kb bench fleet` and stands in the page, where a test compares it. Whoever changes the
index measures again, changes a line here, and takes over the table.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from kb_load.report import table as aligned

BASES = (10**6, 10**8, 10**10)


class Constant(NamedTuple):
    """A figure, its unit, and the command that measures it; an estimate says how it is made up."""

    value: float
    unit: str
    source: str


CONSTANTS = {
    "memory of an engine": Constant(328, "MiB", "kb bench engine, at 1,000 chunks"),
    "memory of a passage": Constant(2_627, "bytes", "kb bench engine, (576 - 328) MiB / 99,000"),
    "scan of a node": Constant(
        117, "ms per million", "kb bench engine, store p50 at 100,000 times 10 (estimate)"
    ),
    "embedding of a query": Constant(5.8, "ms", "kb bench engine, p50"),
    "taking in": Constant(39.2, "passages a second", "kb bench engine, two cores"),
    "memory of a node": Constant(64, "GiB", "assumed"),
    "share for the index": Constant(0.7, "of memory", "assumed"),
    "cores of a node": Constant(16, "cores", "assumed"),
    "passages of a node": Constant(10**6, "passages", "assumed, for the curve"),
    "busy": Constant(0.6, "of cores", "assumed: the rest is for bursts"),
    "hop": Constant(0.25, "ms one way", "assumed: one data centre"),
}


def value(name: str) -> float:
    return CONSTANTS[name].value


class Estimate(NamedTuple):
    """What a base of `passages` takes, by the formulas of `estimate`."""

    passages: int
    memory_gib: float
    nodes: int
    search_core_seconds: float
    searches: float
    embedding_hours: float


def estimate(passages: int) -> Estimate:
    """Nodes by memory; searches a second of one copy of the base, when every node is asked for each."""
    held = passages * value("memory of a passage") / 2**30
    nodes = ceil(held / (value("memory of a node") * value("share for the index")))
    core_seconds = passages / 10**6 * value("scan of a node") / 1000
    return Estimate(
        passages=passages,
        memory_gib=held,
        nodes=nodes,
        search_core_seconds=core_seconds,
        searches=nodes * value("cores of a node") * value("busy") / core_seconds,
        embedding_hours=passages / value("taking in") / 3600,
    )


def table() -> str:
    """The constants, and what follows from them for each of `BASES`."""
    constants = [[name, f"{each.value:,g}", each.unit, each.source] for name, each in CONSTANTS.items()]
    rows = [
        [f"{each.passages:,}", f"{each.memory_gib:,.1f}", f"{each.nodes:,}",
         f"{each.search_core_seconds:,.2f}", f"{each.searches:,.1f}", f"{each.embedding_hours:,.1f}"]
        for each in map(estimate, BASES)
    ]  # fmt: skip
    header = ["passages", "memory GiB", "nodes", "core s a search", "searches/s", "taking in, h on 2 cores"]
    return f"{aligned(['constant', 'value', 'unit', 'from'], constants)}\n\n{aligned(header, rows)}"
