"""The engine killed in the middle of its work: what was accepted is done once, after the next start."""

from __future__ import annotations

import os
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.faults.engine_process import SECONDS, Running, documents_of, long_note, running
from tests.support.eventually import eventually
from tests.support.stack import Process

pytestmark = pytest.mark.process

NOTES = 100
KILLS = int(os.environ.get("KB_TEST_KILLS", "6"))


def half_done(queue: Counter[str]) -> bool:
    return queue["completed"] >= 5 and queue["running"] >= 1 and queue["queued"] >= 5


@pytest.mark.timeout(300)
def test_a_hundred_accepted_notes_survive_a_kill_each_once(tmp_path: Path) -> None:
    """Killed while some are done, one runs and others wait; all are found after the next start."""
    engine = Running(tmp_path, KB_INGEST_WORKERS="1")
    jobs = {number: engine.post("/jobs", json={"text": long_note(number)})["id"] for number in range(NOTES)}
    before = eventually(engine.queue, half_done, seconds=SECONDS, what="half of the work")
    engine.kill()
    assert before["completed"] < NOTES

    with running(tmp_path, KB_INGEST_WORKERS="1") as again:
        assert again.all_ended()["completed"] == NOTES
        found = {number: documents_of(again, f"unique{number}word") for number in range(NOTES)}
        assert all(len(documents) == 1 for documents in found.values()), found
        assert again.get("/documents")["total"] == NOTES
        for number, job_id in jobs.items():
            assert again.get(f"/jobs/{job_id}")["document_id"] == found[number][0]


@pytest.mark.timeout(300)
def test_accepted_uploads_survive_a_kill(tmp_path: Path) -> None:
    """Their files lie in the spool until they are taken in, and leave it then."""
    spool = tmp_path / "engine" / "spool"
    engine = Running(tmp_path, KB_INGEST_WORKERS="1")
    for number in range(20):
        text = long_note(number) * (40 if number < 2 else 1)  # the first two are worked on while others come
        engine.post("/jobs", files={"file": (f"{number}.txt", text.encode())})
    eventually(
        engine.queue,
        lambda queue: queue["running"] >= 1 and queue["queued"] >= 5,
        seconds=SECONDS,
        what="one running and others waiting",
    )
    engine.kill()
    assert len(list(spool.iterdir())) >= 6
    (spool / "orphan").write_bytes(b"of a request that was never accepted")

    with running(tmp_path, KB_INGEST_WORKERS="1") as again:
        assert again.all_ended()["completed"] == 20
        for number in range(20):
            assert len(documents_of(again, f"unique{number}word")) == 1
        assert list(spool.iterdir()) == []


