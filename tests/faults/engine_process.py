"""An engine in a process of its own, to be killed, and notes that can be told apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from kb_load.processes import free_port
from tests.support.eventually import eventually
from tests.support.stack import Process, wait_until_ready

SECONDS = 100.0


class Running:
    """An engine in a process of its own."""

    def __init__(self, home: Path, **environment: str) -> None:
        port = free_port()
        settings = {"KB_HOME": str(home), "KB_ENGINE_PORT": str(port), "KB_EMBEDDER": "hash", **environment}
        self.process = Process.start("-m", "kb_engine", **settings)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        wait_until_ready(f"http://127.0.0.1:{port}/readyz", self.process)

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
            seconds=SECONDS,
            what="the end of all jobs",
        )

    def kill(self) -> None:
        """`kill -9`; its last connections are closed."""
        self.process.kill()
        self.process.stop()
        self.http.close()

    def stop(self) -> None:
        self.http.close()
        assert self.process.stop() == 0, self.process.output()


@contextmanager
def running(home: Path, **environment: str) -> Iterator[Running]:
    engine = Running(home, **environment)
    try:
        yield engine
    finally:
        engine.stop()


def long_note(number: int) -> str:
    """A note with one word that no other has, of enough chunks that storing a hundred takes a while."""
    filling = " ".join(f"filling{word}of{number}" for word in range(1_000))
    return f"unique{number}word {filling}"


def documents_of(engine: Running, word: str) -> list[int]:
    """The documents that a word finds; of a note, its title is found with each of its chunks."""
    answer = engine.post("/search", json={"query": word, "mode": "fts", "top": 100})
    return sorted({result["document"]["id"] for result in answer["results"]})
