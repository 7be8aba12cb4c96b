"""`kb bench fleet`: a simulated fleet beside real processes, and its curve to a thousand nodes.

First the costs are recorded: processor time of single calls of `kb serve`, of the stub engine behind it, and
of `kb engine` with its real model over a filled base. Then one, two and four servers over the stub, and one
and two engines, each with a base of its own, are put under open load at shares of what the model says they
can do. The model is given the same load on the cores that other programs left meanwhile. The client is part
of the model: it takes its share of the same cores.

With `--rounds 0` nothing is measured: the curve comes from the costs recorded with this module.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from math import ceil
from pathlib import Path
from statistics import median
from typing import Annotated, ClassVar

import httpx
import msgspec

from kb_engine.embed.registry import embedder_from
from kb_engine.store.port import EmbedderIdentity
from kb_engine.store.sqlite.store import open_sqlite
from kb_load.bench import Option
from kb_load.bench.engine import CHUNKS_EACH, SEED, EngineFailed, Texts, fill
from kb_load.bench.runner import Report, kb_serve, stub_engine
from kb_load.fleet import costs
from kb_load.fleet.model import Fleet, Load, Service, Services, simulate
from kb_load.fleet.recording import Observed, costs_of, observe, request_bytes
from kb_load.messages import MODERN
from kb_load.processes import LOOPBACK, Running, free_port, running
from kb_load.report import Sheet, figures_table, median_figures

SHARES = (0.3, 0.6, 0.85)
SERVERS, ENGINES = (1, 2, 4), (1, 2)
NODES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_RECORDED_CALLS = 200
_SIMULATED_CALLS = 6_000
_SHARD_SEARCHES = 400_000
"""Searches of shards in a point of the curve, where there are many shards."""
_CALLS_OF_A_REPLICA = 60
_READY_SECONDS = 180.0


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """Processor seconds of a call: client, `kb serve`, stub engine, and `kb engine` at `passages`."""

    client: float
    server: Service
    stub: Service
    engine: Service
    passages: int


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One round: `processes` of `kind` at `share` of their capacity; simulated figures in `model_...`."""

    kind: str
    processes: int
    share: float
    offered: float
    cores: float
    rate: float
    p50: float
    p95: float
    model_rate: float
    model_p50: float
    model_p95: float


