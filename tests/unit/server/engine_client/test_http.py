"""What the engine client sends, how often, and when it stops sending."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
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
from kb_contracts.http.mount import Incoming
from kb_server.clock import Clock
from kb_server.engine_client import (
    REQUEST_ID,
    USER,
    EngineBusy,
    EngineTimeout,
    EngineTooOld,
    EngineUnauthorized,
    EngineUnreachable,
    FileSource,
    Refused,
)
from kb_server.engine_client.http import SLICE_SECONDS, HttpEngine
from tests.support.server_fixtures import FakeEngine, JumpingClock, serving

NOTE = m.NoteRequest(text="hello")


@pytest.fixture
def engine() -> FakeEngine:
    """An engine that remembers."""
    return FakeEngine()


@pytest.fixture
def jumping() -> JumpingClock:
    """No wait takes time."""
    return JumpingClock()


@pytest.fixture
async def client(engine: FakeEngine, jumping: JumpingClock) -> AsyncIterator[HttpEngine]:
    """The client of that engine; the full jitter is drawn."""
    async with serving(engine, "secret") as url:
        client = HttpEngine(url, "secret", clock=jumping.clock(), jitter=lambda: 1.0)
        yield client
        await client.close()


async def data(text: bytes) -> AsyncIterator[bytes]:
    """A file in two blocks."""
    yield text[:3]
    yield text[3:]


def source(text: bytes = b"some bytes", filename: str = "a.txt") -> FileSource:
    """A small file."""
    return FileSource(filename, len(text), lambda: data(text))


@pytest.mark.requirement("K4", "K5")
async def test_every_call_carries_the_engines_key(client: HttpEngine, engine: FakeEngine) -> None:
    """Each operation of the port, the probe included."""
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
    assert {asked.operation for asked in engine.asked} >= {"search", "createJob", "getReadiness", "cancelJob"}
    assert {asked.headers.get("Authorization") for asked in engine.asked} == {"Bearer secret"}


async def test_a_response_may_be_held_back_for_two_thirds_of_the_silence() -> None:
    """Then it comes before the engine counts as silent."""
    assert HttpEngine("http://engine:8000", silence=30).longest_wait == 20


async def test_a_base_is_cleared_with_the_confirmation_that_the_engine_wants(
    client: HttpEngine, engine: FakeEngine
) -> None:
    """Whoever calls it has been asked already."""
    engine.add()
    engine.add()
    removed = await client.call(CLEAR_DOCUMENTS, query=ClearQuery(confirm=True))
    assert (removed.documents, engine.documents) == (2, {})
    assert engine.of("clearDocuments")[0].query == {"confirm": "true"}


async def test_without_a_key_none_is_sent(engine: FakeEngine) -> None:
    """An engine that runs open is not bothered with an empty one."""
    async with serving(engine) as url:
        client = HttpEngine(url)
        await client.call(GET_STATUS)
        await client.close()
    assert "Authorization" not in engine.asked[0].headers


async def test_the_correlation_id_goes_along(client: HttpEngine, engine: FakeEngine) -> None:
    """As `X-Request-ID`, and only while it is set."""
    token = REQUEST_ID.set("abc-123")
    await client.call(GET_STATUS)
    REQUEST_ID.reset(token)
    await client.call(GET_STATUS)
    assert [asked.headers.get("X-Request-ID") for asked in engine.asked] == ["abc-123", None]


async def test_jobs_name_whom_they_are_for(client: HttpEngine, engine: FakeEngine) -> None:
    """As `X-User-ID`, where the engine looks at it, and only while it is set."""
    token = USER.set("0123456789abcdef")
    await client.call(CREATE_JOB, body=m.NoteRequest(text="granite"))
    await client.call(LIST_JOBS, query=JobsQuery())
    USER.reset(token)
    await client.call(CREATE_JOB, body=m.NoteRequest(text="basalt"))
    sent = [asked.headers.get("X-User-ID") for asked in engine.asked[-3:]]
    assert sent == ["0123456789abcdef", None, None]


async def test_only_what_was_given_is_sent_as_a_query(client: HttpEngine, engine: FakeEngine) -> None:
    """Defaults are the engine's business, so that a plain call is a plain path."""
    await client.call(LIST_JOBS, query=JobsQuery())
    await client.call(LIST_JOBS, query=JobsQuery(status="failed", limit=5))
    document = engine.add()
    await client.call(GET_DOCUMENT, path={"document_id": document.id}, query=DocumentQuery(chunks=False))
    asked = [(each.path, each.query) for each in engine.asked if each.operation != "getStatus"]
    assert asked == [
        ("/api/v1/jobs", {}),
        ("/api/v1/jobs", {"status": "failed", "limit": "5"}),
        ("/api/v1/documents/1", {"chunks": "false"}),
    ]


