"""The simulation of servers and engines: limits that can be computed, and the tables of the page."""

from __future__ import annotations

import pytest

from bench import scaling
from bench.cluster import Kind
from bench.fleet import Costs, Nodes, bottleneck, simulated
from tests.support.stack import ROOT


def costs(server: float, engine: float, database: float, **other: float) -> Costs:
    return Costs(cpu={"client": 0.0, "server": server, "engine": engine, "database": database, **other})


@pytest.mark.parametrize(
    ("search", "cores", "engines", "nodes", "busiest", "rate"),
    [
        (costs(1, 4, 3), 2, 8, None, "cores", 2000 / 8),
        (costs(1, 4, 0), 8, 2, None, "interpreter of the engine", 2000 / 4),
        (costs(4, 1, 0), 8, 8, None, "interpreter of the server", 2000 / 4),
        (costs(1, 1, 1, index=16), 4, 2, None, "cores", 4000 / 19),
        (costs(1, 1, 1), 8, 8, Nodes(nodes=3, cores=2, time=20), "index nodes", 2000 / 20),
    ],
)
def test_many_clients_get_the_rate_of_the_busiest_resource(
    search: Costs, cores: int, engines: int, nodes: Nodes | None, busiest: str, rate: float
) -> None:
    calls = simulated({"search": search}, cores=cores, engines=engines, clients=24, seconds=2, index=nodes)
    found, share = bottleneck(calls, cores=cores, engines=engines, index=nodes)
    assert (found, round(share, 1)) == (busiest, 1.0)
    assert calls.rate == pytest.approx(rate, rel=0.05)


def test_a_client_alone_waits_for_the_costs_of_its_calls() -> None:
    both: dict[Kind, Costs] = {"search": costs(1, 4, 3), "note": costs(2, 10, 8)}
    for kind, cost in both.items():
        calls = simulated(both, cores=2, engines=1, clients=1, notes=kind == "note", seconds=0.5)
        assert set(map(round, calls.times[kind])) == {sum(cost.cpu.values())}


def test_notes_of_one_engine_share_more_transactions_than_those_of_many() -> None:
    both: dict[Kind, Costs] = {"search": costs(0, 0, 0), "note": costs(0, 10, 8)}
    one, three, eight = (
        simulated(both, cores=2, engines=engines, clients=12, notes=1, seconds=1) for engines in (1, 3, 8)
    )
    assert one.cpu["database"] < 0.97 * three.cpu["database"] < 0.97 * eight.cpu["database"]


@pytest.mark.parametrize(
    "clients",
    [(1,), pytest.param((1, 8, 64), marks=pytest.mark.process)],
    ids=["of one client", "of every number of clients"],
)
def test_the_page_on_scaling_has_the_rows_of_the_benchmark(clients: tuple[int, ...]) -> None:
    page = (ROOT / "docs" / "scaling.md").read_text("utf-8").splitlines()
    rows = scaling.run(clients=clients, note=lambda _: None).text().splitlines()
    assert {tuple(row.split()) for row in rows} <= {tuple(line.split()) for line in page}
