"""The engine's behaviour beyond the API contract: limits, fairness, its log, restarts, its own status."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from kb_contracts.api.models import SandboxInfo
from kb_engine.address import address_of
from kb_readers.sandbox import Sandboxing
from kb_verify.files import END, file_part
from tests.contract.conftest import HELD_LONG, Raw, Start
from tests.support.engine_http import Caller, Json, answered, problem
from tests.support.ingesting import HELD, TestEmbedder
from tests.support.patience import ANSWER_SECONDS
from tests.support.postgres import PASSWORD, new_server
from tests.support.stores import direct


async def test_a_file_without_a_title_is_called_by_its_own_or_its_name(kb: Caller) -> None:
    markdown = await kb.document(await kb.file("a.md", b"# Stones of the valley\n\ngranite"))
    text = await kb.document(await kb.file("b.txt", b"granite"))
    assert (markdown["title"], text["title"]) == ("Stones of the valley", "b.txt")


async def test_an_unknown_path_is_told_the_nearest(kb: Caller) -> None:
    detail = problem(await kb.http.get("/api/v1/serch"), "route_not_found")["detail"]
    assert "/api/v1/search" in detail


async def test_health_goes_by_the_name_that_many_probes_use(start: Start) -> None:
    kb = await start(api_key="very-secret-key")
    plain = {"Authorization": ""}
    paths = [await kb.http.get(path, headers=plain) for path in ("/healthz", "/health")]
    assert [(each.status_code, each.json()) for each in paths] == [(200, {"status": "ok"})] * 2


async def test_two_credentials_are_two_callers_and_not_logged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    kb = await start(api_key="very-secret-key")
    headers = {"Authorization": "Bearer very-secret-key"}
    job = answered(await kb.http.post("/api/v1/jobs", json={"text": "granite quarry"}, headers=headers), 202)
    answered(await kb.http.get(f"/api/v1/jobs/{job['id']}", params={"wait": 30}, headers=headers))
    answered(await kb.http.post("/api/v1/search", json={"query": "basalt columns"}, headers=headers))
    ours = "\n".join(
        f"{record.getMessage()} {record.__dict__}"
        for record in caplog.records
        if record.name.startswith("kb_")
    )
    assert ours
    for secret in ("very-secret-key", "granite quarry", "basalt columns"):
        assert secret not in ours


KEY = {"Idempotency-Key": "key-1"}
JOBS = "/api/v1/jobs"


async def test_a_key_belongs_to_its_credential(kb: Caller) -> None:
    one = await kb.http.post(JOBS, json={"text": "granite"}, headers={**KEY, "Authorization": "Bearer a"})
    two = await kb.http.post(JOBS, json={"text": "basalt"}, headers={**KEY, "Authorization": "Bearer b"})
    assert answered(one, 202)["id"] != answered(two, 202)["id"]


async def test_a_second_request_during_the_first_is_in_progress(kb: Caller) -> None:
    """The first upload is held open; the second request gets Retry-After."""
    body = file_part() + END
    async with Raw(kb.http.base_url.port) as raw, asyncio.timeout(ANSWER_SECONDS):
        await raw.begin(len(body), "Idempotency-Key: key-1", "Connection: close")
        await raw.write(body[:80])
        response = await kb.http.post(JOBS, json={"text": "granite"}, headers=KEY)
        problem(response, "in_progress")
        assert int(response.headers["Retry-After"]) >= 1
        await raw.write(body[80:])
        assert b" 202 " in await raw.reader.readline()


@pytest.mark.usefixtures("embedder")
async def test_cancelling_a_job_ends_a_long_poll(kb: Caller) -> None:
    job = await kb.submit(HELD)
    waiting = asyncio.create_task(kb.job(job["id"], wait=30))
    await kb.started(job)
    await kb.http.delete(f"/api/v1/jobs/{job['id']}")
    async with asyncio.timeout(ANSWER_SECONDS):
        assert (await waiting)["status"] == "cancelled"


@pytest.mark.usefixtures("embedder")
async def test_users_take_turns(kb: Caller) -> None:
    """`X-User-ID` separates them: the job of one user starts at once although jobs of another wait."""
    texts = [f"{number} {HELD_LONG}" for number in range(4)]
    jobs = []
    for user, text in zip(("ann", "ann", "ann", "ben"), texts, strict=True):
        sent = await kb.http.post("/api/v1/jobs", json={"text": text}, headers={"X-User-ID": user})
        jobs.append(answered(sent, 202))
    await kb.started(jobs[3])
    assert (await kb.job(jobs[2]["id"]))["status"] == "queued"
    response = await kb.http.post("/api/v1/jobs", json={"text": "x"}, headers={"X-User-ID": "x" * 256})
    assert problem(response, "invalid_parameter")["parameter"] == "X-User-ID"


@pytest.mark.usefixtures("embedder")
async def test_too_many_waiting_jobs_are_refused(start: Start) -> None:
    kb = await start(max_queued_jobs=2)
    for number in range(2):
        await kb.started(await kb.submit(f"{number} {HELD_LONG}"))
    await kb.submit(f"one {HELD_LONG}")
    await kb.submit(f"two {HELD_LONG}")
    response = await kb.http.post("/api/v1/jobs", json={"text": "three"})
    problem(response, "queue_full")
    assert int(response.headers["Retry-After"]) >= 1


async def patch(kb: Caller, number: int, text: str, wait: float, **more: Any) -> httpx.Response:
    return await kb.http.patch(
        f"/api/v1/notes/{number}", json={"text": text}, params={"wait": wait}, headers=KEY, **more
    )


BASALT = f"{HELD} basalt"


async def update(kb: Caller, number: int) -> Json:
    """Return the job of an update that is held."""
    return answered(await patch(kb, number, BASALT, wait=0), 202)


@pytest.mark.usefixtures("embedder")
async def test_an_accepted_update_survives_a_restart(start: Start) -> None:
    kb = await start()
    number = await kb.note("granite")
    job = await update(kb, number)
    await start.stop()
    again = await start()
    assert (await again.ended(job))["status"] == "completed"
    for _ in range(2):
        note = answered(await patch(again, number, BASALT, wait=30))
        assert (note["id"], note["version"], note["title"]) == (number, 2, BASALT)
    assert (await again.document(number))["version"] == 2


async def test_joining_an_update_with_a_longer_wait_returns_the_document(
    embedder: TestEmbedder, kb: Caller
) -> None:
    """The waiting time is not part of the fingerprint that belongs to an idempotency key."""
    number = await kb.note("granite")
    job = await update(kb, number)
    embedder.release.set()
    assert answered(await patch(kb, number, BASALT, wait=30))["version"] == 2
    assert (await kb.job(job["id"]))["status"] == "completed"


async def test_deleting_a_note_ends_a_waiting_update_with_document_not_found(
    embedder: TestEmbedder, kb: Caller
) -> None:
    number = await kb.note("granite")
    job = await update(kb, number)
    waiting = asyncio.create_task(patch(kb, number, BASALT, wait=30))
    answered(await kb.http.delete(f"/api/v1/documents/{number}"))
    embedder.release.set()
    problem(await waiting, "document_not_found")
    assert (await kb.ended(job))["error"]["code"] == "document_not_found"


@pytest.mark.requirement("K52")
async def test_status_names_this_machine_and_the_folder(kb: Caller, tmp_path: Path) -> None:
    status = await kb.status()
    assert status["last_updated"] is None
    assert status["device"] == {"type": "cpu", "threads": 1}
    assert status["storage"]["path"] == str(tmp_path / "engine")


@pytest.mark.parametrize(("setting", "is_issue"), [("require", True), ("auto", False)])
async def test_a_required_sandbox_that_lacks_a_part_is_an_issue(
    start: Start, monkeypatch: pytest.MonkeyPatch, setting: Sandboxing, is_issue: bool
) -> None:
    async def without_landlock(setting: Sandboxing) -> SandboxInfo:
        return SandboxInfo(setting=setting, holds=["seccomp"], missing={"landlock": "the kernel lacks it"})

    monkeypatch.setattr("kb_engine.api.engine.sandbox_info", without_landlock)
    status = await (await start(sandbox=setting)).status()
    assert status["sandbox"]["missing"] == {"landlock": "the kernel lacks it"}
    assert ["landlock: the kernel lacks it" in issue for issue in status["issues"]] == [True] * is_issue


def overwrite(base: Path) -> None:
    base.write_bytes(b"\xff" * base.stat().st_size)


def truncate(base: Path) -> None:
    os.truncate(base, base.stat().st_size // 2)


@pytest.mark.parametrize("damage", [overwrite, truncate])
async def test_a_store_that_is_damaged_is_an_issue_with_its_path(
    start: Start, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    kb = await start()
    await kb.note("granite")
    await start.stop()
    kb = await start()
    assert (await kb.http.get("/readyz")).status_code == 200
    base = tmp_path / "engine" / "kb.sqlite"
    damage(base)
    problem(await kb.http.get("/readyz"), "not_ready")
    status = await kb.status()
    (issue,) = status["issues"]
    assert issue.startswith(f"The base {base} cannot be read: ")
    assert (status["storage"]["accessible"], status["version"]) == (False, "v3.0.0")


async def test_passages_without_vectors_are_an_issue(start: Start, tmp_path: Path) -> None:
    """A search answers with the other passages and reports the gap. The issue ends with the document."""
    kb = await start()
    for text in ("granite quarry", "granite columns", "granite roofs"):
        await kb.note(text)
    with direct(tmp_path / "engine" / "kb.sqlite") as db:
        db.execute("DELETE FROM vectors WHERE chunk_id = 2")
    answer = await kb.search("granite columns")
    assert {each["document"]["id"] for each in answer["results"]} == {1, 3}
    assert "kb check --repair" in answer["incomplete"]
    assert "incomplete" not in await kb.search("granite", mode="fts")
    (issue,) = (await kb.status())["issues"]
    assert issue.startswith("1 passages have no vector")
    assert "kb check --repair" in issue
    answered(await kb.http.delete("/api/v1/documents/2"))
    assert "incomplete" not in await kb.search("granite columns")
    assert (await kb.status())["issues"] == []


async def test_a_store_that_is_gone_is_an_issue_with_its_path(start: Start, tmp_path: Path) -> None:
    """The figures are the last ones read."""
    kb = await start()
    await kb.note("granite")
    before = await kb.status()
    shutil.rmtree(tmp_path / "engine")
    status = await kb.status()
    (issue,) = status["issues"]
    assert issue.startswith(f"The base {tmp_path}/engine/kb.sqlite cannot be read: ")
    assert status["storage"] == {**before["storage"], "accessible": False}
    assert (status["documents"], status["chunks"]) == (before["documents"], 1)
    assert before["storage"]["accessible"] is True


@pytest.mark.process
async def test_a_database_that_is_away_is_an_issue_with_its_address(start: Start) -> None:
    """Without its password; after the database has returned there is no issue."""
    server = await asyncio.to_thread(new_server)
    await server.run("CREATE DATABASE base")
    kb = await start(store=server.url("base"))
    await asyncio.to_thread(server.stop)
    status = await kb.status()
    (issue,) = status["issues"]
    assert issue.startswith(f"The base {address_of(server.url('base'))} cannot be read: ")
    assert (status["storage"]["accessible"], PASSWORD in str(status)) == (False, False)
    await asyncio.to_thread(server.start)
    again = await kb.status()
    assert (again["issues"], again["storage"]["accessible"]) == ([], True)
    await start.stop()
    await asyncio.to_thread(server.remove)


@pytest.mark.process
async def test_the_model_is_named_before_it_is_loaded(start: Start) -> None:
    """The request comes directly after the start; loading the model is no condition for readiness."""
    kb = await start(embedder="minilm")
    status = await kb.status()
    assert status["model"]["name"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert status["model"]["dimensions"] == 384


@pytest.mark.process
@pytest.mark.requirement("E25")
async def test_the_default_model_opens_no_connection_to_another_host(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the default model: documents are added and found by vector without external connections."""
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family in {socket.AF_INET, socket.AF_INET6} and address[0] != "127.0.0.1":
            raise AssertionError(f"a connection to {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_here)
    kb = await start(embedder="minilm")
    document = await kb.note("A bicycle was left at the railway station")
    await kb.note("Bread is baked from flour and water")
    answer = await kb.search("two-wheeled vehicle near the trains", mode="vector", top=1)
    assert [result["document"]["id"] for result in answer["results"]] == [document]
