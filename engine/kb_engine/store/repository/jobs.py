"""The durable queue: SQL around the table of `states`. Callers take turns, each with its oldest job first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kb_contracts.api import models as m
from kb_contracts.semantics.jobs import (
    Event,
    check_queue_room,
    job_finished,
    job_not_found,
    job_not_retryable,
    sources,
    target,
)
from kb_engine.store import rules
from kb_engine.store.port import KeptJob, LeasedJob, NewJob
from kb_engine.store.repository import estimates, idempotency
from kb_engine.store.repository.transaction import Read, Write, placeholders
from kb_engine.store.rows import JOB_COLUMNS, LEASED_COLUMNS, Row, job, leased_job
from kb_engine.turns import Lane, lane_of, turn

KEPT_FINISHED = 10_000
"""Ended jobs beyond the newest of these are forgotten."""

_COUNT_WAITING = "SELECT count(*) FROM jobs WHERE status = 'queued'"


async def accept(write: Write, new: NewJob, max_queued: int) -> m.Job:
    """Queue a job. Raises `queue_full`."""
    await write.hold_queue()
    check_queue_room(await write.value(_COUNT_WAITING), max_queued)
    lane = lane_of(new.kind, new.size_bytes)
    columns = rules.job_columns(new, lane, await _turn(write, new.caller, lane), write.now)
    await write.rows(
        f"INSERT INTO jobs ({', '.join(columns)}) VALUES ({placeholders(len(columns))})",  # noqa: S608
        tuple(columns.values()),
    )
    if new.text is not None:
        await write.rows("INSERT INTO job_texts (job_id, text) VALUES (?, ?)", (new.id, new.text))
    if new.spool is not None:
        await write.keep_file(new.spool)
    write.notify("queued")
    return await find(write, new.id)


async def find(read: Read, job_id: str) -> m.Job:
    found = await read.row(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (job_id,))  # noqa: S608
    if found is None:
        raise job_not_found(job_id)
    (standing,) = await _with_estimates(read, [found])
    return standing


async def page(read: Read, status: m.JobStatus | None, limit: int, offset: int) -> m.JobList:
    condition, values = ("status = ?", (status,)) if status else ("true", ())
    total = await read.value(f"SELECT count(*) FROM jobs WHERE {condition}", values)  # noqa: S608
    found = await read.rows(
        f"SELECT {JOB_COLUMNS} FROM jobs WHERE {condition} ORDER BY seq DESC LIMIT ? OFFSET ?",  # noqa: S608
        (*values, limit, offset),
    )
    return m.JobList(jobs=await _with_estimates(read, found), total=total, limit=limit, offset=offset)


async def cancel(write: Write, job_id: str) -> m.Job:
    if not await _end(write, Event.CANCEL, "id = ?", (job_id,)):
        standing = await find(write, job_id)
        raise job_finished(standing.status)
    await prune(write)
    write.notify("cancelled", job_id)
    return await find(write, job_id)


async def cancel_all(write: Write) -> int:
    """Cancel everything accepted so far, and keep nothing of what failed; how many were cancelled."""
    write.notify("cleared")
    await let_go(write, [one.id for one in await kept(write)])
    return await _end(write, Event.CANCEL, "true", ())


async def take(
    write: Write, lease: str, lanes: Collection[Lane], without: Collection[str] = ()
) -> LeasedJob | None:
    """Lease the job of these lanes whose turn it is and that nobody is just taking.

    `without` those of some callers.
    """
    among, waiting = write.dialect.among, sources(Event.TAKE)
    in_lanes, chosen = among([*lanes])
    of_callers, excluded = among([*without])
    following = (
        f"SELECT seq FROM jobs WHERE status IN ({placeholders(len(waiting))}) AND lane {in_lanes} "  # noqa: S608
        f"AND NOT caller {of_callers} AND {rules.NOT_BEHIND_AN_UPDATE} "
        f"AND (rests_until IS NULL OR rests_until <= ?) ORDER BY turn, seq LIMIT 1{write.dialect.skip_locked}"
    )
    until, end = write.lease_end
    found = await write.row(
        f"UPDATE jobs SET status = ?, lease = ?, {until}step = 'started', attempts = attempts + 1, "  # noqa: S608
        f"started_at = coalesce(started_at, ?) WHERE seq = ({following}) RETURNING {LEASED_COLUMNS}",
        (target(Event.TAKE), lease, *end, write.now, *waiting, *chosen, *excluded, write.now),
    )
    return leased_job(found) if found else None


async def change_lane(write: Write, leased: LeasedJob, lane: Lane) -> bool:
    """Queue a job again in another lane, under a lease that is good; such an attempt does not count."""
    await write.hold_queue()
    if not await hold(write, leased):
        return False
    await _requeue(write, leased.job.id)
    moved = (lane, await _turn(write, leased.job.caller, lane), leased.job.id)
    await write.rows("UPDATE jobs SET lane = ?, turn = ?, attempts = attempts - 1 WHERE id = ?", moved)
    write.notify("queued")
    return True


async def _turn(read: Read, caller: str, lane: str) -> int:
    last = await read.value(rules.LAST_TURN, (caller, lane))
    return turn(last, await read.value(rules.SERVED_TURN, (lane, lane)))


async def report(write: Write, lease: str, job_id: str, step: str, completed: int, total: int) -> bool:
    until, end = write.lease_end
    sql = (
        f"UPDATE jobs SET {until}step = ?, completed_steps = ?, total_steps = ? "  # noqa: S608
        "WHERE id = ? AND lease = ? AND status = 'running'"
    )
    return await write.changed(sql, (*end, step, completed, total, job_id, lease)) > 0


async def hold(write: Write, leased: LeasedJob) -> bool:
    """Whether the lease is good; then nobody can take it away until the transaction ends."""
    good = "SELECT true FROM jobs WHERE id = ? AND lease = ? AND status = 'running'"
    return bool(await write.value(good + write.dialect.for_update, (leased.job.id, leased.lease)))


async def complete(
    write: Write, job_id: str, document_id: int, document_uid: str, deduplicated: bool
) -> m.Job:
    """Close a running job with the document that came of it."""
    await _end(write, Event.COMPLETE, "id = ?", (job_id,))
    await write.rows(
        "UPDATE jobs SET step = 'completed', completed_steps = total_steps, document_id = ?, "
        "document_uid = ?, deduplicated = ? WHERE id = ?",
        (document_id, document_uid, deduplicated, job_id),
    )
    if (done := await write.row(estimates.WORK_DONE, (job_id,))) is not None:
        await write.rows(estimates.ADD_MEASURE, estimates.measure_of(done, write.now))
    await prune(write)
    write.notify("ended", job_id)
    return await find(write, job_id)


async def fail(write: Write, lease: str, job_id: str, error: m.JobError) -> bool:
    if not await _end(write, Event.FAIL, "id = ? AND lease = ?", (job_id, lease)):
        return False
    sql = "UPDATE jobs SET error_code = ?, error_message = ? WHERE id = ?"
    await write.rows(sql, (error.code, error.message, job_id))
    await prune(write)
    write.notify("ended", job_id)
    return True


async def retry(write: Write, job_id: str, max_queued: int) -> m.Job:
    await write.hold_queue()
    held = "SELECT caller, lane FROM jobs WHERE id = ?"
    caller, lane = await write.row(held + write.dialect.for_update, (job_id,)) or ("", "")
    standing = await find(write, job_id)
    if not standing.retryable:
        raise job_not_retryable(standing.status)
    check_queue_room(await write.value(_COUNT_WAITING), max_queued)
    await write.rows(
        "UPDATE jobs SET status = ?, turn = ?, retryable = false, crashes = 0, rests_until = NULL, "
        "step = 'queued', completed_steps = 0, total_steps = 0, error_code = NULL, error_message = NULL, "
        "started_at = NULL, finished_at = NULL WHERE id = ?",
        (target(Event.RETRY), await _turn(write, caller, lane), job_id),
    )
    write.notify("queued")
    return await find(write, job_id)


async def kept(read: Read) -> list[KeptJob]:
    return [KeptJob(*found) for found in await read.rows(rules.KEPT)]


async def let_go(write: Write, job_ids: Sequence[str]) -> None:
    these, ids = write.dialect.among(job_ids)
    sql = f"UPDATE jobs SET retryable = false WHERE id {these} AND retryable RETURNING id, spool"  # noqa: S608
    await _drop_bytes(write, await write.rows(sql, ids))


async def release(write: Write) -> int:
    """Queue again what nobody holds any more; how many."""
    found = await write.rows(
        "SELECT id, crashes + 1 FROM jobs WHERE status = 'running'"  # noqa: S608
        f"{write.dialect.abandoned} ORDER BY seq{write.dialect.skip_locked}"
    )
    for job_id, crashes in found:
        await _requeue(write, job_id)
        sql = "UPDATE jobs SET crashes = ?, rests_until = ? WHERE id = ?"
        await write.rows(sql, (crashes, rules.rests_until(crashes, write.now), job_id))
    if found:
        write.notify("queued")
    return len(found)


async def hand_back(write: Write, condition: str = "true", values: Sequence[Any] = ()) -> None:
    """Queue again what runs here while the engine stops in good order; such an attempt does not count."""
    running = f"SELECT id FROM jobs WHERE status = 'running' AND {condition} ORDER BY seq"  # noqa: S608
    found = await write.rows(running + write.dialect.for_update, values)
    for (job_id,) in found:
        await _requeue(write, job_id)
        await write.rows("UPDATE jobs SET attempts = attempts - 1 WHERE id = ?", (job_id,))
    if found:
        write.notify("queued")


async def spooled(read: Read) -> set[str]:
    wanted = (
        "SELECT spool FROM jobs WHERE (status IN ('queued', 'running') OR retryable) AND spool IS NOT NULL"
    )
    return {name for (name,) in await read.rows(wanted)}


async def prune(write: Write) -> None:
    """Forget the oldest ended jobs over the bound, but none whose bytes are kept."""
    oldest = write.dialect.selected.format(
        "SELECT seq FROM jobs WHERE seq <= ("  # noqa: S608
        "SELECT seq FROM jobs WHERE finished_at IS NOT NULL ORDER BY seq DESC LIMIT 1 OFFSET ?) "
        f"AND finished_at IS NOT NULL AND NOT retryable{write.dialect.skip_locked}"
    )
    await write.rows(f"DELETE FROM jobs WHERE seq {oldest}", (KEPT_FINISHED,))  # noqa: S608


async def _end(write: Write, event: Event, condition: str, values: Sequence[Any]) -> int:
    """Move jobs to a final state where the event is allowed; how many. What failed keeps text and file."""
    allowed, failed = sources(event), event is Event.FAIL
    ended = await write.rows(
        f"UPDATE jobs SET status = ?, finished_at = ?, {write.dialect.no_lease}, retryable = ? "  # noqa: S608
        f"WHERE {condition} AND status IN ({placeholders(len(allowed))}) RETURNING id, spool",
        (target(event), write.now, failed, *values, *allowed),
    )
    if not failed:
        await _drop_bytes(write, ended)
        return len(ended)
    for job_id, _ in ended:
        await idempotency.settle(write, job_id, None)
    return len(ended)


async def _drop_bytes(write: Write, ended: Sequence[Row]) -> None:
    """Delete the texts and files of jobs, given as id and name in the spool."""
    if ended:
        these, ids = write.dialect.among([job_id for job_id, _ in ended])
        await write.rows(f"DELETE FROM job_texts WHERE job_id {these}", ids)  # noqa: S608
    if files := [spool for _, spool in ended if spool is not None]:
        await write.drop_files(files)


async def _with_estimates(read: Read, found: Sequence[Row]) -> list[m.Job]:
    """The jobs of `JOB_COLUMNS`, those that have not ended with an estimate."""
    if (first := estimates.first_waiting(found)) is None:
        return [job(one, read.now) for one in found]
    return estimates.estimated(
        found,
        read.now,
        await read.rows(estimates.MEASURES),
        await read.rows(estimates.RUNNING),
        await read.rows(estimates.WAITING, (first,)),
    )


async def _requeue(write: Write, job_id: str) -> None:
    await write.rows(
        f"UPDATE jobs SET status = ?, {write.dialect.no_lease}, step = 'queued', "  # noqa: S608
        "completed_steps = 0 WHERE id = ?",
        (target(Event.RELEASE), job_id),
    )
