"""Jobs as shown to callers, with an estimate of the remaining time, learned from the jobs done here.

For each kind of work a line is fitted by least squares, seconds over bytes: a fixed cost per job and a cost
per byte. Older jobs weigh less, so that the line follows the machine and its load. It is stored in `measures`
as five sums, which one statement updates when a job is done.

    running job         the line and the job's own pace, weighted by its progress
    waiting job         the line for itself, and for all work before it in its lane, divided by the number
                        of jobs running there at once

Fixed cost and cost per byte can be separated only if the sizes differ. If they are alike, time is taken as
proportional to bytes, for similar sizes. The estimate is unknown if the kind of work was never done here, or
only with very different sizes. For work before a job, the sums over all kinds are the fallback; if they give
no estimate either, that job's time is unknown too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from kb_contracts.api import models as m
from kb_engine.store.clock import seconds_between
from kb_engine.store.repository.transaction import Read, Row, Write

_WEIGHT_OF_OLDER = 0.9
_SPREAD = 0.1  # variance of the sizes over their mean square; below this they count as alike
_REACH = 8  # a size more than this many times the large measured ones has no estimate

_JOB = (
    "id", "status", "kind", "title", "filename", "step", "completed_steps", "total_steps", "attempts",
    "document_id", "document_uid", "created_at", "started_at", "finished_at",
)  # fmt: skip
_REST = ("tags", "deduplicated", "outcome", "left_out", "retryable", "error_code", "error_message")


class _Work(NamedTuple):
    """The work that a job requires, and its place in the queue."""

    id: str
    status: m.JobStatus
    lane: str
    seq: int
    kind: str
    format: str | None
    force_ocr: bool
    size_bytes: int


class _Measures(NamedTuple):
    """The sums over the jobs of one kind of work."""

    jobs: float
    bytes: float
    seconds: float
    squares: float  # sum of the squared sizes
    products: float  # sum of bytes times seconds

    def seconds_for(self, jobs: float, size: float) -> float | None:
        """Estimate the seconds for `jobs` jobs of `size` bytes in total; None without a similar job."""
        if not self.bytes:
            return None if size else jobs * self.seconds / self.jobs
        large = jobs * self.squares / self.bytes
        if size > _REACH * large:
            return None
        spread = self.jobs * self.squares - self.bytes**2
        if spread > _SPREAD * self.jobs * self.squares:
            slope = max(0.0, (self.jobs * self.products - self.bytes * self.seconds) / spread)
            each = (self.seconds - slope * self.bytes) / self.jobs
            if each >= 0:
                return jobs * each + size * slope
        elif _REACH * size < large:
            return None
        return size * self.products / self.squares


JOB_COLUMNS = ", ".join([*_Work._fields, *_JOB, *_REST])
_SUMS = ", ".join(_Measures._fields)


async def measure(write: Write, job_id: str) -> None:
    """Add a completed job to the measurements."""
    done = await write.row(
        # After several attempts the working time is unknown, as it includes the pauses.
        "SELECT kind, format, force_ocr, size_bytes, started_at FROM jobs "
        "WHERE id = ? AND attempts = 1 AND NOT deduplicated",
        (job_id,),
    )
    if done is None:
        return
    kind, form, ocr, size, started_at = done
    work = _name(kind, form, ocr)
    if not await write.try_measures(work):
        return  # Another engine holds the lock. Skip this job: waiting costs more than one sample.
    seconds = seconds_between(started_at, write.now)
    sums = ", ".join(
        f"{name} = measures.{name} * {_WEIGHT_OF_OLDER} + excluded.{name}" for name in _Measures._fields
    )
    await write.rows(
        f"INSERT INTO measures (work, {_SUMS}) VALUES (?, 1, ?, ?, ?, ?) "  # noqa: S608
        f"ON CONFLICT (work) DO UPDATE SET {sums}",
        (work, size, seconds, float(size) * size, size * seconds),
    )


async def jobs_of(read: Read, found: Sequence[Row]) -> list[m.Job]:
    """Build the jobs from rows of `JOB_COLUMNS`, unfinished ones with an estimate.

    `found` must be a page of the queue: every waiting job between its first and last waiting job is in it.
    """
    wanted = [_Work(*row[: len(_Work._fields)]) for row in found]
    waiting = [each.seq for each in wanted if each.status == "queued"]
    if not waiting and not any(each.status == "running" for each in wanted):
        return [_job(row, read.now, None) for row in found]
    sums = await read.rows(f"SELECT work, {_SUMS} FROM measures")  # noqa: S608
    known = {name: _Measures(*of_work) for name, *of_work in sums}
    queues: defaultdict[str, _Queue] = defaultdict(lambda: _Queue(known, read.now))
    for lane, *row in await read.rows(
        "SELECT lane, id, kind, format, force_ocr, size_bytes, started_at, completed_steps, total_steps "
        "FROM jobs WHERE status = 'running'"
    ):
        queues[lane].add_running(row)
    # In order of acceptance, an approximation of the fair order.
    for lane, kind, form, ocr, count, size in await read.rows(
        "SELECT lane, kind, format, force_ocr, count(*), sum(size_bytes) FROM jobs "
        "WHERE status = 'queued' AND seq < ? GROUP BY lane, kind, format, force_ocr",
        (min(waiting, default=0),),
    ):
        queues[lane].add(_name(kind, form, ocr), count, size)
    seconds: dict[str, float | None] = {}
    for each in sorted(wanted, key=lambda each: each.seq):
        queue = queues[each.lane]
        if each.status == "running":
            seconds[each.id] = queue.left.get(each.id)
        elif each.status == "queued":
            seconds[each.id] = queue.until_done(each)
            queue.add(_name(each.kind, each.format, each.force_ocr), 1, each.size_bytes)
    return [_job(row, read.now, seconds.get(each.id)) for each, row in zip(wanted, found, strict=True)]


def _job(row: Row, now: str, estimate: float | None) -> m.Job:
    """Build a job from a row of `JOB_COLUMNS` at the time `now`."""
    *values, tags, deduplicated, outcome, left_out, retryable, code, message = row[len(_Work._fields) :]
    fields = dict(zip(_JOB, values, strict=True))
    done, total = fields["completed_steps"], fields["total_steps"]
    progress = min(1.0, done / total) if total else 0.0
    return m.Job(
        **fields,
        tags=msgspec.json.decode(tags),
        deduplicated=bool(deduplicated),
        outcome=outcome or msgspec.UNSET,
        left_out=msgspec.UNSET if left_out is None else [each for each in left_out.split(",") if each],
        retryable=bool(retryable),
        error=m.JobError(code=code, message=message) if code else None,
        progress=1.0 if fields["status"] == "completed" else progress,
        elapsed_seconds=round(
            seconds_between(fields["started_at"] or fields["created_at"], fields["finished_at"] or now), 3
        ),
        estimated_seconds=None if estimate is None else round(estimate, 3),
    )


class _Queue:
    """The seconds of work before a job in one lane."""

    def __init__(self, known: Mapping[str, _Measures], now: str) -> None:
        self._known = known
        self._now = now
        self._all = _Measures(*map(sum, zip(*known.values(), strict=True))) if known else None
        self._before: float | None = 0.0
        self.left: dict[str, float | None] = {}  # remaining seconds of the running jobs, by id

    def add(self, name: str, jobs: int, size: int) -> None:
        self._wait(self._seconds_for(name, jobs, float(size)))

    def add_running(self, row: Row) -> None:
        id_, kind, form, ocr, size, started_at, done, total = row
        name, elapsed = _name(kind, form, ocr), seconds_between(started_at, self._now)
        share = min(1.0, done / total) if total else 0.0
        own = self._known[name].seconds_for(1, size) if name in self._known else None
        self.left[id_] = _left(own, elapsed, share)
        self._wait(_left(self._seconds_for(name, 1, size), elapsed, share))

    def until_done(self, each: _Work) -> float | None:
        own = self._known.get(_name(each.kind, each.format, each.force_ocr))
        seconds = None if own is None else own.seconds_for(1, each.size_bytes)
        if self._before is None or seconds is None:
            return None
        return self._before / max(1, len(self.left)) + seconds

    def _seconds_for(self, name: str, jobs: int, size: float) -> float | None:
        """Estimate from the measurements of this kind of work, or failing that of all kinds."""
        for measures in (self._known.get(name), self._all):
            if measures is not None and (seconds := measures.seconds_for(jobs, size)) is not None:
                return seconds
        return None

    def _wait(self, seconds: float | None) -> None:
        self._before = None if seconds is None or self._before is None else self._before + seconds


def _left(seconds: float | None, elapsed: float, share: float) -> float | None:
    """Combine the learned time with the job's own pace; None if both are unknown."""
    pace = elapsed * (1 - share) / share if share else None
    if seconds is None:
        return pace
    learned = max(0.0, seconds - elapsed)
    return learned if pace is None else share * pace + (1 - share) * learned


def _name(kind: str, form: str | None, force_ocr: bool) -> str:
    return f"{form or kind} by OCR" if force_ocr else form or kind
