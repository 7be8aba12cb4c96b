"""`bench scaling`: the tables of docs/scaling.md, estimated from measured costs, and a simulation of them.

A test holds the page to these tables. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from statistics import NormalDist, fmean
from typing import Annotated, ClassVar, NamedTuple

import msgspec

from bench import Option
from bench.fleet import Costs, Nodes, bottleneck, simulated
from bench.runner import Report
from kb_load.report import figures_table, percentile

_GIB = 2**30
_MILLION = 1e6
_ENGINES = 4
"""Engines on the machine in front of index nodes; the embedded index has one."""
_P95 = NormalDist().inv_cdf(0.95)


class Cost(NamedTuple):
    """A constant of the model, and its origin."""

    name: str
    value: float
    unit: str
    origin: str


SERVER = Cost("server, a call", 0.17, "ms of a core", "measured: bench hosts, both versions")
QUESTION = Cost("embedding of a question", 5.8, "ms of a core", "measured: bench engine, p50")
ENGINE = Cost("engine, the rest of a search", 1.5, "ms of a core", "measured: kb up with 300 notes")
PASSAGE = Cost("embedding of a passage", 49.8, "ms of a core", "measured: a folder taken in, one thread")
OPENVINO = Cost("the same on OpenVINO", 27, "ms of a core", "measured: a folder taken in, one thread")
SCAN = Cost("embedded index, a search of 10^6", 25.6, "ms of a core", "measured: the index, two threads")
SCAN_TAIL = Cost("embedded index, p95 / p50", 1.08, "", "measured: the index at 10^6, 14.4 / 13.3 ms")
SCAN_MEMORY = Cost(
    "embedded index, memory", 850, "bytes a passage", "measured: bench search, 811 MiB at 10^6"
)
SQLITE = Cost("SQLite, a passage", 3_290, "bytes", "measured: bench search at 10^6, with the index")
SQLITE_INSERTS = Cost("SQLite, inserts", 8_700, "passages a second", "measured: bench search at 10^6")
NODE = Cost("Qdrant, a search of 10^6", 4.9, "ms of a core", "estimate: 0.5 at 10^5, growth as tantivy's")
NODE_TAIL = Cost("Qdrant, p95 / p50", 1.6, "", "measured: its core in process at 10^5, 0.8 / 0.5 ms")
CLIENT = Cost("engine, an index in Qdrant", 5, "ms of a core", "measured: limits, 5 to 25")
FAN_OUT = Cost("fan-out", 0.1, "ms a shard", "estimate: no more than a small POST of aiohttp's client takes")
NODE_MEMORY = Cost("Qdrant, memory", 3_104, "bytes a passage", "estimate: vectors 384 x 4 x 1.5, words 800")
POSTGRES = Cost("PostgreSQL, a passage", 2_700, "bytes", "measured: 100 words and a vector, index elsewhere")
INSERTS = Cost("PostgreSQL, inserts", 500, "passages a second", "measured: one transaction, index of its own")
FETCH = Cost("PostgreSQL, a search", 0.3, "ms of a core", "estimate: ten passages and their documents by key")
CORES = Cost("node, cores", 8, "cores", "assumed: as in Qdrant's published single-node benchmark")
MEMORY = Cost("node, memory", 32, "GiB", "assumed: as in Qdrant's published single-node benchmark")
SHARE = Cost("node, share for the index", 0.7, "of memory", "assumed: the rest is for system and merges")
BUSY = Cost("busy", 0.6, "of cores", "assumed: the rest is for bursts and failed neighbours")
HOP = Cost("hop", 0.25, "ms one way", "assumed: one data centre")
COSTS = [each for each in list(globals().values()) if isinstance(each, Cost)]


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """A base of `passages`, in the embedded index or in nodes of Qdrant: one copy."""

    index: str
    passages: int

    @property
    def embedded(self) -> bool:
        return self.index == "embedded"

    @property
    def memory(self) -> float:
        return self.passages * (SCAN_MEMORY if self.embedded else NODE_MEMORY).value / _GIB

    @property
    def nodes(self) -> int:
        return 1 if self.embedded else ceil(self.memory / (MEMORY.value * SHARE.value))

    @property
    def work(self) -> float:
        """Processor time of a search in the index, in milliseconds."""
        return self.passages / _MILLION * (SCAN if self.embedded else NODE).value

    @property
    def searches(self) -> float:
        return 1000 * self.nodes * CORES.value * BUSY.value / self.work

    @property
    def hours(self) -> list[float]:
        """Hours of a core for embedding, without and with OpenVINO, and of one stream of inserts."""
        inserts = 1000 / (SQLITE_INSERTS if self.embedded else INSERTS).value
        return [self.passages * each / 3.6e6 for each in (PASSAGE.value, OPENVINO.value, inserts)]

    @property
    def disk(self) -> float:
        return self.passages * (SQLITE if self.embedded else POSTGRES).value / _GIB


BASES = [
    Base(index="embedded", passages=10**6), Base(index="embedded", passages=10**8),
    Base(index="Qdrant", passages=10**6), Base(index="Qdrant", passages=10**8),
    Base(index="Qdrant", passages=10**10),
]  # fmt: skip


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """Searches of `clients` that ask again as soon as they are answered."""

    base: Base
    clients: int
    rate: float
    p50: float
    p95: float
    busiest: str
    share: float


class ScalingReport(Report, frozen=True, kw_only=True):
    """The tables: costs, estimates and the simulation."""

    columns: ClassVar = {
        "index": "{0.base.index}", "passages": "{0.base.passages:,}", "index nodes": "{0.base.nodes:,}",
        "clients": "{0.clients}", "searches/s": "{0.rate:,.1f}", "p50 ms": "{0.p50:,.0f}",
        "p95 ms": "{0.p95:,.0f}", "busiest": "{0.busiest}", "busy": "{0.share:.0%}",
    }  # fmt: skip
    costs: ClassVar = {
        "constant": "{0.name}", "value": "{0.value:,g}", "unit": "{0.unit}", "from": "{0.origin}",
    }  # fmt: skip
    estimates: ClassVar = {
        "index": "{0.index}", "passages": "{0.passages:,}", "memory GiB": "{0.memory:,.1f}",
        "nodes": "{0.nodes:,}", "core ms a search": "{0.work:,.0f}", "searches/s": "{0.searches:,.0f}",
        "embedding, core h": "{0.hours[0]:,.0f}", "on OpenVINO": "{0.hours[1]:,.0f}",
        "base GiB": "{0.disk:,.1f}", "its inserts, h": "{0.hours[2]:,.1f}",
    }  # fmt: skip
    searches: list[Simulated]

    def rows(self) -> list[Simulated]:
        return self.searches

    def text(self) -> str:
        tables = (
            (self.costs, COSTS), (self.estimates, BASES), (self.columns, self.searches),
        )  # fmt: skip
        return "\n\n".join(figures_table(columns, rows) for columns, rows in tables)


def run(
    *,
    clients: Annotated[Sequence[int], Option("numbers of clients", 1, 1_000)] = (1, 8, 64),
    seconds: Annotated[int, Option("simulated time with the smallest base, in seconds", 1, 3_600)] = 2,
    note: Callable[[str], None] = print,
) -> ScalingReport:
    """Simulate searches of each base; a larger one takes more time, for fewer searches."""
    report = ScalingReport(searches=[])
    for base in BASES:
        for number in clients:
            report.searches.append(_simulated(base, number, seconds))
            note(f"{base.index}, {base.passages:,} passages, {number} clients")
    return report


def _simulated(base: Base, clients: int, seconds: float) -> Simulated:
    tail = (SCAN_TAIL if base.embedded else NODE_TAIL).value
    factors = [tail ** (NormalDist().inv_cdf((each + 0.5) / 100) / _P95) for each in range(100)]
    cpu = {"client": 0.0, "server": SERVER.value, "engine": ENGINE.value, "embedding": QUESTION.value}
    seconds *= max(1, base.work / base.nodes / 20)  # a longer search is simulated for longer
    if base.embedded:
        index, wait = None, 4 * HOP.value
        cpu |= {"index": base.work, "database": 0.0}
    else:
        index = Nodes(nodes=base.nodes, cores=int(CORES.value), time=base.work / base.nodes)
        wait = 8 * HOP.value + FAN_OUT.value * base.nodes
        cpu |= {"engine": ENGINE.value + CLIENT.value, "database": FETCH.value}
    costs = Costs(cpu=cpu, wait=wait, spread=[round(each / fmean(factors), 6) for each in factors])
    engines = 1 if base.embedded else _ENGINES
    cores = int(CORES.value)
    calls = simulated(
        {"search": costs}, cores=cores, engines=engines, clients=clients, seconds=seconds, index=index
    )
    busiest, share = bottleneck(calls, cores=cores, engines=engines, index=index)
    times = calls.times["search"]
    return Simulated(
        base=base, clients=clients, rate=calls.rate, p50=percentile(times, 0.5),
        p95=percentile(times, 0.95), busiest=busiest, share=share,
    )  # fmt: skip
