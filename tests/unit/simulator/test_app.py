"""The fake engine over HTTP: the contract's adapter over the state, with namespaces and journal."""

from __future__ import annotations

import asyncio
import random

import httpx
import pytest

from kb_contracts.api.formats import FORMATS
from kb_contracts.api.operations import OPERATIONS
from kb_contracts.api.ragler import LIMITS, collection_id
from kb_readers import readers
from kb_readers.failures import ExtractionFailed
from kb_simulator.determinism import ClockMode
from kb_simulator.engine.handlers import extract
from kb_simulator.engine.jobs import AfterPolls, AfterTime, Stuck
from kb_simulator.harness.app import build_app
from kb_simulator.harness.faults import Fault, Latency, LogNormal, When
from kb_simulator.harness.journal import Match
from kb_simulator.harness.namespaces import HEADER, Namespace, Namespaces
from kb_simulator.settings import SimulatorSettings
from tests.support.documents import docx_of, large_pdf, sentence_of_page
from tests.support.patience import ANSWER_SECONDS
from tests.unit.simulator.parts import API, Running, serving


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
    """Small files are parsed on the loop, large ones in a thread."""
    job = await running.http.post(f"{API}/jobs", files={"file": (name, data)}, data={"tags": '["t"]'})
    assert job.status_code == 202
    ended = (await running.http.get(f"{API}/jobs/{job.json()['id']}")).json()
    document = (await running.http.get(f"{API}/documents/{ended['document_id']}")).json()
    assert any(text in chunk["text"] for chunk in document["chunks"])
    assert (document["tags"], document["size_bytes"]) == (["t"], len(data))


async def test_a_file_over_the_limit_is_refused() -> None:
    async with serving(max_upload_bytes=10) as running:
        response = await running.http.post(f"{API}/jobs", files={"file": ("a.txt", b"x" * 11)})
        assert (response.json()["code"], "10 bytes" in response.text) == ("payload_too_large", True)


async def test_whoever_waits_for_a_job_hears_of_its_end_in_virtual_time(running: Running) -> None:
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
    async with asyncio.timeout(ANSWER_SECONDS):
        answer = (await waiting).json()
    expected = {"cancel": "cancelled", "clear": "cancelled", "poll": "completed", "restore": "running"}
    assert answer["status"] == expected[ending]


async def test_a_second_request_under_a_key_is_in_progress_while_the_first_runs(running: Running) -> None:
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
    send = {"files": {"file": ("a.txt", b"granite")}, "headers": {"Idempotency-Key": "once"}}
    first, second = [await running.http.post(f"{API}/jobs", **send) for _ in range(2)]  # type: ignore[arg-type]  # httpx's own types
    assert first.json() == second.json()
    assert [record.occurrence for record in running.namespace.journal.latest(2)] == [1, 2]


async def test_a_search_asked_again_answers_the_same_until_something_changes(running: Running) -> None:
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
    """A test is repeatable, whatever the name of its namespace."""
    answers = [await running.note("granite", headers={HEADER: name}) for name in ("one", "two")]
    assert answers[0].json() == answers[1].json()


@pytest.mark.parametrize("name", ["", "x" * 101, "a\tb"])
async def test_a_name_that_is_none_is_refused(running: Running, name: str) -> None:
    response = await running.http.get(f"{API}/status", headers={HEADER: name})
    assert response.json()["parameter"] == HEADER


async def test_a_key_alone_chooses_its_namespace(running: Running) -> None:
    """For clients that cannot send an additional header."""
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
    """The check comes before the creation of a namespace; one with a key needs only its key."""
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
    """Its response comes from a cache before the contract's adapter."""
    for _ in range(2):
        assert (await running.search("granite")).status_code == 200
    twice = [("Origin", "http://localhost"), ("Origin", "http://localhost")]
    refused = await running.http.post(f"{API}/search", json={"query": "granite"}, headers=twice)
    assert refused.status_code == 401


async def test_namespaces_are_bounded() -> None:
    async with serving(namespaces=3) as running:
        answers = [await running.http.get(f"{API}/status", headers={HEADER: name}) for name in "abc"]
        assert [answer.status_code for answer in answers] == [200, 200, 422]
        assert "3 namespaces" in answers[2].json()["detail"]
        assert "KB_SIM_NAMESPACES" in answers[2].json()["detail"]


async def test_the_key_of_the_settings_is_that_of_the_default_namespace() -> None:
    async with serving(api_key="secret") as running:
        assert (await running.http.get(f"{API}/status")).status_code == 401
        keyed = await running.http.get(f"{API}/status", headers={"Authorization": "Bearer secret"})
        assert keyed.status_code == 200


# --- the journal ----------------------------------------------------------------------------------


async def test_the_journal_tells_each_request_and_its_answer(running: Running) -> None:
    await running.note("granite", tags=["a"])
    await running.http.get(f"{API}/documents", params={"tag": "b"})
    await running.http.get(f"{API}/documents/99")
    await running.http.post(f"{API}/jobs", files={"file": ("a.xyz", b"x")})
    assert [
        (record.operation, record.target, record.tags, record.status, record.code, record.done)
        for record in running.namespace.journal.latest(10)
    ] == [
        ("createJob", "/api/v1/jobs", ("a",), 202, None, True),
        ("listDocuments", "/api/v1/documents?tag=b", ("b",), 200, None, True),
        ("getDocument", "/api/v1/documents/99", (), 404, "document_not_found", False),
        ("createJob", "/api/v1/jobs", (), 415, "unsupported_format", False),
    ]


