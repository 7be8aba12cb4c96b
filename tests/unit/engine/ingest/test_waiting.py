"""Long polls on jobs: woken by the end, by the clock, or by the engine's stop."""

from __future__ import annotations

import asyncio

import pytest

from kb_contracts.api import models as m
from kb_engine.ingest.workers import JobEnds


def job(status: m.JobStatus) -> m.Job:
    """A job in that state."""
    return m.Job(
        id="j",
        status=status,
        kind="note",
        title="t",
        filename=None,
        tags=[],
        step="",
        progress=0.0,
        completed_steps=0,
        total_steps=0,
        attempts=0,
        document_id=None,
        document_uid=None,
        deduplicated=False,
        error=None,
        created_at="",
        started_at=None,
        finished_at=None,
    )


class Reads:
    """Answers one state after another, the last one for ever, and tells when it was asked."""

    def __init__(self, *states: m.JobStatus) -> None:
        self.states = list(states)
        self.asked = asyncio.Event()

    async def __call__(self, _job_id: str) -> m.Job:
        """The next state."""
        self.asked.set()
        return job(self.states.pop(0) if len(self.states) > 1 else self.states[0])


async def test_an_ended_job_is_answered_at_once() -> None:
    """Nobody has to announce it."""
    assert (await JobEnds().wait("j", 30, Reads("failed"))).status == "failed"


async def test_the_end_of_the_job_wakes_who_waits() -> None:
    ends, first, second = JobEnds(), Reads("running", "completed"), Reads("queued", "completed")
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        tasks = [group.create_task(ends.wait("j", 30, reads)) for reads in (first, second)]
        await first.asked.wait()
        await second.asked.wait()
        ends.announce("another")
        ends.announce("j")
    assert [task.result().status for task in tasks] == ["completed", "completed"]


async def test_an_end_between_reading_and_waiting_is_not_missed() -> None:
    """It is announced while the job is read."""
    ends, states = JobEnds(), iter(("running", "completed"))

    async def read(job_id: str) -> m.Job:
        ends.announce(job_id)
        return job(next(states))  # type: ignore[arg-type]

    async with asyncio.timeout(10):
        assert (await ends.wait("j", 30, read)).status == "completed"


async def test_time_runs_out() -> None:
    """The job is answered as it is."""
    assert (await JobEnds().wait("j", 0.01, Reads("running"))).status == "running"


async def test_a_stop_answers_who_waits_and_who_comes_later() -> None:
    ends, reads = JobEnds(), Reads("running")
    async with asyncio.timeout(10):
        waiting = asyncio.create_task(ends.wait("j", 30, reads))
        await reads.asked.wait()
        ends.close()
        assert (await waiting).status == "running"
        assert (await ends.wait("j", 30, reads)).status == "running"


async def test_who_goes_away_is_forgotten() -> None:
    """Nothing is kept of a poll that was cut off."""
    ends, reads = JobEnds(), Reads("running")
    waiting = asyncio.create_task(ends.wait("j", 30, reads))
    await reads.asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ends._waiting == {}
