"""The fleet: callers, servers, engines and index nodes on machines, and what a search does to them.

    caller ─▶ server ─▶ engine ─▶ one replica of every shard
           ◀─        ◀─        ◀─ (the slowest decides)

A server works on a call before it asks the engine and after; an engine embeds the question, and searches its
own index or asks every shard. A replica that does not answer is left for another, in turn. There is no
hedging. A caller gives up after `timeout`; what it asked for is done all the same, as it is in fact. Each
component has a machine of its own, or all share one, as they do where the model is checked.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Literal

import msgspec

from kb_load.fleet.events import CallFailed, Down, Machine, Process, Simulation, Steps, Together, Wait, Work
from kb_load.report import percentile

SERVER_ROOM = 4096
"""Requests that a server has under way at once, and refuses more: the default of KB_MAX_CONNECTIONS, held to
it by a test."""

QUANTILES = 100


class Service(msgspec.Struct, frozen=True):
    """Processor seconds of one call, as the quantiles 0, 1/n, ..., 1 of what was measured."""

    quantiles: list[float]

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Service:
        """From measured values. Raises ValueError: there are none."""
        return cls([percentile(seconds, share / QUANTILES) for share in range(QUANTILES + 1)])

    @property
    def mean(self) -> float:
        """The mean of what `draw` gives."""
        ends = (self.quantiles[0] + self.quantiles[-1]) / 2
        return (sum(self.quantiles) - ends) / (len(self.quantiles) - 1)

    def draw(self, rng: random.Random) -> float:
        place = rng.random() * (len(self.quantiles) - 1)
        low = int(place)
        return self.quantiles[low] + (place - low) * (self.quantiles[low + 1] - self.quantiles[low])

    def times(self, factor: float) -> Service:
        return Service([each * factor for each in self.quantiles])


NOTHING = Service([0.0, 0.0])


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """What a call costs each component. `engine` is all but what a shard does."""

    client: Service = NOTHING
    server: Service = NOTHING
    engine: Service = NOTHING
    shard: Service = NOTHING


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """The process `kind` number `number` is down from `at` for `seconds`; shards count through replicas."""

    kind: Literal["server", "engine", "shard"]
    number: int
    at: float
    seconds: float


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """How many of each, and on what. `one_machine`: all share `cores`, callers too; else each has its own.

    Without servers callers ask the engines; without shards these have the index.
    """

    servers: int = 1
    engines: int = 1
    engine_threads: int = 1
    shards: int = 0
    replicas: int = 1
    shard_threads: int = 1
    cores: float = 2.0
    one_machine: bool = False
    choice: Literal["least outstanding", "round robin"] = "least outstanding"
    hop: float = 0.0
    room: float = SERVER_ROOM
    timeout: float = inf
    outages: list[Outage] = []

    @property
    def nodes(self) -> int:
        """Machines, where each has its own."""
        return self.servers + self.engines + self.shards * self.replicas


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """`calls` altogether: `rate` a second by chance (Poisson), or of `clients` who pause about so long."""

    calls: int
    rate: float = 0.0
    clients: int = 0
    pause: float = 0.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. Latencies are milliseconds, of calls that were answered in time.

    `busy` is the share of its cores that each kind's machines used; `in_system` how many calls were under way
    on average; `mean` and `in_system` are of all calls, failed ones too.
    """

    calls: int
    failed: int
    seconds: float
    mean: float
    p50: float
    p95: float
    p99: float
    in_system: float
    busy: dict[str, float]

    @property
    def rate(self) -> float:
        """Calls a second that were answered in time."""
        return (self.calls - self.failed) / self.seconds


class Refused(CallFailed):
    """The server has as many requests under way as it may."""


class Replicas:
    """Chooses between processes that can do the same."""

    def __init__(self, processes: Sequence[Process], choice: str) -> None:
        self.processes = list(processes)
        self._least = choice == "least outstanding"
        self._next = 0

    def _at(self, place: int) -> Process:
        return self.processes[place % len(self.processes)]

    def _outstanding(self, place: int) -> int:
        return self._at(place).outstanding

    def ask(self, steps_on: Callable[[Process], Steps]) -> Steps:
        """Do `steps_on(process)` on one of them, and on the others in turn while one is down.

        Raises:
            Down: none of them is up.
        """
        first, self._next = self._next, (self._next + 1) % len(self.processes)
        left = deque(range(first, first + len(self.processes)))
        while left:
            place = min(left, key=self._outstanding) if self._least else left[0]
            left.remove(place)
            process = self._at(place)
            process.outstanding += 1
            try:
                yield from steps_on(process)
            except Down:
                continue
            finally:
                process.outstanding -= 1
            return
        raise Down


