"""What a passage, a call and a node cost: the constants of `docs/scaling.md` and of the curve.

`table()` is printed by `kb bench fleet` and stands in the page, where a test compares it. Whoever measures
again changes a line here, and takes over the table.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import msgspec

from kb_load.fleet.model import Service
from kb_load.report import figures_table
from kb_load.report import table as aligned

MEASURED, ESTIMATED, ASSUMED = "measured: ", "estimate: ", "assumed: "
MILLION = 10**6
_HOUR = 3600.0


class Constant(NamedTuple):
    """A figure, its unit, and where it is from: what measures it, or how it is estimated or why assumed."""

    value: float
    unit: str
    source: str


CONSTANTS = {
    "server, a call": Constant(0.282, "ms of a core", MEASURED + "kb bench hosts, both versions"),
    "embedding of a question": Constant(5.8, "ms of a core", MEASURED + "kb bench engine, p50"),
    "engine, the rest of a search": Constant(
        3.8, "ms of a core", ESTIMATED + "kb bench engine at 1,000 chunks: http less store and embedding"
    ),
    "embedding of a passage": Constant(
        49.8, "ms of a core", MEASURED + "kb bench taking, onnxruntime, one thread"
    ),
    "the same on OpenVINO": Constant(27, "ms of a core", MEASURED + "kb bench taking, one thread"),
    "engine, memory": Constant(328, "MiB", MEASURED + "kb bench engine at 1,000 chunks, model included"),
    "embedded index, p50 at 10^5": Constant(6.2, "ms", MEASURED + "kb bench search, hybrid"),
    "embedded index, p95 at 10^5": Constant(8, "ms", MEASURED + "kb bench search, hybrid"),
    "embedded index, p50 at 10^6": Constant(27, "ms", MEASURED + "kb bench search, hybrid"),
    "embedded index, p95 at 10^6": Constant(36, "ms", MEASURED + "kb bench search, hybrid"),
    "embedded index, p50 by a 5 % tag": Constant(24, "ms", MEASURED + "kb bench search at 10^6, hybrid"),
    "embedded index, p95 by a 5 % tag": Constant(31, "ms", MEASURED + "kb bench search at 10^6, hybrid"),
    "embedded index, start": Constant(1.2, "s", MEASURED + "kb bench search at 10^6"),
    "embedded index, memory": Constant(
        796, "MiB", MEASURED + "kb bench search at 10^6, PSS after its searches"
    ),
    "embedded index, size": Constant(620, "bytes a passage", MEASURED + "591 MiB of files at 10^6"),
    "embedded index, inserts": Constant(
        5_110, "passages a second", MEASURED + "kb bench search at 10^6, vectors given"
    ),
    "engines on one PostgreSQL": Constant(
        7.6, "times one, of 8", MEASURED + "kb bench engines, an embedder that waits"
    ),
    "Qdrant, p50 at 10^5": Constant(1.2, "ms", MEASURED + "kb bench search, Qdrant's core in process"),
    "Qdrant, p95 at 10^5": Constant(2.2, "ms", MEASURED + "kb bench search, Qdrant's core in process"),
    "Qdrant, 10^6 for 10^5": Constant(
        6.1, "times", ESTIMATED + "as tantivy with HNSW grew beside kb, 2.3 to 14 ms; beyond linear"
    ),
    "Qdrant, vectors": Constant(
        2_304, "bytes a passage", ESTIMATED + "384 x 4 x 1.5, Qdrant's documentation, Capacity Planning"
    ),
    "Qdrant, words": Constant(800, "bytes a passage", ESTIMATED + "100 words of 8 bytes"),
    "fan-out": Constant(
        0.1, "ms of a core a shard", ESTIMATED + "no more than a small POST of aiohttp's client takes"
    ),
    "PostgreSQL, a passage": Constant(
        2_700, "bytes", MEASURED + "100 words and their vector, index elsewhere"
    ),
    "PostgreSQL's index, a passage": Constant(
        9_800, "bytes", MEASURED + "postings of 100 words, beside the passage itself"
    ),
    "PostgreSQL's index, a search": Constant(
        28, "ms of a core", MEASURED + "at 10^5, HNSW and words (performance, Searches on PostgreSQL)"
    ),
    "PostgreSQL, inserts": Constant(
        500, "passages a second", MEASURED + "one transaction (limits), with its own index"
    ),
    "PostgreSQL, index elsewhere": Constant(
        0.3, "ms of a core", ESTIMATED + "ten passages and their documents by key"
    ),
    "node, cores": Constant(8, "cores", ASSUMED + "as Qdrant's published single-node benchmark has"),
    "node, memory": Constant(32, "GiB", ASSUMED + "as Qdrant's published single-node benchmark has"),
    "node, share for the index": Constant(0.7, "of memory", ASSUMED + "the rest: system, merges"),
    "busy": Constant(0.6, "of cores", ASSUMED + "the rest is for bursts and failed neighbours"),
    "hop": Constant(0.25, "ms one way", ASSUMED + "one data centre"),
}  # fmt: skip


def value(name: str) -> float:
    return CONSTANTS[name].value


def seconds(name: str) -> float:
    """Of a constant in milliseconds."""
    return value(name) / 1000


def shard() -> Service:
    """A search of a shard of a million passages in Qdrant."""
    factor = value("Qdrant, 10^6 for 10^5")
    return Service.of(seconds("Qdrant, p50 at 10^5") * factor, seconds("Qdrant, p95 at 10^5") * factor)


def search_seconds() -> float:
    """An engine's processor seconds for a search, without the index."""
    return seconds("embedding of a question") + seconds("engine, the rest of a search")


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a base takes, by the formulas of the page; times are those of one core."""

    index: str
    passages: int
    memory_gib: float
    nodes: int
    search_ms: float
    searches: float
    embedding_hours: float
    embedding_hours_openvino: float
    postgres_gib: float
    postgres_hours: float


def embedded(passages: int) -> Estimate:
    """One engine with the embedded index."""
    return _estimate(
        "embedded", passages, value("embedded index, size"), seconds("embedded index, p50 at 10^6"), 1
    )


def clustered(passages: int) -> Estimate:
    """Qdrant, one copy, as many nodes as memory asks for."""
    size = value("Qdrant, vectors") + value("Qdrant, words")
    room = value("node, memory") * value("node, share for the index") * 2**30
    return _estimate("Qdrant", passages, size, shard().mean, ceil(passages * size / room))


def _estimate(index: str, passages: int, size: float, seconds_a_million: float, nodes: int) -> Estimate:
    search = seconds_a_million * passages / MILLION
    return Estimate(
        index=index,
        passages=passages,
        memory_gib=passages * size / 2**30,
        nodes=nodes,
        search_ms=1000 * search,
        searches=nodes * value("node, cores") * value("busy") / search,
        embedding_hours=passages * seconds("embedding of a passage") / _HOUR,
        embedding_hours_openvino=passages * seconds("the same on OpenVINO") / _HOUR,
        postgres_gib=passages * value("PostgreSQL, a passage") / 2**30,
        postgres_hours=passages / value("PostgreSQL, inserts") / _HOUR,
    )


ESTIMATES = (
    embedded(10**6), embedded(10**8), clustered(10**6), clustered(10**8), clustered(10**10),
)  # fmt: skip


_COLUMNS = {
    "index": "{0.index}",
    "passages": "{0.passages:,}",
    "memory GiB": "{0.memory_gib:,.1f}",
    "nodes": "{0.nodes:,}",
    "core ms a search": "{0.search_ms:,.0f}",
    "searches/s": "{0.searches:,.0f}",
    "embedding, core h": "{0.embedding_hours:,.1f}",
    "on OpenVINO": "{0.embedding_hours_openvino:,.1f}",
    "PostgreSQL GiB": "{0.postgres_gib:,.1f}",
    "its inserts, h": "{0.postgres_hours:,.1f}",
}


def table() -> str:
    """The constants, and what follows from them."""
    constants = [[name, f"{each.value:,g}", each.unit, each.source] for name, each in CONSTANTS.items()]
    return "\n\n".join(
        [aligned(["constant", "value", "unit", "from"], constants), figures_table(_COLUMNS, ESTIMATES)]
    )
