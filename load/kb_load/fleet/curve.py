"""Searches of a fleet of one to a thousand index nodes, in virtual time, from what `costs` says."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import msgspec

from kb_load.fleet import costs
from kb_load.fleet.model import Load, Service, Services, Topology, simulate

NODES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
PASSAGES, CALLERS = "passages", "callers"
COLUMNS = {
    "growing": "{0.growth}",
    "index nodes": "{0.nodes}",
    "engine machines": "{0.engines}",
    "server cores": "{0.servers}",
    "passages": "{0.passages:,}",
    "searches/s": "{0.rate:,.0f}",
    "p50 ms": "{0.p50:.1f}",
    "p95 ms": "{0.p95:.1f}",
}
_SEED = 7
_FEWEST_SEARCHES = 500
_SHARD_SEARCHES = 100_000
"""Searches of shards in a point, where shards are so many that each makes it dear."""
_SEARCHES_OF_A_REPLICA = 30


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet of so many index nodes, at the `rate` that keeps their cores as busy as `costs` says."""

    growth: str
    nodes: int
    engines: int
    servers: int
    passages: int
    rate: float
    p50: float
    p95: float


def curve(most: int, note: Callable[[str], None], *, searches: int = 3_000) -> list[Point]:
    """A base that grows with its nodes, a shard of a million passages on each, and one whose callers grow.

    A point is of so many `searches`; of fewer where each asks many shards, of more where replicas are many.
    """
    found = []
    cores, busy, shard = int(costs.value("node, cores")), costs.value("busy"), costs.shard()
    for growth in (PASSAGES, CALLERS):
        for nodes in (each for each in NODES if each <= most):
            shards, replicas = (nodes, 1) if growth == PASSAGES else (1, nodes)
            rate = replicas * cores * busy / shard.mean
            server, fan_out = costs.seconds("server, a call"), costs.seconds("fan-out")
            topology = Topology(
                servers=ceil(rate * server / busy),
                engines=ceil(rate * (costs.search_seconds() + shards * fan_out) / cores / busy),
                engine_threads=cores,
                shards=shards,
                replicas=replicas,
                cores=cores,
                wait=6 * costs.seconds("hop"),
                fan_out=fan_out,
            )
            few = min(searches, max(_FEWEST_SEARCHES, _SHARD_SEARCHES // shards))
            outcome = simulate(
                topology,
                Services(server=Service(server), engine=Service(costs.search_seconds()), shard=shard),
                Load(calls=max(few, _SEARCHES_OF_A_REPLICA * replicas), rate=rate),
                seed=_SEED,
            )
            found.append(
                Point(
                    growth=growth, nodes=nodes, engines=topology.engines, servers=topology.servers,
                    passages=shards * costs.MILLION, rate=rate, p50=outcome.p50, p95=outcome.p95,
                )
            )  # fmt: skip
            note(f"{growth} {nodes}: {rate:.0f} searches a second, p95 {outcome.p95:.0f} ms")
    return found
