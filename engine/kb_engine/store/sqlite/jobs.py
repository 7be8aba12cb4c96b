"""The durable queue: SQL around the table of `states`. Callers take turns, each with its oldest job first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import apsw

from kb_contracts.api import models as m
from kb_contracts.semantics.job_states import Event, sources, target
from kb_engine.store import estimates, rules
from kb_engine.store.port import KeptJob, LeasedJob, NewJob
from kb_engine.store.rows import JOB_COLUMNS, LEASED_COLUMNS, Row, job, leased_job
from kb_engine.store.sqlite import idempotency
from kb_engine.store.sqlite.connection import marks, row, rows, value
from kb_engine.store.sqlite.write import Write
from kb_engine.turns import Lane, lane_of, turn

KEPT_FINISHED = 10_000
"""Ended jobs beyond the newest of these are forgotten."""


_COUNT_WAITING = "SELECT count(*) FROM jobs WHERE status = 'queued'"


def accept(write: Write, new: NewJob, max_queued: int) -> m.Job:
    """Queue a job. Raises `queue_full`."""
    rules.room_in_queue(value(write.db, _COUNT_WAITING), max_queued)
    lane = lane_of(new.kind, new.size_bytes)
    columns = rules.job_columns(new, lane, _turn(write.db, new.caller, lane), write.now)
    write.db.execute(
        f"INSERT INTO jobs ({', '.join(columns)}) VALUES ({marks(len(columns))})",  # noqa: S608
        tuple(columns.values()),
    )
    if new.text is not None:
        write.db.execute("INSERT INTO job_texts (job_id, text) VALUES (?, ?)", (new.id, new.text))
    return find(write.db, new.id, write.now)


def find(db: apsw.Connection, job_id: str, now: str) -> m.Job:
    """Raises `job_not_found`."""
    found = row(db, f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (job_id,))  # noqa: S608
    if found is None:
        raise rules.job_not_found(job_id)
    (standing,) = _with_estimates(db, [found], now)
    return standing


def page(db: apsw.Connection, status: m.JobStatus | None, limit: int, offset: int, now: str) -> m.JobList:
    """Newest first."""
    condition, values = ("status = ?", (status,)) if status else ("true", ())
    total = value(db, f"SELECT count(*) FROM jobs WHERE {condition}", values)  # noqa: S608
    found = rows(
        db,
        f"SELECT {JOB_COLUMNS} FROM jobs WHERE {condition} ORDER BY seq DESC LIMIT ? OFFSET ?",  # noqa: S608
        (*values, limit, offset),
    )
    return m.JobList(jobs=_with_estimates(db, found, now), total=total, limit=limit, offset=offset)


def cancel(write: Write, job_id: str) -> m.Job:
    """Cancel what has not ended. Raises `job_not_found` or `job_finished`."""
    standing = find(write.db, job_id, write.now)
    if not _end(write, Event.CANCEL, "id = ?", (job_id,)):
        raise rules.job_finished(standing)
    prune(write)
    return find(write.db, job_id, write.now)


def cancel_all(write: Write) -> int:
    """Cancel everything accepted so far, and keep nothing of what failed; how many were cancelled."""
    let_go(write, [one.id for one in kept(write.db)])
    return _end(write, Event.CANCEL, "true", ())


def take(
    write: Write, lease: str, lanes: Collection[Lane], without: Collection[str] = ()
) -> LeasedJob | None:
    """Lease the job of these lanes whose turn it is, `without` those of some callers."""
    waiting = sources(Event.TAKE)
    following = (
        f"SELECT seq FROM jobs WHERE status IN ({marks(len(waiting))}) AND lane IN ({marks(len(lanes))}) "  # noqa: S608
        f"AND caller NOT IN ({marks(len(without))}) AND {rules.NOT_BEHIND_AN_UPDATE} "
        "AND (rests_until IS NULL OR rests_until <= ?) ORDER BY turn, seq LIMIT 1"
    )
    found = row(
        write.db,
        f"UPDATE jobs SET status = ?, lease = ?, step = 'started', attempts = attempts + 1, "  # noqa: S608
        f"started_at = coalesce(started_at, ?) WHERE seq = ({following}) RETURNING {LEASED_COLUMNS}",
        (target(Event.TAKE), lease, write.now, *waiting, *lanes, *without, write.now),
    )
    return leased_job(found) if found else None


def change_lane(write: Write, leased: LeasedJob, lane: Lane) -> bool:
    """Queue a job again in another lane, under a lease that is good; such an attempt does not count."""
    if not holds(write.db, leased):
        return False
    _requeue(write, leased.job.id)
    changed = (lane, _turn(write.db, leased.job.caller, lane), leased.job.id)
    write.db.execute("UPDATE jobs SET lane = ?, turn = ?, attempts = attempts - 1 WHERE id = ?", changed)
    return True


def _turn(db: apsw.Connection, caller: str, lane: str) -> int:
    last = value(db, rules.LAST_TURN, (caller, lane))
    return turn(last, value(db, rules.SERVED_TURN, (lane, lane)))


def report(write: Write, lease: str, job_id: str, step: str, completed: int, total: int) -> bool:
    """Note progress under a lease that is good."""
    write.db.execute(
        "UPDATE jobs SET step = ?, completed_steps = ?, total_steps = ? "
        "WHERE id = ? AND lease = ? AND status = 'running'",
        (step, completed, total, job_id, lease),
    )
    return write.db.changes() > 0


def holds(db: apsw.Connection, leased: LeasedJob) -> bool:
    """Whether the lease is good."""
    condition = "id = ? AND lease = ? AND status = 'running'"
    return row(db, f"SELECT 1 FROM jobs WHERE {condition}", (leased.job.id, leased.lease)) is not None  # noqa: S608


def complete(write: Write, job_id: str, document_id: int, document_uid: str, deduplicated: bool) -> m.Job:
    """Close a running job with the document that came of it."""
    _end(write, Event.COMPLETE, "id = ?", (job_id,))
    write.db.execute(
        "UPDATE jobs SET step = 'completed', completed_steps = total_steps, document_id = ?, "
        "document_uid = ?, deduplicated = ? WHERE id = ?",
        (document_id, document_uid, deduplicated, job_id),
    )
    if (done := row(write.db, estimates.WORK_DONE, (job_id,))) is not None:
        write.db.execute(estimates.ADD_MEASURE, estimates.measure_of(done, write.now))
    prune(write)
    return find(write.db, job_id, write.now)


def fail(write: Write, lease: str, job_id: str, error: m.JobError) -> bool:
    """Close a running job as failed, under a lease that is good."""
    if not _end(write, Event.FAIL, "id = ? AND lease = ?", (job_id, lease)):
        return False
    _set_error(write, job_id, error)
    prune(write)
    return True


def retry(write: Write, job_id: str, max_queued: int) -> m.Job:
    """Queue a failed job again. Raises `job_not_found`, `job_not_retryable` or `queue_full`."""
    standing = find(write.db, job_id, write.now)
    if not standing.retryable:
        raise rules.job_not_retryable(standing)
    rules.room_in_queue(value(write.db, _COUNT_WAITING), max_queued)
    ((caller, lane),) = rows(write.db, "SELECT caller, lane FROM jobs WHERE id = ?", (job_id,))
    write.db.execute(
        "UPDATE jobs SET status = ?, turn = ?, retryable = 0, crashes = 0, rests_until = NULL, "
        "step = 'queued', completed_steps = 0, total_steps = 0, error_code = NULL, error_message = NULL, "
        "started_at = NULL, finished_at = NULL WHERE id = ?",
        (target(Event.RETRY), _turn(write.db, caller, lane), job_id),
    )
    return find(write.db, job_id, write.now)


def kept(db: apsw.Connection) -> list[KeptJob]:
    """The failed jobs whose bytes are kept, the oldest failure first."""
    return [KeptJob(*found) for found in rows(db, rules.KEPT)]


def let_go(write: Write, job_ids: Sequence[str]) -> None:
    """Keep the bytes of these jobs no longer, those that have failed; a file is then nobody's."""
    for job_id in job_ids:
        write.db.execute("UPDATE jobs SET retryable = 0 WHERE id = ? AND retryable", (job_id,))
        if write.db.changes():
            write.db.execute("DELETE FROM job_texts WHERE job_id = ?", (job_id,))


