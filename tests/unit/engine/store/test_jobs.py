"""The durable queue: accepted jobs are done once, in order, or end with a reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from kb_contracts.api.errors import EngineError
from kb_engine.store.clock import seconds_between, stamp
from kb_engine.store.port import Bounds, JobProgress, NewJob
from kb_engine.store.repository import documents, jobs
from kb_engine.store.repository.jobs import rests_until
from kb_engine.turns import SHORT_BYTES, greedy
from tests.support.contract_objects import job_error
from tests.support.stores import (
    START,
    Base,
    Place,
    TestClock,
    died,
    new_file,
    new_note,
    opened,
    prepared,
    refused,
)

MAX_QUEUED = 9
ERROR = job_error()


@pytest.fixture
async def base(place: Place) -> AsyncIterator[Base]:
    async with opened(place, bounds=Bounds(queued=MAX_QUEUED)) as base:
        yield base


async def test_an_accepted_job_is_queued_with_what_was_asked(base: Base) -> None:
    job = await base.accept(new_file("a", title="Report", tags=["x", "y", "x"], filename="r.pdf"))
    assert (job.status, job.kind, job.title, job.filename) == ("queued", "file", "Report", "r.pdf")
    assert (job.tags, job.step, job.progress, job.attempts) == (["x", "y"], "queued", 0.0, 0)
    assert (job.document_id, job.error, job.started_at, job.finished_at) == (None, None, None, None)
    assert job.created_at == "2026-03-01T12:00:00.000000Z"


async def test_the_oldest_job_is_taken_first_with_all_that_it_needs(base: Base) -> None:
    first = new_note("one\0two", tags=["a"], metadata={"n": [1, None]}, source_path="/p", dedup_scope="s")
    second = new_file("b", force_ocr=True)
    for job in (first, second):
        await base.accept(job)
    taken = [await base.store.write(jobs.take, lease) for lease in ("L1", "L2", "L3")]
    assert taken[0] is not None
    assert taken[0].job == new_note(
        "", **{name: getattr(first, name) for name in first.__slots__} | {"tags": ["a"]}
    )
    assert (taken[0].lease, taken[0].attempts) == ("L1", 1)
    assert taken[1] is not None
    assert (taken[1].job.spool, taken[1].job.force_ocr) == (second.spool, True)
    assert taken[2] is None


async def test_a_reported_step_shows_in_the_job(base: Base) -> None:
    leased = await base.lease(new_note("a"))
    assert await base.store.write(jobs.report, leased.lease, leased.job.id, JobProgress("embedding", 1, 4))
    job = await base.store.read(jobs.find, leased.job.id)
    assert (job.status, job.step, job.completed_steps, job.total_steps) == ("running", "embedding", 1, 4)
    assert job.progress == 0.25


async def test_a_committed_job_names_its_document(base: Base) -> None:
    leased = await base.lease(new_note("a"))
    await base.store.write(jobs.report, leased.lease, leased.job.id, JobProgress("embedding", 1, 4))
    base.clock.move(seconds=5)
    job = await base.commit(leased, prepared("a"))
    assert job is not None
    assert (job.status, job.step, job.progress, job.completed_steps) == ("completed", "completed", 1.0, 4)
    document = await base.detail(job.document_id or 0)
    assert (document.uid, job.deduplicated) == (job.document_uid, False)
    assert job.finished_at == "2026-03-01T12:00:05.000000Z"


async def test_too_many_waiting_jobs_are_refused_until_one_is_taken(base: Base) -> None:
    for number in range(MAX_QUEUED):
        await base.accept(new_note(str(number)))
    error = await refused(base.accept(new_note("more")))
    assert (error.code, error.members["retry_after"] > 0) == ("queue_full", True)
    await base.store.write(jobs.take, "L")
    await base.accept(new_note("more"))


async def test_the_spool_files_of_open_jobs_are_needed(base: Base) -> None:
    ended, running, queued = (new_file(name) for name in "abc")
    await base.ingest(ended, prepared("a"))
    await base.lease(running)
    await base.accept(queued)
    assert await base.store.read(jobs.spooled) == {running.spool, queued.spool}


async def after_crashes(count: int, place: Place, folder: Path) -> Place:
    """Return a base whose only job was leased by `count` processes, each of which died."""
    async with opened(place) as base:
        await base.accept(new_note("a"))
    clock = TestClock()
    for number in range(count):
        async with opened(place, clock) as base:
            assert await base.store.write(jobs.release) == min(number, 1)
            clock.move(days=1)
            assert await base.store.write(jobs.take, "L") is not None
            place = await died(base, folder / str(number))
    return place


@pytest.mark.parametrize("deaths", [2, 3, 7])
async def test_no_number_of_deaths_fails_a_job(place: Place, tmp_path: Path, deaths: int) -> None:
    """The job is not to blame; its text is still there, and it is done when an engine lives long enough."""
    async with opened(await after_crashes(deaths, place, tmp_path)) as base:
        assert await base.store.write(jobs.release) == 1
        (job,) = (await base.store.read(jobs.page, None, 10, 0)).jobs
        assert (job.status, job.error, job.attempts) == ("queued", None, deaths)
        base.clock.move(hours=1)
        leased = await base.take("L9")
        assert (leased.job.text, leased.attempts) == ("a", deaths + 1)
        assert not await base.store.write(jobs.report, "L", job.id, JobProgress("embedding", 1, 2))
        assert await base.commit(leased, prepared("a")) is not None


async def test_a_job_that_ran_at_three_deaths_in_a_row_lets_others_go_first(
    place: Place, tmp_path: Path
) -> None:
    """It waits a little longer each time, and is then leased again by itself."""
    async with opened(await after_crashes(3, place, tmp_path)) as base:
        await base.store.write(jobs.release)
        assert await base.store.write(jobs.take, "too early") is None
        later = await base.lease(new_note("b"))
        assert later.job.text == "b"
        base.clock.move(seconds=10)
        leased = await base.take("L")
        assert leased.job.text == "a"


def test_the_rest_doubles_from_the_third_death_on_and_is_an_hour_at_the_most() -> None:
    start = stamp(START)
    seconds = [
        (until := rests_until(deaths, start)) and seconds_between(start, until) for deaths in range(1, 6)
    ]
    assert seconds == [None, None, 10, 20, 40]
    assert rests_until(1_000, start) == stamp(START + timedelta(hours=1))


async def test_a_restart_in_good_order_does_not_count_as_an_attempt(place: Place) -> None:
    async with opened(place) as base:
        await base.accept(new_note("a"))
    for _ in range(4):
        async with opened(place) as base:
            assert await base.store.write(jobs.release) == 0
            leased = await base.take("L")
            assert leased.attempts == 1


async def test_the_oldest_ended_jobs_are_forgotten_and_open_ones_never(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "KEPT_FINISHED", 2)
    running = await base.lease(new_note("old and running"))
    ended = [(await base.ingest(new_note(str(number)), prepared(str(number)))).id for number in range(4)]
    left = await base.store.read(jobs.page, None, 10, 0)
    assert [job.id for job in left.jobs] == [ended[3], ended[2], running.job.id]


async def test_the_text_of_a_completed_job_is_let_go(base: Base) -> None:
    await base.ingest(new_note("a"), prepared("a"))
    assert await base.count("job_texts") == 0


async def failed(base: Base, job: NewJob) -> str:
    leased = await base.lease(job)
    assert await base.store.write(jobs.fail, leased.lease, leased.job.id, ERROR)
    return leased.job.id


async def test_a_failed_job_is_queued_again_as_it_was_sent(base: Base) -> None:
    job_id = await failed(base, new_note("a", tags=["x"]))
    assert (await base.store.read(jobs.find, job_id)).retryable
    again = await base.store.once(None, jobs.retry, job_id)
    assert (again.id, again.status, again.step, again.error) == (job_id, "queued", "queued", None)
    assert (again.started_at, again.finished_at, again.retryable) == (None, None, False)
    leased = await base.take("L2")
    assert (leased.job.text, leased.job.tags, leased.attempts) == ("a", ["x"], 2)
    done = await base.commit(leased, prepared("a"))
    assert done is not None
    assert done.status == "completed"


async def test_only_failed_jobs_can_be_retried(base: Base) -> None:
    completed = await base.ingest(new_note("a"), prepared("a"))
    cancelled = await base.store.once(None, jobs.cancel, (await base.accept(new_note("b"))).id)
    queued = await base.accept(new_note("c"))
    for job_id in (completed.id, cancelled.id, queued.id):
        assert not (await base.store.read(jobs.find, job_id)).retryable
        assert (await refused(base.store.once(None, jobs.retry, job_id))).code == "job_not_retryable"
    assert (await refused(base.store.once(None, jobs.retry, "nobody"))).code == "job_not_found"


async def test_a_failed_job_waits_for_room_in_the_queue(base: Base) -> None:
    job_id = await failed(base, new_note("a"))
    for number in range(MAX_QUEUED):
        await base.accept(new_note(str(number)))
    assert (await refused(base.store.once(None, jobs.retry, job_id))).code == "queue_full"
    assert (await base.store.read(jobs.find, job_id)).retryable


async def test_failed_jobs_are_kept_until_they_are_let_go(base: Base) -> None:
    """The oldest failure first, with name and size; once released, text and file are no longer needed."""
    note, file = new_note("a"), new_file("bb")
    for job in (note, file):
        await failed(base, job)
        base.clock.move(seconds=1)
    assert [(one.id, one.spool, one.size_bytes) for one in await base.store.read(jobs.failed)] == [
        (note.id, None, 1),
        (file.id, file.spool, 2),
    ]
    assert await base.store.read(jobs.spooled) == {file.spool}
    await base.store.write(jobs.let_go, [note.id, file.id])
    assert (await base.store.read(jobs.failed), await base.store.read(jobs.spooled)) == ([], set())
    assert await base.count("job_texts") == 0
    with pytest.raises(EngineError, match="no longer kept") as refused:
        await base.store.once(None, jobs.retry, file.id)
    assert refused.value.code == "job_not_retryable"


async def test_a_retried_job_keeps_its_text_when_failed_jobs_are_released(base: Base) -> None:
    job_id = await failed(base, new_note("a"))
    await base.store.once(None, jobs.retry, job_id)
    await base.store.write(jobs.let_go, [job_id])
    leased = await base.take("L2")
    assert leased.job.text == "a"


async def test_clearing_the_base_keeps_nothing_of_failed_jobs(base: Base) -> None:
    job_id = await failed(base, new_file("a"))
    await base.store.once(None, documents.clear)
    assert not (await base.store.read(jobs.find, job_id)).retryable
    assert await base.store.read(jobs.spooled) == set()


async def test_a_job_whose_bytes_are_kept_is_not_forgotten(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "KEPT_FINISHED", 1)
    job_id = await failed(base, new_note("a"))
    for number in range(3):
        await base.ingest(new_note(str(number)), prepared(str(number)))
    assert (await base.store.read(jobs.find, job_id)).retryable


async def test_a_job_tells_how_long_it_has_taken_by_the_clock_of_its_times(base: Base) -> None:
    job_id = (await base.accept(new_note("a"))).id
    base.clock.move(seconds=3)
    assert (await base.store.read(jobs.find, job_id)).elapsed_seconds == 3
    leased = await base.store.write(jobs.take, "L")
    base.clock.move(seconds=2)
    assert (await base.store.read(jobs.find, job_id)).elapsed_seconds == 2
    await base.commit(leased, prepared("a"))
    base.clock.move(seconds=9)
    assert (await base.store.read(jobs.find, job_id)).elapsed_seconds == 2


async def taking(base: Base, seconds: float, job: NewJob) -> None:
    leased = await base.lease(job)
    base.clock.move(seconds=seconds)
    assert await base.commit(leased, prepared(job.id)) is not None


async def test_an_estimate_is_learned_from_the_jobs_that_were_done(base: Base) -> None:
    """By file size, for each format; null until a job of the format is done."""
    assert (await base.accept(new_file("x" * 10))).estimated_seconds is None
    await base.store.write(jobs.take, "first")
    await base.store.once(None, jobs.cancel, (await base.store.read(jobs.page, "running", 1, 0)).jobs[0].id)
    for size, seconds in ((100, 2), (200, 3), (400, 5)):
        await taking(base, seconds, new_file(str(size), size_bytes=size))
    accepted = await base.accept(new_file("c", size_bytes=1_000))
    assert accepted.estimated_seconds == pytest.approx(11)
    assert (await base.accept(new_note("n"))).estimated_seconds is None


async def test_tiny_files_say_nothing_of_large_ones(base: Base) -> None:
    """They take the time of any job. The first large file shows the cost of a byte."""
    for size, seconds in ((90, 0.6), (95, 0.7), (120, 0.9), (20, 0.5)):
        await taking(base, seconds, new_file(f"{size}", size_bytes=size))
    assert (await base.accept(new_file("t", size_bytes=100))).estimated_seconds == pytest.approx(0.7, abs=0.1)
    assert (await base.accept(new_file("l", size_bytes=150_000))).estimated_seconds is None
    behind = await base.accept(new_file("u", size_bytes=100))
    assert behind.estimated_seconds is None
    for waits in (await base.store.read(jobs.page, "queued", 9, 0)).jobs:
        await base.store.once(None, jobs.cancel, waits.id)
    await taking(base, 67, new_file("first", size_bytes=150_000))
    large = await base.accept(new_file("larger", size_bytes=900_000))
    assert large.estimated_seconds == pytest.approx(67 * 6, rel=0.05)
    tiny = await base.accept(new_file("v", size_bytes=100))
    assert (tiny.estimated_seconds or 0) - (large.estimated_seconds or 0) == pytest.approx(0.7, abs=0.2)


async def test_measurements_of_equal_sizes_give_no_estimate_for_others(base: Base) -> None:
    """The fixed cost of a job cannot be told from the cost of a byte."""
    for number in range(3):
        await taking(base, 60, new_file(f"{number}", size_bytes=100_000 + number))
    for name, size, expected in (("s", 1_000, None), ("a", 50_000, 30), ("l", 900_000, None)):
        accepted = await base.accept(new_file(name, size_bytes=size))
        assert accepted.estimated_seconds == (expected and pytest.approx(expected, rel=0.01))
        await base.store.once(None, jobs.cancel, accepted.id)


async def test_an_estimate_counts_what_waits_before_the_job(base: Base) -> None:
    """Running jobs count too, less their time so far; the list of jobs has the same estimate."""
    for size, seconds in ((100, 2), (200, 3), (400, 5)):
        await taking(base, seconds, new_file(str(size), size_bytes=size))
    await base.lease(new_file("running", size_bytes=400))
    base.clock.move(seconds=1)
    for number in range(3):
        await base.accept(new_file(f"w{number}", size_bytes=100))
    listed = (await base.store.read(jobs.page, None, 4, 0)).jobs
    assert [job.estimated_seconds for job in listed] == pytest.approx([10, 8, 6, 4])
    assert [(await base.store.read(jobs.find, job.id)).estimated_seconds for job in listed] == pytest.approx(
        [10, 8, 6, 4]
    )
    (ended,) = (await base.store.read(jobs.page, "completed", 1, 0)).jobs
    assert ended.estimated_seconds is None


async def test_the_pace_of_a_job_corrects_what_was_learned(base: Base) -> None:
    """The more progress it has, the more its pace counts."""
    await taking(base, 2, new_file("a", size_bytes=100))
    leased = await base.lease(new_file("b", size_bytes=100))
    base.clock.move(seconds=1)
    assert (await base.store.read(jobs.find, leased.job.id)).estimated_seconds == pytest.approx(1)
    base.clock.move(seconds=7)
    await base.store.write(
        jobs.report, leased.lease, leased.job.id, JobProgress("Generating embeddings", 4, 5)
    )
    assert (await base.store.read(jobs.find, leased.job.id)).estimated_seconds == pytest.approx(0.8 * 2)


async def test_estimates_survive_a_restart(place: Place) -> None:
    async with opened(place) as base:
        await taking(base, 4, new_note("a"))
    async with opened(place) as base:
        assert (await base.accept(new_note("b"))).estimated_seconds == pytest.approx(4)


# --- turns: callers alternate, and short notes have their own lane


async def queued(base: Base, caller: str, *names: str, **changes: str) -> None:
    for name in names:
        await base.accept(new_file(name, title=name, caller=caller, **changes))


async def taken(base: Base, count: int, *lanes: str, without: tuple[str, ...] = ()) -> list[str]:
    chosen = {"lanes": lanes} if lanes else {}
    leases = [
        await base.store.write(jobs.take, f"L{number}", without=without, **chosen) for number in range(count)
    ]
    return [leased.job.title for leased in leases if leased is not None]


async def test_a_new_caller_waits_for_one_file_of_each_earlier_caller(base: Base) -> None:
    await queued(base, "ann", *(f"a{number}" for number in range(9)))
    assert await taken(base, 3) == ["a0", "a1", "a2"]
    await queued(base, "ben", "b0", "b1")
    assert await taken(base, 5) == ["a3", "b0", "a4", "b1", "a5"]


async def test_an_empty_queue_forgets_nobodys_turn(base: Base) -> None:
    """A caller who has had many turns does not owe them when another caller comes."""
    await queued(base, "ann", "a0", "a1", "a2", "a3")
    assert len(await taken(base, 4)) == 4
    await queued(base, "ben", "b0", "b1", "b2")
    await queued(base, "ann", "a4")
    assert await taken(base, 4) == ["b0", "b1", "a4", "b2"]


async def test_short_notes_stand_in_a_lane_of_their_own(base: Base) -> None:
    """Long notes share the lane of files, and a worker of one lane sees only that lane."""
    await queued(base, "ann", "file")
    long = "x" * (SHORT_BYTES + 1)
    await base.accept(new_note(long, title="long note", caller="ann"))
    await base.accept(new_note(long[1:], title="short note", caller="ann"))
    assert await taken(base, 9, "short") == ["short note"]
    assert await taken(base, 9, "long") == ["file", "long note"]


async def test_a_caller_can_be_passed_over(base: Base) -> None:
    await queued(base, "ann", "a0")
    await queued(base, "ben", "b0")
    assert await taken(base, 9, without=("ann", "cem")) == ["b0"]
    assert await taken(base, 9) == ["a0"]


async def test_several_jobs_are_taken_in_the_order_of_single_ones(base: Base) -> None:
    await queued(base, "ann", "a0", "a1", "a2", "a3")
    await queued(base, "ben", "b0")
    looks = [
        await base.store.write(jobs.take_several, most, ["long"], lambda *callers: greedy(callers, 3))
        for most in (4, 4, 1, 4)
    ]
    assert [[leased.job.title for leased in look] for look in looks] == [
        ["a0", "b0", "a1"],
        ["a2", "a3"],
        [],
        [],
    ]
    assert looks[0][-1].has_more
    assert len({leased.lease for look in looks for leased in look}) == 5


async def test_a_job_goes_on_in_another_lane(base: Base) -> None:
    """Its attempt does not count, its old lease is void, and it queues after its caller's jobs there."""
    await queued(base, "ann", "a0", "a1")
    for lane in ("long", "long"):
        leased = await base.store.write(jobs.take, "first", (lane,))
        assert leased.lane == "long"
        assert await base.store.write(jobs.change_lane, leased, "scan")
        assert not await base.store.write(jobs.change_lane, leased, "scan")
        assert await base.commit(leased, prepared("text")) is None
    assert await taken(base, 9, "long") == []
    again = await base.store.write(jobs.take, "again", ("scan",))
    assert (again.job.title, again.attempts, again.lane) == ("a0", 1, "scan")
    assert await base.commit(again, prepared("text")) is not None


async def test_the_order_outlives_the_process(base: Base, tmp_path: Path) -> None:
    """Jobs that ran at the crash come first again, in their lanes."""
    await queued(base, "ann", "a0", "a1", "a2")
    await queued(base, "ben", "b0", "b1")
    assert await taken(base, 3) == ["a0", "b0", "a1"]
    async with opened(await died(base, tmp_path / "left")) as again:
        await again.store.write(jobs.release)
        assert await taken(again, 9) == ["a0", "b0", "a1", "b1", "a2"]
