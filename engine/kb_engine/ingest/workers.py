"""The workers: each takes the next job of its lane, prepares it, commits it, then takes another.

    queued ──take──▶ running ──commit──▶ completed
                        ├────fail──────▶ failed       (an error of the contract, or `internal`)
                        ├────cancel────▶ cancelled    (the task is stopped, its child process killed)
                        ├─ change lane ▶ queued again as a scan, when many of its pages need OCR
                        └─ the process ends ─▶ queued again at the next start, or by another engine

Lanes do not wait for each other (`turns.py`): short notes have workers of their own, and scans, which can
take hours, occupy no slot of other files. While the store is not ready the workers wait; prepared documents
are committed afterwards if the lease is still valid.
A spool file is removed when its job has ended. It is kept if the process ends before the job, and if the job
failed: the job can then be retried until `failed_jobs.py` removes the file.

Callers that wait for a job are woken when it ends (`JobWaiters`), in this process or another one:
`StoreEventHandler` receives the store's events.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.formats import FORMATS
from kb_contracts.semantics.documents import text_digest, title_after_update
from kb_engine.ingest.pipeline import LeaseVoid, ManyPages, Pipeline, Progress
from kb_engine.spans import failed, working
from kb_engine.spool import Spool
from kb_engine.store.port import JobProgress, LeasedJob, NewJob, Prepared, StoreEvent
from kb_engine.store.repository import documents, jobs
from kb_engine.store.store import Store
from kb_engine.tasks import end
from kb_engine.turns import Lane, greedy
from kb_readers.failures import ExtractionFailed
from kb_readers.readers import format_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_SECONDS = 15.0  # acceptance wakes the workers; polling finds jobs queued by another process
_REPORT_SECONDS = 0.2
_RETRY_SECONDS = 5.0
_STORE_SECONDS = 1.0
_MOST_PAGES = 3  # OCR pages allowed in the lane of other files; a job with more is a scan


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of a job: the completed `job` with its number of new `passages`, or the `code` of its error."""

    lane: Lane
    job: m.Job | None = None
    passages: int = 0
    code: str = ""


