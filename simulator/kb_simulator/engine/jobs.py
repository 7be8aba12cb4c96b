"""The policies that say when and how jobs end, and what is known of one job. No I/O, no time of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from kb_contracts.api import models as m
from kb_contracts.api.errors import ERRORS
from kb_contracts.semantics.job_states import TRANSITIONS, Event
from kb_simulator.engine.idempotency import Retry
from kb_simulator.engine.submission import Submission, Update
from kb_simulator.engine.timestamps import microseconds_of

STEPS = ("Extracting text", "Splitting into chunks", "Generating embeddings", "Storing")
"""What a job goes through, in order."""

QUEUED, COMPLETED = "queued", "completed"
"""The steps before and after."""


class AtOnce(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="at_once"):
    """The job has ended by the time anybody looks."""


class AfterPolls(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="after_polls"
):
    """The job ends at the `polls`-th `GET /jobs/{id}`; until then each poll shows more progress."""

    polls: Annotated[int, Meta(ge=1, le=1_000_000)] = 3


class AfterTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="after_time"):
    """The job ends when `seconds` of virtual time have passed since it was accepted."""

    seconds: Annotated[float, Meta(gt=0, le=1e9)] = 10.0


class Stuck(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="stuck"):
    """The job stays at `step` for ever, unless it is cancelled: `queued`, or one of the steps of its work."""

    step: str = STEPS[2]

    def __post_init__(self) -> None:
        _check_step(self.step, (QUEUED, *STEPS))


class FailAt(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="fail_at"):
    """The job fails at `step` with `code`, one of the contract's errors."""

    step: str = STEPS[2]
    code: str = "extraction_failed"
    message: str = "This job was told to fail."

    def __post_init__(self) -> None:
        _check_step(self.step, STEPS)
        if self.code not in ERRORS:
            raise ValueError(f"there is no error code {self.code!r}; it is one of {', '.join(ERRORS)}")


def _check_step(step: str, steps: Sequence[str]) -> None:
    if step not in steps:
        raise ValueError(f"there is no step {step!r}; it is one of {', '.join(steps)}")


Policy = AtOnce | AfterPolls | AfterTime | Stuck | FailAt
"""How jobs end. A job keeps the policy under which it was accepted."""

POLICY_FORMS = "at-once, polls:N, seconds:S, stuck[:STEP] or fail[:STEP]"
"""What `policy_of` reads."""

_BY_WORD: Mapping[str, tuple[type[Policy], str]] = {
    "polls": (AfterPolls, "polls"),
    "seconds": (AfterTime, "seconds"),
    "stuck": (Stuck, "step"),
    "fail": (FailAt, "step"),
}


def policy_of(text: str) -> Policy:
    """The policy that `text` names in one of `POLICY_FORMS`; without its value it has the policy's default.

    Raises:
        ValueError: it names none, or its value does not fit.
    """
    if text == "at-once":
        return AtOnce()
    word, colon, value = text.partition(":")
    if word not in _BY_WORD:
        raise ValueError(f"takes {POLICY_FORMS}")
    kind, member = _BY_WORD[word]
    try:
        return msgspec.convert({member: value} if colon else {}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"takes {POLICY_FORMS}; of {value!r}: {error}") from error


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

    def shown(self, now: int) -> m.Job:
        """The job as it is told at `now`."""
        job = msgspec.structs.replace(self.job, elapsed_seconds=self._elapsed(now))
        if job.status != "running":
            return job
        share = min(self._share(now), 1.0 - 1e-6)  # the whole is told when it has completed
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
        ended = (
            max(now, self.accepted) if self.job.finished_at is None else _microseconds(self.job.finished_at)
        )
        return max(0, ended - _microseconds(began)) / 1_000_000

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


def _microseconds(time: str) -> int:
    return microseconds_of(datetime.fromisoformat(time))


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
