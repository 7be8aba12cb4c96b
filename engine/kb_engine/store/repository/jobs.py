"""The durable queue of all engines: SQL around the table of `states`. Callers take turns, oldest job first.

A job that is taken has a lease, and the lease an end by the clock of the database. Its holder moves the end
on while it lives; after the end the job is anybody's again. What a holder commits it commits under its lease,
with the job's row held, so that nothing comes of work whose lease was lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kb_contracts.api import models as m
from kb_engine.store import estimates, rules
from kb_engine.store.port import KeptJob, LeasedJob, NewJob
from kb_engine.store.repository import idempotency
from kb_engine.store.repository.transaction import Read, Write, placeholders
from kb_engine.store.rows import JOB_COLUMNS, LEASED_COLUMNS, Row, job, leased_job
from kb_engine.store.states import Event, sources, target
from kb_engine.turns import Lane, lane_of, turn

KEPT_FINISHED = 10_000
"""Ended jobs beyond the newest of these are forgotten."""

QUEUED, CLEARED = "queued", "cleared"
ENDED, CANCELLED = "ended", "cancelled"
"""The news that engines send one another; the last two with the job's id behind a space."""

_ACCEPTING = 0x6B62_0002
"""The advisory lock of whoever accepts: the numbers of jobs grow with their commits, and the bound holds."""
_COUNT_WAITING = "SELECT count(*) FROM jobs WHERE status = 'queued'"
_END = "clock_timestamp() + make_interval(secs => ?)"


async def hold_queue(write: Write) -> None:
    """Let nobody else accept a job until the transaction ends."""
    await write.rows("SELECT pg_advisory_xact_lock(?)", (_ACCEPTING,))


async def accept(write: Write, new: NewJob, max_queued: int) -> m.Job:
    """Queue a job. Raises `queue_full`."""
    await hold_queue(write)
    rules.room_in_queue(await write.value(_COUNT_WAITING), max_queued)
    lane = lane_of(new.kind, new.size_bytes)
    columns = rules.job_columns(new, lane, await _turn(write, new.caller, lane), write.now)
    await write.rows(f"INSERT INTO jobs ({', '.join(columns)}) VALUES ({placeholders(len(columns))})",  # noqa: S608
        tuple(columns.values()),
    )
    if new.text is not None:
        await write.rows("INSERT INTO job_texts (job_id, text) VALUES (?, ?)", (new.id, new.text))
    if new.spool is not None:
        await write.rows("UPDATE spool_files SET accepted = true WHERE name = ?", (new.spool,))
    write.tell(QUEUED)
    return await find(write, new.id, write.now)


async def find(read: Read, job_id: str, now: str) -> m.Job:
    """Raises `job_not_found`."""
    found = await read.row(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (job_id,))  # noqa: S608
    if found is None:
        raise rules.job_not_found(job_id)
    (standing,) = await _with_estimates(read, [found], now)
    return standing


async def page(read: Read, status: m.JobStatus | None, limit: int, offset: int, now: str) -> m.JobList:
    """Newest first."""
    condition, values = ("status = ?", (status,)) if status else ("true", ())
    total = await read.value(f"SELECT count(*) FROM jobs WHERE {condition}", values)  # noqa: S608
    found = await read.rows(f"SELECT {JOB_COLUMNS} FROM jobs WHERE {condition} ORDER BY seq DESC LIMIT ? OFFSET ?",  # noqa: S608
        (*values, limit, offset),
    )
    return m.JobList(jobs=await _with_estimates(read, found, now), total=total, limit=limit, offset=offset)


async def cancel(write: Write, job_id: str) -> m.Job:
    """Cancel what has not ended. Raises `job_not_found` or `job_finished`."""
    standing = await find(write, job_id, write.now)
    if not await _end(write, Event.CANCEL, "id = ?", (job_id,)):
        # It may have ended between the two statements.
        standing = await find(write, job_id, write.now)
        raise rules.job_finished(standing)
    await prune(write)
    write.tell(f"{CANCELLED} {job_id}")
    return await find(write, job_id, write.now)


async def cancel_all(write: Write) -> int:
    """Cancel everything accepted so far, and keep nothing of what failed; how many were cancelled."""
    write.tell(CLEARED)
    await let_go(write, [one.id for one in await kept(write)])
    return await _end(write, Event.CANCEL, "true", ())


async def take(
    write: Write, lease: str, seconds: float, lanes: Collection[Lane], without: Collection[str] = ()
) -> LeasedJob | None:
    """Lease the job of these lanes whose turn it is and that nobody is just taking.

    `without` those of some callers.
    """
    found = await write.row(f"UPDATE jobs SET status = ?, lease = ?, lease_until = {_END}, step = 'started', "  # noqa: S608
        f"attempts = attempts + 1, started_at = coalesce(started_at, ?) WHERE seq = ({_NEXT}) "
        f"RETURNING {LEASED_COLUMNS}",
        (
            target(Event.TAKE),
            lease,
            seconds,
            write.now,
            *sources(Event.TAKE),
            [*lanes],
            [*without],
            write.now,
        ),
    )
    return leased_job(found) if found else None


