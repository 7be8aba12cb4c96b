"""The durable queue, in which callers take turns, each with its oldest job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec

from kb_contracts.access.reach import Reach
from kb_contracts.api import models as m
from kb_contracts.semantics import jobs as rules
from kb_contracts.semantics.sources import source_scope
from kb_engine.store.clock import parse, stamp
from kb_engine.store.port import FailedJob, JobProgress, LeasedJob, NewJob, StoreEvent
from kb_engine.store.repository import estimates
from kb_engine.store.repository.estimates import JOB_COLUMNS
from kb_engine.store.repository.sources import duplicate_for
from kb_engine.store.repository.transaction import (
    Read,
    Row,
    Write,
    makes_room,
    placeholders,
    settle,
    together,
)
from kb_engine.turns import LANES, Lane, lane_of, turn

KEPT_FINISHED = 10_000  # number of ended jobs kept in the list; older ones are deleted
_FREE_CRASHES = 2
_FIRST_REST = timedelta(seconds=10)
_LONGEST_REST = timedelta(hours=1)

_COUNT_WAITING = "SELECT count(*) FROM jobs WHERE status = 'queued'"
_NEW_JOB = (
    "id", "kind", "title", "source_path", "dedup_scope", "sha256", "size_bytes", "spool", "filename",
    "format", "doc_type", "document_id", "new_title", "expected_version", "caller",
)  # fmt: skip
_TEXT = "(SELECT text FROM job_texts WHERE job_id = jobs.id) AS text"
_LEASED_COLUMNS = ", ".join(
    [*_NEW_JOB, _TEXT, "force_ocr", "tags", "metadata", "reach", "lease", "attempts", "lane"]
)


@together
async def accept(write: Write, new: NewJob) -> m.Job:
    """Queue a job durably. Raises `queue_full`."""
    await write.hold_queue()
    rules.check_queue_room(await write.value(_COUNT_WAITING), write.bounds.queued)
    lane = lane_of(new.kind, new.size_bytes)
    columns: dict[str, Any] = {name: getattr(new, name) for name in _NEW_JOB} | {
        "tags": msgspec.json.encode(list(dict.fromkeys(new.tags))).decode(),
        "metadata": msgspec.json.encode(new.metadata).decode(),
        "force_ocr": new.force_ocr,
        "reach": None if new.reach is None else msgspec.json.encode(new.reach, order="sorted").decode(),
        "source_scope": None if new.source_path is None else source_scope(new.tags, new.dedup_scope),
        "status": "queued",
        "step": "queued",
        "lane": lane,
        "turn": await _turn(write, new.caller, lane),
        "created_at": write.now,
    }
    await write.insert("jobs", columns)
    if new.text is not None:
        await write.rows("INSERT INTO job_texts (job_id, text) VALUES (?, ?)", (new.id, new.text))
    if new.spool is not None:
        await write.keep_file(new.spool)
    write.events.append(StoreEvent("queued", lane=lane))
    return await find(write, new.id)


async def find(read: Read, job_id: str) -> m.Job:
    """Return a job by its id. Raises `job_not_found`."""
    within, reached = read.job_within()
    sql = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?{within}"  # noqa: S608
    found = await read.rows(sql, (job_id, *reached))
    if not found:
        raise rules.job_not_found(job_id)
    (standing,) = await estimates.jobs_of(read, found)
    return standing


async def page(read: Read, status: m.JobStatus | None, limit: int, offset: int) -> m.JobList:
    """Return a page of jobs, the newest first."""
    within, reached = read.job_within()
    condition, values = (
        (f"status = ?{within}", (status, *reached)) if status else (f"true{within}", tuple(reached))
    )
    total = await read.value(f"SELECT count(*) FROM jobs WHERE {condition}", values)  # noqa: S608
    found = await read.rows(
        f"SELECT {JOB_COLUMNS} FROM jobs WHERE {condition} ORDER BY seq DESC LIMIT ? OFFSET ?",  # noqa: S608
        (*values, limit, offset),
    )
    return m.JobList(jobs=await estimates.jobs_of(read, found), total=total, limit=limit, offset=offset)


@makes_room
async def cancel(write: Write, job_id: str) -> m.Job:
    """Cancel a queued or running job; its lease becomes void. Raises `job_finished`."""
    within, reached = write.job_within()
    if not await _end(write, rules.Event.CANCEL, f"id = ?{within}", (job_id, *reached)):
        standing = await find(write, job_id)
        raise rules.job_finished(standing.status)
    await _prune(write)
    write.events.append(StoreEvent("cancelled", job_id))
    return await find(write, job_id)


async def cancel_all(write: Write) -> int:
    """Cancel all accepted jobs, drop the bytes of failed ones, and return the number of cancelled jobs."""
    write.events.append(StoreEvent("cleared"))
    await let_go(write, [one.id for one in await failed(write)])
    return await _end(write, rules.Event.CANCEL, "true", ())


async def take(
    write: Write,
    lease: str,
    lanes: Collection[Lane] = LANES,
    without: Collection[str] = (),
    then_without: Callable[[str], Collection[str]] = lambda _: (),
) -> LeasedJob | None:
    """Lease the queued job whose turn it is in these lanes and count the attempt; None if no job is ready.

    Jobs of the callers in `without` stay queued. `then_without` returns the callers that the next look leaves
    out after a job of the given one. Skipped as well: an update while an earlier update of the
    same note is unfinished, a job while an earlier job of the same source is unfinished (they run in order),
    a job that rests after engine crashes, and a job locked by another engine.
    """
    waiting = rules.sources(rules.Event.TAKE)
    following = (
        f"SELECT seq FROM jobs WHERE status IN ({placeholders(len(waiting))}) "  # noqa: S608
        f"AND lane IN ({placeholders(len(lanes))}) AND NOT caller {write.among} "
        "AND NOT EXISTS (SELECT 1 FROM jobs e WHERE e.kind = 'update' AND jobs.kind = 'update' "
        "AND e.document_id = jobs.document_id AND e.finished_at IS NULL AND e.seq < jobs.seq) "
        # A retried job may find a later job of its source running.
        "AND NOT EXISTS (SELECT 1 FROM jobs e WHERE e.source_path = jobs.source_path "
        "AND e.source_scope = jobs.source_scope AND e.finished_at IS NULL "
        "AND (e.seq < jobs.seq OR e.status = 'running')) "
        f"AND (rests_until IS NULL OR rests_until <= ?) ORDER BY turn, seq LIMIT 1{write.skip_locked}"
    )
    until, end = write.lease_end
    found = await write.row(
        f"UPDATE jobs SET status = ?, lease = ?, {until}step = 'started', attempts = attempts + 1, "  # noqa: S608
        f"started_at = coalesce(started_at, ?) WHERE seq = ({following}) RETURNING {_LEASED_COLUMNS}",
        (
            rules.target(rules.Event.TAKE),
            lease,
            *end,
            write.now,
            *waiting,
            *lanes,
            write.list_value(list(without)),
            write.now,
        ),
    )
    if found is None:
        return None
    write.keep_lease(lease)
    leased = _leased(found)
    left_out = then_without(leased.job.caller)
    more = f"SELECT true FROM jobs WHERE status IN ({placeholders(len(waiting))}) AND lane = ?"  # noqa: S608
    other = f"{more} AND NOT caller {write.among} LIMIT 1"
    has_more = bool(await write.value(f"{more} LIMIT 1", (*waiting, leased.lane)))
    has_next = has_more and (
        not left_out
        or bool(await write.value(other, (*waiting, leased.lane, write.list_value(list(left_out)))))
    )
    is_duplicate = await duplicate_for(write, leased.job) is not None
    return replace(leased, is_duplicate=is_duplicate, has_more=has_more, has_next=has_next)


async def take_several(
    write: Write, most: int, lanes: Collection[Lane], left_out: Callable[..., Collection[str]]
) -> list[LeasedJob]:
    """Lease the next jobs, `most` at most, each as `take` would.

    `left_out` returns the callers to leave out after jobs of the given callers.
    """
    taken: list[LeasedJob] = []
    while len(taken) < most:
        callers = [each.job.caller for each in taken]
        leased = await take(write, str(uuid4()), lanes, left_out(*callers), partial(left_out, *callers))
        if leased is None:
            break
        taken.append(leased)
        if not leased.has_next:
            break
    return taken


async def change_lane(write: Write, leased: LeasedJob, lane: Lane) -> bool:
    """Requeue a job in another lane without counting the attempt; return False if the lease is void."""
    await write.hold_queue()
    write.drop_lease(leased.lease)
    if not await hold(write, leased):
        return False
    await _requeue(write, leased.job.id)
    moved = (lane, await _turn(write, leased.job.caller, lane), leased.job.id)
    await write.rows("UPDATE jobs SET lane = ?, turn = ?, attempts = attempts - 1 WHERE id = ?", moved)
    write.events.append(StoreEvent("queued", lane=lane))
    return True


async def _turn(read: Read, caller: str, lane: str) -> int:
    """Return the turn number for a caller's next job in a lane."""
    last = "SELECT max(turn) FROM jobs WHERE caller = ? AND lane = ? AND status IN ('queued', 'running')"
    served = (
        "SELECT coalesce((SELECT min(turn) FROM jobs WHERE lane = ? AND status = 'queued'), "
        "(SELECT max(turn) FROM jobs WHERE lane = ? AND status = 'running'), 0)"
    )
    return turn(await read.value(last, (caller, lane)), await read.value(served, (lane, lane)))