class Workers:
    """Workers over one store, `lane_slots` of each lane. Call `wake` after a job was accepted."""

    def __init__(
        self,
        *,
        store: Store,
        spool: Spool,
        pipeline: Pipeline,
        waiters: JobWaiters,
        lane_slots: Mapping[Lane, int],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._spool = spool
        self._pipeline = pipeline
        self._waiters = waiters
        self._lanes = [_LaneWorkers(lane, count) for lane, count in lane_slots.items()]
        self._pause = pause
        self.on_end: Callable[[JobEnd], None] = lambda _end: None
        """Called with each job that was completed or failed here."""
        self._loops: list[asyncio.Task[None]] = []
        self._running: dict[str, asyncio.Task[bool]] = {}

    @property
    def is_busy(self) -> bool:
        """True while a job is in progress."""
        return bool(self._running)

    def start(self) -> None:
        self._loops = [
            asyncio.create_task(self._serve(lane_workers), name=f"worker-{lane_workers.lane}-{number}")
            for lane_workers in self._lanes
            for number in range(lane_workers.lane_slots)
        ]

    def wake(self, lane: Lane | None = None) -> bool:
        """Look for queued jobs in a lane, or in all; return True if one more job certainly finds a worker.

        A caller may use all workers but one, so that the last one may be unable to take the job.
        """
        called = [each for each in self._lanes if lane in {None, each.lane}]
        has_room = bool(self._loops)
        for each in called:
            each.woken.set()
            each.called += 1
            has_room = has_room and len(each.in_hand) + each.called < max(2, each.lane_slots)
        return has_room

    async def stop(self) -> None:
        """Stop taking jobs and abandon the current ones; they are queued again at the next start."""
        await end(*self._loops)
        self._loops = []
        for lane_workers in self._lanes:
            lane_workers.in_hand.clear()
            lane_workers.taken.clear()

    async def cancel(self, job_id: str) -> None:
        """Stop working on a job that the store has cancelled; return when the work has stopped."""
        if (task := self._running.get(job_id)) is not None:
            await end(task)

    async def cancel_void(self) -> None:
        """Stop working on each job that is no longer running according to the store."""
        for job_id in list(self._running):
            try:
                runs = (await self._store.read(jobs.find, job_id)).status == "running"
            except EngineError as error:
                runs = error.code != "job_not_found"  # if the store is not ready, assume that it runs
            if not runs:
                await self.cancel(job_id)

    async def _serve(self, lane_workers: _LaneWorkers) -> None:
        while True:
            lane_workers.idle += 1
            try:
                leased = await self._next(lane_workers)
            finally:
                lane_workers.idle -= 1
            await self.cancel(leased.job.id)  # taken again after its lease was lost: stop the old work
            task = asyncio.create_task(self._traced_work(leased), name=f"job-{leased.job.id}")
            self._running[leased.job.id] = task
            try:
                await asyncio.wait([task])  # not awaited directly: a cancelled job must not end the worker
            except asyncio.CancelledError:
                await end(task)
                raise
            finally:
                if self._running.get(leased.job.id) is task:
                    del self._running[leased.job.id]
                lane_workers.in_hand.remove(leased.job.caller)
                if lane_workers.has_more:
                    lane_workers.woken.set()  # the caller may take another job now
            if task.cancelled() or not task.result():
                await _to_the_end(self._ended(leased.job))

    async def _next(self, lane_workers: _LaneWorkers) -> LeasedJob:
        # One worker per lane queries the store, for all that are idle, and the others wait for the lock: two
        # could both give a caller its last slot, and all would query for the same new job.
        async with lane_workers.looking:
            while not lane_workers.taken:
                if not lane_workers.may_find:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_POLL_SECONDS):
                            await lane_workers.woken.wait()
                lane_workers.woken.clear()  # before taking, so that a job accepted in between is not missed
                lane_workers.called = 0
                taken: list[LeasedJob] = []
                left_out = lane_workers.left_out()
                try:
                    taken = await self._store.write(
                        jobs.take_several, lane_workers.idle, [lane_workers.lane], left_out
                    )
                except EngineError as error:
                    logger.error("cannot lease a job", extra={"code": error.code, "detail": error.detail})
                except Exception:  # boundary: the worker must not end
                    logger.exception("cannot lease a job")
                callers = [each.job.caller for each in taken]
                lane_workers.in_hand += callers
                lane_workers.taken += taken
                if taken:
                    lane_workers.note(left_out(*callers), taken[-1].has_more, taken[-1].has_next)
                else:  # jobs that wait for another job of their note or source are reported at its end
                    lane_workers.note(left_out(), bool(left_out()), has_next=False)
            return lane_workers.taken.popleft()

    async def _traced_work(self, leased: LeasedJob) -> bool:
        with working(leased.job.id, leased.job.kind, leased.lane):
            return await self._work(leased)

    async def _work(self, leased: LeasedJob) -> bool:
        """Process a job; return True if it continues in another lane."""
        latest = _LatestProgress()
        try:
            if not await self._closed_as_duplicate(leased):
                async with self._progress(leased, latest) as progress:
                    prepared = await self._prepare(leased, progress)
                commit = documents.commit_note if leased.lane == "short" else documents.commit
                job = await self._retry_while_not_ready(
                    lambda: self._store.write(commit, leased, prepared, latest.progress)
                )
                logger.info(
                    "job abandoned" if job is None else "job completed",
                    extra={"job": leased.job.id, "chunks": len(prepared.chunks)},
                )
                if job is not None:
                    self.on_end(JobEnd(leased.lane, job, 0 if job.deduplicated else len(prepared.chunks)))
        except LeaseVoid:
            logger.info("job abandoned", extra={"job": leased.job.id})
        except ManyPages:
            changed = await self._retry_while_not_ready(
                lambda: self._store.write(jobs.change_lane, leased, "scan")
            )
            logger.info(
                "job moved to the scan lane" if changed else "job abandoned", extra={"job": leased.job.id}
            )
            return changed
        except ExtractionFailed as error:
            await self._fail(leased, error.code, error.message, latest)
        except EngineError as error:
            await self._fail(leased, error.code, error.detail, latest)
        except Exception:  # boundary: a fault in one job must not end the worker
            logger.exception("job failed", extra={"job": leased.job.id})
            message = "The engine failed on this; its log says why. Submit it again."
            await self._fail(leased, "internal", message, latest)
        return False

    async def _closed_as_duplicate(self, leased: LeasedJob) -> bool:
        """Complete the job early if it is a duplicate; the store makes the final decision at the commit."""
        if not leased.is_duplicate:
            return False
        closed = await self._retry_while_not_ready(
            lambda: self._store.write(documents.commit_duplicate, leased)
        )
        if closed is None:
            return False  # the document is damaged or removed, or the lease is lost, as the next report shows
        logger.info("job completed", extra={"job": leased.job.id, "deduplicated": True})
        self.on_end(JobEnd(leased.lane, closed))
        return True

    async def _prepare(self, leased: LeasedJob, progress: Progress) -> Prepared:
        job = leased.job
        if job.kind == "update":
            # This text is still current at the commit: updates of one note run one after another.
            note = job.updated_note
            standing, old_text = await self._retry_while_not_ready(
                lambda: self._store.read(documents.note, note)
            )
            text = old_text if job.text is None else job.text
            title = job.new_title or title_after_update(standing.title, old_text, text)
            prepared = await self._pipeline.note(text, title, progress, caller=job.caller)
            if job.text is not None:
                return prepared
            return replace(prepared, of_note=text_digest(old_text)[0])
        if job.text is not None:
            return await self._pipeline.note(job.text, job.title, progress, caller=job.caller)
        if job.spool is None or job.filename is None:
            raise LookupError(f"job {job.id} has neither a text nor a file")
        async with AsyncExitStack() as stack:
            name = job.spool
            path = await self._retry_while_not_ready(
                lambda: stack.enter_async_context(self._spool.open(name))
            )
            return await self._pipeline.file(
                path,
                FORMATS.get(job.format or "") or format_of(job.filename),
                job.filename,
                # A file's job is titled with its filename by default; any other title was set by the client.
                None if job.title == job.filename else job.title,
                progress,
                caller=job.caller,
                force_ocr=job.force_ocr,
                most_pages=None if leased.lane == "scan" else _MOST_PAGES,
            )

    @asynccontextmanager
    async def _progress(self, leased: LeasedJob, latest: _LatestProgress) -> AsyncIterator[Progress]:
        """Yield a function that reports progress, which raises LeaseVoid once the lease is lost.

        Each report is a transaction. The latest progress is reported a few times a second; the end of the job
        records the last one.
        """
        noted = asyncio.Event()

        async def write_often() -> None:
            while True:
                await asyncio.sleep(_REPORT_SECONDS)
                await noted.wait()
                noted.clear()
                assert latest.progress is not None
                now = latest.progress
                if not await self._retry_while_not_ready(
                    lambda: self._store.write(jobs.report, leased.lease, leased.job.id, now)  # noqa: B023
                ):
                    raise LeaseVoid

        async def report(step: str, done: int, total: int) -> None:
            if writing.done():
                await writing
            latest.progress = JobProgress(step, done, total)
            noted.set()

        writing = asyncio.create_task(write_often(), name=f"progress-{leased.job.id}")
        try:
            yield report
        finally:
            await end(writing)
            if not writing.cancelled():
                writing.exception()  # the last one concerns no step any more

    async def _retry_while_not_ready(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call the store until it is ready: its database may be restarting."""
        while True:
            try:
                return await ask()
            except EngineError as error:
                if error.code != "not_ready":
                    raise
                logger.warning("the store is not ready", extra={"detail": error.detail})
            await self._pause(_STORE_SECONDS)

    async def _fail(self, leased: LeasedJob, code: str, message: str, latest: _LatestProgress) -> None:
        """Mark the job as failed, retrying until the store accepts it: a full disk refuses even that."""
        failed(code)
        while True:
            try:
                error = m.JobError(code=code, message=message)
                await self._store.write(jobs.fail, leased.lease, leased.job.id, error, latest.progress)
            except EngineError as refused:
                logger.error(
                    "a failed job cannot be marked as failed",
                    extra={"job": leased.job.id, "code": refused.code},
                )
            except Exception:  # boundary: the worker must not end
                logger.exception("a failed job cannot be marked as failed", extra={"job": leased.job.id})
            else:
                logger.warning("job failed", extra={"job": leased.job.id, "code": code})
                self.on_end(JobEnd(leased.lane, code=code))
                return
            await self._pause(_RETRY_SECONDS)

    async def _ended(self, job: NewJob) -> None:
        self._waiters.announce(job.id)
        if job.spool is None:
            return
        try:
            try:
                now = await self._store.read(jobs.find, job.id)
                is_kept = now.retryable or now.finished_at is None  # not finished: queued again meanwhile
            except EngineError as error:
                is_kept = error.code != "job_not_found"
            if not is_kept:
                await self._spool.remove(job.spool)
        except Exception:  # boundary: the next start removes it; the worker continues
            logger.exception("a file cannot be removed from the spool", extra={"job": job.id})


class JobWaiters:
    """Waiters for the end of jobs. Each end in this process is announced here: callers need no polling."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._closed = False

    def announce(self, job_id: str) -> None:
        for event in self._waiting.get(job_id, ()):
            event.set()

    def announce_all(self) -> None:
        """Wake all waiters: many jobs may have ended at once."""
        for job_id in self._waiting:
            self.announce(job_id)

    def close(self) -> None:
        """Wake all waiters; later calls of `wait` return at once."""
        self._closed = True
        self.announce_all()

    async def wait(self, job_id: str, seconds: float, read: Callable[[str], Awaitable[m.Job]]) -> m.Job:
        """Return the job, read with `read`, once it has ended or after `seconds`."""
        deadline = asyncio.get_running_loop().time() + seconds
        changed = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(changed)
        try:
            while True:
                changed.clear()  # before reading, so that an end in between is not missed
                job = await read(job_id)
                left = deadline - asyncio.get_running_loop().time()
                if job.status in m.FINAL_STATUSES or left <= 0 or self._closed:
                    return job
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await changed.wait()
        finally:
            events = self._waiting[job_id]
            events.discard(changed)
            if not events:
                del self._waiting[job_id]


class StoreEventHandler:
    """Forwards store events to the workers and to waiting callers; the callback of `Store.subscribe`."""

    def __init__(self, workers: Workers, waiters: JobWaiters) -> None:
        self._workers = workers
        self._waiters = waiters
        self._stopping: set[asyncio.Task[None]] = set()

    def __call__(self, event: StoreEvent) -> bool:
        if event.kind == "queued":
            return self._workers.wake(event.lane)
        if event.kind == "resumed":
            self._workers.wake()
        if event.job_id is not None:
            self._waiters.announce(event.job_id)
            if event.kind == "cancelled":
                self._stop(self._workers.cancel(event.job_id))
        elif event.kind in {"cleared", "resumed"}:
            self._waiters.announce_all()
            self._stop(self._workers.cancel_void())
        return False

    def _stop(self, stopping: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(stopping)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)


@dataclass
class _LatestProgress:
    """The latest progress of a job; None before the first."""

    progress: JobProgress | None = None


@dataclass
class _LaneWorkers:
    """The workers of a lane, `lane_slots` in number, and the callers of its running jobs (`in_hand`)."""

    lane: Lane
    lane_slots: int
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    in_hand: list[str] = field(default_factory=list)
    idle: int = 0  # number of workers without a job
    taken: deque[LeasedJob] = field(default_factory=deque)  # jobs for idle workers
    called: int = 0  # calls since the last look at the queue
    has_more: bool = False  # true if the last look left jobs in the queue
    may_find: bool = True  # true if another look may find a job at once

    def left_out(self) -> Callable[..., set[str]]:
        """Return a function that returns the callers at their limit now, after jobs of the given callers."""
        held = tuple(self.in_hand)
        return lambda *taken: greedy((*held, *taken), self.lane_slots)

    def note(self, left_out: set[str], has_more: bool, has_next: bool) -> None:
        """Record the result of a look; a job of a caller that was left out may have ended meanwhile."""
        self.has_more = has_more
        self.may_find = has_next or (has_more and not left_out <= greedy(self.in_hand, self.lane_slots))


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end; a cancellation is raised afterwards."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
