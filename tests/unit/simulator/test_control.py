"""The control plane obeys authorized callers only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kb_simulator import AfterPolls, ControlClient, ControlError, Match, SimulatorSettings, in_thread
from kb_simulator.determinism import ClockMode
from kb_simulator.harness.app import Simulator
from kb_simulator.harness.control import (
    BASE,
    NamespaceInfo,
    catalogue,
    get_policy,
    journal,
    list_namespaces,
    list_snapshots,
    remove_namespace,
)
from kb_simulator.harness.faults import CATALOGUE, RateLimit
from tests.support.patience import ANSWER_SECONDS
from tests.unit.simulator.parts import API, Running, serving


async def ask(running: Running, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
    return await running.http.request(method, f"{running.simulator.control_url}{path}", json=body, **more)


async def test_the_control_plane_is_off_by_default() -> None:
    async with serving() as running:
        assert running.simulator.control_url is None
        assert (await running.http.get(BASE)).status_code == 404


async def test_it_listens_on_loopback() -> None:
    async with serving(host="0.0.0.0", control=0) as running:
        assert (running.simulator.control_url or "").startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:8901"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
async def test_a_page_elsewhere_may_not_drive_it(running: Running, headers: dict[str, str]) -> None:
    """Neither under another name for this machine, nor through a browser."""
    for method, path in (("POST", f"{BASE}/reset"), ("GET", BASE)):
        response = await ask(running, method, path, {}, headers=headers)
        assert (response.status_code, response.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
async def test_a_request_of_its_own_origin_is_answered(running: Running, name: str) -> None:
    port = httpx.URL(running.simulator.control_url or "").port
    headers = {"Host": f"{name}:{port}", "Origin": f"http://{name}:{port}"}
    assert (await ask(running, "POST", f"{BASE}/reset", {}, headers=headers)).status_code == 200


async def test_a_wrong_path_or_field_is_a_loud_error(running: Running) -> None:
    assert (await ask(running, "GET", f"{BASE}/fault")).json()["code"] == "route_not_found"
    answer = (await ask(running, "POST", f"{BASE}/reset", {"sead": 8})).json()
    assert (answer["code"], answer["parameter"]) == ("unknown_parameter", "sead")


@pytest.mark.parametrize(
    ("fault", "near"),
    [
        ({"name": "lost_ak"}, "lost_ack"),
        ({"name": "hang", "when": {"nth": 0}}, "when.nth"),
        ({"name": "hang", "wen": {}}, "wen"),
    ],
)
async def test_a_fault_that_could_never_fire_is_refused(running: Running, fault: Any, near: str) -> None:
    response = await ask(running, "POST", f"{BASE}/faults", fault)
    assert response.status_code == 422
    assert near in response.text


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    with in_thread(SimulatorSettings(port=0, control=0)) as running:
        yield running


@pytest.fixture
def control(simulator: Simulator, request: pytest.FixtureRequest) -> Iterator[ControlClient]:
    """A client for the test's own namespace, with a key that selects it."""
    with ControlClient(simulator.control_url or "") as client:
        mine = client.namespace(request.node.name, api_key=request.node.name, seed=3)
        yield mine
        mine.remove()


@pytest.fixture
def engine(simulator: Simulator, control: ControlClient) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {control.name}"}
    with httpx.Client(
        base_url=f"{simulator.url}{API}", headers=headers, verify=False, timeout=ANSWER_SECONDS
    ) as client:
        yield client


def note(engine: httpx.Client, text: str = "granite") -> httpx.Response:
    return engine.post("/jobs", json={"text": text, "tags": ["a"]})


def test_faults_are_armed_by_name_or_by_effect(control: ControlClient, engine: httpx.Client) -> None:
    named = control.faults.arm("not_ready", operation="listTags", times=1)
    own = control.faults.arm("slowly", RateLimit(seconds=9), operation="listJobs", count="request", nth=1)
    statuses = [engine.get(path).status_code for path in ("/tags", "/tags", "/jobs", "/jobs")]
    assert statuses == [503, 200, 429, 429]
    assert [(each.id, each.matched, each.fired) for each in control.faults.list()] == [
        (named.id, 2, 1),
        (own.id, 2, 2),
    ]
    with pytest.raises(ControlError, match="is armed already"):  # two rules would share their random numbers
        control.faults.arm("hang", id=own.id)
    assert control.faults.disarm(named.id).fired == 1
    with pytest.raises(ControlError, match=f"no armed fault '{named.id}'. There is {own.id}"):
        control.faults.disarm(named.id)
    assert [each.id for each in control.faults.disarm_all()] == [own.id]
    assert control.faults.list() == []


def test_the_catalogue_lists_every_fault(control: ControlClient) -> None:
    assert {each.name: each.effect for each in control.ask(catalogue).faults} == CATALOGUE


