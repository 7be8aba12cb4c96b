"""The engine client: requests, retries, and the circuit breaker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from yarl import URL

from kb_contracts.api import models as m
from kb_contracts.api.operations import (
    ADD_TAGS,
    CANCEL_JOB,
    CLEAR_DOCUMENTS,
    CREATE_JOB,
    DELETE_DOCUMENT,
    GET_DOCUMENT,
    GET_JOB,
    GET_STATUS,
    LIST_DOCUMENTS,
    LIST_JOBS,
    LIST_TAGS,
    PATCH_NOTE,
    REMOVE_TAG,
    SEARCH,
    ClearQuery,
    DocumentQuery,
    DocumentsQuery,
    JobsQuery,
    TagsQuery,
)
from kb_server.engine_client.client import SLICE_SECONDS, HttpEngine
from kb_server.engine_client.errors import EngineBusy, EngineTimeout, EngineTooOld, EngineUnreachable, Refused
from kb_server.engine_client.port import REQUEST_ID, USER, FileSource
from kb_server.waiting import Clock
from kb_simulator import Stuck
from kb_simulator.harness.faults import Status
from tests.support.eventually import eventually_async
from tests.support.loop_clock import advance_loop, turns
from tests.support.patience import ANSWER_SECONDS
from tests.support.server_fixtures import JumpingClock
from tests.support.simulated_engine import SimulatedEngine, simulated_engine
from tests.support.uploads import sha256

NOTE = m.NoteRequest(text="hello")


@pytest.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    async with simulated_engine("secret") as engine:
        yield engine


@pytest.fixture
def jumping() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
async def client(engine: SimulatedEngine, jumping: JumpingClock) -> AsyncIterator[HttpEngine]:
    client = HttpEngine(engine.url, "secret", clock=jumping.clock(), jitter=lambda: 1.0)
    yield client
    await client.close()


async def data(text: bytes) -> AsyncIterator[bytes]:
    yield text[:3]
    yield text[3:]


def source(text: bytes = b"some bytes", filename: str = "a.txt") -> FileSource:
    return FileSource(filename, len(text), lambda: data(text))


@pytest.mark.requirement("K4", "K5")
async def test_every_call_carries_the_engines_key(client: HttpEngine, engine: SimulatedEngine) -> None:
    document = engine.add("a")
    job = await client.call(CREATE_JOB, body=NOTE)
    await client.send_file(source(), m.FileFields())
    await client.call(SEARCH, body=m.SearchRequest(query="x"))
    await client.call(GET_JOB, path={"job_id": job.id})
    await client.call(LIST_JOBS, query=JobsQuery())
    await client.call(LIST_DOCUMENTS, query=DocumentsQuery())
    await client.call(GET_DOCUMENT, path={"document_id": document.id})
    await client.call(PATCH_NOTE, path={"document_id": document.id}, body=m.NotePatch(text="y"))
    await client.call(ADD_TAGS, path={"document_id": document.id}, body=m.TagsRequest(tags=["b"]))
    await client.call(REMOVE_TAG, path={"document_id": document.id, "tag": "b"})
    await client.call(LIST_TAGS, query=TagsQuery())
    await client.call(DELETE_DOCUMENT, path={"document_id": document.id})
    await client.call(CLEAR_DOCUMENTS, query=ClearQuery(confirm=True))
    await client.call(GET_STATUS)
    assert await client.unready() is None
    with pytest.raises(Refused):
        await client.call(CANCEL_JOB, path={"job_id": job.id})
    requests = engine.journal.requests()
    assert {each.operation for each in requests} >= {"search", "createJob", "getReadiness", "cancelJob"}
    assert {each.headers.get("Authorization") for each in requests} == {"Bearer secret"}


def test_a_response_may_be_held_back_for_two_thirds_of_the_silence() -> None:
    """Without an event loop: the session is opened at the first call."""
    for read_timeout, longest in ((30, 20), (3, 2)):
        assert HttpEngine("http://engine:8000", read_timeout=read_timeout).longest_wait == longest


async def test_without_a_key_none_is_sent() -> None:
    async with simulated_engine() as engine:
        client = HttpEngine(engine.url)
        await client.call(GET_STATUS)
        await client.close()
    assert "Authorization" not in engine.journal.requests()[0].headers


async def test_the_correlation_id_goes_along(client: HttpEngine, engine: SimulatedEngine) -> None:
    token = REQUEST_ID.set("abc-123")
    await client.call(GET_STATUS)
    REQUEST_ID.reset(token)
    await client.call(GET_STATUS)
    assert [each.headers.get("X-Request-ID") for each in engine.journal.requests()] == ["abc-123", None]


async def test_requests_for_jobs_send_the_user(client: HttpEngine, engine: SimulatedEngine) -> None:
    token = USER.set("0123456789abcdef")
    await client.call(CREATE_JOB, body=m.NoteRequest(text="granite"))
    await client.call(LIST_JOBS, query=JobsQuery())
    USER.reset(token)
    await client.call(CREATE_JOB, body=m.NoteRequest(text="basalt"))
    sent = [each.headers.get("X-User-ID") for each in engine.journal.requests()[-3:]]
    assert sent == ["0123456789abcdef", None, None]


async def test_query_parameters_with_default_values_are_not_sent(
    client: HttpEngine, engine: SimulatedEngine
) -> None:
    """The engine applies the defaults, so a plain call has a plain path."""
    await client.call(LIST_JOBS, query=JobsQuery())
    await client.call(LIST_JOBS, query=JobsQuery(status="failed", limit=5))
    document = engine.add()
    await client.call(GET_DOCUMENT, path={"document_id": document.id}, query=DocumentQuery(chunks=False))
    assert [each.target for each in engine.journal.requests()[1:]] == [
        "/api/v1/jobs",
        "/api/v1/jobs?limit=5&status=failed",
        "/api/v1/documents/1?chunks=false",
    ]


@pytest.mark.parametrize("tag", ["collection:memory", "a b", "100%", "ä?#&+", "...", "%2F"])
async def test_a_tag_in_a_path_arrives_as_it_is(
    client: HttpEngine, engine: SimulatedEngine, tag: str
) -> None:
    document = engine.add("keep", tag)
    changed = await client.call(REMOVE_TAG, path={"document_id": document.id, "tag": tag})
    assert changed.tags == ["keep"]


@pytest.mark.parametrize("dots", [".", ".."])
async def test_a_value_that_is_a_step_in_a_path_is_never_sent(
    client: HttpEngine, engine: SimulatedEngine, dots: str
) -> None:
    """A proxy that resolves dots would turn the removal of a tag into that of the document."""
    engine.add("keep")
    with pytest.raises(Refused, match="is no tag"):
        await client.call(REMOVE_TAG, path={"document_id": 1, "tag": dots})
    assert engine.journal.requests() == []


async def test_a_base_path_is_kept(engine: SimulatedEngine) -> None:
    client = HttpEngine(f"{engine.url}/prefix/", "secret")
    with pytest.raises(Exception, match="does not serve GET /api/v1/status"):
        await client.call(GET_STATUS)
    await client.close()
    assert client.url == f"{engine.url}/prefix"


class TestVersionCheck:
    async def test_it_is_asked_once(self, client: HttpEngine, engine: SimulatedEngine) -> None:
        await asyncio.gather(*(client.call(LIST_JOBS, query=JobsQuery()) for _ in range(5)))
        await client.call(LIST_JOBS, query=JobsQuery())
        engine.journal.expect(operation="getStatus", exactly=1)

    async def test_callers_that_begin_together_share_the_outcome_though_one_leaves(
        self, engine: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        advance = advance_loop(monkeypatch)
        engine.arm("hang", "getStatus")
        client = HttpEngine(engine.url, "secret", read_timeout=ANSWER_SECONDS)
        leaving, *staying = (asyncio.create_task(client.call(LIST_JOBS, query=JobsQuery())) for _ in range(4))
        await eventually_async(lambda: engine.journal.requests("getStatus"), what="the question")
        leaving.cancel()
        await turns()
        assert not any(call.done() for call in staying)
        advance(ANSWER_SECONDS)
        outcomes = await asyncio.gather(leaving, *staying, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, *[EngineTimeout] * 3]
        engine.journal.expect(operation="getStatus", exactly=1)
        await client.close()

    @pytest.mark.requirement("E35")
    async def test_an_old_engine_is_refused_until_it_is_upgraded(
        self, client: HttpEngine, engine: SimulatedEngine
    ) -> None:
        """Its status can still be read; after the upgrade the server needs no restart."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kb_simulator.engine.state.API_VERSION", "v2.4.0")
            with pytest.raises(EngineTooOld, match=r"v2\.4\.0.*v3\.0\.0"):
                await client.call(CREATE_JOB, body=NOTE)
            engine.journal.expect(operation="createJob", exactly=0)
            assert (await client.call(GET_STATUS)).version == "v2.4.0"
        await client.call(CREATE_JOB, body=NOTE)

    async def test_it_is_asked_again_after_the_engine_was_out_of_reach(
        self, client: HttpEngine, engine: SimulatedEngine
    ) -> None:
        await client.call(LIST_JOBS, query=JobsQuery())
        engine.arm("reset_before_headers", "createJob")
        await client.call(CREATE_JOB, body=NOTE)
        await client.call(LIST_JOBS, query=JobsQuery())
        engine.journal.expect(operation="getStatus", exactly=2)


