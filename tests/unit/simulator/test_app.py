"""The fake engine over HTTP: the contract's adapter over the state, namespaces and journal around it."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from kb_contracts.api.operations import OPERATIONS
from kb_simulator.determinism import ClockMode
from kb_simulator.engine.jobs import AfterPolls, AfterTime, Stuck
from kb_simulator.harness.app import Simulator, build_app
from kb_simulator.harness.faults import Fault
from kb_simulator.harness.namespaces import HEADER, Namespaces
from kb_simulator.settings import SimulatorSettings
from tests.support.documents import docx_of, large_pdf, sentence_of_page
from tests.unit.simulator.running import API, Running


async def test_a_note_is_taken_in_found_changed_and_removed(running: Running) -> None:
    """The round that every client goes."""
    job = (await running.note("granite quarry", tags=["a"])).json()
    ended = (await running.http.get(f"{API}/jobs/{job['id']}")).json()
    number = ended["document_id"]
    found = (await running.search("granite")).json()["results"]
    assert [result["document"]["id"] for result in found] == [number]
    patched = await running.http.patch(f"{API}/notes/{number}", json={"text": "copper mine"})
    assert (patched.json()["version"], patched.headers["ETag"]) == (2, '"2"')
    tagged = await running.http.post(
        f"{API}/documents/{number}/tags", json={"tags": ["b"]}, headers={"If-Match": "2"}
    )
    assert tagged.json()["tags"] == ["a", "b"]
    assert (await running.http.delete(f"{API}/documents/{number}/tags/a")).json()["tags"] == ["b"]
    by_uid = await running.http.get(f"{API}/documents/{tagged.json()['uid']}")
    assert by_uid.json()["chunks"][0]["text"] == "copper mine"
    assert (await running.http.delete(f"{API}/documents/{number}")).json()["documents"] == 1
    assert (await running.http.get(f"{API}/documents")).json()["total"] == 0


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.txt", b"granite quarry", "granite quarry"),
        ("a.docx", docx_of([("", "granite quarry")]), "granite quarry"),
        ("a.pdf", large_pdf(30), sentence_of_page(30)),
    ],
)
async def test_a_file_is_taken_in_whatever_its_size(
    running: Running, name: str, data: bytes, text: str
) -> None:
    """Small ones are read at once, large ones beside the loop."""
    job = await running.http.post(f"{API}/jobs", files={"file": (name, data)}, data={"tags": '["t"]'})
    assert job.status_code == 202
    ended = (await running.http.get(f"{API}/jobs/{job.json()['id']}")).json()
    document = (await running.http.get(f"{API}/documents/{ended['document_id']}")).json()
    assert any(text in chunk["text"] for chunk in document["chunks"])
    assert (document["tags"], document["size_bytes"]) == (["t"], len(data))


@pytest.mark.parametrize(
    ("name", "fields", "code"),
    [
        ("a.xyz", {}, "unsupported_format"),
        ("a.txt", {"tags": "no json"}, "invalid_parameter"),
        ("a.txt", {"surplus": "x"}, "unknown_parameter"),
        ("a.txt", {"metadata": '{"x": "' + "y" * 70_000 + '"}'}, "invalid_parameter"),
    ],
)
async def test_a_file_that_does_not_fit_is_refused(
    running: Running, name: str, fields: dict[str, str], code: str
) -> None:
    response = await running.http.post(f"{API}/jobs", files={"file": (name, b"x")}, data=fields)
    assert response.json()["code"] == code
    assert running.namespace.journal.latest(1)[0].code == code


async def test_a_file_over_the_limit_is_refused() -> None:
    async with (
        Simulator(SimulatorSettings(port=0, max_upload_bytes=10)) as simulator,
        httpx.AsyncClient(base_url=simulator.url, verify=False) as http,
    ):
        response = await http.post(f"{API}/jobs", files={"file": ("a.txt", b"x" * 11)})
        assert (response.json()["code"], "10 bytes" in response.text) == ("payload_too_large", True)


async def test_whoever_waits_for_a_job_hears_of_its_end_in_virtual_time(running: Running) -> None:
    """No longer than it takes."""
    running.namespace.state.policy = AfterTime(seconds=10)
    job = (await running.note("granite")).json()
    ended = await running.http.get(f"{API}/jobs/{job['id']}", params={"wait": 30})
    assert (ended.json()["status"], running.namespace.clock.elapsed()) == ("completed", 10)


@pytest.mark.parametrize("ending", ["cancel", "clear", "poll", "restore"])
async def test_whoever_waits_is_woken_by_whatever_ends_the_job(running: Running, ending: str) -> None:
    snapshot = running.namespace.snapshot()
    running.namespace.clock.mode = ClockMode.MANUAL
    running.namespace.state.policy = AfterPolls(polls=2)
    path = f"{API}/jobs/{(await running.note('granite')).json()['id']}"
    waiting = asyncio.ensure_future(running.http.get(path, params={"wait": 30}))
    await running.sleeping(1)
    match ending:
        case "cancel":
            await running.http.delete(path)
        case "clear":
            await running.http.delete(f"{API}/documents", params={"confirm": "true"})
        case "poll":
            await running.http.get(path)
        case "restore":
            running.namespace.restore(snapshot)
    async with asyncio.timeout(15):
        answer = (await waiting).json()
    expected = {"cancel": "cancelled", "clear": "cancelled", "poll": "completed", "restore": "running"}
    assert answer["status"] == expected[ending]


async def test_a_second_request_under_a_key_is_in_progress_while_the_first_runs(running: Running) -> None:
    """A delay holds the first one up."""
    running.namespace.clock.mode = ClockMode.MANUAL
    running.arm("latency_fixed", nth=1)
    key = {"Idempotency-Key": "once"}
    first = asyncio.ensure_future(running.note("granite", headers=key))
    await running.sleeping(1)
    second = await running.note("granite", headers=key)
    assert (second.status_code, second.json()["code"]) == (409, "in_progress")
    running.namespace.clock.advance(2)
    accepted = (await first).json()
    assert (await running.note("granite", headers=key)).json() == accepted


async def test_a_retried_file_is_the_same_whatever_its_boundary(running: Running) -> None:
    """Fingerprint and answer."""
    send = {"files": {"file": ("a.txt", b"granite")}, "headers": {"Idempotency-Key": "once"}}
    first, second = [await running.http.post(f"{API}/jobs", **send) for _ in range(2)]  # type: ignore[arg-type]  # httpx's own types
    assert first.json() == second.json()
    assert [record.occurrence for record in running.namespace.journal.latest(2)] == [1, 2]


async def test_a_search_asked_again_answers_the_same_until_something_changes(running: Running) -> None:
    """To the byte; a new note is found at once."""
    await running.note("granite")
    first, second = await running.search("granite"), await running.search("granite")
    assert first.content == second.content
    await running.note("granite basalt")
    assert (await running.search("granite")).json()["total"] == 2


# --- namespaces and keys --------------------------------------------------------------------------


async def test_namespaces_know_nothing_of_one_another(running: Running) -> None:
    here, there = {HEADER: "here"}, {HEADER: "there"}
    await running.note("granite", headers=here)
    running.simulator.namespaces.get("here").faults.arm(Fault(name="internal_error"))
    assert (await running.http.get(f"{API}/status", headers=there)).json()["documents"]["total"] == 0
    assert (await running.http.get(f"{API}/status", headers=here)).status_code == 500
    assert len(running.simulator.namespaces.get("there").journal) == 1
    assert len(running.namespace.journal) == 0


async def test_two_namespaces_of_one_seed_have_the_same_ids(running: Running) -> None:
    """A test repeats whatever the name of its namespace."""
    answers = [await running.note("granite", headers={HEADER: name}) for name in ("one", "two")]
    assert answers[0].json() == answers[1].json()


@pytest.mark.parametrize("name", ["", "x" * 101, "a\tb"])
async def test_a_name_that_is_none_is_refused(running: Running, name: str) -> None:
    """It names the header."""
    response = await running.http.get(f"{API}/status", headers={HEADER: name})
    assert response.json()["parameter"] == HEADER


async def test_a_key_alone_chooses_its_namespace(running: Running) -> None:
    """For clients that cannot send a header of their own."""
    running.simulator.namespaces.set_key("mine", "secret")
    await running.note("granite", headers={"Authorization": "Bearer secret"})
    assert len(running.simulator.namespaces.get("mine").state.jobs) == 1
    assert not running.namespace.state.jobs


async def test_a_namespace_with_a_key_wants_it(running: Running) -> None:
    running.simulator.namespaces.set_key("mine", "secret")
    mine = {HEADER: "mine"}
    refused = await running.http.get(f"{API}/status", headers=mine)
    wrong = await running.http.get(f"{API}/status", headers={**mine, "Authorization": "Bearer other"})
    right = await running.http.get(f"{API}/status", headers={**mine, "Authorization": "Bearer secret"})
    assert [refused.status_code, wrong.status_code, right.status_code] == [401, 401, 200]
    for path in ("/healthz", "/health"):
        probe = await running.http.get(path, headers=mine)
        assert (probe.status_code, probe.json()) == (200, {"status": "ok"})
    assert refused.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://stranger.example"}, {"Host": "stranger.example"}, {"Origin": "null"}]
)
async def test_a_strangers_page_is_refused_as_by_an_engine_without_a_key(
    running: Running, headers: dict[str, str]
) -> None:
    """Before a namespace is made for it; one with a key goes by the key alone."""
    running.simulator.namespaces.set_key("mine", "secret")
    refused = await running.http.get(f"{API}/status", headers={**headers, HEADER: "theirs"})
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
    assert {namespace.name for namespace in running.simulator.namespaces} == {"default", "mine"}
    for choice in ({HEADER: "mine"}, {}):
        keyed = {**headers, **choice, "Authorization": "Bearer secret"}
        assert (await running.http.get(f"{API}/status", headers=keyed)).status_code == 200


async def test_pages_and_programs_of_this_machine_are_served(running: Running) -> None:
    for headers in ({"Origin": "http://localhost:5173"}, {"Host": "localhost:1"}, {"Host": "engine"}):
        assert (await running.http.get(f"{API}/status", headers=headers)).status_code == 200


async def test_a_search_that_is_known_does_not_pass_by_the_check_of_its_headers(running: Running) -> None:
    """It is answered without the contract's adapter."""
    for _ in range(2):
        assert (await running.search("granite")).status_code == 200
    twice = [("Origin", "http://localhost"), ("Origin", "http://localhost")]
    refused = await running.http.post(f"{API}/search", json={"query": "granite"}, headers=twice)
    assert refused.status_code == 401


