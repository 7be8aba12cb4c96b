"""Engines and servers in processes of their own, to be killed, and notes that can be told apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from kb_load.processes import free_port
from tests.support.eventually import eventually
from tests.support.patience import ANSWER_SECONDS
from tests.support.stack import Process, wait_until_ready


class Running:
    """An engine."""

    def __init__(self, home: Path, **environment: str) -> None:
        self.port = port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        settings = {"KB_HOME": str(home), "KB_ENGINE_PORT": str(port), "KB_EMBEDDER": "hash", **environment}
        self.process = Process.start("-m", "kb_engine", **settings)
        self.http = httpx.Client(base_url=self.url, timeout=ANSWER_SECONDS)
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
        """The states of the jobs, once none waits or runs."""
        return eventually(
            self.queue,
            lambda queue: queue["queued"] == queue["running"] == 0,
            what="the end of all jobs",
        )

    def wait_until_running(self, job_id: str, step: str = "") -> None:
        """Return when the job runs, and is at this step where one is named."""
        eventually(
            lambda: self.get(f"/jobs/{job_id}"),
            lambda job: job["status"] == "running" and step in job["step"],
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
    """A server, which needs no engine to be alive, and its port."""
    port = free_port()
    settings = {"KB_HOME": str(home), "KB_MCP_PORT": str(port), **environment}
    process = Process.start("-m", "kb_cli.main", "serve", **settings)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/healthz", process)
        yield process, port
    finally:
        process.stop()


def long_note(number: int, words: int = 1_000) -> str:
    """A note with one word that no other has. Of 1,000 words it has so many chunks that storing a hundred
    takes a while."""
    filling = " ".join(f"filling{word}of{number}" for word in range(words))
    return f"unique{number}word {filling}"


def documents_of(engine: Running, word: str) -> list[int]:
    """The documents that a word finds; of a note, its title is found with each of its chunks."""
    answer = engine.post("/search", json={"query": word, "mode": "fts", "top": 100})
    return sorted({result["document"]["id"] for result in answer["results"]})
