"""The workers: each takes the job of its lane whose turn it is, prepares and commits it, then takes the next.

    queued ──take──▶ running ──commit──▶ completed
                        ├────fail──────▶ failed       (an error of the contract, or `internal`)
                        ├────cancel────▶ cancelled    (the task is stopped, its child process killed)
                        ├─ change lane ▶ queued again as a scan, once it shows that it has many pages to read
                        └─ the process ends ─▶ queued again at the next start, or by another engine

No lane waits for another (`turns.py`): short notes have workers of their own, and scans, which may take
hours, hold no place of the other files. While the store is not ready the workers wait: what was prepared
is committed once it is, if the lease is still good.
A spool file goes when its job has ended. It stays when the process ends before the job, and when the job
failed: then it can be tried again, until `kept.py` lets go of it.

Callers that wait for a job are woken by its end (`JobEnds`), which this process or another one may bring:
what the store reports of that arrives at `StoreEventHandler`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import uuid4

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.formats import FORMATS
from kb_contracts.semantics.documents import text_digest, title_after_update
from kb_engine.ingest.pipeline import LeaseVoid, ManyPages, Pipeline, Progress
from kb_engine.spool import Spool
from kb_engine.store.port import LeasedJob, NewJob, Prepared, StoreEvent
from kb_engine.store.repository import documents, jobs
from kb_engine.store.repository.sources import duplicate_for
from kb_engine.store.store import Store
from kb_engine.turns import Lane, greedy
from kb_readers.failures import ExtractionFailed
from kb_readers.readers import format_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_SECONDS = 15.0  # acceptance wakes the workers; this finds what another process put into the base
_REPORT_SECONDS = 0.2
_RETRY_SECONDS = 5.0
_STORE_SECONDS = 1.0
_MOST_PAGES = 3  # that are read by OCR among the other files; with more a job is a scan


class Workers:
    """So many workers over one store as the lanes have `places`. `wake` them when a job was accepted."""

    def __init__(
        self,
        *,
        store: Store,
        spool: Spool,
        pipeline: Pipeline,
        ends: JobEnds,
        places: Mapping[Lane, int],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._spool = spool
        self._pipeline = pipeline
        self._ends = ends
        self._lines = [_Line(lane, count) for lane, count in places.items()]
        self._pause = pause
        self._loops: list[asyncio.Task[None]] = []
        self._running: dict[str, asyncio.Task[bool]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a job is being worked on."""
        return bool(self._running)

    def start(self) -> None:
        self._loops = [
            asyncio.create_task(self._serve(line), name=f"worker-{line.lane}-{number}")
            for line in self._lines
            for number in range(line.places)
        ]

    def wake(self) -> None:
        for line in self._lines:
            line.woken.set()

    async def stop(self) -> None:
        """Stop taking jobs and drop those in hand; they are queued again at the next start."""
        await _cancelled(self._loops)
        self._loops = []
        for line in self._lines:
            line.in_hand.clear()

    async def cancel(self, job_id: str) -> None:
        """Stop working on a job that the store has cancelled; returns when its work has stopped."""
        if (task := self._running.get(job_id)) is not None:
            await _cancelled([task])

    async def cancel_void(self) -> None:
        """Stop working on every job that the store does not call running any more."""
        for job_id in list(self._running):
            try:
                runs = (await self._store.read(jobs.find, job_id)).status == "running"
            except EngineError as error:
                runs = error.code != "job_not_found"  # of a store that is not ready nothing is known
            if not runs:
                await self.cancel(job_id)

    async def _serve(self, line: _Line) -> None:
        while True:
            leased = await self._next(line)
            await self.cancel(leased.job.id)  # it was lost here and has come back: that work has no lease
            task = asyncio.create_task(self._work(leased), name=f"job-{leased.job.id}")
            self._running[leased.job.id] = task
            try:
                await asyncio.wait([task])  # unlike awaiting it, a cancelled job leaves the worker alive
            except asyncio.CancelledError:
                await _cancelled([task])
                raise
            finally:
                if self._running.get(leased.job.id) is task:
                    del self._running[leased.job.id]
                line.in_hand.remove(leased.job.caller)
                if leased.job.kind == "update" or leased.job.source_path is not None:
                    self.wake()  # one behind it may be taken now, perhaps in another lane
                else:
                    line.woken.set()  # the caller may have another place now
            if task.cancelled() or not task.result():
                await _to_the_end(self._ended(leased.job))

    async def _next(self, line: _Line) -> LeasedJob:
        # One worker of a lane looks and the others stand behind it: two would give a caller its last place
        # twice, and all of them would ask the store for the one job that came.
        async with line.looking:
            while True:
                line.woken.clear()  # before taking, so that an acceptance in between is not missed
                leased = None
                try:
                    without = greedy(line.in_hand, line.places)
                    leased = await self._store.write(jobs.take, str(uuid4()), [line.lane], without)
                except EngineError as error:
                    logger.error("no job can be taken", extra={"code": error.code, "detail": error.detail})
                if leased is not None:
                    line.in_hand.append(leased.job.caller)
                    return leased
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS):
                        await line.woken.wait()

    async def _work(self, leased: LeasedJob) -> bool:
        """Whether the job goes on in another lane."""
        try:
            if not await self._closed_as_duplicate(leased):
                prepared = await self._prepare(leased)
                job = await self._retry_while_not_ready(
                    lambda: self._store.write(documents.commit, leased, prepared)
                )
                logger.info(
                    "job given up" if job is None else "job completed",
                    extra={"job": leased.job.id, "chunks": len(prepared.chunks)},
                )
        except LeaseVoid:
            logger.info("job given up", extra={"job": leased.job.id})
        except ManyPages:
            changed = await self._retry_while_not_ready(
                lambda: self._store.write(jobs.change_lane, leased, "scan")
            )
            logger.info("job is a scan" if changed else "job given up", extra={"job": leased.job.id})
            self.wake()
            return changed
        except ExtractionFailed as error:
            await self._fail(leased, error.code, error.message)
        except EngineError as error:
            await self._fail(leased, error.code, error.detail)
        except Exception:  # the rim: one job's fault must not end the worker
            logger.exception("job failed", extra={"job": leased.job.id})
            await self._fail(
                leased, "internal", "The engine failed on this; its log says why. Submit it again."
            )
        return False

    async def _closed_as_duplicate(self, leased: LeasedJob) -> bool:
        """Spare the work where the same document stands; the store decides when it commits."""
        store = self._store
        found = await self._retry_while_not_ready(lambda: store.read(duplicate_for, leased.job))
        if found is None:
            return False
        closed = await self._retry_while_not_ready(lambda: store.write(documents.commit_duplicate, leased))
        if closed is None:
            return False  # the document has gone meanwhile; or the lease, as the first report will find out
        logger.info("job completed", extra={"job": leased.job.id, "deduplicated": True})
        return True

    async def _prepare(self, leased: LeasedJob) -> Prepared:
        job, progress = leased.job, self._progress(leased)
        if job.kind == "update":
            # What is read here still stands at the commit: updates of one note follow one another.
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
                # A file's job is called by its name until something better is known; another title was given.
                None if job.title == job.filename else job.title,
                progress,
                caller=job.caller,
                force_ocr=job.force_ocr,
                most_pages=None if leased.lane == "scan" else _MOST_PAGES,
            )

    def _progress(self, leased: LeasedJob) -> Progress:
        reported: tuple[str, float] = ("", 0.0)

        async def report(step: str, done: int, total: int) -> None:
            nonlocal reported
            now = time.monotonic()
            # Each report is a transaction: a new step is always told, further parts a few times a second.
            if step == reported[0] and now - reported[1] < _REPORT_SECONDS:
                return
            reported = (step, now)
            if not await self._retry_while_not_ready(
                lambda: self._store.write(jobs.report, leased.lease, leased.job.id, step, done, total)
            ):
                raise LeaseVoid

        return report

    async def _retry_while_not_ready(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The store's answer, when it is ready to give one: its database may be starting again."""
        while True:
            try:
                return await ask()
            except EngineError as error:
                if error.code != "not_ready":
                    raise
                logger.warning("the store is not ready", extra={"detail": error.detail})
            await self._pause(_STORE_SECONDS)

    async def _fail(self, leased: LeasedJob, code: str, message: str) -> None:
        """Close the job as failed, for as long as it takes: a full disk refuses even that."""
        while True:
            try:
                await self._store.write(
                    jobs.fail, leased.lease, leased.job.id, m.JobError(code=code, message=message)
                )
            except EngineError as error:
                logger.error(
                    "a failed job cannot be closed", extra={"job": leased.job.id, "code": error.code}
                )
                await self._pause(_RETRY_SECONDS)
            else:
                logger.warning("job failed", extra={"job": leased.job.id, "code": code})
                return

    async def _ended(self, job: NewJob) -> None:
        self._ends.announce(job.id)
        if job.spool is None:
            return
        try:
            now = await self._store.read(jobs.find, job.id)
            is_kept = now.retryable or now.finished_at is None  # it has been queued again by now
        except EngineError as error:
            is_kept = error.code != "job_not_found"
        try:
            if not is_kept:
                await self._spool.remove(job.spool)
        except (OSError, EngineError):  # the next start sweeps it; the worker goes on
            logger.exception("a file stays in the spool", extra={"job": job.id})


class JobEnds:
    """Long polls on jobs. Every end in this process is announced here; nobody asks in a loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._closed = False

    def announce(self, job_id: str) -> None:
        for event in self._waiting.get(job_id, ()):
            event.set()

    def announce_all(self) -> None:
        """Wake everybody: many jobs may have ended at once."""
        for job_id in self._waiting:
            self.announce(job_id)

    def close(self) -> None:
        """Answer everybody now, and from now on nobody waits."""
        self._closed = True
        self.announce_all()

    async def wait(self, job_id: str, seconds: float, read: Callable[[str], Awaitable[m.Job]]) -> m.Job:
        """The job as `read` gives it, once it has ended or after `seconds`."""
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
    """Passes events on; an instance is the callback of `Store.subscribe`."""

    def __init__(self, workers: Workers, ends: JobEnds) -> None:
        self._workers = workers
        self._ends = ends
        self._stopping: set[asyncio.Task[None]] = set()

    def __call__(self, event: StoreEvent) -> None:
        if event.kind in {"queued", "resumed"}:
            self._workers.wake()
        if event.job_id is not None:
            self._ends.announce(event.job_id)
            if event.kind == "cancelled":
                self._stop(self._workers.cancel(event.job_id))
        elif event.kind in {"cleared", "resumed"}:
            self._ends.announce_all()
            self._stop(self._workers.cancel_void())

    def _stop(self, stopping: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(stopping)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)


@dataclass
class _Line:
    """The workers of one lane, as many as it has `places`, and the callers of what they have in hand."""

    lane: Lane
    places: int
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    in_hand: list[str] = field(default_factory=list)


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await `work`; a cancellation takes effect when it has ended."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait until they have ended."""
    waiting = [task for task in tasks if not task.done()]
    for task in waiting:
        task.cancel()
    if waiting:
        await asyncio.wait(waiting)