class TestSendingAgain:
    @pytest.mark.parametrize(
        "fault",
        [
            ("queue_full", "createJob"),
            ("lost_ack", "createJob"),  # the connection broke, and the job exists
            # The interrupted first attempt continues, and its response is the right one.
            ("busy", "createJob", Status(code="in_progress")),
        ],
        ids=lambda fault: fault[0],
    )
    async def test_a_mutation_is_repeated_under_one_idempotency_key(
        self, client: HttpEngine, engine: SimulatedEngine, fault: tuple[Any, ...]
    ) -> None:
        engine.arm(*fault)
        assert (await client.call(CREATE_JOB, body=NOTE)).id in engine.state.jobs
        keys = [each.headers["Idempotency-Key"] for each in engine.journal.requests("createJob")]
        assert (len(keys), len(set(keys)), len(engine.state.jobs)) == (2, 1, 1)

    async def test_every_mutation_has_a_key_of_its_own(
        self, client: HttpEngine, engine: SimulatedEngine
    ) -> None:
        await client.call(CREATE_JOB, body=NOTE)
        await client.call(CREATE_JOB, body=NOTE)
        await client.call(SEARCH, body=m.SearchRequest(query="x"))
        keys = [each.headers["Idempotency-Key"] for each in engine.journal.requests("createJob")]
        assert len(set(keys)) == 2
        assert "Idempotency-Key" not in engine.journal.requests("search")[0].headers

    async def test_a_key_that_is_given_is_used(self, client: HttpEngine, engine: SimulatedEngine) -> None:
        await client.send_file(source(), m.FileFields(), idempotency_key="mine")
        assert engine.journal.requests("createJob")[0].headers["Idempotency-Key"] == "mine"

    async def test_retry_after_is_kept(
        self, client: HttpEngine, engine: SimulatedEngine, jumping: JumpingClock
    ) -> None:
        engine.arm("starting", "listJobs", Status(code="not_ready", retry_after=3))
        await client.call(LIST_JOBS, query=JobsQuery())
        assert jumping.sleeps == [3.0]

    async def test_it_gives_up_after_four_attempts(
        self, client: HttpEngine, engine: SimulatedEngine, jumping: JumpingClock
    ) -> None:
        engine.arm("starting", "listJobs", Status(code="not_ready"), times=None)
        with pytest.raises(EngineBusy, match="told to fail"):
            await client.call(LIST_JOBS, query=JobsQuery())
        engine.journal.expect(operation="listJobs", exactly=4)
        assert jumping.sleeps == [0.1, 0.2, 0.4]

    async def test_a_file_is_read_again_for_every_attempt(
        self, client: HttpEngine, engine: SimulatedEngine
    ) -> None:
        engine.arm("queue_full", "createJob")
        await client.send_file(source(b"0123456789"), m.FileFields())
        assert engine.journal.files() == [sha256(b"0123456789")] * 2


