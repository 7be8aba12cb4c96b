"""What jobs do in this engine beyond what any client can see: one worker, many workers, a full queue."""

from __future__ import annotations

import asyncio

from tests.contract.conftest import Start
from tests.support.engine_http import LONG, Caller, answered, problem


async def test_a_queued_job_is_cancelled_and_never_done(kb: Caller) -> None:
    """The worker goes on to the job behind it."""
    before = await kb.hold()
    second, third = [await kb.submit(f"{text} {LONG[:20_000]}") for text in ("granite", "basalt")]
    for job in (second, *before):
        cancelled = answered(await kb.http.delete(f"/api/v1/jobs/{job['id']}"))
        assert cancelled["status"] == "cancelled"
    await kb.completed(third)
    assert await kb.found("granite") == []


async def test_a_running_job_is_cancelled_and_leaves_nothing(kb: Caller) -> None:
    """The worker is free for the next at once."""
    job = await kb.submit(LONG)
    await kb.started(job)
    assert answered(await kb.http.delete(f"/api/v1/jobs/{job['id']}"))["status"] == "cancelled"
    await kb.note("granite")
    assert await kb.found("long7") == []
    assert (await kb.documents())["total"] == 1


async def test_who_waits_hears_of_a_cancel(kb: Caller) -> None:
    """The long poll answers `cancelled`."""
    job = await kb.submit(LONG)
    waiting = asyncio.create_task(kb.job(job["id"], wait=30))
    await kb.started(job)
    await kb.http.delete(f"/api/v1/jobs/{job['id']}")
    async with asyncio.timeout(20):
        assert (await waiting)["status"] == "cancelled"


async def test_a_note_does_not_wait_for_long_ones(kb: Caller) -> None:
    """Of the same caller, who has sent more of them than are worked on at once."""
    long = [*await kb.hold(), await kb.submit(f"granite {LONG}")]
    await kb.note("basalt")
    assert [(await kb.job(job["id"]))["status"] for job in long] == ["running", "running", "queued"]


async def test_users_take_turns(kb: Caller) -> None:
    """`X-User-ID` tells them apart: one begins at once, although the jobs of another wait."""
    texts = [f"{number} {LONG}" for number in range(4)]
    jobs = []
    for user, text in zip(("ann", "ann", "ann", "ben"), texts, strict=True):
        sent = await kb.http.post("/api/v1/jobs", json={"text": text}, headers={"X-User-ID": user})
        jobs.append(answered(sent, 202))
    await kb.started(jobs[3])
    assert (await kb.job(jobs[2]["id"]))["status"] == "queued"
    response = await kb.http.post("/api/v1/jobs", json={"text": "x"}, headers={"X-User-ID": "x" * 256})
    assert problem(response, "invalid_parameter")["parameter"] == "X-User-ID"


async def test_too_many_waiting_jobs_are_refused(start: Start) -> None:
    """429 with when to come again, at the limit that was set."""
    kb = await start(max_queued_jobs=2)
    for job in await kb.hold():
        await kb.started(job)
    await kb.submit(f"one {LONG}")
    await kb.submit(f"two {LONG}")
    response = await kb.http.post("/api/v1/jobs", json={"text": "three"})
    problem(response, "queue_full")
    assert int(response.headers["Retry-After"]) >= 1


async def test_a_text_submitted_many_times_at_once_is_one_document(start: Start) -> None:
    """Decided when it is stored, not when it is accepted."""
    kb = await start(ingest_workers=4)
    jobs = await asyncio.gather(*(kb.submit("granite", tags=[f"t{number}"]) for number in range(8)))
    documents = {await kb.completed(job) for job in jobs}
    (only,) = documents
    assert sorted((await kb.document(only))["tags"]) == [f"t{number}" for number in range(8)]
