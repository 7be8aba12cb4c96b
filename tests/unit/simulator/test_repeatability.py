"""One seed, two runs: the same journals byte for byte, under concurrency and chance."""

from __future__ import annotations

import asyncio
import random

import httpx
import pytest

from kb_simulator.harness.app import Simulator
from kb_simulator.harness.faults import Fault, Latency, LogNormal, When
from kb_simulator.harness.journal import Match
from kb_simulator.harness.namespaces import DEFAULT, Namespace
from kb_simulator.settings import SimulatorSettings
from tests.unit.simulator.running import API

CALLERS = 8
ROUNDS = 2


def arm(namespace: Namespace) -> None:
    """Chance of every kind: delays, refusals, lost answers, torn connections."""
    chances = {
        "internal_error": 0.2,
        "lost_ack": 0.15,
        "reset_before_headers": 0.1,
        "reset_mid_body": 0.1,
        "not_json": 0.1,
    }
    namespace.faults.arm(
        Fault(name="slow", effect=Latency(delay=LogNormal()), when=When(probability=0.5), optional=True)
    )
    for name, probability in chances.items():
        namespace.faults.arm(Fault(name=name, when=When(probability=probability)))
    namespace.faults.arm(Fault(name="not_ready", match=Match(tag="odd"), when=When(nth=2, count="request")))


async def attempt(http: httpx.AsyncClient, method: str, path: str, **more: object) -> None:
    """One request, again and again until its answer is good.

    Who gives up after so many failures makes as many requests as chance dealt to it in particular; who goes
    on until success makes, together with the others, as many as it takes, whoever they are.
    """
    for _ in range(50):
        try:
            response = await http.request(method, f"{API}{path}", **more)  # type: ignore[arg-type]  # httpx's own types
        except httpx.TransportError:
            continue
        if response.is_success and response.headers["Content-Type"] == "application/json":
            return


async def call(http: httpx.AsyncClient, caller: int, dice: random.Random) -> None:
    """What one caller does: notes, files and searches, with pauses that no two runs have in common."""
    for number in range(ROUNDS):
        tag = "odd" if (caller + number) % 2 else "even"
        note = {"text": f"granite {caller} {number}", "tags": [tag]}
        await attempt(http, "POST", "/jobs", json=note, headers={"Idempotency-Key": str(dice.random())})
        for _ in range(dice.randrange(5)):
            await asyncio.sleep(0)
        await attempt(http, "POST", "/search", json={"query": f"granite {number}", "tags": [tag]})
        await attempt(http, "POST", "/jobs", files={"file": (f"{caller}.txt", b"copper %d" % number)})
        await attempt(http, "GET", "/documents", params={"tag": tag, "limit": 1})


async def run(seed: int, dice_seed: int) -> tuple[bytes, list[int]]:
    """A run of all callers at once: the canonical journal, and the numbers in the order of arrival."""
    dice = random.Random(dice_seed)
    callers = list(range(CALLERS))
    dice.shuffle(callers)
    async with (
        Simulator(SimulatorSettings(seed=seed, port=0)) as simulator,
        httpx.AsyncClient(base_url=simulator.url, timeout=20, verify=False) as http,
    ):
        namespace = simulator.namespaces.get(DEFAULT)
        arm(namespace)
        await asyncio.gather(*(call(http, caller, dice) for caller in callers))
        assert all(armed.fired for armed in namespace.faults.list())
        arrival = [hash(entry.request.fingerprint) for entry in namespace.journal]
        return namespace.journal.canonical(), arrival


@pytest.mark.parametrize("seed", [7, 8])
async def test_two_runs_of_one_seed_have_the_same_journal_byte_for_byte(seed: int) -> None:
    first, first_order = await run(seed, dice_seed=1)
    second, second_order = await run(seed, dice_seed=2)
    assert first_order != second_order
    assert first.count(b"\n") > CALLERS * ROUNDS * 4
    assert first == second


async def test_another_seed_has_another_journal() -> None:
    """Chance is the seed's and nobody else's."""
    one, _ = await run(7, dice_seed=1)
    other, _ = await run(9, dice_seed=1)
    assert one != other