async def test_whoever_hangs_up_has_no_answer_in_the_journal(running: Running) -> None:
    running.namespace.state.policy = Stuck()
    job = (await running.note("granite")).json()
    running.namespace.clock.mode = ClockMode.MANUAL
    waiting = asyncio.ensure_future(running.http.get(f"{API}/jobs/{job['id']}", params={"wait": 30}))
    await running.sleeping(1)
    waiting.cancel()
    await running.sleeping(0)
    assert running.namespace.journal.latest(1)[0].status is None


def test_every_operation_is_told_from_its_route() -> None:
    """Each route of the application has one operation; `/health` is an alias of a probe."""
    app = build_app(Namespaces(SimulatorSettings()))
    routes = {(each.method, each.resource.canonical) for each in app.router.routes() if each.resource}
    promised = {(operation.method.value, operation.path) for operation in OPERATIONS}
    assert routes == promised | {("GET", "/health")}


@pytest.mark.parametrize(("name", "force_ocr"), [("jpg", False), ("png", False), ("pdf", True)])
async def test_the_simulator_has_no_ocr(name: str, force_ocr: bool) -> None:
    """Like an engine without the OCR extra."""
    with pytest.raises(ExtractionFailed) as failed:
        await extract(large_pdf(1), FORMATS[name], force_ocr=force_ocr)
    assert failed.value.code == "ocr_failed"


async def test_a_format_whose_package_is_missing_is_refused_when_it_comes(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_PACKAGES", {"pdf": "a_package_that_is_not_there"})
    answer = await running.http.post("/api/v1/jobs", files={"file": ("a.pdf", large_pdf(1))})
    assert answer.json()["code"] == "unsupported_format"
    assert "a_package_that_is_not_there" in answer.json()["detail"]


GUIDES = collection_id("guides")


async def lists(running: Running, count: int, headers: dict[str, str] | None = None) -> list[httpx.Response]:
    return [await running.http.get("/collections", headers=headers) for _ in range(count)]


async def describe(running: Running, description: str) -> None:
    body = {"name": "guides", "description": description}
    assert (await running.http.put(f"/collections/{GUIDES}", json=body)).status_code == 200


async def description(running: Running) -> str:
    return str((await running.http.get(f"/collections/{GUIDES}")).json().get("description"))


@pytest.mark.requirement("R51", "R53")
async def test_a_window_ends_when_virtual_time_has_passed(running: Running) -> None:
    *taken, refused = await lists(running, LIMITS["listCollections"] + 1)
    assert {response.status_code for response in taken} == {200}
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
    running.namespace.clock.advance(59.5)
    (refused,) = await lists(running, 1)
    assert (refused.json()["retry_after"], refused.headers["Retry-After"]) == (0.5, "1")
    running.namespace.clock.advance(0.5)
    assert (await lists(running, 1))[0].status_code == 200


async def test_limits_are_a_namespaces_own(running: Running) -> None:
    assert (await lists(running, 21))[-1].status_code == 429
    assert (await lists(running, 1, {HEADER: "other"}))[0].status_code == 200
    running.namespace.reset()
    assert (await lists(running, 1))[0].status_code == 200


async def test_descriptions_are_kept_and_restored_with_the_state(running: Running) -> None:
    await describe(running, "before")
    kept = running.namespace.snapshot()
    await describe(running, "after")
    running.namespace.restore(kept)
    assert await description(running) == "before"
    await describe(running, "later")
    running.namespace.restore(kept)
    assert await description(running) == "before"


async def test_a_stale_read_knows_no_later_description(running: Running) -> None:
    await describe(running, "before")
    running.arm("stale_read", operation="getCollection", nth=2)
    assert await description(running) == "before"
    await describe(running, "after")
    assert await description(running) == "before"
    assert await description(running) == "after"


CALLERS = 8
ROUNDS = 2


def arm(namespace: Namespace) -> None:
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
    """Repeat one request until it succeeds.

    With a fixed number of attempts, the number of requests would depend on each caller's faults; repeated
    until success, all callers together make the same number of requests in every order.
    """
    for _ in range(50):
        try:
            response = await http.request(method, f"{API}{path}", **more)  # type: ignore[arg-type]  # httpx's own types
        except httpx.TransportError:
            continue
        if response.is_success and response.headers["Content-Type"] == "application/json":
            return


async def call(http: httpx.AsyncClient, caller: int, dice: random.Random) -> None:
    """The requests of one caller: notes, files and searches, with pauses that differ between runs."""
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
    """Run all callers at once; return the canonical journal, and request fingerprints in order of arrival."""
    dice = random.Random(dice_seed)
    callers = list(range(CALLERS))
    dice.shuffle(callers)
    async with serving(seed=seed) as running:
        namespace = running.namespace
        arm(namespace)
        await asyncio.gather(*(call(running.http, caller, dice) for caller in callers))
        assert all(armed.fired for armed in namespace.faults.list())
        arrival = [hash(entry.request.fingerprint) for entry in namespace.journal]
        return namespace.journal.canonical(), arrival


@pytest.mark.process
@pytest.mark.parametrize("seed", [7, 8])
async def test_two_runs_of_one_seed_have_the_same_journal_byte_for_byte(seed: int) -> None:
    first, first_order = await run(seed, dice_seed=1)
    second, second_order = await run(seed, dice_seed=2)
    assert first_order != second_order
    assert first.count(b"\n") > CALLERS * ROUNDS * 4
    assert first == second