async def report(write: Write, lease: str, job_id: str, progress: JobProgress) -> bool:
    """Record progress. Return False if the lease is void and the work should stop."""
    until, end = write.lease_end
    sql = (
        f"UPDATE jobs SET {until}step = ?, completed_steps = ?, total_steps = ? "  # noqa: S608
        "WHERE id = ? AND lease = ? AND status = 'running'"
    )
    return await write.changed(sql, (*end, *progress, job_id, lease)) > 0


async def hold(write: Write, leased: LeasedJob) -> bool:
    """True if the lease is valid; then the job is locked until the transaction ends."""
    good = "SELECT true FROM jobs WHERE id = ? AND lease = ? AND status = 'running'"
    return bool(await write.value(good + write.for_update, (leased.job.id, leased.lease)))


async def hold_last_update(write: Write, document_id: int) -> NewJob | None:
    """Lock and return the most recently accepted unfinished update of a note."""
    found = await write.row(
        f"SELECT {_LEASED_COLUMNS} FROM jobs WHERE kind = 'update' AND document_id = ? "  # noqa: S608
        f"AND finished_at IS NULL ORDER BY seq DESC LIMIT 1{write.for_update}",
        (document_id,),
    )
    return _leased(found).job if found else None


async def complete(
    write: Write,
    job_id: str,
    document: m.Document,
    *,
    deduplicated: bool,
    outcome: m.SourceOutcome,
    left_out: Sequence[m.LeftOut],
) -> m.Job:
    """Close a running job with its document and outcome."""
    await _end(write, rules.Event.COMPLETE, "id = ?", (job_id,))
    await write.rows(
        "UPDATE jobs SET step = 'completed', completed_steps = total_steps, document_id = ?, "
        "document_uid = ?, deduplicated = ?, outcome = ?, left_out = ? WHERE id = ?",
        (document.id, document.uid, deduplicated, outcome, ",".join(left_out), job_id),
    )
    await estimates.measure(write, job_id)
    await _prune(write)
    write.events.append(StoreEvent("ended", job_id))
    return await find(write, job_id)


