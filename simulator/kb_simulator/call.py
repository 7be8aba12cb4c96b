"""A request under way: what the handlers know of it beyond what it says."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from kb_contracts.http.multipart import ReceivedFile
from kb_simulator.extract import Format
from kb_simulator.journal import Entry
from kb_simulator.namespaces import Namespace
from kb_simulator.state import State


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that arrived whole."""

    received: ReceivedFile
    format: Format
    data: bytes


@dataclass(slots=True)
class Call:
    """`reads` is the state that reads look at, an older one under a stale read.

    `upload` is the file that came, None where none did.
    """

    namespace: Namespace
    entry: Entry
    reads: State
    upload: Upload | None = None

    @property
    def identity(self) -> str:
        """What tells this request from all others of a run, and in another run is the same."""
        return f"{self.entry.asked.fingerprint}:{self.entry.occurrence}"


CURRENT: ContextVar[Call] = ContextVar("call")
"""The call of the task that answers it. A context variable, for a request has no typed place for it."""
