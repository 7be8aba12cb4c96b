"""The workers: jobs are leased, done once, stopped or failed, and leave nothing in the spool."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics.requests import Idempotency
from kb_engine.embed.protocol import EmbedderUnavailable, TextRefused
from kb_engine.encoder import RETRY_SECONDS
from kb_engine.ingest import workers
from kb_engine.ingest.workers import JobWaiters
from kb_engine.store.repository import documents, jobs, sources, state, updates
from kb_engine.store.sqlite.sqlite_store import SqliteStore
from kb_engine.turns import LANES, SHORT_BYTES
from tests.support.contract_objects import job_with
from tests.support.documents import large_pdf
from tests.support.eventually import eventually_async
from tests.support.ingesting import HELD, Parts, parts_in
from tests.support.patience import ANSWER_SECONDS
from tests.support.scans import pdf_of_sheets, scan
from tests.support.stack import own_children


async def test_jobs_accepted_at_once_use_every_worker(tmp_path: Path) -> None:
    async with parts_in(tmp_path, count=2) as parts:
        held = await parts.accept(HELD)
        others = [await parts.accept(f"granite {number}") for number in range(3)]
        for job_id in others:
            assert (await parts.ended(job_id)).status == "completed"
        assert (await parts.job(held)).status == "running"


async def test_an_unexpected_failure_to_lease_ends_no_worker(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serving() -> set[str]:
        return {each.get_name() for each in asyncio.all_tasks() if each.get_name().startswith("worker-")}

    async def failing(operation: Any, *args: Any, **others: Any) -> Any:
        if operation is jobs.take_several:
            failed.set()
            raise RuntimeError("unexpected")
        return await write(operation, *args, **others)

    before, failed, write = serving(), asyncio.Event(), parts.store.write
    with monkeypatch.context() as broken:
        broken.setattr(parts.store, "write", failing)
        await parts.accept("granite")
        await failed.wait()
        await asyncio.sleep(0)
        assert serving() == before
    assert (await parts.done("quarry")).status == "completed"


async def test_an_unexpected_failure_to_end_a_job_ends_no_worker(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [jobs.fail, jobs.fail, parts.spool.remove]

    async def failing(operation: Any, *args: Any, **others: Any) -> Any:
        if operation in left:
            left.remove(operation)
            raise RuntimeError("unexpected")
        return await write(operation, *args, **others)

    async def remove(name: str) -> None:
        left.pop()
        raise RuntimeError(f"{name} is not removed")

    write = parts.store.write
    monkeypatch.setattr(parts.store, "write", failing)
    parts.embedder.failures, parts.embedder.error = 1, ZeroDivisionError
    assert (await parts.done("granite")).status == "failed"
    monkeypatch.setattr(parts.spool, "remove", remove)
    job = await parts.ended(await parts.accept_file("a.txt", b"basalt"))
    await eventually_async(lambda: not left)
    assert job.status == "completed"
    assert (await parts.done("quarry")).status == "completed"
    assert all(not loop.done() for loop in parts.workers._loops)


async def test_a_cancelled_job_frees_its_worker_at_once(parts: Parts) -> None:
    job_id = await parts.hold()
    await parts.cancel(job_id)
    parts.embedder.release.set()
    assert (await parts.done("granite")).status == "completed"
    assert (await parts.job(job_id)).status == "cancelled"
    assert (await parts.store.read(state.counts)).documents.total == 1


async def test_cancelling_ends_the_reading_child(parts: Parts) -> None:
    job_id = await parts.accept_file("a.pdf", large_pdf(300))
    children = await eventually_async(own_children)
    await parts.cancel(job_id)
    assert not any(child.is_running() for child in children)


@pytest.mark.process
async def test_pages_read_by_ocr_are_told_and_a_cancel_ends_them_at_once(parts: Parts) -> None:
    """The job names the page being read; once the cancellation is answered, no reader runs."""
    data = pdf_of_sheets([scan([f"Line {line} of page {page}" for line in range(25)]) for page in range(9)])
    job_id = await parts.accept_file("a.pdf", data)
    job = await eventually_async(
        lambda: parts.job(job_id), lambda job: job.step.startswith("Processing"), what="the first page"
    )
    assert job.step == f"Processing page {job.completed_steps} of 9"
    assert job.total_steps == 12
    children = own_children()
    assert children
    await parts.cancel(job_id)
    assert not any(child.is_running() for child in children)
    assert (await parts.done("granite")).status == "completed"


async def test_a_job_that_was_lost_and_has_come_back_leaves_both_workers_alive(tmp_path: Path) -> None:
    """An outage of the database lets another engine free the job; its first attempt is given up."""
    async with asyncio.timeout(ANSWER_SECONDS), parts_in(tmp_path, count=2) as parts:
        job_id = await parts.hold()
        await parts.store.write(jobs.release)
        await eventually_async(
            lambda: parts.job(job_id),
            lambda job: job.attempts == 2 and job.step != "started",
            what="the second attempt",
        )
        parts.embedder.release.set()
        job = await eventually_async(lambda: parts.job(job_id), lambda job: job.finished_at, what="its end")
        assert job.status == "completed"
        for number in range(4):
            assert (await parts.done(f"granite {number}")).status == "completed"
        assert all(not loop.done() for loop in parts.workers._loops)


async def test_cancelling_ends_the_splitting(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    splitting = threading.Event()
    go_on = threading.Event()
    counted: list[int] = []

    def count_tokens(passage: str) -> int:
        counted.append(len(passage))
        splitting.set()
        assert go_on.wait(ANSWER_SECONDS)
        return 1

    monkeypatch.setattr(parts.embedder, "count_tokens", count_tokens)
    job_id = await parts.accept("granite quarry. " * 5_000)
    assert await asyncio.to_thread(splitting.wait, ANSWER_SECONDS)
    await parts.cancel(job_id)
    go_on.set()
    await parts.done("basalt")
    assert len(counted) == 2  # the chunk in hand, and the next job's


async def test_a_job_cancelled_elsewhere_stops_at_its_next_report(parts: Parts) -> None:
    """Its lease is void, so no result is stored."""
    job_id = await parts.hold()
    await parts.store.once(None, jobs.cancel, job_id)
    parts.embedder.release.set()
    assert (await parts.done("granite")).status == "completed"
    assert (await parts.store.read(state.counts)).documents.total == 1


async def test_clearing_cancels_running_jobs_and_keeps_later_ones(parts: Parts) -> None:
    job_id = await parts.hold()
    await parts.store.once(None, documents.clear)
    later = await parts.accept("granite")
    await parts.workers.cancel_void()
    parts.embedder.release.set()
    assert (await parts.ended(later)).status == "completed"
    assert (await parts.job(job_id)).status == "cancelled"


async def test_a_stopped_worker_leaves_its_job_to_the_next_start(tmp_path: Path) -> None:
    async with parts_in(tmp_path) as parts:
        job_id = await parts.accept_file("a.txt", HELD.encode())
        await parts.embedding()
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [job_id]
    async with parts_in(tmp_path) as again:
        again.embedder.release.set()
        job = await again.ended(job_id)
        assert (job.status, job.attempts) == ("completed", 1)


async def test_the_spool_keeps_the_file_of_a_failed_job_alone(parts: Parts) -> None:
    ids = []
    for data, status in ((b"granite", "completed"), (b"\xff\xff", "failed")):
        ids.append(await parts.accept_file("a.txt", data))
        assert (await parts.ended(ids[-1])).status == status
    await parts.workers.stop()
    assert [path.name for path in parts.spool.folder.iterdir()] == [ids[-1]]


@pytest.mark.parametrize("kind", ["note", "file"])
async def test_a_failed_job_is_done_when_it_is_tried_again(parts: Parts, kind: str) -> None:
    parts.embedder.poison = "granite"
    job_id = await (parts.accept("granite") if kind == "note" else parts.accept_file("a.txt", b"granite"))
    assert (await parts.ended(job_id)).status == "failed"
    parts.embedder.poison = None
    await parts.store.once(None, jobs.retry, job_id)
    done = await parts.ended(job_id)
    assert (done.status, done.attempts, done.error) == ("completed", 2, None)
    await parts.workers.stop()
    assert list(parts.spool.folder.iterdir()) == []


async def test_a_duplicate_is_not_worked_on(parts: Parts) -> None:
    """The second job's text is never embedded."""
    first = await parts.done("granite")
    second = await parts.done("granite")
    assert (second.document_id, second.deduplicated) == (first.document_id, True)
    assert parts.embedder.texts == ["granite"]


