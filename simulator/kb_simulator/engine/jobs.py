"""Jobs: when and how they end, their state after each event, and idempotent retries. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from kb_contracts.api import models as m
from kb_contracts.api.errors import ERRORS
from kb_contracts.semantics.jobs import TRANSITIONS, Event, may_succeed_again
from kb_contracts.semantics.requests import KEPT_SECONDS, Idempotency, check_same_request
from kb_simulator.determinism import microseconds_of, rfc3339
from kb_simulator.engine.stored import Stored
from kb_simulator.engine.submissions import Submission, Update

STEPS = ("Extracting text", "Splitting into chunks", "Generating embeddings", "Storing")
"""The steps of a job's work, in order."""

QUEUED, COMPLETED = "queued", "completed"
"""The steps before and after the work."""


class _Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """The base class of policies."""


class AtOnce(_Policy, frozen=True, tag="at_once"):
    """The job has ended before it is first read."""


class AfterPolls(_Policy, frozen=True, tag="after_polls"):
    """The job ends at the `polls`-th `GET /jobs/{id}`; until then each poll shows more progress."""

    polls: Annotated[int, Meta(ge=1, le=1_000_000)] = 3


class AfterTime(_Policy, frozen=True, tag="after_time"):
    """The job ends `seconds` of virtual time after it was accepted."""

    seconds: Annotated[float, Meta(gt=0, le=1e9)] = 10.0


class Stuck(_Policy, frozen=True, tag="stuck"):
    """The job stays at `step` until it is cancelled: `queued`, or one of the steps of its work."""

    step: str = STEPS[2]

    def __post_init__(self) -> None:
        _check_step(self.step, (QUEUED, *STEPS))


class FailAt(_Policy, frozen=True, tag="fail_at"):
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
"""The policy for the end of a job. A job keeps the policy under which it was accepted."""

POLICY_FORMS = "at-once, polls:N, seconds:S, stuck[:STEP] or fail[:STEP]"
"""The forms that `policy_of` accepts."""

_BY_WORD: Mapping[str, tuple[type[Policy], str]] = {
    "polls": (AfterPolls, "polls"),
    "seconds": (AfterTime, "seconds"),
    "stuck": (Stuck, "step"),
    "fail": (FailAt, "step"),
}


def policy_of(text: str) -> Policy:
    """Return the policy that `text` names in one of `POLICY_FORMS`; a missing value has the policy's default.
    Raises ValueError: the policy is unknown or its value is invalid.
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
class _Given:
    fingerprint: str
    answer: msgspec.Struct
    at: int


@dataclass(slots=True)
class Answers:
    """The answers of completed mutations, oldest first; retries get the same answer."""

    _given: dict[tuple[str, str, str], _Given] = field(default_factory=dict)

    def copy(self) -> Answers:
        return Answers(dict(self._given))

    def given(self, retry: Idempotency, now: int) -> msgspec.Struct | None:
        """Return the stored answer for this key, or None.
        Raises EngineError: `idempotency_mismatch`, if the key came with a different request.
        """
        oldest_kept = now - KEPT_SECONDS * 1_000_000
        while self._given and (oldest := next(iter(self._given.items())))[1].at <= oldest_kept:
            del self._given[oldest[0]]
        given = self._given.get(_place(retry))
        if given is None:
            return None
        check_same_request(retry.key, retry.fingerprint, given.fingerprint)
        return given.answer

    def keep(self, retry: Idempotency, answer: msgspec.Struct, now: int) -> None:
        self._given[_place(retry)] = _Given(retry.fingerprint, answer, now)

    def settle(self, retry: Idempotency, answer: msgspec.Struct | None) -> None:
        """Replace the answer after the end of its job, or release the key of a failed job."""
        if answer is None:
            self._given.pop(_place(retry), None)
        elif (given := self._given.get(_place(retry))) is not None:
            self._given[_place(retry)] = replace(given, answer=answer)


def _place(retry: Idempotency) -> tuple[str, str, str]:
    return retry.credential, retry.operation, retry.key


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job with its submission. `accepted` is in microseconds since 1970.

    Updates of one note run one after another; an update counts as accepted when it starts. `retries` are the
    requests that get its result as their answer, `updated` is that result.
    """

    job: m.Job
    submission: Submission | Update
    policy: Policy
    accepted: int
    polls: int = 0
    retries: tuple[Idempotency, ...] = ()
    updated: m.Document | None = None

    @property
    def ended(self) -> bool:
        return self.job.status in m.FINAL_STATUSES

    def duration(self) -> int | None:
        """Duration of the job in microseconds, or None if it does not end by time."""
        match self.policy:
            case AtOnce() | FailAt():
                return 0
            case AfterTime(seconds=seconds):
                return round(seconds * 1_000_000)
            case _:
                return None

    def seconds_left(self, now: int) -> float | None:
        """Remaining seconds of a running job, or None if it does not end by time."""
        took = self.duration()
        return None if took is None else max(0.0, (self.accepted + took - now) / 1_000_000)

    def at(self, now: int) -> m.Job:
        """Return the job as shown to callers at `now`."""
        job = self.job
        ended = max(now, self.accepted) if job.finished_at is None else _microseconds(job.finished_at)
        elapsed = max(0, ended - _microseconds(job.started_at or job.created_at)) / 1_000_000
        if job.status != "running":
            return msgspec.structs.replace(job, elapsed_seconds=elapsed)
        match self.policy:
            case AfterPolls(polls=polls):
                share = self.polls / polls
            case AfterTime(seconds=seconds):
                # A job accepted in the same instant as another has a later time stamp than now.
                share = max(0.0, (now - self.accepted) / (seconds * 1_000_000))
            case Stuck(step=step):
                share = STEPS.index(step) / len(STEPS)
            case _:
                share = 0.0
        share = min(share, 1.0 - 1e-6)  # progress is 1.0 only when the job has completed
        done = int(share * len(STEPS))
        return msgspec.structs.replace(
            job,
            elapsed_seconds=elapsed,
            step=STEPS[done],
            progress=round(share, 4),
            completed_steps=done,
            estimated_seconds=self.seconds_left(now),
        )

    def after(self, event: Event, **changes: object) -> m.Job:
        """Return the job after `event`, with `changes`.
        Raises LookupError: the event is not allowed in the job's state.
        """
        return msgspec.structs.replace(self.job, status=TRANSITIONS[(self.job.status, event)], **changes)

    def completed(
        self,
        stored: Stored,
        *,
        now: int,
        outcome: m.SourceOutcome,
        deduplicated: bool = False,
        left_out: Sequence[m.LeftOut] = (),
    ) -> m.Job:
        return self.after(
            Event.COMPLETE,
            step=COMPLETED,
            progress=1.0,
            completed_steps=len(STEPS),
            document_id=stored.document.id,
            document_uid=stored.document.uid,
            deduplicated=deduplicated,
            outcome=outcome,
            left_out=list(left_out),
            finished_at=rfc3339(now),
        )

    def failed(self, step: str, error: m.JobError, now: int) -> m.Job:
        done, wanted = STEPS.index(step), self.submission
        expected = wanted.patch.expected_version if isinstance(wanted, Update) else None
        return self.after(
            Event.FAIL,
            step=step,
            progress=done / len(STEPS),
            completed_steps=done,
            error=error,
            retryable=may_succeed_again(error.code, expected),
            finished_at=rfc3339(now),
        )


def _microseconds(moment: str) -> int:
    return microseconds_of(datetime.fromisoformat(moment))