_NEXT = (
    f"SELECT seq FROM jobs WHERE status IN ({placeholders(len(sources(Event.TAKE)))}) "  # noqa: S608
    f"AND lane = ANY (?::text[]) AND caller <> ALL (?::text[]) AND {rules.NOT_BEHIND_AN_UPDATE} "
    "AND (rests_until IS NULL OR rests_until <= ?) ORDER BY turn, seq LIMIT 1 FOR UPDATE SKIP LOCKED"
)


async def change_lane(write: Write, leased: LeasedJob, lane: Lane) -> bool:
    """Queue a job again in another lane, under a lease that is good; such an attempt does not count."""
    await hold_queue(write)
    if not await hold(write, leased):
        return False
    await _requeue(write, leased.job.id)
    moved = (lane, await _turn(write, leased.job.caller, lane), leased.job.id)
    await write.rows("UPDATE jobs SET lane = ?, turn = ?, attempts = attempts - 1 WHERE id = ?", moved)
    write.tell(QUEUED)
    return True


async def _turn(read: Read, caller: str, lane: str) -> int:
    last = await read.value(rules.LAST_TURN, (caller, lane))
    return turn(last, await read.value(rules.SERVED_TURN, (lane, lane)))


async def report(
    write: Write, lease: str, job_id: str, seconds: float, step: str, completed: int, total: int
) -> bool:
    """Note progress under a lease that is good, and move its end on."""
    sql = (
        f"UPDATE jobs SET lease_until = {_END}, step = ?, completed_steps = ?, total_steps = ? "  # noqa: S608
        "WHERE id = ? AND lease = ? AND status = 'running'"
    )
    return await write.changed(sql, (seconds, step, completed, total, job_id, lease)) > 0


async def renew(read: Read, leases: Sequence[str], seconds: float) -> set[str]:
    """Move the end of leases on; those that are still good, and those that are just being used."""
    sql = (
        f"UPDATE jobs SET lease_until = {_END} WHERE seq = ANY (ARRAY("  # noqa: S608
        "SELECT seq FROM jobs WHERE status = 'running' AND lease = ANY (?::text[]) FOR UPDATE SKIP LOCKED))"
    )
    await read.rows(sql, (seconds, leases))
    good = "SELECT lease FROM jobs WHERE status = 'running' AND lease = ANY (?::text[])"
    return {lease for (lease,) in await read.rows(good, (leases,))}


async def hold(read: Read, leased: LeasedJob) -> bool:
    """Whether the lease is good; then nobody can take it away until the transaction ends."""
    sql = "SELECT true FROM jobs WHERE id = ? AND lease = ? AND status = 'running' FOR UPDATE"
    return bool(await read.value(sql, (leased.job.id, leased.lease)))


async def complete(
    write: Write, job_id: str, document_id: int, document_uid: str, deduplicated: bool
) -> m.Job:
    """Close a running job with the document that came of it."""
    await _end(write, Event.COMPLETE, "id = ?", (job_id,))
    await write.rows("UPDATE jobs SET step = 'completed', completed_steps = total_steps, document_id = ?, "
        "document_uid = ?, deduplicated = ? WHERE id = ?",
        (document_id, document_uid, deduplicated, job_id),
    )
    if (done := await write.row(estimates.WORK_DONE, (job_id,))) is not None:
        await write.rows(estimates.ADD_MEASURE, estimates.measure_of(done, write.now))
    await prune(write)
    write.tell(f"{ENDED} {job_id}")
    return await find(write, job_id, write.now)


async def fail(write: Write, lease: str, job_id: str, error: m.JobError) -> bool:
    """Close a running job as failed, under a lease that is good."""
    if not await _end(write, Event.FAIL, "id = ? AND lease = ?", (job_id, lease)):
        return False
    await _set_error(write, job_id, error)
    await prune(write)
    write.tell(f"{ENDED} {job_id}")
    return True


async def retry(write: Write, job_id: str, max_queued: int) -> m.Job:
    """Queue a failed job again. Raises `job_not_found`, `job_not_retryable` or `queue_full`."""
    await hold_queue(write)
    await write.rows("SELECT 1 FROM jobs WHERE id = ? FOR UPDATE", (job_id,))
    standing = await find(write, job_id, write.now)
    if not standing.retryable:
        raise rules.job_not_retryable(standing)
    rules.room_in_queue(await write.value(_COUNT_WAITING), max_queued)
    ((caller, lane),) = await write.rows("SELECT caller, lane FROM jobs WHERE id = ?", (job_id,))
    await write.rows("UPDATE jobs SET status = ?, turn = ?, retryable = false, crashes = 0, rests_until = NULL, "
        "step = 'queued', completed_steps = 0, total_steps = 0, error_code = NULL, error_message = NULL, "
        "started_at = NULL, finished_at = NULL WHERE id = ?",
        (target(Event.RETRY), await _turn(write, caller, lane), job_id),
    )
    write.tell(QUEUED)
    return await find(write, job_id, write.now)