async def fail(
    write: Write, lease: str, job_id: str, error: m.JobError, progress: JobProgress | None = None
) -> bool:
    """Close the job as failed; keep its text and file if a retry may help. False if the lease is void."""
    if progress is not None:
        await report(write, lease, job_id, progress)
    write.drop_lease(lease)
    if not await _end(write, rules.Event.FAIL, "id = ? AND lease = ?", (job_id, lease)):
        return False
    sql = "UPDATE jobs SET error_code = ?, error_message = ? WHERE id = ?"
    await write.rows(sql, (error.code, error.message, job_id))
    expected = await write.value("SELECT expected_version FROM jobs WHERE id = ?", (job_id,))
    if not rules.may_succeed_again(error.code, expected):
        await let_go(write, [job_id])
    await _prune(write)
    write.events.append(StoreEvent("ended", job_id))
    return True


async def retry(write: Write, job_id: str) -> m.Job:
    """Queue a failed job again, as one that no engine has ended yet; the number of its attempts goes on.

    Raises `job_not_found`, `job_not_retryable` or `queue_full`.
    """
    await write.hold_queue()
    held = "SELECT caller, lane FROM jobs WHERE id = ?"
    caller, lane = await write.row(held + write.for_update, (job_id,)) or ("", "")
    standing = await find(write, job_id)
    if not standing.retryable:
        raise rules.job_not_retryable(standing.status)
    rules.check_queue_room(await write.value(_COUNT_WAITING), write.bounds.queued)
    await write.rows(
        "UPDATE jobs SET status = ?, turn = ?, retryable = false, crashes = 0, rests_until = NULL, "
        "step = 'queued', completed_steps = 0, total_steps = 0, error_code = NULL, error_message = NULL, "
        "started_at = NULL, finished_at = NULL WHERE id = ?",
        (rules.target(rules.Event.RETRY), await _turn(write, caller, lane), job_id),
    )
    write.events.append(StoreEvent("queued"))
    return await find(write, job_id)