class TestCircuit:
    async def test_it_fails_fast_while_the_circuit_is_open_and_heals(self) -> None:
        jumping = JumpingClock()
        async with simulated_engine() as gone:
            pass
        client = HttpEngine(gone.url, "secret", clock=jumping.clock(), jitter=lambda: 0.0)
        for _ in range(2):
            with pytest.raises(EngineUnreachable):
                await client.call(LIST_JOBS, query=JobsQuery())
        attempts = len(jumping.sleeps)
        with pytest.raises(EngineUnreachable) as open_circuit:
            await client.call(LIST_JOBS, query=JobsQuery())
        assert len(jumping.sleeps) == attempts
        assert open_circuit.value.retry_after is not None
        jumping.seconds += 2.0
        async with simulated_engine("secret", port=URL(gone.url).port or 0):
            assert (await client.call(LIST_JOBS, query=JobsQuery())).total == 0
            await client.close()

    async def test_a_probe_whose_caller_leaves_frees_the_next(
        self, client: HttpEngine, engine: SimulatedEngine, jumping: JumpingClock
    ) -> None:
        for _ in range(5):
            client._http._breaker.failed(jumping.seconds)
        jumping.seconds += 2.0
        engine.arm("hang", "getStatus")
        probe = asyncio.create_task(client.call(GET_STATUS))
        await eventually_async(lambda: engine.journal.requests("getStatus"), what="the probe")
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        assert (await client.call(GET_STATUS)).version == "v3.0.0"

    async def test_a_probe_of_health_closes_it(self, client: HttpEngine, engine: SimulatedEngine) -> None:
        for _ in range(5):
            client._http._breaker.failed(0.0)
        assert await client.unready() is None
        assert client._http._breaker.allows(0.0)


