"""What the handlers know of the request they answer beyond its parameters."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from kb_contracts.api.formats import Format
from kb_contracts.http.multipart import ReceivedFile
from kb_contracts.semantics.requests import RateWindows
from kb_simulator.engine.state import State


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that was received completely."""

    received: ReceivedFile
    format: Format
    data: bytes


class Engine(Protocol):
    """One running engine: what a namespace of the harness offers its handlers.

    `state` is read at each use, because a reset or a restore replaces it while a request waits.
    """

    state: State
    rates: RateWindows

    async def wait_for_end(self, job_id: str, seconds: float) -> None:
        """Return when the job has ended, or after `seconds` of virtual time."""


@dataclass(slots=True)
class Call:
    """One request to one engine.

    `identity` distinguishes the request from all others of a run and is the same in every run. `reads` is the
    state that reads look at: an older one under a stale read. `upload` is None where no file was sent.
    """

    namespace: Engine
    identity: str
    reads: State
    upload: Upload | None = None


CURRENT: ContextVar[Call] = ContextVar("call")
"""The call of the task that answers it. A context variable, because a request has no typed place for it."""