class Compared(Check, frozen=True, kw_only=True):
    """Medians over the rounds."""

    def error(self, name: str) -> float:
        """By how many per cent the model is above what was measured."""
        measured: float = getattr(self, name)
        simulated: float = getattr(self, f"model_{name}")
        return (simulated / measured - 1) * 100

    @property
    def errors(self) -> list[float]:
        return [self.error(name) for name in ("rate", "p50", "p95")]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet of so many index nodes at `busy` of their cores."""

    growth: str
    nodes: int
    machines: int
    passages: float
    rate: float
    p50: float
    p95: float


class FleetReport(Report, frozen=True, kw_only=True):
    title = "A simulated fleet"
    columns: ClassVar = {
        "real and simulated": "{0.kind}",
        "processes": "{0.processes}",
        "cores left": "{0.cores:.2f}",
        "offered/s": "{0.offered:.0f}",
        "real/s": "{0.rate:.0f}",
        "sim/s": "{0.model_rate:.0f}",
        "%": "{0.errors[0]:+.0f}",
        "real p50 ms": "{0.p50:.1f}",
        "sim p50": "{0.model_p50:.1f}",
        "% ": "{0.errors[1]:+.0f}",
        "real p95 ms": "{0.p95:.1f}",
        "sim p95": "{0.model_p95:.1f}",
        "%  ": "{0.errors[2]:+.0f}",
    }
    curve_columns: ClassVar = {
        "growing": "{0.growth}",
        "index nodes": "{0.nodes}",
        "machines": "{0.machines}",
        "passages": "{0.passages:.0e}",
        "searches/s": "{0.rate:.0f}",
        "p50 ms": "{0.p50:.0f}",
        "p95 ms": "{0.p95:.0f}",
    }
    recorded: Recorded
    checks: list[Compared]
    curve: list[Point]

    def rows(self) -> Sequence[Compared]:
        return self.checks

    def text(self) -> str:
        found, recorded = [], self.recorded
        if self.checks:
            found.append(figures_table(self.columns, self.checks))
        found.append(
            f"processor time of a call: server {recorded.server.mean * 1e3:.2f} ms, stub engine "
            f"{recorded.stub.mean * 1e3:.2f}, engine {recorded.engine.mean * 1e3:.2f} at {recorded.passages} "
            f"passages, client {recorded.client * 1e3:.2f}"
        )
        parts = [figures_table(self.curve_columns, self.curve), costs.table(), self.machine.line()]
        return "\n\n".join(["\n".join(found), *parts])

    def plot(self, path: Path) -> None:
        """Draw searches a second and p95 by nodes."""
        sheet = Sheet(2, title=self.title)
        for height, y in (("rate", "searches a second"), ("p95", "p95, ms")):
            lines: dict[str, tuple[list[float], list[float]]] = {}
            for point in self.curve:
                along, values = lines.setdefault(point.growth, ([], []))
                along.append(point.nodes)
                values.append(getattr(point, height))
            sheet.lines(lines, y=y, x="index nodes")
        sheet.save(path, under=self.machine.line())


def run(
    *,
    rounds: Annotated[int, Option("turns; 0: the curve alone, from recorded costs", 0)] = 3,
    seconds: Annotated[int, Option("how long each load takes")] = 5,
    passages: Annotated[int, Option("in the base of an engine", 50, 10_000_000)] = 5_000,
    nodes: Annotated[int, Option("most index nodes of the curve")] = 1_000,
    note: Callable[[str], None] = print,
) -> FleetReport:
    """Record, check and simulate.

    Raises:
        kb_load.messages.CallFailed: a call was answered with an error.
        kb_load.processes.NotReady: a process did not start.
    """
    checks: list[Check] = []
    if rounds:
        with tempfile.TemporaryDirectory(prefix="kb-bench-") as folder:
            recorded = _measure(Path(folder), rounds, seconds, passages, checks, note)
    else:
        recorded = recorded_here()
    fields = ("offered", "cores", "rate", "p50", "p95", "model_rate", "model_p50", "model_p95")
    medians = median_figures(
        checks,
        ("kind", "processes", "share"),
        {name: (lambda each, name=name: getattr(each, name), 2) for name in fields},  # type: ignore[misc]  # mypy does not infer a lambda with a default
    )
    compared = [Compared(**figures) for _, figures in medians]
    return FleetReport(recorded=recorded, checks=compared, curve=curve(recorded, nodes, note))


def recorded_here() -> Recorded:
    """The costs that were recorded with this module."""
    return msgspec.json.decode(files("kb_load.fleet").joinpath("recorded.json").read_bytes(), type=Recorded)


def _measure(
    folder: Path, rounds: int, seconds: int, passages: int, checks: list[Check], note: Callable[[str], None]
) -> Recorded:
    texts = Texts.seeded(SEED)
    bodies = [msgspec.json.encode({"query": texts.question(), "top": 10}) for _ in range(_RECORDED_CALLS)]
    with ExitStack() as stack:
        stub, url = stack.enter_context(stub_engine(folder))
        servers = [
            stack.enter_context(kb_serve(f"server {number}", url, folder / f"server-{number}"))
            for number in range(max(SERVERS))
        ]
        engines = [
            stack.enter_context(_engine(folder / f"engine-{number}", passages, texts))
            for number in range(max(ENGINES))
        ]
        note("servers and engines run")
        requests: dict[int, Sequence[bytes]] = {}
        for server in servers:
            message = server.message(MODERN)
            requests[server.port] = [request_bytes(server.port, "/mcp", dict(message.headers), message.body)]
        for _, port in engines:
            requests[port] = [
                request_bytes(port, "/api/v1/search", {"Content-Type": "application/json"}, body)
                for body in bodies
            ]
        first = servers[0]
        server_cost, stub_cost = costs_of(
            [first.process, stub], first.port, [*requests[first.port]] * _RECORDED_CALLS
        )
        engine_cost = median_service(
            [costs_of([engine], port, requests[port])[0] for engine, port in engines]
        )
        everyone = [stub, *(each.process for each in servers), *(engine for engine, _ in engines)]
        warm = observe(everyone, [first.port], requests, rate=50, seconds=seconds, seed=SEED)
        recorded = Recorded(
            client=warm.client, server=server_cost, stub=stub_cost, engine=engine_cost, passages=passages
        )
        note(
            f"a call costs a server {server_cost.mean * 1e3:.2f} ms, an engine {engine_cost.mean * 1e3:.2f}"
            f", the client {warm.client * 1e3:.2f}; {warm.cores:.2f} cores are left"
        )
        for number in range(1, rounds + 1):
            for kind, counts in (("servers", SERVERS), ("engines", ENGINES)):
                ports = (
                    [each.port for each in servers] if kind == "servers" else [port for _, port in engines]
                )
                for count in counts:
                    for share in SHARES:
                        offered = share * capacity(recorded, kind, count, warm.cores)
                        observed = observe(
                            everyone, ports[:count], requests, rate=offered, seconds=seconds, seed=number
                        )
                        checks.append(compare(recorded, kind, count, share, offered, observed, number))
                        note(f"round {number} {msgspec.json.encode(checks[-1]).decode()}")
    return recorded


def median_service(services: Sequence[Service]) -> Service:
    """Each quantile the median of those of `services`."""
    return Service([median(each) for each in zip(*(one.quantiles for one in services), strict=True)])


def _checked(recorded: Recorded, kind: str, count: int, cores: float) -> tuple[Fleet, Services]:
    """The fleet that stands here under `kind`, and its costs."""
    client = Service([recorded.client] * 2)
    if kind == "servers":
        fleet = Fleet(servers=count, engines=1, cores=cores, one_machine=True, choice="round robin")
        return fleet, Services(client=client, server=recorded.server, engine=recorded.stub)
    fleet = Fleet(
        servers=0, engines=count, engine_threads=2, cores=cores, one_machine=True, choice="round robin"
    )
    return fleet, Services(client=client, engine=recorded.engine)


def capacity(recorded: Recorded, kind: str, count: int, cores: float) -> float:
    """Calls a second at which the first of cores, processes and the client is always busy."""
    fleet, services = _checked(recorded, kind, count, cores)
    whole = services.client.mean + services.server.mean + services.engine.mean
    limits = [cores / whole, 1 / services.client.mean]
    limits.append(fleet.engines * fleet.engine_threads / services.engine.mean)
    if fleet.servers:
        limits.append(fleet.servers / services.server.mean)
    return min(limits)


def compare(
    recorded: Recorded, kind: str, count: int, share: float, offered: float, observed: Observed, seed: int
) -> Check:
    """Simulate what was observed, on the cores that were left."""
    fleet, services = _checked(recorded, kind, count, observed.cores)
    simulated = simulate(fleet, services, Load(calls=_SIMULATED_CALLS, rate=offered), seed=seed)
    return Check(
        kind=kind,
        processes=count,
        share=share,
        offered=offered,
        cores=observed.cores,
        rate=observed.rate,
        p50=observed.p50,
        p95=observed.p95,
        model_rate=simulated.rate,
        model_p50=simulated.p50,
        model_p95=simulated.p95,
    )


def curve(recorded: Recorded, most: int, note: Callable[[str], None]) -> list[Point]:
    """A base that grows with its nodes (shards), and one whose callers do (replicas)."""
    found = []
    scan = costs.value("scan of a node") / 1000 * costs.value("passages of a node") / 10**6
    shard = recorded.engine.times(scan / recorded.engine.mean)
    engine = Service([costs.value("embedding of a query") / 1000] * 2)
    services = Services(server=recorded.server, engine=engine, shard=shard)
    cores, busy = int(costs.value("cores of a node")), costs.value("busy")
    for growth in ("shards", "replicas"):
        for nodes in (each for each in NODES if each <= most):
            shards, replicas = (nodes, 1) if growth == "shards" else (1, nodes)
            rate = replicas * cores * busy / shard.mean
            fleet = Fleet(
                servers=ceil(rate * services.server.mean / busy),
                engines=ceil(rate * engine.mean / cores / busy),
                engine_threads=cores,
                shards=shards,
                replicas=replicas,
                shard_threads=cores,
                cores=cores,
                choice="round robin",
                hop=costs.value("hop") / 1000,
            )
            calls = max(min(6_000, _SHARD_SEARCHES // shards), _CALLS_OF_A_REPLICA * replicas)
            outcome = simulate(fleet, services, Load(calls=calls, rate=rate), seed=SEED)
            found.append(
                Point(
                    growth=growth, nodes=nodes, machines=fleet.nodes, rate=outcome.rate, p50=outcome.p50,
                    p95=outcome.p95, passages=shards * costs.value("passages of a node"),
                )
            )  # fmt: skip
            note(f"{growth} {nodes}: {outcome.rate:.0f} searches a second, p95 {outcome.p95:.0f} ms")
    return found


@contextmanager
def _engine(home: Path, passages: int, texts: Texts) -> Iterator[tuple[Running, int]]:
    """`kb engine` over a filled base, when it is ready."""
    asyncio.run(_fill(home / "engine" / "kb.sqlite", passages, texts))
    port = free_port()
    arguments = ["-m", "kb_cli.main", "engine", "--port", str(port)]
    with running(home.name, arguments, home, port=port, KB_HOME=str(home), LOG_LEVEL="warn") as process:
        deadline = time.monotonic() + _READY_SECONDS
        while httpx.get(f"http://{LOOPBACK}:{port}/readyz", timeout=30).status_code != 200:
            if time.monotonic() > deadline:
                raise EngineFailed("the engine does not become ready")
            time.sleep(0.2)
        yield process, port


async def _fill(path: Path, passages: int, texts: Texts) -> None:
    path.parent.mkdir(parents=True)
    model = embedder_from("minilm")
    store = await open_sqlite(path, embedder=EmbedderIdentity(model.name, model.dimensions))
    try:
        await fill(store, model.dimensions, texts, range(passages // CHUNKS_EACH))
    finally:
        await store.close()
