"""The durable queue: what is accepted is done once, in order, or ends with a reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kb_contracts import models as m
from kb_contracts.errors import EngineError
from kb_engine.store import jobs
from kb_engine.store.postgres import jobs as postgres_jobs
from tests.unit.engine.store_parts import (
    Base,
    Place,
    all_documents,
    died,
    new_file,
    new_note,
    opened,
    prepared,
)

ERROR = m.JobError(code="file_corrupt", message="It is damaged.")


@pytest.fixture
async def base(place: Place) -> AsyncIterator[Base]:
    """An empty base."""
    async with opened(place, max_queued=5) as base:
        yield base


async def test_an_accepted_job_is_queued_with_what_was_asked(base: Base) -> None:
    """Nothing is known of it yet but the request."""
    job = await base.store.accept(new_file("a", title="Report", tags=["x", "y", "x"], filename="r.pdf"), None)
    assert (job.status, job.kind, job.title, job.filename) == ("queued", "file", "Report", "r.pdf")
    assert (job.tags, job.step, job.progress, job.attempts) == (["x", "y"], "queued", 0.0, 0)
    assert (job.document_id, job.error, job.started_at, job.finished_at) == (None, None, None, None)
    assert job.created_at == "2026-03-01T12:00:00.000000Z"


async def test_the_oldest_job_is_taken_first_with_all_that_it_needs(base: Base) -> None:
    """A worker gets back what was accepted, to the letter."""
    first = new_note("one\0two", tags=["a"], metadata={"n": [1, None]}, source_path="/p", dedup_scope="s")
    second = new_file("b")
    for job in (first, second):
        await base.store.accept(job, None)
    taken = [await base.store.take(lease) for lease in ("L1", "L2", "L3")]
    assert taken[0] is not None
    assert taken[0].job == new_note(
        "", **{name: getattr(first, name) for name in first.__slots__} | {"tags": ["a"]}
    )
    assert (taken[0].lease, taken[0].attempts) == ("L1", 1)
    assert taken[1] is not None
    assert taken[1].job.spool == second.spool
    assert taken[2] is None


async def test_a_reported_step_shows_in_the_job(base: Base) -> None:
    """Progress is done through total."""
    leased = await base.lease(new_note("a"))
    assert await base.store.report(leased.lease, leased.job.id, "embedding", 1, 4)
    job = await base.store.job(leased.job.id)
    assert (job.status, job.step, job.completed_steps, job.total_steps) == ("running", "embedding", 1, 4)
    assert job.progress == 0.25


async def test_a_committed_job_names_its_document(base: Base) -> None:
    """Job and document appear together."""
    leased = await base.lease(new_note("a"))
    await base.store.report(leased.lease, leased.job.id, "embedding", 1, 4)
    base.clock.move(seconds=5)
    job = await base.store.commit(leased, prepared("a"))
    assert job is not None
    assert (job.status, job.step, job.progress, job.completed_steps) == ("completed", "completed", 1.0, 4)
    document = await base.store.document(job.document_id or 0)
    assert (document.uid, job.deduplicated) == (job.document_uid, False)
    assert job.finished_at == "2026-03-01T12:00:05.000000Z"


async def test_a_failed_job_keeps_its_error_and_the_step_it_reached(base: Base) -> None:
    """What went wrong, and where."""
    leased = await base.lease(new_file("a"))
    await base.store.report(leased.lease, leased.job.id, "extracting", 0, 3)
    assert await base.store.fail(leased.lease, leased.job.id, ERROR)
    job = await base.store.job(leased.job.id)
    assert (job.status, job.error, job.step) == ("failed", ERROR, "extracting")


async def test_a_queued_job_can_be_cancelled_and_is_never_taken(base: Base) -> None:
    """It leaves the queue."""
    accepted = await base.store.accept(new_note("a"), None)
    assert (await base.store.cancel(accepted.id, None)).status == "cancelled"
    assert await base.store.take("L") is None


async def test_cancelling_a_running_job_voids_its_lease(base: Base) -> None:
    """Whatever the worker still does for it is refused, and no document comes of it."""
    leased = await base.lease(new_note("a"))
    assert (await base.store.cancel(leased.job.id, None)).status == "cancelled"
    assert not await base.store.report(leased.lease, leased.job.id, "embedding", 1, 2)
    assert await base.store.commit(leased, prepared("a")) is None
    assert not await base.store.fail(leased.lease, leased.job.id, ERROR)
    assert (await all_documents(base)).total == 0


async def test_an_ended_job_cannot_be_cancelled(base: Base) -> None:
    """The answer says how it ended."""
    job = await base.ingest(new_note("a"), prepared("a"))
    with pytest.raises(EngineError, match="completed") as caught:
        await base.store.cancel(job.id, None)
    assert caught.value.code == "job_finished"


async def test_an_unknown_job_is_not_found(base: Base) -> None:
    """Neither to read nor to cancel."""
    with pytest.raises(EngineError) as read:
        await base.store.job("nobody")
    with pytest.raises(EngineError) as cancelled:
        await base.store.cancel("nobody", None)
    assert [read.value.code, cancelled.value.code] == ["job_not_found"] * 2


async def test_too_many_waiting_jobs_are_refused_until_one_is_taken(base: Base) -> None:
    """Only waiting ones count."""
    for number in range(5):
        await base.store.accept(new_note(str(number)), None)
    with pytest.raises(EngineError) as caught:
        await base.store.accept(new_note("6"), None)
    assert (caught.value.code, caught.value.members["retry_after"] > 0) == ("queue_full", True)
    await base.store.take("L")
    await base.store.accept(new_note("6"), None)


async def test_jobs_are_listed_newest_first_by_page_and_status(base: Base) -> None:
    """The total is that of the filter, not of the page."""
    ids = [(await base.store.accept(new_note(str(number)), None)).id for number in range(4)]
    await base.store.cancel(ids[0], None)
    page = await base.store.jobs(None, 2, 1)
    assert ([job.id for job in page.jobs], page.total) == ([ids[2], ids[1]], 4)
    queued = await base.store.jobs("queued", 10, 0)
    assert ([job.id for job in queued.jobs], queued.total) == (ids[:0:-1], 3)


async def test_the_spool_files_of_open_jobs_are_needed(base: Base) -> None:
    """Those of ended ones are not."""
    ended, running, queued = (new_file(name) for name in "abc")
    await base.ingest(ended, prepared("a"))
    await base.lease(running)
    await base.store.accept(queued, None)
    assert await base.store.spooled() == {running.spool, queued.spool}


async def after_crashes(count: int, place: Place, folder: Path) -> Place:
    """A base whose only job was taken by that many processes, each of which died over it."""
    async with opened(place) as base:
        await base.store.accept(new_note("a"), None)
    for number in range(count):
        async with opened(place) as base:
            assert await base.store.release_all() == min(number, 1)
            assert await base.store.take("L") is not None
            place = await died(base, folder / str(number))
    return place


async def test_a_job_that_ran_when_the_process_died_is_queued_again(place: Place, tmp_path: Path) -> None:
    """Its attempts counted, under a new lease; the old one is void."""
    async with opened(await after_crashes(2, place, tmp_path)) as base:
        assert await base.store.release_all() == 1
        leased = await base.store.take("L9")
        assert leased is not None
        assert leased.attempts == 3
        assert not await base.store.report("L", leased.job.id, "embedding", 1, 2)
        assert await base.store.commit(leased, prepared("a")) is not None


async def test_a_job_that_killed_the_process_three_times_fails(place: Place, tmp_path: Path) -> None:
    """Or it would kill every process to come."""
    async with opened(await after_crashes(3, place, tmp_path)) as base:
        assert await base.store.release_all() == 0
        (job,) = (await base.store.jobs(None, 10, 0)).jobs
        assert job.error is not None
        assert (job.status, job.error.code) == ("failed", "worker_crashed")
        assert await base.store.take("L") is None


async def test_a_restart_in_good_order_does_not_count_as_an_attempt(place: Place) -> None:
    """However often it happens."""
    async with opened(place) as base:
        await base.store.accept(new_note("a"), None)
    for _ in range(4):
        async with opened(place) as base:
            assert await base.store.release_all() == 0
            leased = await base.store.take("L")
            assert leased is not None
            assert leased.attempts == 1


async def test_the_oldest_ended_jobs_are_forgotten_and_open_ones_never(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of jobs stays bounded."""
    for module in (jobs, postgres_jobs):
        monkeypatch.setattr(module, "KEPT_FINISHED", 2)
    running = await base.lease(new_note("old and running"))
    ended = [(await base.ingest(new_note(str(number)), prepared(str(number)))).id for number in range(4)]
    left = await base.store.jobs(None, 10, 0)
    assert [job.id for job in left.jobs] == [ended[3], ended[2], running.job.id]


async def test_the_text_of_an_ended_job_is_let_go(base: Base) -> None:
    """The document has it now."""
    await base.ingest(new_note("a"), prepared("a"))
    assert await base.count("job_texts") == 0
