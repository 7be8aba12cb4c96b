"""The journal: every request with its answer, and an export that two runs of one seed have in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from kb_simulator.harness.recorded_request import RecordedRequest

MOST_ENTRIES = 20_000
"""Entries kept; older ones are dropped and counted."""

_BODY_BYTES = 4096


class Entry(msgspec.Struct):
    """A request, the `occurrence`-th of its fingerprint, `at` virtual seconds after the clock's start.

    `status` is None until it was answered, and stays None where no status was sent; `code` is that of a
    problem document; `done` says whether the operation was carried out; `delay` is in virtual seconds.
    """

    number: int
    at: float
    request: RecordedRequest
    occurrence: int
    status: int | None = None
    code: str | None = None
    faults: tuple[str, ...] = ()
    delay: float = 0.0
    done: bool = False

    @property
    def identity(self) -> str:
        """Distinguishes the request from all others of a run, and is the same in every run."""
        return f"{self.request.fingerprint}:{self.occurrence}"


class StableRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Of an entry, what does not depend on the order of arrival."""

    fingerprint: str
    occurrence: int
    operation: str | None
    method: str
    target: str
    tags: tuple[str, ...]
    status: int | None
    code: str | None
    faults: tuple[str, ...]
    delay: float
    done: bool


class Record(StableRecord, frozen=True, kw_only=True):
    """An entry as it is told."""

    number: int
    at: float


@dataclass(slots=True)
class Journal:
    """The requests to one namespace and their answers, in the order of arrival."""

    _entries: deque[Entry] = field(default_factory=lambda: deque(maxlen=MOST_ENTRIES))
    _occurrences: dict[str, int] = field(default_factory=dict)
    _count: int = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    @property
    def dropped(self) -> int:
        """How many entries were too old to keep."""
        return self._count - len(self._entries)

    def begin(self, request: RecordedRequest, at: float) -> Entry:
        """Note a request; its answer is written into the entry."""
        self._count += 1
        occurrence = self._occurrences[request.fingerprint] = (
            self._occurrences.get(request.fingerprint, 0) + 1
        )
        kept = request
        if len(request.body) > _BODY_BYTES:
            kept = msgspec.structs.replace(request, body=request.body[:_BODY_BYTES])
        entry = Entry(self._count, at, kept, occurrence)
        self._entries.append(entry)
        return entry

    def latest(self, count: int) -> list[Record]:
        """The newest entries, in the order of arrival."""
        start = max(0, len(self._entries) - count)
        return [record_of(entry) for place, entry in enumerate(self._entries) if place >= start]

    def canonical(self) -> bytes:
        """The entries as JSON lines, by fingerprint and occurrence, without what depends on arrival.

        Two runs with one seed give the same bytes if they ask the same, in whatever order, and if the
        faults armed do not count arrivals (`nth`, `every` or `times` of a rule) or time (`until`, windows).
        """
        ordered = sorted(self._entries, key=lambda entry: (entry.request.fingerprint, entry.occurrence))
        return b"".join(msgspec.json.encode(_stable_record(entry)) + b"\n" for entry in ordered)


def record_of(entry: Entry) -> Record:
    """An entry as it is told."""
    return Record(number=entry.number, at=entry.at, **msgspec.structs.asdict(_stable_record(entry)))


def _stable_record(entry: Entry) -> StableRecord:
    request = entry.request
    return StableRecord(
        fingerprint=request.fingerprint,
        occurrence=entry.occurrence,
        operation=request.operation,
        method=request.method,
        target=request.target,
        tags=request.tags,
        status=entry.status,
        code=entry.code,
        faults=entry.faults,
        delay=entry.delay,
        done=entry.done,
    )
