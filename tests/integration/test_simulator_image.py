"""The simulator's image behind the server's: faults on command, and the server's reaction."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.integration.conftest import Images
from tests.integration.containers import Server, Simulator, lab
from tests.support.patience import JOB_SECONDS

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def simulated(images: Images, simulator_image: str) -> Iterator[tuple[Simulator, Server]]:
    with lab() as made:
        network = made.network()
        simulator = Simulator(simulator_image, network)
        url = "http://simulator:8900"
        server = Server(images.server, network, engine_url=url)
        made.ready(simulator, server)
        yield simulator, server


@pytest.fixture
def simulator(simulated: tuple[Simulator, Server]) -> Iterator[Simulator]:
    """The simulator after a reset; every fault that a test arms must have fired by its end."""
    simulator = simulated[0]
    simulator.control("POST", "/reset", {})
    yield simulator
    verdict = simulator.control("POST", "/journal/verify", {"expectations": []})
    assert (verdict.get("failures"), verdict.get("unfired")) == (None, None), verdict
    simulator.control("DELETE", "/faults")


@pytest.mark.usefixtures("simulator")
def test_a_note_is_found_through_the_server(simulated: tuple[Simulator, Server]) -> None:
    word, caller = f"w{uuid4().hex}", simulated[1].caller()
    added = caller.ok("kb_addnote", text=f"The {word} sings", collection="memory", wait_seconds=JOB_SECONDS)
    found = caller.ok("kb_search", query=word, collection="memory", mode="fts")["results"]
    assert [result["document_id"] for result in found] == [added["document_id"]]


def test_sigterm_ends_it(simulated: tuple[Simulator, Server], simulator_image: str) -> None:
    with lab() as made:
        other = Simulator(simulator_image, made.network())
        made.ready(other)
        assert other.stop() == 0
