"""The engine killed in the middle of its work: what was accepted is done once, after the next start."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.engine_process import SECONDS, Running, documents_of, long_note, running
from tests.stack import Process
from tests.waiting import until

NOTES = 100


def half_done(queue: Counter[str]) -> bool:
    """Some are done, one runs, others wait."""
    return queue["completed"] >= 5 and queue["running"] >= 1 and queue["queued"] >= 5


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hundred_accepted_notes_survive_a_kill_each_once(tmp_path: Path) -> None:
    """Killed while some are done, one runs and others wait; all are found after the next start."""
    engine = Running(tmp_path, KB_INGEST_WORKERS="1")
    jobs = {number: engine.post("/jobs", json={"text": long_note(number)})["id"] for number in range(NOTES)}
    before = until(engine.queue, half_done, seconds=SECONDS, what="half of the work")
    engine.kill()
    assert before["completed"] < NOTES

    with running(tmp_path, KB_INGEST_WORKERS="1") as again:
        assert again.all_ended()["completed"] == NOTES
        found = {number: documents_of(again, f"unique{number}word") for number in range(NOTES)}
        assert all(len(documents) == 1 for documents in found.values()), found
        assert again.get("/documents")["total"] == NOTES
        for number, job_id in jobs.items():
            assert again.get(f"/jobs/{job_id}")["document_id"] == found[number][0]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_accepted_uploads_survive_a_kill(tmp_path: Path) -> None:
    """Their files lie in the spool until they are taken in, and leave it then."""
    spool = tmp_path / "engine" / "spool"
    engine = Running(tmp_path, KB_INGEST_WORKERS="1")
    for number in range(20):
        text = long_note(number) * (40 if number < 2 else 1)  # the first two are worked on while others come
        engine.post("/jobs", files={"file": (f"{number}.txt", text.encode())})
    until(
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


def test_a_stopped_engine_ends_in_order_and_finishes_later(tmp_path: Path) -> None:
    """SIGTERM during a job: status 0, nothing stored by halves; the job is done after the next start."""
    with running(tmp_path) as engine:
        job = engine.post("/jobs", json={"text": " ".join(f"word{number}" for number in range(60_000))})
        until(
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
    ],
    ids=["store", "port", "embedder", "home"],
)
def test_a_start_that_fails_says_why_in_one_line(
    tmp_path: Path, environment: dict[str, str], status: int, words: tuple[str, ...]
) -> None:
    """On stderr, without a traceback, with a status that is not 0."""
    process = Process.start("-m", "kb_engine", **{"KB_HOME": str(tmp_path), **environment})
    assert process.popen.wait(30) == status
    process.stop()
    (line,) = process.output().splitlines()
    assert line.startswith("kb engine: ")
    assert all(word in line for word in words)


def test_a_second_engine_on_the_same_home_is_refused_in_one_line(tmp_path: Path) -> None:
    """And the first one goes on."""
    with running(tmp_path) as engine:
        second = Process.start(
            "-m", "kb_engine", KB_HOME=str(tmp_path), KB_ENGINE_PORT="0", KB_EMBEDDER="hash"
        )
        assert second.popen.wait(30) == 1
        second.stop()
        (line,) = second.output().splitlines()
        assert line.startswith("kb engine: ")
        assert engine.get("/status")["version"] == "v3.0.0"
