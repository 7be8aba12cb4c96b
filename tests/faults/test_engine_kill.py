"""The engine killed during its work: accepted jobs are done exactly once after the next start."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.engine_process import Running, documents_of, long_note, running
from tests.support.eventually import eventually
from tests.support.patience import START_SECONDS
from tests.support.postgres import Database, give_back, new_database
from tests.support.qdrant import environment_of, qdrant
from tests.support.scope import ALL, rows
from tests.support.stack import Process

pytestmark = pytest.mark.process

NOTES = 100
KILLS = int(os.environ.get("KB_TEST_KILLS", "6" if ALL else "2"))


def test_a_hundred_accepted_notes_survive_a_kill_each_once(tmp_path: Path) -> None:
    """Killed while some are done, one runs and more wait; all are found after the next start."""
    engine = Running(tmp_path, KB_INGEST_WORKERS="1")
    jobs = {number: engine.post("/jobs", json={"text": long_note(number)})["id"] for number in range(NOTES)}
    before = eventually(
        engine.queue,
        lambda queue: queue["completed"] >= 5 and queue["running"] >= 1 and queue["queued"] >= 5,
        what="half of the work",
    )
    engine.kill()
    assert before["completed"] < NOTES

    with running(tmp_path, KB_INGEST_WORKERS="1") as again:
        assert again.all_ended()["completed"] == NOTES
        assert again.get("/documents")["total"] == NOTES
        for number, job_id in jobs.items():
            found = documents_of(again, f"unique{number}word")
            assert found == [again.get(f"/jobs/{job_id}")["document_id"]], number


class OnSqlite:
    """The files of a killed engine: the database and the spool."""

    def __init__(self, home: Path) -> None:
        self.settings: dict[str, str] = {}
        self._base, self._spool = home / "engine" / "kb.sqlite", home / "engine" / "spool"

    def unfinished(self) -> set[str]:
        with closing(sqlite3.connect(self._base)) as base:
            return {name for (name,) in base.execute("SELECT id FROM jobs WHERE status != 'completed'")}

    def content(self, job_id: str) -> bytes:
        return (self._spool / job_id).read_bytes()

    def add_orphan(self, name: str) -> None:
        (self._spool / name).write_bytes(b"of a request that was never accepted")

    def spooled(self) -> list[str]:
        return [file.name for file in self._spool.iterdir()]


class OnPostgres:
    """The same in a PostgreSQL database."""

    def __init__(self, database: Database) -> None:
        self.settings = {"KB_STORE": database.url, "KB_LEASE_SECONDS": "3"}
        self._database = database

    def unfinished(self) -> set[str]:
        return set(self._values("SELECT id FROM jobs WHERE status != 'completed'"))

    def content(self, job_id: str) -> bytes:
        return b"".join(self._values("SELECT data FROM spool_parts WHERE name = $1 ORDER BY part", job_id))

    def add_orphan(self, name: str) -> None:
        added = "INSERT INTO spool_files (name, touched_at) VALUES ($1, now() - interval '1 day') RETURNING 1"
        self._values(added, name)

    def spooled(self) -> list[str]:
        return self._values("SELECT name FROM spool_files")

    def _values(self, sql: str, *values: object) -> list[Any]:
        rows = asyncio.run(self._database.ask(lambda db: db.fetch(sql, *values)))
        return [row[0] for row in rows]


Place = OnSqlite | OnPostgres


@pytest.fixture(params=rows("SQLite", "PostgreSQL", whole=["PostgreSQL and Qdrant"]))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The storage of the base and the index; database and Qdrant's core outlive the engine."""
    if request.param == "SQLite":
        yield OnSqlite(tmp_path)
        return
    database = asyncio.run(new_database())
    place = OnPostgres(database)
    with ExitStack() as stack:
        if request.param.endswith("Qdrant"):
            place.settings |= environment_of(stack.enter_context(qdrant()))
        yield place
    give_back(database)


