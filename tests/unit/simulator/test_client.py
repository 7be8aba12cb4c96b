"""The typed client does in a thread of its own what the control plane offers."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from kb_simulator import AfterPolls, ControlClient, ControlError, Match, SimulatorSettings, in_thread
from kb_simulator.harness.app import Simulator
from kb_simulator.harness.faults import RateLimit
from tests.unit.simulator.running import API


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    """A simulator in a thread."""
    with in_thread(SimulatorSettings(port=0, control=0)) as running:
        yield running


@pytest.fixture
def control(simulator: Simulator, request: pytest.FixtureRequest) -> Iterator[ControlClient]:
    """A client for a namespace of the test's own, with a key that chooses it."""
    with ControlClient(simulator.control_url or "") as client:
        mine = client.namespace(request.node.name, api_key=request.node.name, seed=3)
        yield mine
        mine.remove()


@pytest.fixture
def engine(simulator: Simulator, control: ControlClient) -> Iterator[httpx.Client]:
    """A client of that namespace's engine."""
    headers = {"Authorization": f"Bearer {control.name}"}
    with httpx.Client(base_url=f"{simulator.url}{API}", headers=headers, verify=False) as client:
        yield client


def note(engine: httpx.Client, text: str = "granite") -> httpx.Response:
    """Submit a note."""
    return engine.post("/jobs", json={"text": text, "tags": ["a"]})


def test_faults_are_armed_by_name_or_by_effect(control: ControlClient, engine: httpx.Client) -> None:
    named = control.faults.arm("not_ready", operation="listTags", times=1)
    own = control.faults.arm("slowly", RateLimit(seconds=9), operation="listJobs", count="request", nth=1)
    statuses = [engine.get(path).status_code for path in ("/tags", "/tags", "/jobs", "/jobs")]
    assert statuses == [503, 200, 429, 429]
    assert [(each.id, each.fired) for each in control.faults.list()] == [(named.id, 1), (own.id, 2)]
    assert control.faults.disarm(named.id).fired == 1
    assert [each.id for each in control.faults.disarm_all()] == [own.id]


def test_time_is_moved(control: ControlClient) -> None:
    control.clock.set_mode("manual")
    assert control.clock.advance(12).elapsed == 12
    assert (control.clock.elapsed(), control.clock.read().mode) == (12, "manual")


def test_the_journal_is_held_to_what_is_wanted(control: ControlClient, engine: httpx.Client) -> None:
    note(engine)
    engine.get("/tags")
    control.journal.expect(operation="createJob", exactly=1)
    control.journal.never(operation="search")
    control.journal.in_order(Match(operation="createJob"), Match(path="/api/v1/tags"))
    assert [entry.operation for entry in control.journal.entries()] == ["createJob", "listTags"]
    assert control.journal.canonical().count(b"\n") == 2
    with pytest.raises(AssertionError, match="the nearest was #1"):
        control.journal.expect(operation="createJob", tag="b")
    with pytest.raises(AssertionError, match="expected never"):
        control.journal.never(operation="createJob")
    with pytest.raises(AssertionError, match="it came as #1"):
        control.journal.in_order(Match(path="/api/v1/tags"), Match(operation="createJob"))


def test_states_are_kept_and_jobs_have_policies(control: ControlClient, engine: httpx.Client) -> None:
    """A snapshot is gone back to; a policy holds from here on."""
    note(engine)
    kept = control.snapshot()
    note(engine, "copper")
    control.restore(kept)
    assert control.state().status.documents.total == 1
    control.set_policy(AfterPolls(polls=9))
    note(engine, "copper")
    assert control.state().jobs[0].status == "running"


def test_a_reset_begins_anew(control: ControlClient, engine: httpx.Client) -> None:
    note(engine)
    assert control.overview().namespace.requests == 1
    after = control.reset(seed=5).namespace
    assert (after.seed, after.requests, after.documents) == (5, 0, 0)


def test_what_is_refused_is_an_error_with_its_code(control: ControlClient) -> None:
    """And what cannot be is told before it is sent."""
    with pytest.raises(ControlError) as caught:
        control.restore("nothing")
    assert caught.value.code == "invalid_parameter"
    with pytest.raises(ValueError, match="lost_ack"):
        control.faults.arm("lost_ak")


def test_a_port_that_is_taken_is_an_error_and_leaves_no_thread(simulator: Simulator) -> None:
    """The thread that asked is told."""
    port = httpx.URL(simulator.url).port
    assert port is not None
    with pytest.raises(OSError, match="Address already in use"), in_thread(SimulatorSettings(port=port)):
        raise AssertionError("it listened on a port that is taken")