@pytest.mark.parametrize("tag", ["collection:memory", "a b", "100%", "ä?#&+", "...", "%2F"])
async def test_a_tag_in_a_path_arrives_as_it_is(client: HttpEngine, engine: FakeEngine, tag: str) -> None:
    document = engine.add("keep", tag)
    changed = await client.call(REMOVE_TAG, path={"document_id": document.id, "tag": tag})
    assert changed.tags == ["keep"]


@pytest.mark.parametrize("dots", [".", ".."])
async def test_a_value_that_is_a_step_in_a_path_is_never_sent(
    client: HttpEngine, engine: FakeEngine, dots: str
) -> None:
    """A proxy that resolves it would turn the removal of a tag into that of the document."""
    engine.add("keep")
    with pytest.raises(Refused, match="is no tag"):
        await client.call(REMOVE_TAG, path={"document_id": 1, "tag": dots})
    assert engine.asked == []


async def test_a_base_path_is_kept(engine: FakeEngine) -> None:
    async with serving(engine) as url:
        client = HttpEngine(f"{url}/prefix/")
        with pytest.raises(Exception, match="does not serve GET /api/v1/status"):
            await client.call(GET_STATUS)
        await client.close()
    assert client.url == f"{url}/prefix"


class TestVersionCheck:
    """The engine's version, asked for once a connection."""

    async def test_it_is_asked_once(self, client: HttpEngine, engine: FakeEngine) -> None:
        await asyncio.gather(*(client.call(LIST_JOBS, query=JobsQuery()) for _ in range(5)))
        await client.call(LIST_JOBS, query=JobsQuery())
        assert len(engine.of("getStatus")) == 1

    async def test_callers_that_begin_together_share_the_outcome(self, engine: FakeEngine) -> None:
        async def silent(incoming: Incoming) -> None:
            await asyncio.Event().wait()

        engine.gates["getStatus"] = silent
        async with serving(engine) as url:
            client = HttpEngine(url, silence=0.1)
            outcomes = await asyncio.gather(
                *(client.call(LIST_JOBS, query=JobsQuery()) for _ in range(4)), return_exceptions=True
            )
            assert [type(outcome) for outcome in outcomes] == [EngineTimeout] * 4
            assert len(engine.of("getStatus")) == 1
            await client.close()

    @pytest.mark.requirement("E35")
    async def test_an_old_engine_is_refused_until_it_is_upgraded(
        self, client: HttpEngine, engine: FakeEngine
    ) -> None:
        """Its status can be read all the same; after the upgrade no restart of the server is needed."""
        engine.version = "v2.4.0"
        with pytest.raises(EngineTooOld, match=r"v2\.4\.0.*v3\.0\.0"):
            await client.call(CREATE_JOB, body=NOTE)
        assert engine.of("createJob") == []
        assert (await client.call(GET_STATUS)).version == "v2.4.0"
        engine.version = "v3.0.0"
        await client.call(CREATE_JOB, body=NOTE)

    async def test_it_is_asked_again_after_the_engine_was_out_of_reach(
        self, client: HttpEngine, engine: FakeEngine
    ) -> None:
        """What answers afterwards may be another engine."""
        await client.call(LIST_JOBS, query=JobsQuery())

        async def drops(incoming: Incoming) -> None:
            assert incoming.http.transport is not None
            incoming.http.transport.abort()
            engine.gates.clear()

        engine.gates["createJob"] = drops  # a POST: aiohttp itself repeats a GET that broke off
        await client.call(CREATE_JOB, body=NOTE)
        await client.call(LIST_JOBS, query=JobsQuery())
        assert len(engine.of("getStatus")) == 2


