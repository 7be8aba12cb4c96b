"""The states of a job as a table, in which a store looks up the states that an event may leave; and refusals.

queued --take--> running --complete--> completed
  |  ^ ^            | |-----fail-----> failed
  |  | '--release---' |                  |
  |  '-------retry----+------------------'
  '------cancel-------'--------------> cancelled
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import JobStatus

_QUEUE_RETRY_SECONDS = 5.0


class Event(StrEnum):
    """An event of a job; `RELEASE` is caused by an engine that stops or has lost its lease."""

    TAKE = "take"
    RELEASE = "release"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    RETRY = "retry"


TRANSITIONS: Mapping[tuple[JobStatus, Event], JobStatus] = {
    ("queued", Event.TAKE): "running",
    ("queued", Event.CANCEL): "cancelled",
    ("running", Event.RELEASE): "queued",
    ("running", Event.COMPLETE): "completed",
    ("running", Event.FAIL): "failed",
    ("running", Event.CANCEL): "cancelled",
    ("failed", Event.RETRY): "queued",
}
"""All transitions."""


def sources(event: Event) -> tuple[JobStatus, ...]:
    """Return the states that the event may leave."""
    return tuple(status for status, happening in TRANSITIONS if happening is event)


def target(event: Event) -> JobStatus:
    """Return the state that the event leads to; it is the same from every state."""
    (status,) = {reached for (_, happening), reached in TRANSITIONS.items() if happening is event}
    return status


def may_succeed_again(code: str, expected_version: int | None) -> bool:
    """True if a retry of a job that failed with this error may succeed.

    A job that expected a past version of its note cannot, since versions only increase.
    """
    return code != "version_conflict" or expected_version is None


class Origin(NamedTuple):
    """The source of a job: a path in its scope, or, without a path, a file name in the `dedup_scope`."""

    path: str | None
    scope: str | None
    filename: str | None
    dedup_scope: str


def open_failures(jobs: Iterable[tuple[JobStatus, str | None, Origin]]) -> int:
    """Return the number of failed jobs without a later completed job of the same source.

    `jobs` are in the order of acceptance, each with the code of its error. An update that was refused for its
    version is not counted: its caller knows, and reads the note again.
    """
    failed: Counter[tuple[str, ...] | None] = Counter()
    for status, code, (path, scope, filename, dedup_scope) in jobs:
        by_path = None if path is None else ("path", path, scope or dedup_scope)
        by_name = None if filename is None else ("name", filename, dedup_scope)
        if status == "failed":
            failed[by_path or by_name] += code != "version_conflict"
        elif status == "completed":
            for key in {by_path, by_name} - {None}:
                failed.pop(key, None)
    return failed.total()


def job_not_found(job_id: str) -> EngineError:
    return EngineError("job_not_found", f"There is no job {job_id}. Ended jobs are kept for a limited time.")


def job_finished(status: JobStatus) -> EngineError:
    return EngineError("job_finished", f"The job has ended already: it is {status}.")


def job_not_retryable(status: JobStatus) -> EngineError:
    if status == "failed":
        why = "its input is no longer kept. Send the note or the file again."
    elif status == "cancelled":
        why = "it was cancelled. Send the note or the file again."
    else:
        why = f"it has not failed: it is {status}."
    return EngineError("job_not_retryable", f"The job cannot be retried: {why}")


def check_queue_room(waiting: int, max_waiting: int) -> None:
    """Raises EngineError: `queue_full`, if `max_waiting` jobs wait."""
    if waiting >= max_waiting:
        raise EngineError(
            "queue_full",
            f"{waiting} jobs are already queued. Try again later.",
            retry_after=_QUEUE_RETRY_SECONDS,
        )
