"""The life of a job, as a table. A store looks up in it which states an event may leave.

queued --take--> running --complete--> completed
  |  ^ ^            | |-----fail-----> failed
  |  | '--release---' |                  |
  |  '-------retry----+------------------'
  '------cancel-------'--------------> cancelled
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from kb_contracts.api.models import JobStatus


class Event(StrEnum):
    """What can happen to a job; `RELEASE` is what an engine does that stops or has lost its lease."""

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
"""Every transition there is."""


def after(status: JobStatus, event: Event) -> JobStatus | None:
    """The state that follows; None where the event is not allowed."""
    return TRANSITIONS.get((status, event))


def sources(event: Event) -> tuple[JobStatus, ...]:
    """The states that the event may leave."""
    return tuple(status for status, happening in TRANSITIONS if happening is event)


def target(event: Event) -> JobStatus:
    """The state that the event leads to, from wherever it is allowed."""
    (status,) = {reached for (_, happening), reached in TRANSITIONS.items() if happening is event}
    return status
