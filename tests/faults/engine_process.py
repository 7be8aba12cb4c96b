"""Engines and servers in separate processes, to be killed, and notes with unique words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from kb_contracts.api.models import FINAL_STATUSES
from kb_load.processes import free_port
from tests.support.eventually import eventually
from tests.support.patience import ANSWER_SECONDS
from tests.support.stack import Process, wait_until_ready


class Running:
    def __init__(self, home: Path, **environment: str) -> None:
        self.port = port = int(environment.get("KB_ENGINE_PORT") or free_port())
        self.url = f"http://127.0.0.1:{port}"
        settings = {"KB_HOME": str(home), "KB_ENGINE_PORT": str(port), "KB_EMBEDDER": "hash", **environment}
        self.process = Process.start("-m", "kb_engine", **settings)
        self.http = httpx.Client(base_url=self.url, timeout=ANSWER_SECONDS, verify=False)
        self.is_killed = False
        wait_until_ready(f"{self.url}/readyz", self.process)

    def post(self, path: str, **request: Any) -> dict[str, Any]:
        response = self.http.post(f"/api/v1{path}", **request)
        assert response.is_success, response.text
        return dict(response.json())

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        response = self.http.get(f"/api/v1{path}", params=query)
        assert response.is_success, response.text
        return dict(response.json())

    def queue(self) -> Counter[str]:
        return Counter(self.get("/status")["queue"])

    def all_ended(self) -> Counter[str]:
        """Wait until no job waits or runs, and return the number of jobs by state."""
        return eventually(
            self.queue, lambda queue: queue["queued"] == queue["running"] == 0, what="the end of all jobs"
        )

    def ended(self, job_id: str) -> str:
        """Wait until a job has ended, and return its status."""
        job = eventually(
            lambda: self.get(f"/jobs/{job_id}", wait=30),
            lambda job: job["status"] in FINAL_STATUSES,
            what="the end of the job",
        )
        return str(job["status"])

    def wait_until_running(self, job_id: str) -> None:
        """For a job that something holds: any other can end before it is seen to run."""
        eventually(
            lambda: self.get(f"/jobs/{job_id}")["status"],
            lambda status: status == "running",
            what="the start of the job",
        )

    def wait_until_begun(self, job_id: str, step: str = "") -> None:
        """Wait until a job runs, at a step whose name contains `step`, or has completed unseen."""
        eventually(
            lambda: self.get(f"/jobs/{job_id}"),
            lambda job: job["status"] == "completed" or (job["status"] == "running" and step in job["step"]),
            what="the start of the job",
        )

    def kill(self) -> None:
        self.is_killed = True
        self.process.kill()
        self.stop()

    def stop(self) -> None:
        self.http.close()
        status = self.process.stop()
        assert self.is_killed or status == 0, self.process.output()


@contextmanager
def running(home: Path, **environment: str) -> Iterator[Running]:
    engine = Running(home, **environment)
    try:
        yield engine
    finally:
        engine.stop()


@contextmanager
def running_server(home: Path, **environment: str) -> Iterator[tuple[Process, int]]:
    """Yield a running server, which does not need a running engine, and its port."""
    port = free_port()
    settings = {"KB_HOME": str(home), "KB_MCP_PORT": str(port), **environment}
    process = Process.start("-m", "kb_cli.main", "serve", **settings)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/healthz", process)
        yield process, port
    finally:
        process.stop()


def long_note(number: int, words: int = 1_000) -> str:
    """Return a note with a unique word.

    With 1,000 words it has enough chunks that storing a hundred such notes takes a while.
    """
    filling = " ".join(f"filling{word}of{number}" for word in range(words))
    return f"unique{number}word {filling}"


def documents_of(engine: Running, word: str) -> list[int]:
    """The documents found by a word; all chunks of a note match its title, so that each is listed once."""
    answer = engine.post("/search", json={"query": word, "mode": "fts", "top": 100})
    return sorted({result["document"]["id"] for result in answer["results"]})