def release(write: Write) -> int:
    """Queue again what ran when the process died; how many."""
    found = rows(write.db, "SELECT id, crashes + 1 FROM jobs WHERE status = 'running'")
    for job_id, crashes in found:
        _requeue(write, job_id)
        write.db.execute(
            "UPDATE jobs SET crashes = ?, rests_until = ? WHERE id = ?",
            (crashes, rules.rests_until(crashes, write.now), job_id),
        )
    return len(found)


def hand_back(write: Write) -> None:
    """Queue again what runs while the engine stops in good order; such an attempt does not count."""
    for (job_id,) in rows(write.db, "SELECT id FROM jobs WHERE status = 'running'"):
        _requeue(write, job_id)
        write.db.execute("UPDATE jobs SET attempts = attempts - 1 WHERE id = ?", (job_id,))


def spooled(db: apsw.Connection) -> set[str]:
    """The files of waiting, running and kept jobs."""
    wanted = (
        "SELECT spool FROM jobs WHERE (status IN ('queued', 'running') OR retryable) AND spool IS NOT NULL"
    )
    return {name for (name,) in rows(db, wanted)}


def prune(write: Write) -> None:
    """Forget the oldest ended jobs over the bound, but none whose bytes are kept."""
    write.db.execute(
        "DELETE FROM jobs WHERE seq IN (SELECT seq FROM jobs WHERE finished_at IS NOT NULL "
        "ORDER BY seq DESC LIMIT -1 OFFSET ?) AND NOT retryable",
        (KEPT_FINISHED,),
    )


