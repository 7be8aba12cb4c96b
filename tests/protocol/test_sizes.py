"""Frequently read answers stay small: the list of tools, and the list of jobs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kb_contracts.api import models as m
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import build_toolset
from kb_simulator import AtOnce
from kb_simulator.engine.jobs import JobRecord
from kb_simulator.engine.submissions import note
from tests.protocol.conftest import Serve, Served
from tests.support.contract_objects import MOMENT, job_error, job_with
from tests.support.mcp_messages import call, modern, request
from tests.support.simulated_engine import SimulatedEngine
from tests.support.tool_table import TOOLS

KB = 1024


@pytest.fixture
async def served(serve: Serve, engine: SimulatedEngine, tmp_path: Path) -> AsyncIterator[Served]:
    settings = ServerSettings(engine_url=engine.url, home=tmp_path)
    async with Services(settings, http_base="http://127.0.0.1:3000") as services:
        yield await serve(build_toolset("kb", services))


async def bytes_of(served: Served, message: dict[str, Any]) -> bytes:
    response = await served.post(message)
    assert response.status_code == 200
    return response.content


async def test_the_list_of_tools_is_under_16_kb(served: Served) -> None:
    """In both eras; the list is in an agent's context from the start."""
    for message in (request("tools/list"), modern(request("tools/list"))):
        body = await bytes_of(served, message)
        assert len(json.loads(body)["result"]["tools"]) == len(TOOLS["kb"])
        assert len(body) < 16 * KB


def job(
    number: int, *, title: str | None = None, tags: Sequence[str] | None = None, is_explained: bool = True
) -> m.Job:
    """A failed job with members of maximum size."""
    many = ["collection:documents", *(f"tag-{place}-{'x' * 100}" for place in range(20))]
    return job_with(
        id=str(uuid4()),
        status="failed",
        kind="file",
        title=title or f"{number} " + '年金の再評価 "quoted" ' * 30,
        filename="报告" * 60 + ".pdf",
        tags=many if tags is None else tags,
        step="failed",
        attempts=3,
        error=job_error(message="Das Dokument ist beschädigt. " * 50) if is_explained else None,
        started_at=MOMENT,
        finished_at=MOMENT,
    )


def keep(engine: SimulatedEngine, jobs: list[m.Job]) -> None:
    """Give an engine these jobs, the last one first."""
    source = note("job", m.NoteRequest(text="x"))
    engine.state.jobs.update((each.id, JobRecord(each, source, AtOnce(), 0)) for each in reversed(jobs))


@pytest.mark.parametrize(
    "members", [{}, {"title": "report", "tags": ["collection:memory"], "is_explained": False}]
)
async def test_the_jobs_are_under_4_kb_in_a_base_of_10_000(
    served: Served, engine: SimulatedEngine, members: dict[str, Any]
) -> None:
    jobs = [job(number, **members) for number in range(10_000)]
    keep(engine, jobs)
    body = await bytes_of(served, call("kb_jobs"))
    assert len(body) < 4 * KB
    answer = json.loads(body)["result"]["structuredContent"]
    ids = [each["id"] for each in answer["jobs"]]
    assert ids == [each.id for each in jobs[: len(ids)]]
    assert len(ids) >= 2
    assert answer["total"] == 10_000
    assert f"offset={len(ids)}" in answer["hint"]


async def test_a_job_by_its_id_is_whole(served: Served, engine: SimulatedEngine) -> None:
    failed = job(0)
    keep(engine, [failed])
    body = await bytes_of(served, call("kb_jobs", job_id=failed.id))
    (shown,) = json.loads(body)["result"]["structuredContent"]["jobs"]
    assert failed.error is not None
    assert shown["title"] == failed.title
    assert shown["error"]["message"] == failed.error.message
    assert shown["tags"] == failed.tags[1:]
    assert shown["filename"] == failed.filename