class Vanishing(SqliteStore):
    async def write(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        done = await super().write(operation, *args, **kwargs)
        if operation is jobs.take_several and done and done[0].is_duplicate:
            duplicate = await self.read(sources.duplicate_for, done[0].job)
            assert duplicate is not None
            await self.once(None, documents.delete, duplicate)
        return done


class Counting(SqliteStore):
    """Counts the transactions of workers."""

    counted: ClassVar[Counter[str]]

    async def write(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        self.counted[operation.__name__] += 1
        return await super().write(operation, *args, **kwargs)


async def test_a_short_note_is_two_transactions_of_a_worker(tmp_path: Path) -> None:
    """There is no further look at an empty queue; each lane has looked once at the start."""
    Counting.counted = Counter()
    async with parts_in(tmp_path, count=2, store=as_a(Counting)) as parts:
        for number in range(8):
            await parts.done(f"granite {number}")
    del Counting.counted["report"]  # of a slow machine
    assert Counting.counted == {"take_several": len(LANES) + 8, "commit_note": 8}


class Full(SqliteStore):
    """A store on a full disk, which twice cannot even record that a job has failed."""

    refusals = 2

    async def write(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        if operation is jobs.fail and self.refusals:
            self.refusals -= 1
            raise EngineError("storage_full", "no space")
        return await super().write(operation, *args, **kwargs)


def as_a(kind: type[SqliteStore]) -> Callable[[SqliteStore], SqliteStore]:
    def turn(store: SqliteStore) -> SqliteStore:
        store.__class__ = kind
        return store

    return turn


async def test_a_duplicate_that_vanishes_is_taken_in(tmp_path: Path) -> None:
    async with parts_in(tmp_path, store=as_a(Vanishing)) as parts:
        await parts.done("granite")
        job = await parts.done("granite")
        assert (job.status, job.deduplicated) == ("completed", False)
        assert job.document_id is not None
        assert (await parts.store.read(documents.detail, job.document_id)).chunk_count == 1


async def test_an_embedder_that_comes_back_is_waited_for(parts: Parts) -> None:
    parts.embedder.failures = 20  # each attempt is followed by a probe with plain text
    job_id = await parts.accept("granite")
    assert (await parts.ended(job_id)).status == "completed"
    assert parts.pauses == [5.0, 10.0, 20.0, *[30.0] * 7]
    assert (await parts.job(job_id)).attempts == 1


async def test_an_update_waits_for_its_embedder_too(parts: Parts) -> None:
    note_id = (await parts.done("granite quarry")).document_id
    assert note_id is not None
    parts.embedder.failures = 2
    once = Idempotency(key="key", credential="caller", operation="op", fingerprint="same")
    job = await parts.store.write(updates.accept, note_id, m.NotePatch(text="copper mine"), once)
    assert isinstance(job, m.Job)
    assert (await parts.ended(job.id)).status == "completed"
    assert parts.pauses  # the job waited instead of failing
    document, text = await parts.store.read(documents.note, note_id)
    assert (document.title, text, document.version) == ("copper mine", "copper mine", 2)


async def test_an_update_follows_the_one_before_it_at_once_though_that_had_another_lane(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_POLL_SECONDS", 60 * ANSWER_SECONDS)
    note_id = (await parts.done("granite")).document_id
    assert note_id is not None
    ids = []
    for text in (f"{HELD} " * SHORT_BYTES, "basalt"):
        patch, once = m.NotePatch(text=text), Idempotency("key", text[:6], "operation", text[:6])
        job = await parts.store.write(updates.accept, note_id, patch, once)
        assert isinstance(job, m.Job)
        ids.append(job.id)
    await parts.embedding()
    parts.embedder.release.set()
    for job_id in ids:
        assert (await parts.ended(job_id)).status == "completed"


async def test_a_job_that_waits_for_its_embedder_says_so_and_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(ANSWER_SECONDS), parts_in(tmp_path) as parts:
        waiting = asyncio.Event()

        async def pause(_seconds: float) -> None:
            waiting.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as held:
            held.setattr(parts.workers._pipeline, "_pause", pause)
            parts.embedder.failures = 2
            job_id = await parts.accept("granite")
            await waiting.wait()
            await eventually_async(
                lambda: parts.job(job_id),
                lambda job: job.step == "Waiting for the embedding model",
                what="the step",
            )
            await parts.cancel(job_id)
        assert (await parts.job(job_id)).status == "cancelled"
        assert (await parts.done("basalt")).status == "completed"


async def test_a_model_that_loads_late_is_waited_for(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = iter((EmbedderUnavailable("no weights"), EmbedderUnavailable("no weights"), None))

    def load() -> None:
        if (failure := next(attempts)) is not None:
            raise failure
        parts.embedder.loaded = True

    parts.embedder.loaded = False
    monkeypatch.setattr(parts.embedder, "load", load)
    assert (await parts.done("granite")).status == "completed"
    assert parts.pauses == [RETRY_SECONDS, 2 * RETRY_SECONDS]


@pytest.mark.parametrize(
    ("error", "pauses", "why"), [(EmbedderUnavailable, 4, "answered others"), (TextRefused, 0, "")]
)
async def test_a_text_that_the_embedder_never_takes_fails_its_job(
    parts: Parts, error: type[Exception], pauses: int, why: str
) -> None:
    """If the text is refused, at once: waiting would not help, and the embedder works."""
    parts.embedder.poison, parts.embedder.error = "basalt", error
    job = await parts.done("granite and basalt")
    assert job.error is not None
    assert (job.status, job.error.code) == ("failed", "embedder_unavailable")
    assert why in job.error.message
    assert (len(parts.pauses), parts.encoder.failure) == (pauses, None)
    assert (await parts.done("granite")).status == "completed"


async def test_a_fault_of_the_engine_fails_one_job(parts: Parts) -> None:
    parts.embedder.failures, parts.embedder.error = 1, ZeroDivisionError
    job = await parts.done("granite")
    assert job.error is not None
    assert (job.status, job.error.code) == ("failed", "internal")
    assert "out of order" not in job.error.message
    assert (await parts.done("basalt")).status == "completed"


async def test_a_file_that_is_gone_fails_its_job(parts: Parts) -> None:
    await parts.workers.stop()
    job_id = await parts.accept_file("a.txt", b"granite")
    await parts.spool.remove(job_id)
    parts.workers.start()
    job = await parts.ended(job_id)
    assert job.error is not None
    assert job.error.code == "internal"


async def test_a_failure_is_told_when_the_disk_has_room_again(tmp_path: Path) -> None:
    async with parts_in(tmp_path, store=as_a(Full)) as parts:
        job = await parts.ended(await parts.accept_file("a.txt", b"\xff\xff"))
        assert (job.status, len(parts.pauses)) == ("failed", 2)


class Reads:
    def __init__(self, *states: m.JobStatus) -> None:
        self.states = list(states)
        self.asked = asyncio.Event()

    async def __call__(self, _job_id: str) -> m.Job:
        self.asked.set()
        return job_with(status=self.states.pop(0) if len(self.states) > 1 else self.states[0])


async def test_an_ended_job_is_answered_at_once() -> None:
    """No announcement is needed."""
    assert (await JobWaiters().wait("j", 30, Reads("failed"))).status == "failed"


async def test_the_end_of_the_job_wakes_who_waits() -> None:
    waiters, first, second = JobWaiters(), Reads("running", "completed"), Reads("queued", "completed")
    async with asyncio.timeout(ANSWER_SECONDS), asyncio.TaskGroup() as group:
        tasks = [group.create_task(waiters.wait("j", 30, reads)) for reads in (first, second)]
        await first.asked.wait()
        await second.asked.wait()
        waiters.announce("another")
        waiters.announce("j")
    assert [task.result().status for task in tasks] == ["completed", "completed"]


async def test_an_end_between_reading_and_waiting_is_not_missed() -> None:
    waiters = JobWaiters()
    states: Iterator[m.JobStatus] = iter(("running", "completed"))

    async def read(job_id: str) -> m.Job:
        waiters.announce(job_id)
        return job_with(status=next(states))

    async with asyncio.timeout(ANSWER_SECONDS):
        assert (await waiters.wait("j", 30, read)).status == "completed"


async def test_time_runs_out() -> None:
    assert (await JobWaiters().wait("j", 0.01, Reads("running"))).status == "running"


async def test_closing_ends_current_and_later_waits_for_a_job() -> None:
    waiters, reads = JobWaiters(), Reads("running")
    async with asyncio.timeout(ANSWER_SECONDS):
        waiting = asyncio.create_task(waiters.wait("j", 30, reads))
        await reads.asked.wait()
        waiters.close()
        assert (await waiting).status == "running"
        assert (await waiters.wait("j", 30, reads)).status == "running"


async def test_a_cancelled_wait_for_a_job_leaves_no_waiter() -> None:
    """A cancelled poll leaves nothing behind."""
    waiters, reads = JobWaiters(), Reads("running")
    waiting = asyncio.create_task(waiters.wait("j", 30, reads))
    await reads.asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert waiters._waiting == {}