def _with_estimates(db: apsw.Connection, found: Sequence[Row], now: str) -> list[m.Job]:
    """The jobs of `JOB_COLUMNS`, those that have not ended with an estimate."""
    if (first := estimates.first_waiting(found)) is None:
        return [job(one, now) for one in found]
    return estimates.estimated(
        found,
        now,
        rows(db, estimates.MEASURES),
        rows(db, estimates.RUNNING),
        rows(db, estimates.WAITING, (first,)),
    )


def _end(write: Write, event: Event, condition: str, values: Sequence[Any]) -> int:
    """Move jobs to a final state where the event is allowed; how many. What failed keeps text and file."""
    allowed, failed = sources(event), event is Event.FAIL
    ended = rows(
        write.db,
        "UPDATE jobs SET status = ?, finished_at = ?, lease = NULL, retryable = ? "  # noqa: S608
        f"WHERE {condition} AND status IN ({marks(len(allowed))}) RETURNING id",
        (target(event), write.now, failed, *values, *allowed),
    )
    if not failed:
        write.db.executemany("DELETE FROM job_texts WHERE job_id = ?", ended)
        return len(ended)
    for (job_id,) in ended:
        idempotency.settle(write, job_id, None)
    return len(ended)


def _requeue(write: Write, job_id: str) -> None:
    write.db.execute(
        "UPDATE jobs SET status = ?, lease = NULL, step = 'queued', completed_steps = 0 WHERE id = ?",
        (target(Event.RELEASE), job_id),
    )


def _set_error(write: Write, job_id: str, error: m.JobError) -> None:
    write.db.execute(
        "UPDATE jobs SET error_code = ?, error_message = ? WHERE id = ?", (error.code, error.message, job_id)
    )
