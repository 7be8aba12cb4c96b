"""What is known of one job, and what it becomes at each event. No I/O, no time of its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import msgspec

from kb_contracts.api import models as m
from kb_contracts.semantics.jobs import TRANSITIONS, Event
from kb_simulator.engine.documents import Stored
from kb_simulator.engine.idempotency import Retry
from kb_simulator.engine.policies import (
    COMPLETED,
    QUEUED,
    STEPS,
    AfterPolls,
    AfterTime,
    AtOnce,
    FailAt,
    Policy,
    Stuck,
)
from kb_simulator.engine.submission import Submission, Update
from kb_simulator.engine.timestamps import microseconds_of, rfc3339


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job with what it is to do. `accepted` is in microseconds since 1970.

    An update counts as accepted when its turn comes: those of one note follow one another. `retries` are the
    requests whose answer it will be, `updated` is that answer.
    """

    job: m.Job
    submission: Submission | Update
    policy: Policy
    accepted: int
    polls: int = 0
    retries: tuple[Retry, ...] = ()
    updated: m.Document | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing is done for it any more."""
        return self.job.status in m.FINAL_STATUSES

    def due(self) -> int | None:
        """When the job ends by itself, in microseconds since 1970; None where time does not end it."""
        took = self.duration()
        return None if took is None else self.accepted + took

    def duration(self) -> int | None:
        """How long it takes, in microseconds; None where time does not end it."""
        match self.policy:
            case AtOnce() | FailAt():
                return 0
            case AfterTime(seconds=seconds):
                return round(seconds * 1_000_000)
            case _:
                return None

    def at(self, now: int) -> m.Job:
        """The job as a caller sees it at `now`."""
        job = msgspec.structs.replace(self.job, elapsed_seconds=self._elapsed(now))
        if job.status != "running":
            return job
        share = min(self._share(now), 1.0 - 1e-6)  # it is whole when the job has completed
        done = int(share * len(STEPS))
        return msgspec.structs.replace(
            job,
            step=STEPS[done],
            progress=round(share, 4),
            completed_steps=done,
            estimated_seconds=self.seconds_left(now),
        )

    def seconds_left(self, now: int) -> float | None:
        """How long it will run yet: 0 where it has ended, None where time does not end it."""
        if self.ended:
            return 0.0
        due = self.due()
        return None if due is None else max(0.0, (due - now) / 1_000_000)

    def _elapsed(self, now: int) -> float:
        began = self.job.started_at or self.job.created_at
        end = self.job.finished_at
        ended = max(now, self.accepted) if end is None else microseconds_of(datetime.fromisoformat(end))
        return max(0, ended - microseconds_of(datetime.fromisoformat(began))) / 1_000_000

    def _share(self, now: int) -> float:
        match self.policy:
            case AfterPolls(polls=polls):
                return self.polls / polls
            case AfterTime(seconds=seconds):
                # A job that was accepted in the same instant as another bears a later time than now.
                return max(0.0, (now - self.accepted) / (seconds * 1_000_000))
            case Stuck(step=step):
                return STEPS.index(step) / len(STEPS)
            case _:
                return 0.0


def moved(job: m.Job, event: Event, **changes: object) -> m.Job:
    """The job after `event`.

    Raises:
        LookupError: the event cannot happen in the job's state.
    """
    return msgspec.structs.replace(job, status=TRANSITIONS[(job.status, event)], **changes)


def requeued(job: m.Job) -> m.Job:
    """A failed job that is tried again, as if nothing had been done for it; the attempts count on."""
    return moved(
        job,
        Event.RETRY,
        step=QUEUED,
        progress=0.0,
        completed_steps=0,
        total_steps=0,
        error=None,
        elapsed_seconds=0.0,
        retryable=False,
        started_at=None,
        finished_at=None,
    )


def completed(job: m.Job, stored: Stored, *, deduplicated: bool, now: int) -> m.Job:
    return moved(
        job,
        Event.COMPLETE,
        step=COMPLETED,
        progress=1.0,
        completed_steps=len(STEPS),
        document_id=stored.document.id,
        document_uid=stored.document.uid,
        deduplicated=deduplicated,
        finished_at=rfc3339(now),
    )


def failure_of(record: JobRecord) -> tuple[str, m.JobError] | None:
    """At which step a job fails, and why."""
    if isinstance(record.policy, FailAt):
        return record.policy.step, m.JobError(code=record.policy.code, message=record.policy.message)
    if isinstance(record.submission, Submission) and isinstance(record.submission.content, m.JobError):
        return STEPS[0], record.submission.content
    return None


def failed(record: JobRecord, step: str, error: m.JobError, now: int) -> m.Job:
    done = STEPS.index(step)
    return moved(
        record.job,
        Event.FAIL,
        step=step,
        progress=done / len(STEPS),
        completed_steps=done,
        error=error,
        retryable=True,
        finished_at=rfc3339(now),
    )


def started(job: m.Job, attempts: int, now: int) -> m.Job:
    started = rfc3339(now)
    return moved(
        job, Event.TAKE, step=STEPS[0], attempts=attempts, started_at=started, total_steps=len(STEPS)
    )


def new_job(
    job_id: str,
    accepted: int,
    *,
    kind: m.JobKind,
    title: str,
    tags: list[str],
    filename: str | None = None,
    document_id: int | None = None,
) -> m.Job:
    return m.Job(
        id=job_id,
        status="queued",
        kind=kind,
        title=title,
        filename=filename,
        tags=tags,
        step=QUEUED,
        progress=0.0,
        completed_steps=0,
        total_steps=0,
        attempts=0,
        document_id=document_id,
        document_uid=None,
        deduplicated=False,
        error=None,
        created_at=rfc3339(accepted),
        started_at=None,
        finished_at=None,
        elapsed_seconds=0.0,
    )