async def kept(read: Read) -> list[KeptJob]:
    """The failed jobs whose bytes are kept, the oldest failure first."""
    return [KeptJob(*found) for found in await read.rows(rules.KEPT)]


async def let_go(write: Write, job_ids: Sequence[str]) -> None:
    """Keep the bytes of these jobs no longer, those that have failed."""
    sql = "UPDATE jobs SET retryable = false WHERE id = ANY (?::text[]) AND retryable RETURNING id, spool"
    await _drop_bytes(write, await write.rows(sql, (list(job_ids),)))


async def release(write: Write) -> int:
    """Queue again what nobody holds any more; how many."""
    found = await write.rows(_LAPSED)
    for job_id, crashes in found:
        await _requeue(write, job_id)
        sql = "UPDATE jobs SET crashes = ?, rests_until = ? WHERE id = ?"
        await write.rows(sql, (crashes, rules.rests_until(crashes, write.now), job_id))
    if found:
        write.tell(QUEUED)
    return len(found)


_LAPSED = (
    "SELECT id, crashes + 1 FROM jobs WHERE status = 'running' AND lease_until < clock_timestamp() "
    "ORDER BY seq FOR UPDATE SKIP LOCKED"
)


async def hand_back(write: Write, leases: Sequence[str]) -> None:
    """Queue again what runs here while the engine stops in good order; such an attempt does not count."""
    sql = "SELECT id FROM jobs WHERE status = 'running' AND lease = ANY (?::text[]) ORDER BY seq FOR UPDATE"
    found = await write.rows(sql, (leases,))
    for (job_id,) in found:
        await _requeue(write, job_id)
        await write.rows("UPDATE jobs SET attempts = attempts - 1 WHERE id = ?", (job_id,))
    if found:
        write.tell(QUEUED)


async def spooled(read: Read) -> set[str]:
    """The files of waiting, running and kept jobs."""
    wanted = (
        "SELECT spool FROM jobs WHERE (status IN ('queued', 'running') OR retryable) AND spool IS NOT NULL"
    )
    return {name for (name,) in await read.rows(wanted)}


async def prune(write: Write) -> None:
    """Forget the oldest ended jobs over the bound, but none whose bytes are kept."""
    await write.rows("DELETE FROM jobs WHERE seq = ANY (ARRAY(SELECT seq FROM jobs WHERE seq <= ("
        "SELECT seq FROM jobs WHERE finished_at IS NOT NULL ORDER BY seq DESC LIMIT 1 OFFSET ?) "
        "AND finished_at IS NOT NULL AND NOT retryable FOR UPDATE SKIP LOCKED))",
        (KEPT_FINISHED,),
    )


async def _end(write: Write, event: Event, condition: str, values: Sequence[Any]) -> int:
    """Move jobs to a final state where the event is allowed; how many. What failed keeps text and file."""
    allowed, failed = sources(event), event is Event.FAIL
    ended = await write.rows("UPDATE jobs SET status = ?, finished_at = ?, lease = NULL, lease_until = NULL, retryable = ? "  # noqa: S608
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
        await write.rows("DELETE FROM job_texts WHERE job_id = ANY (?::text[])",
            ([job_id for job_id, _ in ended],),
        )
    if files := [spool for _, spool in ended if spool is not None]:
        await write.rows("DELETE FROM spool_files WHERE name = ANY (?::text[])", (files,))


async def _with_estimates(read: Read, found: Sequence[Row], now: str) -> list[m.Job]:
    """The jobs of `JOB_COLUMNS`, those that have not ended with an estimate."""
    if (first := estimates.first_waiting(found)) is None:
        return [job(one, now) for one in found]
    return estimates.estimated(
        found,
        now,
        await read.rows(estimates.MEASURES),
        await read.rows(estimates.RUNNING),
        await read.rows(estimates.WAITING, (first,)),
    )


async def _requeue(write: Write, job_id: str) -> None:
    await write.rows("UPDATE jobs SET status = ?, lease = NULL, lease_until = NULL, step = 'queued', "
        "completed_steps = 0 WHERE id = ?",
        (target(Event.RELEASE), job_id),
    )


async def _set_error(write: Write, job_id: str, error: m.JobError) -> None:
    sql = "UPDATE jobs SET error_code = ?, error_message = ? WHERE id = ?"
    await write.rows(sql, (error.code, error.message, job_id))
