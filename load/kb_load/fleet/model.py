"""A fleet in virtual time: callers, servers, engines and index nodes, and what a search does to them.

    caller ─▶ server ─▶ engine ─▶ one replica of every shard
           ◀─        ◀─        ◀─ (the slowest decides)

A machine is a number of cores that all jobs on it share equally (processor sharing), as threads share those
of Linux. A process is threads on a machine, and a queue in front of them. A server works on a call before it
asks the engine and after. An engine computes, then asks PostgreSQL, which shares the engine's machine, or the
shards. Where the model is checked all share one machine, callers too; otherwise each process and each index
node has a machine of its own.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from heapq import heappop, heappush
from itertools import count
from math import exp, inf, log
from typing import TypeVar

import msgspec
import simpy

from kb_load.report import percentile

_P95 = 1.6449
"""The 95th percentile of the standard normal distribution."""
_WARM = 0.2
"""The share of the calls that ends before anything is counted."""
Steps = Generator[simpy.Event, object, None]
T = TypeVar("T")


class Service(msgspec.Struct, frozen=True):
    """Processor seconds of a call, log-normal: `spread` is the standard deviation of their logarithm."""

    mean: float = 0.0
    spread: float = 0.0

    @classmethod
    def of(cls, p50: float, p95: float) -> Service:
        """The one with these percentiles."""
        spread = spread_of(p50, p95)
        return cls(p50 * exp(spread**2 / 2), spread)

    def draw(self, rng: random.Random) -> float:
        if not self.mean or not self.spread:
            return self.mean
        return rng.lognormvariate(log(self.mean) - self.spread**2 / 2, self.spread)


def spread_of(p50: float, p95: float) -> float:
    """The `spread` of a service with these percentiles."""
    return log(p95 / p50) / _P95


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """What a call costs each component; `shard` is the part of one shard."""

    client: Service = Service()
    server: Service = Service()
    engine: Service = Service()
    database: Service = Service()
    shard: Service = Service()


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """How many of each, and on what: `cores` are those of each machine.

    `wait` is what a call waits that no processor is needed for, in seconds. `fan_out` is the engine's
    processor seconds to ask one shard. Without servers callers ask the engines.
    """

    servers: int = 1
    engines: int = 1
    engine_threads: int = 1
    shards: int = 0
    replicas: int = 1
    cores: float = 2.0
    one_machine: bool = False
    wait: float = 0.0
    fan_out: float = 0.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """`calls` altogether: `rate` a second by chance (Poisson), or of `clients`, who pause about so long.

    Clients keep to one server and one engine; without clients these are taken in turn.
    """

    calls: int
    rate: float = 0.0
    clients: int = 0
    pause: float = 0.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: calls a second, their latencies in milliseconds, and calls under way on average."""

    rate: float
    mean: float
    p50: float
    p95: float
    in_system: float


class Machine:
    """Cores that all jobs share equally; none gets more than one.

    Equal shares mean that all present jobs advance alike: it is enough to know how far one that was there
    from the beginning would be, and at which of its seconds each job ends.
    """

    def __init__(self, env: simpy.Environment, cores: float) -> None:
        self._env, self._cores = env, cores
        self._advanced, self._at = 0.0, env.now
        self._jobs: list[tuple[float, int, simpy.Event]] = []
        self._numbers = count()
        self._timer: simpy.Event | None = None

    def work(self, seconds: float) -> simpy.Event:
        """A job of so many seconds of one core; the event is its end."""
        self._advance()
        ended = self._env.event()
        heappush(self._jobs, (self._advanced + seconds, next(self._numbers), ended))
        self._plan()
        return ended

    def _pace(self) -> float:
        return min(1.0, self._cores / len(self._jobs))

    def _advance(self) -> None:
        if self._jobs:
            self._advanced += (self._env.now - self._at) * self._pace()
        self._at = self._env.now

    def _plan(self) -> None:
        if self._jobs:
            left = max(0.0, self._jobs[0][0] - self._advanced) / self._pace()
            self._timer = self._env.timeout(left)
            self._timer.callbacks.append(self._end)

    def _end(self, timer: simpy.Event) -> None:
        if timer is self._timer:  # otherwise a job has come since, and there is a later timer
            self._advance()
            heappop(self._jobs)[2].succeed()
            self._plan()