@pytest.mark.timeout(300 + 20 * KILLS)
def test_no_number_of_kills_loses_what_was_accepted(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Three within the life of one job, the others wherever they hit: while it is done, started or accepting.

    Whatever was answered with 202 is there once in the end, and between two kills every file whose job has
    not completed lies in the spool with its bytes. The number of kills is `KB_TEST_KILLS`.
    """
    history = Kills(tmp_path)
    history.during_one_job(min(3, KILLS))
    for number in range(KILLS - history.kills):
        history.anywhere(random.Random(number).uniform(0.0, 0.4))
    history.check_the_end()
    record_property("kills", history.kills)
    record_property("accepted", len(history.accepted))
    assert history.kills == KILLS


class Kills:
    """An engine that is killed again and again, and what it has accepted. One worker, so that jobs wait."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.kills = 0
        self.accepted: dict[str, tuple[str, bytes | None]] = {}
        """By the job's id: a word that only its document has, and the file's bytes; None of a note."""

    def during_one_job(self, kills: int) -> None:
        """Kill the engine as often while one large file is at work; it is neither failed nor lost."""
        words = " ".join(f"large{number}" for number in range(60_000))
        job_id = ""
        for _ in range(kills):
            engine = self._start()
            job_id = job_id or self._send_file(engine, "unique0large", words)
            eventually(
                partial(engine.get, f"/jobs/{job_id}"),
                lambda job: job["status"] == "running" and job["step"] == "Generating embeddings",
                seconds=SECONDS,
                what="the work on the large file",
            )
            self._kill(engine)

    def anywhere(self, seconds: float) -> None:
        engine = self._start()
        number = self.kills
        self._send_file(engine, f"unique{number}file", f"of kill {number} " * 200)
        text = f"unique{number}note of kill {number}"
        job = engine.post("/jobs", json={"text": text, "title": f"note {number}"})
        self.accepted[job["id"]] = (f"unique{number}note", None)
        with ThreadPoolExecutor(1) as pool:  # whose answer may never come: then it was not accepted
            sent = pool.submit(self._send_in_vain, engine, f"unique{number}late")
            with suppress(TimeoutError):
                sent.exception(timeout=seconds)
            self._kill(engine)

    def check_the_end(self) -> None:
        """Let it finish: each accepted thing is one document, and nothing is left in the spool."""
        with running(self.home, KB_INGEST_WORKERS="1") as engine:
            # What was hit often rests for a while before it is taken again.
            queue = eventually(
                engine.queue,
                lambda queue: queue["queued"] == queue["running"] == 0,
                seconds=SECONDS + 10 * KILLS,
                what="the end of all jobs",
            )
            assert (queue["failed"], queue["cancelled"]) == (0, 0)
            for job_id, (word, _) in self.accepted.items():
                job = engine.get(f"/jobs/{job_id}")
                assert (job["status"], documents_of(engine, word)) == ("completed", [job["document_id"]])
        assert list(self._spool.iterdir()) == []

    @property
    def _spool(self) -> Path:
        return self.home / "engine" / "spool"

    def _start(self) -> Running:
        engine = Running(self.home, KB_INGEST_WORKERS="1")
        for job_id in self.accepted:
            assert engine.get(f"/jobs/{job_id}")["status"] in {"queued", "running", "completed"}
        return engine

    def _kill(self, engine: Running) -> None:
        engine.kill()
        self.kills += 1
        with closing(sqlite3.connect(self.home / "engine" / "kb.sqlite")) as base:
            open_ = {name for (name,) in base.execute("SELECT id FROM jobs WHERE status != 'completed'")}
        for job_id in open_ & self.accepted.keys():
            if (content := self.accepted[job_id][1]) is not None:
                assert (self._spool / job_id).read_bytes() == content

    def _send_file(self, engine: Running, word: str, text: str) -> str:
        content = f"{word} {text}".encode()
        job = engine.post("/jobs", files={"file": (f"{word}.txt", content)})
        self.accepted[job["id"]] = (word, content)
        return str(job["id"])

    def _send_in_vain(self, engine: Running, word: str) -> None:
        with suppress(httpx.HTTPError):
            self._send_file(engine, word, "word " * 20_000)


def test_a_stopped_engine_ends_in_order_and_finishes_later(tmp_path: Path) -> None:
    """SIGTERM during a job: status 0, nothing stored by halves; the job is done after the next start."""
    with running(tmp_path) as engine:
        job = engine.post("/jobs", json={"text": " ".join(f"word{number}" for number in range(60_000))})
        eventually(
            lambda: engine.get(f"/jobs/{job['id']}")["status"],
            lambda status: status == "running",
            seconds=SECONDS,
            what="the start of the job",
        )
    with running(tmp_path) as again:
        assert again.all_ended()["completed"] == 1
        assert again.get("/documents")["total"] == 1


@pytest.mark.parametrize(
    ("environment", "status", "words"),
    [
        ({"KB_STORE": "mysql://x"}, 2, ("KB_STORE", "sqlite:")),
        ({"KB_ENGINE_PORT": "http"}, 2, ("KB_ENGINE_PORT",)),
        ({"KB_EMBEDDER": "word2vec"}, 1, ("KB_EMBEDDER", "minilm")),
        ({"KB_HOME": "/dev/null/kb"}, 1, ("/dev/null/kb", "KB_HOME")),
        ({"KB_EMBEDDER": "openai"}, 2, ("KB_EMBEDDING_URL",)),
        ({"KB_EMBEDDER": "openai", "KB_EMBEDDING_URL": "http://127.0.0.1:1/v1"}, 2, ("KB_EMBEDDING_MODEL",)),
        (
            {"KB_EMBEDDER": "openai", "KB_EMBEDDING_URL": "127.0.0.1:1/v1", "KB_EMBEDDING_MODEL": "m"},
            2,
            ("KB_EMBEDDING_URL",),
        ),
    ],
    ids=["store", "port", "embedder", "home", "no url", "no model", "no scheme"],
)
def test_a_start_that_fails_says_why_in_one_line(
    tmp_path: Path, environment: dict[str, str], status: int, words: tuple[str, ...]
) -> None:
    process = Process.start("-m", "kb_engine", **{"KB_HOME": str(tmp_path), **environment})
    assert process.popen.wait(30) == status
    process.stop()
    (line,) = process.output().splitlines()
    assert line.startswith("kb engine: ")
    assert all(word in line for word in words)


def test_a_second_engine_on_the_same_home_is_refused_in_one_line(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        second = Process.start(
            "-m", "kb_engine", KB_HOME=str(tmp_path), KB_ENGINE_PORT="0", KB_EMBEDDER="hash"
        )
        assert second.popen.wait(30) == 1
        second.stop()
        (line,) = second.output().splitlines()
        assert line.startswith("kb engine: ")
        assert engine.get("/status")["version"] == "v3.0.0"
