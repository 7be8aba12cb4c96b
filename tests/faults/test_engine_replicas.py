"""Several engines on one PostgreSQL base: an engine is killed, the database restarts, and nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from kb_engine.turns import SHORT_BYTES, lane_slots
from kb_load.processes import free_port
from tests.faults.engine_process import Running, documents_of, long_note, running, running_server
from tests.support.embedding_endpoint import EmbeddingEndpoint, endpoint
from tests.support.eventually import eventually
from tests.support.mcp_http import Caller
from tests.support.patience import ANSWER_SECONDS, JOB_SECONDS, TEST_SECONDS
from tests.support.pgbouncer import pgbouncer
from tests.support.postgres import PASSWORD, Database, Server, give_back, new_database, new_server

SUBMITTED = 50
KILLED_AFTER = 20
KILLS = 2
HELD = "heldnote"
"""A word of the notes whose embedding waits; no text of the engine's own has it."""
PLACES = 2 * (lane_slots(1)["long"] - 1)
"""The long jobs at which two engines with one embedding thread work for one caller."""

pytestmark = pytest.mark.process


@pytest.fixture
def database() -> Iterator[Database]:
    database = asyncio.run(new_database())
    yield database
    give_back(database)


@pytest.fixture(params=["direct", "pooled"])
def pooler(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The settings of engines with and without PgBouncer before the base."""
    if request.param == "direct":
        yield {}
        return
    with pgbouncer(database, tmp_path) as url:
        yield {"KB_POSTGRES_POOLER": url}


@contextmanager
def engine_on(url: str, home: Path, **settings: str) -> Iterator[Running]:
    with running(home, KB_STORE=url, KB_INGEST_WORKERS="1", KB_LEASE_SECONDS="3", **settings) as engine:
        yield engine


def submit(engines: list[Running], number: int) -> str:
    key = {"Idempotency-Key": str(uuid4())}
    text = long_note(number, words=150)
    asked: dict[str, Any] = (
        {"json": {"text": text}} if number % 2 else {"files": {"file": (f"{number}.txt", text.encode())}}
    )
    turns = itertools.cycle(engines[number % len(engines) :] + engines[: number % len(engines)])

    def accepted() -> str | None:
        engine = next(turns)
        try:
            response = engine.http.post("/api/v1/jobs", headers=key, **asked)
        except httpx.TransportError:
            return None
        if response.status_code == 202:
            return str(response.json()["id"])
        assert response.json()["code"] in {"not_ready", "in_progress"}, engine.process.output()[-4000:]
        return None

    return str(eventually(accepted, what=f"accepting {number}"))


def expect_each_once(engine: Running, jobs: dict[int, str]) -> None:
    ended = engine.all_ended()
    failed = [
        (job["id"], job["error"], job["attempts"]) for job in engine.get("/jobs", status="failed")["jobs"]
    ]
    assert (ended["completed"], failed) == (len(jobs), []), engine.process.output()[-4000:]
    assert engine.get("/documents")["total"] == len(jobs)
    for number, job_id in jobs.items():
        found = documents_of(engine, f"unique{number}word")
        assert found == [engine.get(f"/jobs/{job_id}")["document_id"]], number


def test_an_engine_killed_under_load_loses_nothing_and_doubles_nothing(
    database: Database, pooler: dict[str, str], tmp_path: Path
) -> None:
    """Another engine takes over its jobs after their leases expire; its uploads are in the base."""
    accepted = threading.Semaphore(0)
    with (
        engine_on(database.url, tmp_path / "one", **pooler) as doomed,
        engine_on(database.url, tmp_path / "other", **pooler) as other,
    ):
        engines = [doomed, other]

        def one(number: int) -> tuple[int, str]:
            job_id = submit(engines, number)
            accepted.release()
            return number, job_id

        with ThreadPoolExecutor(8) as clients:
            sending = [clients.submit(one, number) for number in range(SUBMITTED)]
            for _ in range(KILLED_AFTER):
                assert accepted.acquire(timeout=ANSWER_SECONDS)
            engines.remove(doomed)
            doomed.kill()
            jobs = dict(each.result(ANSWER_SECONDS) for each in sending)
        assert len(set(jobs.values())) == SUBMITTED
        expect_each_once(other, jobs)
        # An incomplete upload of the killed engine is removed later.
        assert asyncio.run(database.value("SELECT count(*) FROM spool_files WHERE accepted")) == 0


@pytest.fixture
def holding() -> Iterator[EmbeddingEndpoint]:
    """An embedding endpoint that holds the notes with `HELD`."""
    with endpoint() as serving:
        serving.held = HELD
        yield serving


def test_one_engine_notifies_the_other_of_completed_and_cancelled_jobs(
    database: Database, pooler: dict[str, str], holding: EmbeddingEndpoint, tmp_path: Path
) -> None:
    """A long poll ends with a job done by another engine; a cancel stops another engine's work."""
    settings = {**pooler, **holding.environment, "KB_EMBEDDING_TIMEOUT": str(TEST_SECONDS)}
    with (
        engine_on(database.url, tmp_path / "asking", **settings) as asking,
        engine_on(database.url, tmp_path / "working", **settings) as working,
    ):

        def held(word: str) -> list[str]:
            """Submit as many long notes as the two engines work at for one caller, and wait until all run."""
            texts = [f"{HELD} {word} {number} " + "stone " * SHORT_BYTES for number in range(PLACES)]
            jobs = [asking.post("/jobs", json={"text": text})["id"] for text in texts]
            for job_id in jobs:
                asking.wait_until_running(job_id)
            return jobs

        jobs = [asking.post("/jobs", json={"text": f"granite {number}"})["id"] for number in range(6)]
        for job_id in jobs:
            for engine in (asking, working):
                assert engine.ended(job_id) == "completed"
        for job_id in held("marble"):
            assert asking.http.delete(f"/api/v1/jobs/{job_id}").json()["status"] == "cancelled"
            assert working.get(f"/jobs/{job_id}", wait=30)["status"] == "cancelled"
        # Both have stopped that work, which is still held, and work at the next jobs in its place.
        after = held("basalt")
        holding.release()
        for job_id in after:
            assert asking.ended(job_id) == "completed"


def test_calls_succeed_while_two_engines_behind_a_server_are_killed_in_turn(
    database: Database, tmp_path: Path
) -> None:
    """No call fails: each goes on to the other address, and acknowledged changes exist exactly once."""
    engines, is_over, rounds = ExitStack(), threading.Event(), threading.Semaphore(0)
    ports = [str(free_port()) for _ in range(2)]
    added: dict[str, tuple[str, bool]] = {}

    def start(port: str) -> Running:
        return engines.enter_context(engine_on(database.url, tmp_path / port, KB_ENGINE_PORT=port))

    def use(client: int) -> None:
        caller = Caller(mcp_url)
        with caller.http:
            for number in itertools.count():
                assert rounds.acquire(timeout=ANSWER_SECONDS)
                if is_over.is_set():
                    return
                word = f"word{client}x{number}"
                if number % 3:
                    arguments: dict[str, Any] = {"text": f"{word} granite", "wait_seconds": JOB_SECONDS}
                    job = caller.ok("kb_addnote", **arguments)
                    assert job["status"] == "completed"
                    if is_removed := number % 3 == 2:
                        caller.ok("kb_delete", document_id=job["document_id"])
                else:
                    is_removed = False
                    upload = caller.ok("kb_upload_start", filename=f"{word}.txt", total_size=30)
                    sent = caller.http.put(upload["upload_url"], content=f"{word:30}".encode())
                    assert sent.is_success, sent.text
                    job = caller.ok("kb_upload_finish", upload_id=upload["upload_id"])
                added[word] = job["job_id"], is_removed
                caller.ok("kb_search", query="granite")

    def more_calls(using: list[Future[None]]) -> None:
        """Wait for some rounds of calls, while others go on."""
        wanted = len(added) + 8
        rounds.release(12)
        eventually(lambda: len(added) >= wanted or any(each.done() for each in using), what="more calls")

    with engines, ThreadPoolExecutor(4) as clients:
        standing = [start(port) for port in ports]
        addresses = ",".join(engine.url for engine in standing)
        _, server_port = engines.enter_context(
            running_server(tmp_path / "server", KB_ENGINE_URL=addresses, KB_TOOLSETS="kb,kb-extra")
        )
        mcp_url = f"http://127.0.0.1:{server_port}/mcp"
        using = [clients.submit(use, client) for client in range(4)]
        try:
            for turn in range(KILLS):
                more_calls(using)
                standing[turn % 2].kill()
                more_calls(using)
                standing[turn % 2] = start(ports[turn % 2])
        finally:
            is_over.set()
            rounds.release(len(using))
        for each in using:
            each.result(ANSWER_SECONDS)
        other = standing[0]
        assert other.all_ended()["failed"] == 0
        for word, (job_id, is_removed) in added.items():
            document = other.get(f"/jobs/{job_id}")["document_id"]
            assert documents_of(other, word) == ([] if is_removed else [document]), word


@pytest.fixture
def own_server() -> Iterator[Server]:
    server = new_server()
    asyncio.run(server.run("CREATE DATABASE base"))
    yield server
    server.remove()


def readiness(engine: Running) -> tuple[int, str]:
    response = engine.http.get("/readyz")
    return response.status_code, response.json().get("code", "")


def test_the_database_restarts_under_load(own_server: Server, tmp_path: Path) -> None:
    """Immediate stop, as in a crash: connections break, and the log is replayed.

    In the meantime the engine is not ready; then it continues, and nothing is lost or duplicated.
    """
    with engine_on(own_server.url("base"), tmp_path) as engine:
        assert engine.get("/status")["storage"]["path"].endswith("/base")
        with ThreadPoolExecutor(4) as clients:
            sending = [clients.submit(submit, [engine], number) for number in range(40)]
            eventually(engine.queue, lambda queue: queue["completed"] >= 3, what="some work")
            own_server.stop("immediate")
            down = eventually(lambda: readiness(engine), lambda seen: seen[0] != 200, what="not ready")
            assert down == (503, "not_ready")
            refused = engine.http.post("/api/v1/search", json={"query": "granite", "mode": "fts"})
            assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
            assert int(refused.headers["Retry-After"]) >= 1
            own_server.start()
            jobs = {number: each.result(ANSWER_SECONDS) for number, each in enumerate(sending)}
        expect_each_once(engine, jobs)
        assert readiness(engine)[0] == 200
        shown = str(engine.get("/status"))
    assert PASSWORD not in engine.process.output() + shown