async def failed(read: Read) -> list[FailedJob]:
    """Return the failed jobs with kept bytes, the oldest failure first."""
    sql = "SELECT id, spool, size_bytes, finished_at FROM jobs WHERE retryable ORDER BY finished_at, seq"
    return [FailedJob(*found) for found in await read.rows(sql)]


async def oldest_queued(read: Read) -> str | None:
    """Return the time at which the oldest queued job was accepted; None without one."""
    found: str | None = await read.value("SELECT min(created_at) FROM jobs WHERE status = 'queued'")
    return found


async def let_go(write: Write, job_ids: Sequence[str]) -> None:
    """Drop the kept bytes of these failed jobs."""
    sql = f"UPDATE jobs SET retryable = false WHERE id {write.among} AND retryable RETURNING id, spool"  # noqa: S608
    await _drop_bytes(write, await write.rows(sql, (write.list_value(job_ids),)))


async def release(write: Write) -> int:
    """Requeue running jobs that no engine holds any more; return their number.

    A job is queued again however often engines have ended while it ran. `rests_until` delays its next
    attempt.
    """
    found = await write.rows(
        "SELECT id, lane, crashes + 1 FROM jobs WHERE status = 'running'"  # noqa: S608
        f"{write.abandoned} ORDER BY seq{write.skip_locked}"
    )
    for job_id, lane, crashes in found:
        await _requeue(write, job_id)
        sql = "UPDATE jobs SET crashes = ?, rests_until = ? WHERE id = ?"
        await write.rows(sql, (crashes, rests_until(crashes, write.now), job_id))
        write.events.append(StoreEvent("queued", lane=lane))
    return len(found)


def rests_until(crashes: int, now: str) -> str | None:
    """The earliest time of the next attempt after `crashes` consecutive engine deaths (None: immediately).

    An engine's death is not the job's fault and costs it no attempt. But a job running at the third death in
    a row may be the cause, so it lets the remaining jobs go first: ten seconds, doubled each time, at most an
    hour.
    """
    if crashes <= _FREE_CRASHES:
        return None
    doublings = min(crashes - _FREE_CRASHES - 1, 16)
    return stamp(parse(now) + min(_FIRST_REST * 2**doublings, _LONGEST_REST))


