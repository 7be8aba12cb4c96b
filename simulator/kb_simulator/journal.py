"""The journal: every request with its answer, and an export that two runs of one seed have in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from kb_simulator.asked import Asked

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
    asked: Asked
    occurrence: int
    status: int | None = None
    code: str | None = None
    faults: tuple[str, ...] = ()
    delay: float = 0.0
    done: bool = False


class Lasting(msgspec.Struct, frozen=True, kw_only=True):
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


class Record(Lasting, frozen=True, kw_only=True):
    """An entry as it is told."""

    number: int
    at: float


@dataclass(slots=True)
class Journal:
    """What one namespace was asked and answered, in the order of arrival."""

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

    def begin(self, asked: Asked, at: float) -> Entry:
        """Note a request; its answer is written into the entry."""
        self._count += 1
        occurrence = self._occurrences[asked.fingerprint] = self._occurrences.get(asked.fingerprint, 0) + 1
        kept = asked
        if len(asked.body) > _BODY_BYTES:
            kept = msgspec.structs.replace(asked, body=asked.body[:_BODY_BYTES])
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
        ordered = sorted(self._entries, key=lambda entry: (entry.asked.fingerprint, entry.occurrence))
        return b"".join(msgspec.json.encode(_lasting(entry)) + b"\n" for entry in ordered)


def record_of(entry: Entry) -> Record:
    """An entry as it is told."""
    return Record(number=entry.number, at=entry.at, **msgspec.structs.asdict(_lasting(entry)))


def _lasting(entry: Entry) -> Lasting:
    asked = entry.asked
    return Lasting(
        fingerprint=asked.fingerprint,
        occurrence=entry.occurrence,
        operation=asked.operation,
        method=asked.method,
        target=asked.target,
        tags=asked.tags,
        status=entry.status,
        code=entry.code,
        faults=entry.faults,
        delay=entry.delay,
        done=entry.done,
    )