def simulate(fleet: Fleet, services: Services, load: Load, *, seed: int) -> Outcome:
    """Let `load` happen to `fleet`: the same seed, the same outcome.

    Raises:
        ValueError: the load has neither a rate nor clients.
    """
    if not load.rate and not load.clients:
        raise ValueError("a load has a rate, or clients")
    return _Run(fleet, services, load, random.Random(seed)).outcome()


class _Run:
    def __init__(self, fleet: Fleet, services: Services, load: Load, rng: random.Random) -> None:
        self._simulation = Simulation()
        self._fleet, self._services, self._load, self._rng = fleet, services, load, rng
        self._shared = Machine(self._simulation, fleet.cores) if fleet.one_machine else None
        callers = self._shared or Machine(self._simulation, inf)
        self._caller = Process(callers, threads=1 if fleet.one_machine else load.calls)
        shards = [self._processes(fleet.replicas, fleet.shard_threads) for _ in range(fleet.shards)]
        self._kinds: dict[str, list[Process]] = {
            "server": self._processes(fleet.servers, 1),
            "engine": self._processes(fleet.engines, fleet.engine_threads),
            "shard": [process for shard in shards for process in shard],
        }
        self._servers = Replicas(self._kinds["server"], fleet.choice)
        self._engines = Replicas(self._kinds["engine"], fleet.choice)
        self._shards = [Replicas(shard, fleet.choice) for shard in shards]
        self._begun = 0
        self._latencies: list[float] = []
        self._answered: list[float] = []
        for outage in fleet.outages:
            failing = self._kinds[outage.kind][outage.number]
            self._simulation.after(outage.at, partial(failing.fail, outage.seconds))

    def _processes(self, number: int, threads: int) -> list[Process]:
        return [
            Process(self._shared or Machine(self._simulation, self._fleet.cores), threads)
            for _ in range(number)
        ]

    def outcome(self) -> Outcome:
        if self._load.rate:
            self._simulation.after(self._rng.expovariate(self._load.rate), self._arrive)
        else:
            for _ in range(min(self._load.clients, self._load.calls)):
                self._simulation.after(self._pause(), self._begin)
        self._simulation.run()
        seconds = self._simulation.now
        calls = len(self._latencies)
        answered = self._answered or [inf]
        return Outcome(
            calls=calls,
            failed=calls - len(self._answered),
            seconds=seconds,
            mean=sum(self._latencies) / calls * 1000,
            **{f"p{share}": percentile(answered, share / 100) * 1000 for share in (50, 95, 99)},
            in_system=sum(self._latencies) / seconds,
            busy={kind: self._busy(of) for kind, of in self._kinds.items() if of},
        )

    def _busy(self, processes: Sequence[Process]) -> float:
        machines = {id(process.machine): process.machine for process in processes}.values()
        used = sum(machine.busy_seconds for machine in machines)
        return used / sum(machine.cores for machine in machines) / self._simulation.now

    def _arrive(self) -> None:
        self._begin()
        if self._begun < self._load.calls:
            self._simulation.after(self._rng.expovariate(self._load.rate), self._arrive)

    def _begin(self) -> None:
        if self._begun < self._load.calls:
            self._begun += 1
            self._simulation.start(self._call(), partial(self._ended, self._simulation.now))

    def _ended(self, began: float, error: CallFailed | None) -> None:
        latency = self._simulation.now - began
        self._latencies.append(latency)
        if error is None and latency <= self._fleet.timeout:
            self._answered.append(latency)
        if not self._load.rate:
            self._simulation.after(self._pause(), self._begin)

    def _pause(self) -> float:
        return self._rng.uniform(0, 2 * self._load.pause)

    def _call(self) -> Steps:
        costs = self._services.client.draw(self._rng)
        yield Work(self._caller, costs / 2)
        if self._fleet.servers:
            yield from self._servers.ask(self._on_server)
        else:
            yield from self._engines.ask(self._on_engine)
        yield Work(self._caller, costs / 2)

    def _on_server(self, server: Process) -> Steps:
        if server.outstanding > self._fleet.room:
            raise Refused
        costs = self._services.server.draw(self._rng)
        yield from self._hop()
        yield Work(server, costs / 2)
        if self._fleet.engines:
            yield from self._engines.ask(self._on_engine)
        yield Work(server, costs / 2)
        yield from self._hop()

    def _on_engine(self, engine: Process) -> Steps:
        yield from self._hop()
        yield Work(engine, self._services.engine.draw(self._rng))
        if self._shards:
            yield Together([shard.ask(self._on_shard) for shard in self._shards])
        yield from self._hop()

    def _on_shard(self, shard: Process) -> Steps:
        yield from self._hop()
        yield Work(shard, self._services.shard.draw(self._rng))
        yield from self._hop()

    def _hop(self) -> Steps:
        """One way over the network."""
        if self._fleet.hop:
            yield Wait(self._fleet.hop)