class TestSendingAgain:
    """What is repeated, and under which key."""

    async def test_a_mutation_is_repeated_under_one_idempotency_key(
        self, client: HttpEngine, engine: FakeEngine
    ) -> None:
        """The engine can tell that it is the same."""
        engine.fail("createJob", EngineError("queue_full", "Too many jobs wait."))
        await client.call(CREATE_JOB, body=NOTE)
        keys = [asked.headers["Idempotency-Key"] for asked in engine.of("createJob")]
        assert len(keys) == 2
        assert len(set(keys)) == 1

    async def test_every_mutation_has_a_key_of_its_own(self, client: HttpEngine, engine: FakeEngine) -> None:
        await client.call(CREATE_JOB, body=NOTE)
        await client.call(CREATE_JOB, body=NOTE)
        await client.call(SEARCH, body=m.SearchRequest(query="x"))
        keys = [asked.headers["Idempotency-Key"] for asked in engine.of("createJob")]
        assert len(set(keys)) == 2
        assert "Idempotency-Key" not in engine.of("search")[0].headers

    async def test_a_key_that_is_given_is_used(self, client: HttpEngine, engine: FakeEngine) -> None:
        await client.send_file(source(), m.FileFields(), idempotency_key="mine")
        assert engine.of("createJob")[0].headers["Idempotency-Key"] == "mine"

    async def test_retry_after_is_kept(
        self, client: HttpEngine, engine: FakeEngine, jumping: JumpingClock
    ) -> None:
        """The engine knows best when."""
        engine.fail("listJobs", EngineError("not_ready", "Starting.", retry_after=3))
        await client.call(LIST_JOBS, query=JobsQuery())
        assert jumping.sleeps == [3.0]

    async def test_it_gives_up_after_four_attempts(
        self, client: HttpEngine, engine: FakeEngine, jumping: JumpingClock
    ) -> None:
        engine.fail("listJobs", *(EngineError("not_ready", "Starting.") for _ in range(9)))
        with pytest.raises(EngineBusy, match="Starting"):
            await client.call(LIST_JOBS, query=JobsQuery())
        assert len(engine.of("listJobs")) == 4
        assert jumping.sleeps == [0.1, 0.2, 0.4]

    async def test_a_wait_beyond_the_deadline_is_left_to_the_caller(
        self, client: HttpEngine, engine: FakeEngine, jumping: JumpingClock
    ) -> None:
        """Who is told how long."""
        engine.fail("listJobs", EngineError("not_ready", "Starting.", retry_after=60))
        with pytest.raises(EngineBusy) as busy:
            await client.call(LIST_JOBS, query=JobsQuery())
        assert busy.value.retry_after == 60.0
        assert jumping.sleeps == []

    @pytest.mark.parametrize("code", ["internal", "document_not_found", "storage_full", "invalid_parameter"])
    async def test_a_refusal_is_not_repeated(self, client: HttpEngine, engine: FakeEngine, code: str) -> None:
        """It would be the same."""
        engine.fail("createJob", EngineError(code, "No."))
        with pytest.raises(Exception, match="No"):
            await client.call(CREATE_JOB, body=NOTE)
        assert len(engine.of("createJob")) == 1

    async def test_a_request_still_at_work_under_its_key_is_asked_for_again(
        self, client: HttpEngine, engine: FakeEngine
    ) -> None:
        """The first attempt broke off here and goes on there: its answer is what we want."""
        engine.fail("createJob", EngineError("in_progress", "Still running."))
        assert (await client.call(CREATE_JOB, body=NOTE)).id in engine.jobs

    async def test_a_broken_connection_is_repeated(self, client: HttpEngine, engine: FakeEngine) -> None:
        """Of a mutation too: the key makes it one."""

        async def drops(incoming: Incoming) -> None:
            assert incoming.http.transport is not None
            incoming.http.transport.abort()
            engine.gates.clear()

        engine.gates["createJob"] = drops
        await client.call(CREATE_JOB, body=NOTE)
        assert len({asked.headers["Idempotency-Key"] for asked in engine.of("createJob")}) == 1

    async def test_a_file_is_read_anew_for_every_attempt(
        self, client: HttpEngine, engine: FakeEngine
    ) -> None:
        """Both arrive whole."""
        engine.fail("createJob", EngineError("queue_full", "Too many jobs wait."))
        await client.send_file(source(b"0123456789"), m.FileFields())
        assert engine.files == [b"0123456789", b"0123456789"]

    async def test_a_wrong_key_is_told_at_once(self, engine: FakeEngine, jumping: JumpingClock) -> None:
        """Nothing is repeated with it."""
        async with serving(engine, "right") as url:
            client = HttpEngine(url, "wrong", clock=jumping.clock())
            with pytest.raises(EngineUnauthorized):
                await client.call(CREATE_JOB, body=NOTE)
            await client.close()
        assert jumping.sleeps == []