class Process:
    """Threads on a machine. What finds none free waits in order of arrival."""

    def __init__(self, env: simpy.Environment, machine: Machine, threads: int = 1) -> None:
        self._machine, self._threads = machine, simpy.Resource(env, threads)

    def work(self, seconds: float) -> Steps:
        if seconds:
            with self._threads.request() as turn:
                yield turn
                yield self._machine.work(seconds)


def simulate(topology: Topology, services: Services, load: Load, *, seed: int) -> Outcome:
    """Let `load` happen to `topology`: the same seed, the same outcome.

    Raises:
        ValueError: the load has neither a rate nor clients.
    """
    if not load.rate and not load.clients:
        raise ValueError("a load has a rate, or clients")
    return _Run(topology, services, load, random.Random(seed)).outcome()


class _Run:
    def __init__(self, topology: Topology, services: Services, load: Load, rng: random.Random) -> None:
        self._env = simpy.Environment()
        self._topology, self._services, self._load, self._rng = topology, services, load, rng
        self._shared = Machine(self._env, topology.cores) if topology.one_machine else None
        self._callers = self._shared or Machine(self._env, inf)
        self._clients = [Process(self._env, self._callers) for _ in range(max(1, topology.servers))]
        self._servers = [Process(self._env, self._machine()) for _ in range(topology.servers)]
        self._hosts = [self._machine() for _ in range(topology.engines)]
        self._engines = [Process(self._env, host, topology.engine_threads) for host in self._hosts]
        self._shards = [[self._machine() for _ in range(topology.replicas)] for _ in range(topology.shards)]
        self._ended: list[tuple[float, float]] = []
        """When each call ended, and how long it took."""
        self._all = self._env.event()

    def _machine(self) -> Machine:
        return self._shared or Machine(self._env, self._topology.cores)

    def outcome(self) -> Outcome:
        if self._load.rate:
            self._env.process(self._arrivals())
        for number in range(self._load.clients):
            self._env.process(self._client(number))
        self._env.run(self._all)
        warm = int(_WARM * len(self._ended))
        began = self._ended[warm - 1][0] if warm else 0.0
        seconds, took = self._env.now - began, [each for _, each in self._ended[warm:]]
        return Outcome(
            rate=len(took) / seconds,
            mean=sum(took) / len(took) * 1000,
            p50=percentile(took, 0.5) * 1000,
            p95=percentile(took, 0.95) * 1000,
            in_system=sum(took) / seconds,
        )

    def _arrivals(self) -> Steps:
        for number in range(2 * self._load.calls):  # load goes on while the last that count are under way
            yield self._env.timeout(self._rng.expovariate(self._load.rate))
            self._env.process(self._call(number))

    def _client(self, number: int) -> Steps:
        while True:
            yield self._env.timeout(self._rng.uniform(0, 2 * self._load.pause))
            yield from self._call(number)

    def _call(self, number: int) -> Steps:
        began = self._env.now
        client = _of(self._clients, number)
        cost = self._services.client.draw(self._rng)
        yield from client.work(cost / 2)
        if self._topology.wait:
            yield self._env.timeout(self._topology.wait)
        if self._servers:
            server = _of(self._servers, number)
            half = self._services.server.draw(self._rng) / 2
            yield from server.work(half)
            yield from self._search(number)
            yield from server.work(half)
        else:
            yield from self._search(number)
        yield from client.work(cost / 2)
        self._ended.append((self._env.now, self._env.now - began))
        if len(self._ended) == self._load.calls:
            self._all.succeed()

    def _search(self, number: int) -> Steps:
        costs = self._services.engine.draw(self._rng) + len(self._shards) * self._topology.fan_out
        yield from _of(self._engines, number).work(costs)
        if queried := self._services.database.draw(self._rng):
            yield _of(self._hosts, number).work(queried)
        if self._shards:
            shard = self._services.shard
            yield self._env.all_of([_of(each, number).work(shard.draw(self._rng)) for each in self._shards])


def _of(these: Sequence[T], number: int) -> T:
    return these[number % len(these)]