def test_no_number_of_kills_loses_what_was_accepted(
    tmp_path: Path, place: Place, record_property: Callable[[str, object], None]
) -> None:
    """Half of the kills within one job, the rest at random moments of work, start or acceptance.

    Everything answered with 202 exists exactly once at the end, and between two kills the file of every
    unfinished job is intact in the spool. Files of unaccepted submissions are removed from it. The number of
    kills is `KB_TEST_KILLS`.
    """
    history = Kills(tmp_path, place)
    history.during_one_job(KILLS // 2)
    for number in range(KILLS - history.kills):
        history.anywhere(random.Random(number).uniform(0.0, 0.4))
    history.check_the_end()
    record_property("kills", history.kills)
    record_property("accepted", len(history.accepted))
    assert history.kills == KILLS


class Kills:
    """An engine that is killed repeatedly, and its accepted submissions. With one worker, so that jobs
    wait.
    """

    def __init__(self, home: Path, place: Place) -> None:
        self.home = home
        self.place = place
        self.settings = {"KB_INGEST_WORKERS": "1", **place.settings}
        self.kills = 0
        self.accepted: dict[str, tuple[str, bytes | None]] = {}
        """By job id: a word that only its document has, and the file's bytes, or None for a note."""

    def during_one_job(self, kills: int) -> None:
        """Kill the engine repeatedly during one job with a large file, which neither fails nor is lost."""
        words = " ".join(f"large{number}" for number in range(60_000))
        job_id = ""
        for _ in range(kills):
            engine = self._start()
            job_id = job_id or self._send_file(engine, "unique0large", words)
            engine.wait_until_running(job_id, "Generating embeddings")
            self._kill(engine)

    def anywhere(self, seconds: float) -> None:
        engine = self._start()
        number = self.kills
        self._send_file(engine, f"unique{number}file", f"of kill {number} " * 200)
        text = f"unique{number}note of kill {number}"
        job = engine.post("/jobs", json={"text": text, "title": f"note {number}"})
        self.accepted[job["id"]] = (f"unique{number}note", None)
        with ThreadPoolExecutor(1) as pool:  # without an answer it was not accepted
            sent = pool.submit(self._send_file, engine, f"unique{number}late", "word " * 20_000)
            with suppress(TimeoutError):
                sent.exception(timeout=seconds)
            self._kill(engine)
        assert isinstance(sent.exception(), httpx.HTTPError | None)

    def check_the_end(self) -> None:
        """Let it finish: each accepted submission is one document, and the spool is empty."""
        with running(self.home, **self.settings) as engine:
            # A job that was interrupted often is delayed before its next attempt.
            queue = engine.all_ended()
            assert (queue["failed"], queue["cancelled"]) == (0, 0)
            for job_id, (word, _) in self.accepted.items():
                job = engine.get(f"/jobs/{job_id}")
                assert (job["status"], documents_of(engine, word)) == ("completed", [job["document_id"]])
            # On PostgreSQL, unaccepted files are removed after their engine has been silent for a while.
            eventually(self.place.spooled, lambda names: not names, what="an empty spool")

    def _start(self) -> Running:
        engine = Running(self.home, **self.settings)
        for job_id in self.accepted:
            assert engine.get(f"/jobs/{job_id}")["status"] in {"queued", "running", "completed"}
        return engine

    def _kill(self, engine: Running) -> None:
        engine.kill()
        self.kills += 1
        for job_id in self.place.unfinished() & self.accepted.keys():
            if (content := self.accepted[job_id][1]) is not None:
                assert self.place.content(job_id) == content
        self.place.add_orphan(f"orphan{self.kills}")

    def _send_file(self, engine: Running, word: str, text: str) -> str:
        content = f"{word} {text}".encode()
        job = engine.post("/jobs", files={"file": (f"{word}.txt", content)})
        self.accepted[job["id"]] = (word, content)
        return str(job["id"])


def test_a_stopped_engine_ends_in_order_and_finishes_later(tmp_path: Path) -> None:
    """SIGTERM during a job: status 0, no partial data; the job is done after the next start."""
    with running(tmp_path) as engine:
        job = engine.post("/jobs", json={"text": " ".join(f"word{number}" for number in range(60_000))})
        engine.wait_until_running(job["id"])
    with running(tmp_path) as again:
        assert again.all_ended()["completed"] == 1
        assert again.get("/documents")["total"] == 1


@pytest.mark.parametrize(
    ("environment", "status", "words"),
    [
        ({"KB_ENGINE_PORT": "http"}, 2, ("KB_ENGINE_PORT",)),
        ({"KB_EMBEDDER": "word2vec"}, 1, ("KB_EMBEDDER", "minilm")),
        ({"KB_HOME": "/dev/null/kb"}, 1, ("/dev/null/kb", "KB_HOME")),
        ({"KB_EMBEDDER": "openai"}, 2, ("KB_EMBEDDING_URL",)),
        ({"VECTOR_DB_TYPE": "weaviate"}, 2, ("VECTOR_DB_TYPE", "qdrant")),
        ({"VECTOR_DB_TYPE": "qdrant"}, 2, ("QDRANT_URL",)),
    ],
    ids=["port", "embedder", "home", "no url", "index", "no url of the index"],
)
def test_a_start_that_fails_says_why_in_one_line(
    tmp_path: Path, environment: dict[str, str], status: int, words: tuple[str, ...]
) -> None:
    process = Process.start("-m", "kb_engine", **{"KB_HOME": str(tmp_path), **environment})
    assert process.popen.wait(START_SECONDS) == status
    process.stop()
    (line,) = process.output().splitlines()
    assert line.startswith("kb engine: ")
    assert all(word in line for word in words)


def test_a_second_engine_on_the_same_home_is_refused_in_one_line(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        second = Process.start(
            "-m", "kb_engine", KB_HOME=str(tmp_path), KB_ENGINE_PORT="0", KB_EMBEDDER="hash"
        )
        assert second.popen.wait(START_SECONDS) == 1
        second.stop()
        (line,) = second.output().splitlines()
        assert line.startswith("kb engine: ")
        assert engine.get("/status")["version"] == "v3.0.0"