def test_time_is_read_set_and_moved(control: ControlClient) -> None:
    control.clock.set_mode("manual")
    moved = control.clock.advance(90)
    assert (moved.mode, moved.elapsed, moved.now) == ("manual", 90, "2026-01-01T00:01:30.000000Z")
    assert (control.clock.elapsed(), control.clock.read()) == (90, moved)
    with pytest.raises(ControlError, match="seconds"):
        control.clock.advance(-1)


def test_the_journal_is_held_to_what_is_wanted(control: ControlClient, engine: httpx.Client) -> None:
    note(engine)
    engine.get("/tags")
    control.journal.expect(operation="createJob", exactly=1)
    control.journal.never(operation="search")
    control.journal.in_order(Match(operation="createJob"), Match(path="/api/v1/tags"))
    assert [entry.operation for entry in control.journal.entries()] == ["createJob", "listTags"]
    newest = control.ask(journal, limit=1)
    assert ([entry.operation for entry in newest.entries], newest.total) == (["listTags"], 2)
    assert control.journal.canonical().count(b"\n") == 2
    with pytest.raises(AssertionError, match="the nearest was #1"):
        control.journal.expect(operation="createJob", tag="b")
    with pytest.raises(AssertionError, match="expected never"):
        control.journal.never(operation="createJob")
    with pytest.raises(AssertionError, match="it came as #1"):
        control.journal.in_order(Match(path="/api/v1/tags"), Match(operation="createJob"))


def test_states_are_kept_and_gone_back_to(control: ControlClient, engine: httpx.Client) -> None:
    note(engine)
    kept = control.snapshot()
    for _ in range(2):
        note(engine, "copper")
        control.restore(kept)
        state = control.state()
        assert (state.status.documents.total, state.tags[0].tag) == (1, "a")
    assert [each.id for each in control.ask(list_snapshots).snapshots] == [kept]
    with pytest.raises(ControlError, match=kept) as caught:
        control.restore("nothing")
    assert caught.value.code == "invalid_parameter"


def test_jobs_have_policies(control: ControlClient, engine: httpx.Client) -> None:
    control.set_policy(AfterPolls(polls=2))
    assert control.ask(get_policy).policy == AfterPolls(polls=2)
    path = f"/jobs/{note(engine).json()['id']}"
    assert [engine.get(path).json()["status"] for _ in range(2)] == ["running", "completed"]


def test_a_reset_begins_anew(control: ControlClient, engine: httpx.Client) -> None:
    note(engine)
    control.faults.arm("hang")
    control.clock.advance(5)
    assert control.overview().namespace.requests == 1
    assert control.reset(seed=9).namespace == NamespaceInfo(
        name=control.name, seed=9, documents=0, jobs=0, faults=0, requests=0
    )
    assert control.clock.elapsed() == 0


def test_namespaces_are_made_listed_and_forgotten(simulator: Simulator, control: ControlClient) -> None:
    other = control.namespace("other", api_key="secret", clock=ClockMode.MANUAL, seed=3)
    made = simulator.namespaces.get("other")
    assert (made.api_key, made.clock.mode, made.seed) == ("secret", ClockMode.MANUAL, 3)
    other.faults.arm("hang")
    assert control.faults.list() == []
    with pytest.raises(ControlError) as caught:
        control.namespace("third", api_key="secret")
    assert caught.value.code == "contradiction"
    other.remove()
    left = {each.name for each in control.ask(list_namespaces).namespaces}
    assert (left >= {"default", control.name}, {"other", "third"} & left) == (True, set())
    with pytest.raises(ControlError, match="no namespace 'other'"):
        control.ask(remove_namespace, name="other")


def test_a_key_that_another_namespace_has_is_refused_and_changes_nothing(
    simulator: Simulator, control: ControlClient, engine: httpx.Client
) -> None:
    """The named namespace stays hidden and unchanged: seed, clock, documents, faults, journal, existence."""
    other = control.namespace("owner", api_key="taken")
    note(engine)
    control.faults.arm("hang")
    before, mode = control.overview(), simulator.namespaces.get(control.name).clock.mode
    for name in (control.name, "never made"):
        with pytest.raises(ControlError) as caught:
            control.namespace(name, api_key="taken", clock=ClockMode.MANUAL, seed=1)
        assert caught.value.code == "contradiction"
    assert control.overview() == before
    assert simulator.namespaces.get(control.name).clock.mode is mode
    other.remove()


def test_the_default_namespace_begins_anew_instead_of_going(simulator: Simulator) -> None:
    with ControlClient(simulator.control_url or "") as default:
        httpx.post(
            f"{simulator.url}{API}/jobs", json={"text": "granite"}, verify=False, timeout=ANSWER_SECONDS
        )
        assert default.overview().namespace.jobs == 1
        default.remove()
        assert default.overview().namespace.jobs == 0


def test_a_port_that_is_taken_is_an_error_and_leaves_no_thread(simulator: Simulator) -> None:
    port = httpx.URL(simulator.url).port
    assert port is not None
    with pytest.raises(OSError, match="Address already in use"), in_thread(SimulatorSettings(port=port)):
        raise AssertionError("it listened on a port that is taken")
