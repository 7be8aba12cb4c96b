"""What jobs do in this engine beyond what any client can see: one worker, many workers, a full queue."""

from __future__ import annotations

import asyncio

from tests.contract.caller import LONG, Caller, answered, problem
from tests.contract.conftest import Start


async def test_waiting_in_vain_answers_the_job_as_it_is(kb: Caller) -> None:
    """The long note before it holds the only worker."""
    await kb.submit(LONG)
    second = await kb.submit("granite")
    assert (await kb.job(second["id"], wait=0.01))["status"] == "queued"


async def test_a_queued_job_is_cancelled_and_never_done(kb: Caller) -> None:
    """The worker goes on to the job behind it."""
    first, second, third = [await kb.submit(text) for text in (LONG, "granite", "basalt")]
    for job in (second, first):
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


async def test_too_many_waiting_jobs_are_refused(start: Start) -> None:
    """429 with when to come again, at the limit that was set."""
    kb = await start(max_queued_jobs=2)
    await kb.started(await kb.submit(LONG))
    await kb.submit("one")
    await kb.submit("two")
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
