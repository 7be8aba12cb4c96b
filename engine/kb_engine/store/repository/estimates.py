"""Jobs as callers see them, with how long they will take yet, learned from those that were done here.

Of each kind of work a line is fitted to what was measured, seconds over bytes, by least squares: what any job
costs, and what a byte adds. Older jobs count less, so that the line follows the machine and its load. It is
kept in `measures` as five sums, which one statement updates when a job is done.

    a job that runs     what the line says, and its own pace, which counts the more the further the job is
    a job that waits    the line for itself, and for all that is before it in its lane, over as many jobs as
                        run there at once

The two are told apart by sizes that differ. Where they are alike, time is in proportion to bytes, for sizes
like these. How long work takes is unknown where its kind was never done here, or only in sizes far from its
own. Where it stands before a job, all kinds together stand for it; where they do not know either, that job's
time is unknown too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from kb_contracts.api import models as m
from kb_engine.store.repository.transaction import Read, Row, Write, seconds_between

_WEIGHT_OF_OLDER = 0.9
_SPREAD = 0.1  # of the sizes, relative to their squares: under that they are alike
_REACH = 8  # times as large as the large ones that were measured is no longer like them

_JOB = (
    "id", "status", "kind", "title", "filename", "step", "completed_steps", "total_steps", "attempts",
    "document_id", "document_uid", "created_at", "started_at", "finished_at",
)  # fmt: skip
_WORK = ("id", "status", "lane", "seq", "kind", "format", "force_ocr", "size_bytes")
_REST = ("tags", "deduplicated", "outcome", "left_out", "retryable", "error_code", "error_message")
JOB_COLUMNS = ", ".join([*_WORK, *_JOB, *_REST])


class _Work(NamedTuple):
    """What a job asks of the engine, and where it stands in the queue."""

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
    squares: float
    """Of the bytes."""
    products: float
    """Of bytes and seconds."""

    def seconds_for(self, jobs: float, size: float) -> float | None:
        """How long so many jobs of so many bytes in all would take, one after the other.

        None: nothing like them was measured.
        """
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


async def measure(write: Write, job_id: str) -> None:
    """Learn from a job that is done now how long such work takes."""
    done = await write.row(
        # Of several attempts the time between them is not known.
        "SELECT kind, format, force_ocr, size_bytes, started_at FROM jobs "
        "WHERE id = ? AND attempts = 1 AND NOT deduplicated",
        (job_id,),
    )
    if done is None:
        return
    kind, form, ocr, size, started_at = done
    work = _name(kind, form, ocr)
    if not await write.try_measures(work):
        return  # another engine is at it, and would be waited for; the line follows from fewer jobs too
    seconds = seconds_between(started_at, write.now)
    sums = ", ".join(
        f"{name} = measures.{name} * {_WEIGHT_OF_OLDER} + excluded.{name}" for name in _Measures._fields
    )
    await write.rows(
        "INSERT INTO measures (work, jobs, bytes, seconds, squares, products) VALUES (?, 1, ?, ?, ?, ?) "  # noqa: S608
        f"ON CONFLICT (work) DO UPDATE SET {sums}",
        (work, size, seconds, float(size) * size, size * seconds),
    )


async def jobs_of(read: Read, found: Sequence[Row]) -> list[m.Job]:
    """The jobs of `JOB_COLUMNS`, those that have not ended with an estimate.

    Jobs that wait between the first and the last of `found` that do are all in it: it is a page of the queue.
    """
    wanted = [_Work(*row[: len(_WORK)]) for row in found]
    waiting = [each.seq for each in wanted if each.status == "queued"]
    if not waiting and not any(each.status == "running" for each in wanted):
        return [_job(row, read.now, None) for row in found]
    sums = await read.rows("SELECT work, jobs, bytes, seconds, squares, products FROM measures")
    known = {name: _Measures(*of_work) for name, *of_work in sums}
    queues: defaultdict[str, _Queue] = defaultdict(lambda: _Queue(known, read.now))
    for lane, *row in await read.rows(
        "SELECT lane, id, kind, format, force_ocr, size_bytes, started_at, completed_steps, total_steps "
        "FROM jobs WHERE status = 'running'"
    ):
        queues[lane].add_running(row)
    # By the order of acceptance, which the turns of callers change a little.
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
    """A job of `JOB_COLUMNS`, as it is at `now`."""
    *values, tags, deduplicated, outcome, left_out, retryable, code, message = row[len(_WORK) :]
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
    """The seconds of work that stand before a job in one lane."""

    def __init__(self, known: Mapping[str, _Measures], now: str) -> None:
        self._known = known
        self._now = now
        self._all = _Measures(*map(sum, zip(*known.values(), strict=True))) if known else None
        self._before: float | None = 0.0
        self.left: dict[str, float | None] = {}
        """Of the jobs that run, by id."""

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
        """By what is known of such work, or else of all."""
        for measures in (self._known.get(name), self._all):
            if measures is not None and (seconds := measures.seconds_for(jobs, size)) is not None:
                return seconds
        return None

    def _wait(self, seconds: float | None) -> None:
        self._before = None if seconds is None or self._before is None else self._before + seconds


def _left(seconds: float | None, elapsed: float, share: float) -> float | None:
    """Of the seconds that were learned, and of a job's own pace; None where there is neither."""
    pace = elapsed * (1 - share) / share if share else None
    if seconds is None:
        return pace
    learned = max(0.0, seconds - elapsed)
    return learned if pace is None else share * pace + (1 - share) * learned


def _name(kind: str, form: str | None, force_ocr: bool) -> str:
    return f"{form or kind} by OCR" if force_ocr else form or kind
