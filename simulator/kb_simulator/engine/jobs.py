"""Jobs: policies for their time and kind of end, transitions by event, and retries.

No I/O and no clock of its own.
"""

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
from kb_contracts.semantics.requests import KEPT_SECONDS, check_same_request
from kb_simulator.determinism import microseconds_of, rfc3339
from kb_simulator.engine.stored import Stored
from kb_simulator.engine.submissions import Submission, Update

STEPS = ("Extracting text", "Splitting into chunks", "Generating embeddings", "Storing")
"""Steps of a job, in order."""

QUEUED, COMPLETED = "queued", "completed"
"""States before and after the steps."""


class _Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base class of policies."""


class AtOnce(_Policy, frozen=True, tag="at_once"):
    """The job has ended at the first poll."""


class AfterPolls(_Policy, frozen=True, tag="after_polls"):
    """The job ends at the `polls`-th `GET /jobs/{id}`; until then each poll shows more progress."""

    polls: Annotated[int, Meta(ge=1, le=1_000_000)] = 3


class AfterTime(_Policy, frozen=True, tag="after_time"):
    """The job ends when `seconds` of virtual time have passed since it was accepted."""

    seconds: Annotated[float, Meta(gt=0, le=1e9)] = 10.0


class Stuck(_Policy, frozen=True, tag="stuck"):
    """The job stays at `step` until cancelled: `queued`, or one of its processing steps."""

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
"""A policy. A job keeps the policy under which it was accepted."""

POLICY_FORMS = "at-once, polls:N, seconds:S, stuck[:STEP] or fail[:STEP]"
"""Texts that `policy_of` parses."""

_BY_WORD: Mapping[str, tuple[type[Policy], str]] = {
    "polls": (AfterPolls, "polls"),
    "seconds": (AfterTime, "seconds"),
    "stuck": (Stuck, "step"),
    "fail": (FailAt, "step"),
}


def policy_of(text: str) -> Policy:
    """Return the policy of `text`, in one of `POLICY_FORMS`; a missing value is the policy's default.

    Raises:
        ValueError: unknown policy, or invalid value.
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
class Retry:
    """Identity of a retry: idempotency `key` within `credential` and `operation`.

    `fingerprint` is a digest of the request's parameters, which must be constant under one key.
    """

    credential: str
    operation: str
    key: str
    fingerprint: str

    @property
    def place(self) -> tuple[str, str, str]:
        return (self.credential, self.operation, self.key)


@dataclass(frozen=True, slots=True)
class _Given:
    fingerprint: str
    answer: msgspec.Struct
    at: int


@dataclass(slots=True)
class Answers:
    """Responses of completed mutations, oldest first, for their retries."""

    _given: dict[tuple[str, str, str], _Given] = field(default_factory=dict)

    def copy(self) -> Answers:
        return Answers(dict(self._given))

    def given(self, retry: Retry, now: int) -> msgspec.Struct | None:
        """Return the response under this key, or None.

        Raises:
            EngineError: `idempotency_mismatch`, if the key was used with a different request.
        """
        oldest_kept = now - KEPT_SECONDS * 1_000_000
        while self._given and (oldest := next(iter(self._given.items())))[1].at <= oldest_kept:
            del self._given[oldest[0]]
        given = self._given.get(retry.place)
        if given is None:
            return None
        check_same_request(retry.key, retry.fingerprint, given.fingerprint)
        return given.answer

    def keep(self, retry: Retry, answer: msgspec.Struct, now: int) -> None:
        self._given[retry.place] = _Given(retry.fingerprint, answer, now)

    def settle(self, retry: Retry, answer: msgspec.Struct | None) -> None:
        """Replace the response at the end of its job; None frees the key after a failure."""
        if answer is None:
            self._given.pop(retry.place, None)
        elif (given := self._given.get(retry.place)) is not None:
            self._given[retry.place] = replace(given, answer=answer)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job with its input. `accepted` is in microseconds since 1970.

    An update counts as accepted when it begins, since updates of one note are sequential. `retries` are the
    requests that will get its response, `updated` is that response.
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
        return self.job.status in m.FINAL_STATUSES

    def duration(self) -> int | None:
        """Return its duration in microseconds, or None if time does not end it."""
        match self.policy:
            case AtOnce() | FailAt():
                return 0
            case AfterTime(seconds=seconds):
                return round(seconds * 1_000_000)
            case _:
                return None

    def seconds_left(self, now: int) -> float | None:
        """Return the remaining seconds of a running job, or None if time does not end it."""
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
                # A job that was accepted in the same instant as another bears a later time than now.
                share = max(0.0, (now - self.accepted) / (seconds * 1_000_000))
            case Stuck(step=step):
                share = STEPS.index(step) / len(STEPS)
            case _:
                share = 0.0
        share = min(share, 1.0 - 1e-6)  # 1 only when the job has completed
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

        Raises:
            LookupError: the job's state has no transition for the event.
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