class TestCircuit:
    """An engine that is down costs callers little."""

    async def test_it_fails_fast_while_the_circuit_is_open_and_heals(self, engine: FakeEngine) -> None:
        """Five failures open it; after the cooldown one call finds the engine back."""
        jumping = JumpingClock()
        async with serving(engine) as url:
            pass
        client = HttpEngine(url, clock=jumping.clock(), jitter=lambda: 0.0)
        for _ in range(2):
            with pytest.raises(EngineUnreachable):
                await client.call(LIST_JOBS, query=JobsQuery())
        attempts = len(jumping.sleeps)
        with pytest.raises(EngineUnreachable) as open_circuit:
            await client.call(LIST_JOBS, query=JobsQuery())
        assert len(jumping.sleeps) == attempts
        assert open_circuit.value.retry_after is not None
        async with serving(engine) as back:
            client._http.base = back  # the same engine on the port it has now
            jumping.seconds += 2.0
            assert (await client.call(LIST_JOBS, query=JobsQuery())).total == 0
        await client.close()

    async def test_a_probe_whose_caller_leaves_frees_the_next(
        self, client: HttpEngine, engine: FakeEngine, jumping: JumpingClock
    ) -> None:
        for _ in range(5):
            client._http._breaker.failed(jumping.seconds)
        jumping.seconds += 2.0
        asked = asyncio.Event()

        async def holds(incoming: Incoming) -> None:
            asked.set()
            engine.gates.clear()
            await asyncio.Event().wait()

        engine.gates["getStatus"] = holds
        probe = asyncio.create_task(client.call(GET_STATUS))
        await asked.wait()
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        assert (await client.call(GET_STATUS)).version == "v3.0.0"

    async def test_a_probe_of_health_closes_it(self, client: HttpEngine, engine: FakeEngine) -> None:
        """What readiness finds out is not forgotten."""
        for _ in range(5):
            client._http._breaker.failed(0.0)
        assert await client.unready() is None
        assert client._http._breaker.allows(0.0)


class TestUploads:
    """The multipart body."""

    async def test_fields_and_file_arrive_as_the_contract_has_them(
        self, client: HttpEngine, engine: FakeEngine
    ) -> None:
        """Lists and objects as JSON texts, the length announced."""
        fields = m.FileFields(
            tags=["collection:memory", "é"], metadata={"a": [1]}, dedup_scope="s", title="T"
        )
        await client.send_file(source(b"0123456789", 'a "b" ü.pdf'), fields)
        asked = engine.of("createJob")[0]
        assert asked.body == {
            "filename": 'a "b" ü.pdf',
            "tags": ["collection:memory", "é"],
            "metadata": {"a": [1]},
            "dedup_scope": "s",
            "title": "T",
        }
        assert engine.files == [b"0123456789"]
        assert "Transfer-Encoding" not in asked.headers

    @pytest.mark.parametrize("name", ["a\r\nX: y.txt", "a\x00b.txt", "a\tb.txt"])
    async def test_a_name_never_breaks_a_header(
        self, client: HttpEngine, engine: FakeEngine, name: str
    ) -> None:
        """What cannot be written in one is replaced."""
        await client.send_file(source(filename=name), m.FileFields())
        assert engine.of("createJob")[0].body["filename"].startswith("a_")

    async def test_half_a_surrogate_pair_is_refused_here(self, client: HttpEngine) -> None:
        """No wire takes it: the caller's fault, not a broken client."""
        half = "\ud800"
        for call in (
            client.call(CREATE_JOB, body=m.NoteRequest(text=half)),
            client.send_file(source(), m.FileFields(title=half)),
            client.call(REMOVE_TAG, path={"document_id": 1, "tag": half}),
        ):
            with pytest.raises(Refused, match="surrogate"):
                await call


class TestWaiting:
    """Long polls."""

    async def test_a_wait_is_sent_in_slices_of_twenty_seconds(self, engine: FakeEngine) -> None:
        """Each slice is one request; the last is what is left."""
        clock = JumpingClock()
        engine.completes = False

        async def waits(incoming: Incoming) -> None:
            clock.seconds += incoming.query.wait

        engine.gates["getJob"] = waits
        async with serving(engine) as url:
            client = HttpEngine(url, clock=clock.clock())
            job = await client.call(CREATE_JOB, body=NOTE)
            assert (await client.wait_for_job(job.id, 50.0)).status == "queued"
            await client.close()
        assert [asked.query["wait"] for asked in engine.of("getJob")] == ["20.0", "20.0", "10.0"]
        assert SLICE_SECONDS == 20.0

    async def test_a_job_that_has_ended_is_answered_at_once(
        self, client: HttpEngine, engine: FakeEngine
    ) -> None:
        job = await client.call(CREATE_JOB, body=NOTE)
        assert (await client.wait_for_job(job.id, 50.0)).status == "completed"
        assert len(engine.of("getJob")) == 1

    async def test_an_engine_that_does_not_wait_is_not_asked_in_a_tight_loop(
        self, client: HttpEngine, engine: FakeEngine, jumping: JumpingClock
    ) -> None:
        engine.completes = False
        job = await client.call(CREATE_JOB, body=NOTE)
        await client.wait_for_job(job.id, 1.0)
        assert jumping.sleeps == [0.25, 0.25, 0.25, 0.25]


async def test_a_session_is_not_opened_before_the_first_call() -> None:
    """Building a client costs nothing and needs no engine."""
    client = HttpEngine("http://127.0.0.1:1", clock=Clock())
    assert client._http._session is None
    await client.close()
