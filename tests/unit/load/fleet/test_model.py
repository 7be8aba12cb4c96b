"""The model of a fleet against results of queueing theory."""

from __future__ import annotations

from math import exp, factorial
from statistics import NormalDist, fmean

import pytest

from kb_load.fleet.model import Load, Outcome, Service, Services, Topology, simulate

MEAN = 0.01
"""Mean service time of one call, in seconds."""
CONSTANT, VARYING = Service(MEAN), Service(MEAN, 0.8)
SEEDS = range(3)
MANY = 10_000
"""Number of threads that is never exhausted, so that only the cores are shared."""


def mean(topology: Topology, services: Services, load: Load) -> float:
    """Return the response time in seconds, as the mean of several seeds."""
    return fmean(simulate(topology, services, load, seed=seed).mean for seed in SEEDS) / 1000


def queue(service: Service, *, load: float, cores: int = 1, threads: int = MANY) -> float:
    """Return the response time of one engine in seconds, at a utilisation of `load`."""
    topology = Topology(servers=0, engine_threads=threads, cores=cores)
    return mean(topology, Services(engine=service), Load(calls=2_500, rate=load * cores / service.mean))


def erlang_mean(cores: int, load: float) -> float:
    """Mean response time of an M/M/c queue in seconds, by Erlang's C formula."""
    offered = cores * load
    waiting = offered**cores / factorial(cores) / (1 - load)
    waits = waiting / (sum(offered**n / factorial(n) for n in range(cores)) + waiting)
    return MEAN + waits * MEAN / (cores * (1 - load))


@pytest.mark.parametrize("service", [CONSTANT, VARYING])
@pytest.mark.parametrize(("cores", "load"), [(1, 0.5), (1, 0.7), (4, 0.7)])
def test_shared_cores_take_erlangs_time_whatever_the_work_is_like(
    cores: int, load: float, service: Service
) -> None:
    """Processor sharing depends only on the mean of the service time. M/G/1-PS is MEAN / (1 - load)."""
    assert queue(service, load=load, cores=cores) == pytest.approx(erlang_mean(cores, load), rel=0.1)


@pytest.mark.parametrize("service", [CONSTANT, Service(MEAN, 0.5)])
def test_one_thread_takes_the_time_of_pollaczek_and_khinchine(service: Service) -> None:
    """First come, first served: an M/G/1 queue waits rate * E[S^2] / (2 * (1 - load))."""
    load = 0.7
    waits = load / MEAN * MEAN**2 * exp(service.spread**2) / (2 * (1 - load))
    assert queue(service, load=load, threads=1) == pytest.approx(MEAN + waits, rel=0.1)


def by_mean_values(demands: list[float], clients: int, pause: float) -> float:
    """Calls a second of a closed network of shared processors, by exact mean value analysis."""
    queued = [0.0] * len(demands)
    rate = 0.0
    for present in range(1, clients + 1):
        times = [demand * (1 + before) for demand, before in zip(demands, queued, strict=True)]
        rate = present / (pause + sum(times))
        queued = [rate * time for time in times]
    return rate


@pytest.mark.parametrize("clients", [1, 4, 12])
def test_clients_who_pause_get_the_rate_of_mean_value_analysis(clients: int) -> None:
    """Engine and index node have a core each; of the uniform pauses, too, only the mean counts."""
    pause, demands = 0.05, [0.01, 0.006]
    topology = Topology(servers=0, engine_threads=MANY, shards=1, cores=1)
    services = Services(engine=Service(demands[0], 0.3), shard=Service(demands[1], 0.3))
    load = Load(calls=1_500, clients=clients, pause=pause)
    found = fmean(simulate(topology, services, load, seed=seed).rate for seed in SEEDS)
    assert found == pytest.approx(by_mean_values(demands, clients, pause), rel=0.04)


def test_the_slowest_of_many_shards_decides() -> None:
    """Without load no call waits: at the median all k have ended, each with probability 0.5 ** (1 / k)."""
    shards = 16
    topology = Topology(servers=0, shards=shards)
    outcome = simulate(topology, Services(shard=VARYING), Load(calls=1_000, rate=0.5), seed=1)
    slowest = NormalDist().inv_cdf(0.5 ** (1 / shards))
    median = MEAN * exp(VARYING.spread * slowest - VARYING.spread**2 / 2)
    assert outcome.p50 / 1000 == pytest.approx(median, rel=0.05)


WHOLE = Topology(servers=2, engines=2, shards=3, replicas=2, wait=0.001, fan_out=0.0001)
COSTS = Services(
    client=Service(0.001), server=Service(0.001), engine=VARYING, database=CONSTANT, shard=VARYING
)


@pytest.mark.parametrize("load", [Load(calls=300, rate=60.0), Load(calls=300, clients=8, pause=0.05)])
def test_the_same_seed_gives_the_same(load: Load) -> None:
    assert simulate(WHOLE, COSTS, load, seed=3) == simulate(WHOLE, COSTS, load, seed=3)
    assert simulate(WHOLE, COSTS, load, seed=3) != simulate(WHOLE, COSTS, load, seed=4)


@pytest.mark.parametrize("one_machine", [True, False])
def test_as_many_calls_are_under_way_as_there_are_clients_without_pauses(one_machine: bool) -> None:
    topology = Topology(servers=2, engines=2, one_machine=one_machine)
    outcome = simulate(topology, COSTS, Load(calls=1_000, clients=6), seed=3)
    assert outcome.in_system == pytest.approx(6, rel=0.02)


def test_one_machine_does_as_much_as_its_cores_can() -> None:
    """All components share two cores, for any number of processes."""

    def saturated(processes: int) -> Outcome:
        topology = Topology(servers=processes, engines=processes, cores=2, one_machine=True)
        return simulate(topology, COSTS, Load(calls=1_000, clients=8 * processes), seed=3)

    whole = sum(each.mean for each in (COSTS.client, COSTS.server, COSTS.engine, COSTS.database))
    for processes in (2, 4):
        assert saturated(processes).rate == pytest.approx(2 / whole, rel=0.05)


def test_a_service_has_the_percentiles_it_is_made_of() -> None:
    service = Service.of(0.04, 0.056)
    median = service.mean * exp(-(service.spread**2) / 2)
    assert median == pytest.approx(0.04)
    assert median * exp(NormalDist().inv_cdf(0.95) * service.spread) == pytest.approx(0.056, rel=1e-4)


def test_a_load_without_calls_to_come_is_refused() -> None:
    with pytest.raises(ValueError, match="a rate, or clients"):
        simulate(WHOLE, COSTS, Load(calls=1), seed=3)
