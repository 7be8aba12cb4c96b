"""The model of a fleet against what queueing theory says of it, and what must hold of every run."""

from __future__ import annotations

from math import factorial, log

import msgspec
import pytest

from kb_contracts.http.connections import CONNECTIONS
from kb_load.fleet.model import SERVER_ROOM, Fleet, Load, Outage, Outcome, Service, Services, simulate

MEAN = 0.01
"""Seconds of work of one call in these tests."""
EXPONENTIAL = Service([-MEAN * log(1 - share / 2000) for share in range(2000)] + [MEAN * 10])
CONSTANT = Service([MEAN, MEAN])
SEEDS = range(3)


def queue(threads: int, load: float, service: Service = EXPONENTIAL, *, seed: int = 1) -> Outcome:
    """One engine with a core for each thread, at `load` of what it can do."""
    fleet = Fleet(servers=0, engines=1, engine_threads=threads, cores=threads)
    calls = Load(calls=5_000, rate=load * threads / service.mean)
    return simulate(fleet, Services(engine=service), calls, seed=seed)


def erlang_mean(threads: int, load: float, service: float) -> float:
    """Mean seconds in an M/M/c queue, by Erlang's C formula."""
    offered = threads * load
    waiting = offered**threads / factorial(threads) / (1 - load)
    waits = waiting / (sum(offered**n / factorial(n) for n in range(threads)) + waiting)
    return service + waits * service / (threads * (1 - load))


@pytest.mark.parametrize(("threads", "load"), [(1, 0.5), (1, 0.7), (2, 0.7), (4, 0.7)])
def test_the_mean_time_is_that_of_erlangs_formula(threads: int, load: float) -> None:
    """Within 8 %, the mean of three seeds of 5,000 calls each."""
    found = sum(queue(threads, load, seed=seed).mean for seed in SEEDS) / len(SEEDS) / 1000
    assert found == pytest.approx(erlang_mean(threads, load, EXPONENTIAL.mean), rel=0.08)


def test_constant_work_waits_half_as_long_as_exponential_work() -> None:
    """Pollaczek and Khinchine: an M/D/1 queue at 0.7 waits 0.7 / (2 * 0.3) of a service."""
    found = sum(queue(1, 0.7, CONSTANT, seed=seed).mean for seed in SEEDS) / len(SEEDS) / 1000
    assert found == pytest.approx(MEAN * (1 + 0.7 / 0.6), rel=0.04)


def test_shared_cores_have_the_mean_of_processor_sharing() -> None:
    """M/D/1 by processor sharing: service / (1 - load), where first come, first served gave less."""
    fleet = Fleet(servers=0, engines=1, engine_threads=10_000, cores=1)
    load = Load(calls=5_000, rate=0.7 / MEAN)
    found = [simulate(fleet, Services(engine=CONSTANT), load, seed=seed).mean for seed in SEEDS]
    assert sum(found) / len(found) / 1000 == pytest.approx(MEAN / 0.3, rel=0.07)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
def test_cores_are_as_busy_as_the_work_that_arrives(load: float) -> None:
    outcome = queue(2, load)
    assert outcome.busy["engine"] == pytest.approx(load, rel=0.03)
    assert outcome.busy["engine"] <= 1


def test_littles_law_holds() -> None:
    """Calls under way are their rate times their mean time."""
    outcome = queue(2, 0.8)
    assert outcome.in_system == pytest.approx(outcome.rate * outcome.mean / 1000)


WHOLE = Fleet(servers=2, engines=2, shards=3, replicas=2, hop=0.001, timeout=0.5)
COSTS = Services(
    client=CONSTANT.times(0.1), server=CONSTANT.times(0.1), engine=EXPONENTIAL, shard=EXPONENTIAL
)


@pytest.mark.parametrize("one_machine", [True, False])
@pytest.mark.parametrize("load", [Load(calls=2_000, rate=60.0), Load(calls=2_000, clients=8, pause=0.05)])
def test_every_call_ends_once_and_the_same_seed_gives_the_same(load: Load, one_machine: bool) -> None:
    fleet = msgspec.structs.replace(WHOLE, one_machine=one_machine)
    outcome = simulate(fleet, COSTS, load, seed=3)
    assert outcome.calls == load.calls
    assert outcome == simulate(fleet, COSTS, load, seed=3)
    assert outcome != simulate(fleet, COSTS, load, seed=4)
    assert all(0 < busy <= 1 for busy in outcome.busy.values())


def test_clients_with_pauses_are_bounded_by_their_number() -> None:
    outcome = simulate(WHOLE, COSTS, Load(calls=2_000, clients=8, pause=0.0), seed=3)
    assert outcome.in_system == pytest.approx(8, rel=0.02)


def test_the_slowest_of_many_shards_decides() -> None:
    """The mean of the largest of k exponential times is the k-th harmonic number; without load none waits."""
    fleet = Fleet(servers=0, engines=1, shards=8)
    outcome = simulate(fleet, Services(shard=EXPONENTIAL), Load(calls=8_000, rate=0.5), seed=3)
    assert outcome.mean / 1000 == pytest.approx(MEAN * sum(1 / n for n in range(1, 9)), rel=0.05)


@pytest.mark.parametrize("choice", ["least outstanding", "round robin"])
def test_while_a_replica_is_down_the_other_answers(choice: str) -> None:
    fleet = Fleet(
        choice=choice, shards=1, replicas=2, outages=[Outage(kind="shard", number=0, at=1, seconds=20)]
    )
    outcome = simulate(fleet, COSTS, Load(calls=2_000, rate=40.0), seed=3)
    assert outcome.failed == 0


def test_without_another_replica_calls_fail_for_as_long_as_it_is_down() -> None:
    fleet = Fleet(shards=1, outages=[Outage(kind="shard", number=0, at=10, seconds=10)])
    outcome = simulate(fleet, COSTS, Load(calls=2_000, rate=40.0), seed=3)
    assert outcome.failed == pytest.approx(400, rel=0.15)


def test_what_ends_after_the_time_out_has_failed() -> None:
    fleet = Fleet(servers=0, timeout=MEAN * 1.5)
    outcome = simulate(fleet, Services(engine=CONSTANT), Load(calls=2_000, rate=70.0), seed=3)
    assert 0 < outcome.failed < 2_000
    assert outcome.p99 <= MEAN * 1500


def test_a_server_refuses_what_it_has_no_room_for() -> None:
    """Two engine calls at once and no more, though the server itself has nothing to do."""
    fleet, load = Fleet(room=2), Load(calls=300, clients=3, pause=MEAN)
    assert simulate(fleet, Services(engine=CONSTANT), load, seed=3).failed > 0
    roomy = msgspec.structs.replace(fleet, room=3)
    assert simulate(roomy, Services(engine=CONSTANT), load, seed=3).failed == 0


def test_the_room_of_a_server_is_its_default() -> None:
    assert SERVER_ROOM == CONNECTIONS


def test_drawn_times_have_the_quantiles_that_were_measured() -> None:
    service = Service.of([0.001 * n for n in range(1, 101)])
    assert (service.quantiles[0], service.quantiles[-1]) == (0.001, 0.1)
    assert service.mean == pytest.approx(0.0505, rel=0.02)
    assert service.times(2).mean == pytest.approx(2 * service.mean)


def test_a_load_without_calls_to_come_is_refused() -> None:
    with pytest.raises(ValueError, match="a rate, or clients"):
        simulate(WHOLE, COSTS, Load(calls=1), seed=3)