async def hand_back(write: Write, condition: str = "true", values: Sequence[Any] = ()) -> None:
    """Requeue the jobs running here during an orderly shutdown; the attempt does not count."""
    running = f"SELECT id, lane FROM jobs WHERE status = 'running' AND {condition} ORDER BY seq"  # noqa: S608
    found = await write.rows(running + write.for_update, values)
    for job_id, lane in found:
        await _requeue(write, job_id)
        await write.rows("UPDATE jobs SET attempts = attempts - 1 WHERE id = ?", (job_id,))
        write.events.append(StoreEvent("queued", lane=lane))


async def spooled(read: Read) -> set[str]:
    """Return the spool names of waiting, running and kept jobs."""
    wanted = (
        "SELECT spool FROM jobs WHERE (status IN ('queued', 'running') OR retryable) AND spool IS NOT NULL"
    )
    return {name for (name,) in await read.rows(wanted)}


async def _prune(write: Write) -> None:
    """Delete the oldest ended jobs over the limit, except jobs with kept bytes."""
    oldest = write.selected.format(
        "SELECT seq FROM jobs WHERE seq <= ("  # noqa: S608
        "SELECT seq FROM jobs WHERE finished_at IS NOT NULL ORDER BY seq DESC LIMIT 1 OFFSET ?) "
        f"AND finished_at IS NOT NULL AND NOT retryable{write.skip_locked}"
    )
    await write.rows(f"DELETE FROM jobs WHERE seq {oldest}", (KEPT_FINISHED,))  # noqa: S608


async def _end(write: Write, event: rules.Event, condition: str, values: Sequence[Any]) -> int:
    """Move jobs to a final state if the event is allowed; return their number. Failed jobs keep text and
    file.

    The end of an update makes the next update of its note ready for any engine; likewise for jobs of one
    source.
    """
    allowed, failed = rules.sources(event), event is rules.Event.FAIL
    ended = await write.rows(
        f"UPDATE jobs SET status = ?, finished_at = ?, {write.no_lease}, retryable = ? "  # noqa: S608
        f"WHERE {condition} AND status IN ({placeholders(len(allowed))}) "
        "RETURNING id, spool, kind, source_path",
        (rules.target(event), write.now, failed, *values, *allowed),
    )
    if any(kind == "update" or path is not None for _, _, kind, path in ended):
        write.events.append(StoreEvent("queued"))
    if not failed:
        await _drop_bytes(write, [(job_id, spool) for job_id, spool, *_ in ended])
    else:
        for job_id, *_ in ended:
            await settle(write, job_id, None)
    return len(ended)


async def _drop_bytes(write: Write, ended: Sequence[Row]) -> None:
    """Delete the texts and files of jobs, given as id and spool name."""
    if ended:
        ids = write.list_value([job_id for job_id, _ in ended])
        await write.rows(f"DELETE FROM job_texts WHERE job_id {write.among}", (ids,))  # noqa: S608
    if files := [spool for _, spool in ended if spool is not None]:
        await write.drop_files(files)


async def _requeue(write: Write, job_id: str) -> None:
    await write.rows(
        f"UPDATE jobs SET status = ?, {write.no_lease}, step = 'queued', "  # noqa: S608
        "completed_steps = 0 WHERE id = ?",
        (rules.target(rules.Event.RELEASE), job_id),
    )


def _leased(row: Row) -> LeasedJob:
    """Build a leased job from a row of `_LEASED_COLUMNS`."""
    *values, force_ocr, tags, metadata, reach, lease, attempts, lane = row
    fields = dict(zip((*_NEW_JOB, "text"), values, strict=True))
    wanted = NewJob(
        **fields,
        force_ocr=bool(force_ocr),
        tags=msgspec.json.decode(tags),
        metadata=msgspec.json.decode(metadata),
        reach=None if reach is None else msgspec.json.decode(reach, type=Reach),
    )
    return LeasedJob(lease=lease, attempts=attempts, lane=lane, job=wanted)
