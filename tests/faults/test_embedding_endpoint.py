"""The engine with an embedding endpoint that is down, misconfigured, slow or restored. No accepted job is
lost.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kb_cli.main import main
from kb_cli.output import Exit
from tests.faults.engine_process import Running, running
from tests.support.embedding_endpoint import EmbeddingEndpoint, always, endpoint, hanging
from tests.support.eventually import eventually
from tests.support.postgres import give_back, new_database

pytestmark = pytest.mark.process

KEY = "sk-a-key-that-nobody-may-see"
WAITING = "Waiting for the embedding model"


@pytest.fixture
def served() -> Iterator[EmbeddingEndpoint]:
    with endpoint() as serving:
        yield serving


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    if request.param == "sqlite":
        yield {}
        return
    database = asyncio.run(new_database())
    yield {"KB_STORE": database.url}
    give_back(database)


def issues(engine: Running) -> list[str]:
    return list(engine.get("/status")["issues"])


def search(engine: Running, query: str, mode: str) -> httpx.Response:
    return engine.http.post("/api/v1/search", json={"query": query, "mode": mode})


def found(engine: Running, query: str, mode: str = "hybrid") -> list[int]:
    response = search(engine, query, mode)
    assert response.is_success, response.text
    return list(dict.fromkeys(result["document"]["id"] for result in response.json()["results"]))


def ended(engine: Running) -> dict[str, int]:
    return dict(+engine.all_ended())


def job(engine: Running, accepted: dict[str, Any]) -> dict[str, Any]:
    return engine.get(f"/jobs/{accepted['id']}")


def waits(engine: Running, accepted: dict[str, Any]) -> None:
    """Wait until the job waits for its embedder."""
    eventually(lambda: job(engine, accepted)["step"], lambda step: step == WAITING, what=WAITING)


def test_an_endpoint_that_is_away_at_the_start_is_waited_for(
    tmp_path: Path, served: EmbeddingEndpoint, store: dict[str, str]
) -> None:
    """Keyword search works in the meantime, the rest reports the reason; accepted jobs finish later."""
    served.stop()
    with running(tmp_path, **served.environment, **store) as engine:
        accepted = engine.post("/jobs", json={"text": "honey bees keep warm in a cluster"})
        waits(engine, accepted)
        (issue,) = issues(engine)
        assert f"{served.url}/embeddings cannot be reached" in issue
        ready = engine.http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        assert "searches by words" in ready.json()["issues"][0]
        assert served.url not in ready.text
        assert engine.get("/status")["model"]["loaded"] is False
        assert found(engine, "bees", "fts") == []
        for mode in ("hybrid", "vector"):
            refused = search(engine, "bees", mode)
            assert (refused.status_code, refused.json()["code"]) == (503, "embedder_unavailable")
            assert 0 < int(refused.headers["Retry-After"]) <= 5
        served.start()
        assert ended(engine) == {"completed": 1}
        eventually(lambda: issues(engine), lambda seen: seen == [], what="good health")
        assert found(engine, "honey bees", "vector") == found(engine, "bees", "fts") == [1]
        model = engine.get("/status")["model"]
        assert (model["name"], model["dimensions"], model["loaded"]) == ("openai:hashing", 256, True)
        assert "issues" not in engine.http.get("/readyz").json()
    served.stop()
    with running(tmp_path, **served.environment, **store) as again:  # a base with known dimensions
        assert found(again, "bees", "fts") == [1]
        assert again.get("/status")["model"]["dimensions"] == 256
        patched = again.http.patch("/api/v1/notes/1", json={"text": "a note"})
        assert patched.json()["code"] == "embedder_unavailable"
        assert again.get("/documents/1")["version"] == 1


def test_jobs_survive_an_outage_and_a_kill_in_the_middle_of_it(
    tmp_path: Path, served: EmbeddingEndpoint
) -> None:
    """Each job is done once: accepted before the outage, running during it, or accepted during it."""
    engine = Running(tmp_path, **served.environment, KB_INGEST_WORKERS="2")
    for number in range(5):
        engine.post("/jobs", json={"text": f"before{number}word the outage"})
    assert ended(engine) == {"completed": 5}
    served.fault = always(503)
    during = [engine.post("/jobs", json={"text": f"during{number}word the outage"}) for number in range(5)]
    waits(engine, during[0])
    assert engine.queue()["failed"] == 0
    engine.kill()
    with running(tmp_path, **served.environment, KB_INGEST_WORKERS="2") as again:
        eventually(lambda: issues(again), lambda told: "HTTP 503" in str(told), what="an issue")
        served.fault = None
        assert ended(again) == {"completed": 10}
        assert again.get("/documents")["total"] == 10
        assert [len(found(again, f"during{n}word", "fts")) for n in range(5)] == [1] * 5


def test_a_wrong_key_is_told_and_mended_by_a_restart(tmp_path: Path, served: EmbeddingEndpoint) -> None:
    """The job waits over the restart; neither key is in a log, in an answer or in a body."""
    served.key = KEY
    with running(tmp_path, **served.environment, OPENAI_API_KEY="sk-wrong") as engine:
        accepted = engine.post("/jobs", json={"text": "a secret text"})
        waits(engine, accepted)
        (issue,) = issues(engine)
        assert "HTTP 401: set OPENAI_API_KEY" in issue
    wrong = engine.process.output()
    with running(tmp_path, **served.environment, OPENAI_API_KEY=KEY, LOG_LEVEL="debug") as again:
        assert ended(again) == {"completed": 1}
        assert job(again, accepted)["attempts"] == 1
        told = again.http.get("/api/v1/status").text
    seen = wrong + again.process.output() + told + issue + json.dumps(served.requests)
    assert "the embedding endpoint answers" in seen
    assert all(secret not in seen for secret in (KEY, "sk-wrong"))
    assert "a secret text" not in wrong + again.process.output()


def test_a_hanging_endpoint_holds_up_no_shutdown(tmp_path: Path, served: EmbeddingEndpoint) -> None:
    """SIGTERM ends the engine cleanly while a job waits for an answer; the next start does the job."""
    with running(tmp_path, **served.environment) as engine:
        engine.post("/jobs", json={"text": "honey bees"})
        assert ended(engine) == {"completed": 1}
        served.fault = hanging
        asked = len(served.requests)
        engine.post("/jobs", json={"text": "a hive"})
        eventually(lambda: len(served.requests), lambda count: count > asked, what="a request")
    served.fault = None
    with running(tmp_path, **served.environment) as again:
        assert ended(again) == {"completed": 2}


def test_reindexing_waits_for_an_endpoint_and_goes_on_where_it_stopped(
    tmp_path: Path,
    served: EmbeddingEndpoint,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The endpoint fails between two batches: retried, then reported; the next run does the rest."""
    with running(tmp_path) as engine:
        engine.post("/jobs", json={"text": " ".join(f"term{number}" for number in range(6_000))})
        assert ended(engine) == {"completed": 1}
        chunks = engine.get("/status")["chunks"]
    for name, value in served.environment.items():
        monkeypatch.setenv(name, value)
    paused: list[float] = []
    monkeypatch.setattr("kb_engine.embed.offline.sleep", paused.append)
    batches = 0

    async def first_batch_only(_request: Any, asked: Any) -> Any:
        nonlocal batches
        batches += any("term" in text for text in asked["input"])
        return await always(503)(_request, asked) if batches > 1 else None

    served.fault = first_batch_only
    assert main(["reindex", "--home", str(tmp_path)]) == Exit.FAILED
    assert "run it again" in capsys.readouterr().err
    assert paused == sorted(paused)
    assert len(paused) > 3
    served.fault = None
    del served.requests[:]
    assert main(["reindex", "--home", str(tmp_path), "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["chunks"] == chunks
    assert sum("term" in text for text in served.texts()) == chunks - 32