class TestUploads:
    async def test_fields_and_file_arrive_as_the_contract_has_them(
        self, client: HttpEngine, engine: SimulatedEngine
    ) -> None:
        fields = m.FileFields(
            tags=["collection:memory", "é"], metadata={"a": [1]}, dedup_scope="s", title="T"
        )
        await client.send_file(source(b"0123456789", 'a "b" ü.pdf'), fields)
        (request,) = engine.journal.requests("createJob")
        assert engine.journal.bodies("createJob") == [
            {
                "file": ['a "b" ü.pdf', sha256(b"0123456789")],
                "tags": ["collection:memory", "é"],
                "metadata": {"a": [1]},
                "dedup_scope": "s",
                "title": "T",
                "source_path": None,
                "force_ocr": False,
            }
        ]
        assert "Transfer-Encoding" not in request.headers

    @pytest.mark.parametrize("name", ["a\r\nX: y.txt", "a\x00b.txt", "a\tb.txt"])
    async def test_a_name_never_breaks_a_header(
        self, client: HttpEngine, engine: SimulatedEngine, name: str
    ) -> None:
        await client.send_file(source(filename=name), m.FileFields())
        assert engine.journal.bodies("createJob")[0]["file"][0].startswith("a_")

    async def test_half_a_surrogate_pair_is_refused_here(self, client: HttpEngine) -> None:
        half = "\ud800"
        for call in (
            client.call(CREATE_JOB, body=m.NoteRequest(text=half)),
            client.send_file(source(), m.FileFields(title=half)),
            client.call(REMOVE_TAG, path={"document_id": 1, "tag": half}),
        ):
            with pytest.raises(Refused, match="surrogate"):
                await call


class TestWaiting:
    async def test_a_wait_is_sent_in_slices_of_twenty_seconds(self, engine: SimulatedEngine) -> None:
        engine.state.policy, time = Stuck(), engine.namespace.clock
        client = HttpEngine(engine.url, "secret", clock=Clock(monotonic=time.elapsed, sleep=time.sleep))
        job = await client.call(CREATE_JOB, body=NOTE)
        assert (await client.wait_for_job(job.id, 50.0)).status == "running"
        await client.close()
        waits = [each.query for each in engine.journal.requests("getJob")]
        assert waits == ["wait=20.0", "wait=20.0", "wait=10.0"]
        assert SLICE_SECONDS == 20.0

    async def test_a_job_that_has_ended_is_answered_at_once(
        self, client: HttpEngine, engine: SimulatedEngine
    ) -> None:
        job = await client.call(CREATE_JOB, body=NOTE)
        assert (await client.wait_for_job(job.id, 50.0)).status == "completed"
        engine.journal.expect(operation="getJob", exactly=1)

    async def test_an_engine_that_does_not_wait_is_not_called_in_a_tight_loop(
        self, client: HttpEngine, engine: SimulatedEngine, jumping: JumpingClock
    ) -> None:
        engine.state.policy = Stuck()
        job = await client.call(CREATE_JOB, body=NOTE)
        await client.wait_for_job(job.id, 1.0)
        assert jumping.sleeps == [0.25, 0.25, 0.25, 0.25]
