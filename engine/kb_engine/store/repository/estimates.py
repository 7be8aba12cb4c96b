"""How long jobs take here, learned from those that were done. No I/O; the stores keep the sums in `measures`.

Of each kind of work a line is fitted to what was measured, seconds over bytes, by least squares: what any job
costs, and what a byte adds. Older jobs count less, so that the line follows the machine and its load. It is
kept as five sums, which one statement updates when a job is done.

    a job that runs     what the line says, and its own pace, which counts the more the further the job is
    a job that waits    the line for itself, and for all that is before it in its lane, over as many jobs as
                        run there at once

Work of a kind that was never done here is unknown. Where it waits before a job, all kinds together stand for
it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from kb_contracts.api import models as m
from kb_engine.store.rows import Row, Work, job, work
from kb_engine.store.times import seconds_between

_WEIGHT_OF_OLDER = 0.9
_SPREAD = 1e-9  # of the sizes, relative to their squares: under that they are all the same

WORK_DONE = (
    "SELECT kind, format, force_ocr, size_bytes, started_at FROM jobs "
    "WHERE id = ? AND attempts = 1 AND NOT deduplicated"
)
"""What a job was, where its time is known: one of several attempts bears the time between them."""
ADD_MEASURE = (
    "INSERT INTO measures (work, jobs, bytes, seconds, squares, products) VALUES (?, 1, ?, ?, ?, ?) "  # noqa: S608
    "ON CONFLICT (work) DO UPDATE SET "
    + ", ".join(
        f"{name} = measures.{name} * {_WEIGHT_OF_OLDER} + excluded.{name}"
        for name in ("jobs", "bytes", "seconds", "squares", "products")
    )
)
MEASURES = "SELECT work, jobs, bytes, seconds, squares, products FROM measures"
RUNNING = (
    "SELECT lane, id, kind, format, force_ocr, size_bytes, started_at, completed_steps, total_steps "
    "FROM jobs WHERE status = 'running'"
)
WAITING = (
    "SELECT lane, kind, format, force_ocr, count(*), sum(size_bytes) FROM jobs "
    "WHERE status = 'queued' AND seq < ? GROUP BY lane, kind, format, force_ocr"
)
"""What waits before a job, by the order of acceptance, which the turns of callers change a little."""


class Measures(NamedTuple):
    """The sums over the jobs of one kind of work."""

    jobs: float
    bytes: float
    seconds: float
    squares: float
    """Of the bytes."""
    products: float
    """Of bytes and seconds."""

    def seconds_for(self, jobs: float, size: float) -> float:
        """How long so many jobs of so many bytes in all would take, one after the other."""
        spread = self.jobs * self.squares - self.bytes**2
        if spread > _SPREAD * self.jobs * self.squares:
            slope = max(0.0, (self.jobs * self.products - self.bytes * self.seconds) / spread)
            each = (self.seconds - slope * self.bytes) / self.jobs
            if each >= 0:
                return jobs * each + size * slope
        if self.bytes:
            return size * self.seconds / self.bytes
        return jobs * self.seconds / self.jobs


def measure_of(found: Row, now: str) -> Sequence[Any]:
    """The values of `ADD_MEASURE`, from a row of `WORK_DONE` of a job that is done now."""
    kind, form, ocr, size, started_at = found
    seconds = seconds_between(started_at, now)
    return (_name(kind, form, ocr), size, seconds, float(size) * size, size * seconds)


def first_waiting(found: Iterable[Row]) -> int | None:
    """The place of the first job of `JOB_COLUMNS` that waits; 0: only running ones, None: all have ended."""
    open_ = [work(row) for row in found]
    waiting = [each.seq for each in open_ if each.status == "queued"]
    if waiting:
        return min(waiting)
    return 0 if any(each.status == "running" for each in open_) else None


def estimated(
    found: Sequence[Row], now: str, measures: Iterable[Row], running: Iterable[Row], waiting: Iterable[Row]
) -> list[m.Job]:
    """The jobs of `JOB_COLUMNS`, with how long they will take yet.

    The others are rows of `MEASURES`, of `RUNNING`, and of `WAITING` before the first of `found` that waits.
    Jobs that wait between that one and the last are all in `found`: it is a page of the queue.
    """
    known = {name: Measures(*sums) for name, *sums in measures}
    queues: defaultdict[str, _Queue] = defaultdict(lambda: _Queue(known, now))
    for lane, *row in running:
        queues[lane].add_running(row)
    for lane, kind, form, ocr, count, size in waiting:
        queues[lane].add(_name(kind, form, ocr), count, size)
    seconds: dict[str, float | None] = {}
    for each in sorted((work(row) for row in found), key=lambda each: each.seq):
        queue = queues[each.lane]
        if each.status == "running":
            seconds[each.id] = queue.left.get(each.id)
        elif each.status == "queued":
            seconds[each.id] = queue.until_done(each)
            queue.add(_name(each.kind, each.format, each.force_ocr), 1, each.size_bytes)
    return [_with_estimate(job(row, now), seconds) for row in found]


def _with_estimate(standing: m.Job, seconds: Mapping[str, float | None]) -> m.Job:
    estimate = seconds.get(standing.id)
    return standing if estimate is None else replace(standing, estimated_seconds=round(estimate, 3))


class _Queue:
    """The seconds of work that stand before a job in one lane."""

    def __init__(self, known: Mapping[str, Measures], now: str) -> None:
        self._known = known
        self._now = now
        self._all = Measures(*map(sum, zip(*known.values(), strict=True))) if known else None
        self._before = 0.0
        self.left: dict[str, float | None] = {}
        """Of the jobs that run, by id."""

    def add(self, name: str, jobs: int, size: int) -> None:
        if (measures := self._known.get(name, self._all)) is not None:
            self._before += measures.seconds_for(jobs, float(size))

    def add_running(self, row: Row) -> None:
        id_, kind, form, ocr, size, started_at, done, total = row
        name, elapsed = _name(kind, form, ocr), seconds_between(started_at, self._now)
        share = min(1.0, done / total) if total else 0.0
        self.left[id_] = _left(self._known.get(name), size, elapsed, share)
        self._before += _left(self._known.get(name, self._all), size, elapsed, share) or 0.0

    def until_done(self, each: Work) -> float | None:
        own = self._known.get(_name(each.kind, each.format, each.force_ocr))
        if own is None:
            return None
        return self._before / max(1, len(self.left)) + own.seconds_for(1, each.size_bytes)


def _left(measures: Measures | None, size: int, elapsed: float, share: float) -> float | None:
    pace = elapsed * (1 - share) / share if share else None
    if measures is None:
        return pace
    learned = max(0.0, measures.seconds_for(1, size) - elapsed)
    return learned if pace is None else share * pace + (1 - share) * learned


def _name(kind: str, form: str | None, force_ocr: bool) -> str:
    return f"{form or kind} by OCR" if force_ocr else form or kind