async def test_namespaces_are_bounded() -> None:
    """The refusal says how many there may be, and what to do."""
    async with (
        Simulator(SimulatorSettings(port=0, namespaces=3)) as simulator,
        httpx.AsyncClient(base_url=simulator.url, verify=False) as http,
    ):
        answers = [await http.get(f"{API}/status", headers={HEADER: str(number)}) for number in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 422]
        assert "3 namespaces" in answers[2].json()["detail"]
        assert "KB_SIM_NAMESPACES" in answers[2].json()["detail"]


async def test_the_key_of_the_settings_is_that_of_the_default_namespace() -> None:
    async with (
        Simulator(SimulatorSettings(port=0, api_key="secret")) as simulator,
        httpx.AsyncClient(base_url=simulator.url, verify=False) as http,
    ):
        assert (await http.get(f"{API}/status")).status_code == 401
        keyed = await http.get(f"{API}/status", headers={"Authorization": "Bearer secret"})
        assert keyed.status_code == 200


# --- the journal ----------------------------------------------------------------------------------


async def test_the_journal_tells_each_request_and_its_answer(running: Running) -> None:
    await running.note("granite", tags=["a"])
    await running.http.get(f"{API}/documents", params={"tag": "b"})
    await running.http.get(f"{API}/documents/99")
    told = [
        (record.operation, record.target, record.tags, record.status, record.done)
        for record in running.namespace.journal.latest(10)
    ]
    assert told == [
        ("createJob", "/api/v1/jobs", ("a",), 202, True),
        ("listDocuments", "/api/v1/documents?tag=b", ("b",), 200, True),
        ("getDocument", "/api/v1/documents/99", (), 404, False),
    ]


async def test_whoever_hangs_up_has_no_answer_in_the_journal(running: Running) -> None:
    """The entry stays without a status."""
    running.namespace.state.policy = Stuck()
    job = (await running.note("granite")).json()
    running.namespace.clock.mode = ClockMode.MANUAL
    with pytest.raises(httpx.ReadTimeout):
        await running.http.get(f"{API}/jobs/{job['id']}", params={"wait": 30}, timeout=0.2)
    await running.sleeping(0)
    assert running.namespace.journal.latest(1)[0].status is None


def test_every_operation_is_told_from_its_route() -> None:
    """Each route of the application belongs to one; `/health` is the other name of a probe."""
    app = build_app(Namespaces(7), max_upload_bytes=1)
    routes = {(each.method, each.resource.canonical) for each in app.router.routes() if each.resource}
    promised = {(operation.method.value, operation.path) for operation in OPERATIONS}
    assert routes == promised | {("GET", "/health")}
