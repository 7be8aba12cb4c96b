"""Fair queueing: the order of waiting work between callers. No I/O.

Each piece of work gets a number on arrival, and the lowest number is next (start-time fair queueing):

    the caller has no other work             the number being served
    the caller has work running or waiting   the number after its last one

A caller with two hundred pieces has the next two hundred numbers; a piece of another caller that arrives
meanwhile gets the number being served, so it waits for one piece of the first caller, not for all. The
durable queue stores the number with the job (`turn`); the embedding threads keep theirs in memory (`Turns`).

    lane     contents                                                        workers (`lane_slots`)
    short    notes and updates of at most `SHORT_BYTES`                        8
    long     longer notes, and files                                         embedding threads + 2
    scan     PDFs with many pages that need OCR                              2

Lanes do not wait for each other. A caller may use all workers of a lane but one (`greedy`), so that the next
caller's job starts at once even behind a large upload.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection
from itertools import count
from typing import Generic, Literal, TypeAlias, TypeVar, get_args

T = TypeVar("T")

Lane: TypeAlias = Literal["short", "long", "scan"]
LANES: tuple[Lane, ...] = get_args(Lane)

SHORT_BYTES = 8 * 1024  # maximum size of a short text in bytes of UTF-8: about ten passages

_SHORT_SLOTS = 8  # more than there are threads, so that notes that wait are taken and committed together


def lane_slots(threads: int) -> dict[Lane, int]:
    """Return the number of workers of each lane; `threads` is the number of embedding threads."""
    return {"short": _SHORT_SLOTS, "long": threads + 2, "scan": 2}


def lane_of(kind: Literal["note", "file", "update"], size_bytes: int) -> Lane:
    """Return the lane of new work. The time to read a file is known only afterwards, so no file is short."""
    return "short" if kind != "file" and size_bytes <= SHORT_BYTES else "long"


def turn(last_of_caller: int | None, served: int) -> int:
    """Return the number of new work; `last_of_caller` is the caller's highest number waiting or running."""
    return served if last_of_caller is None else max(served, last_of_caller + 1)


def greedy(in_hand: Collection[str], lane_slots: int) -> set[str]:
    """Return the callers at their limit in a lane; `in_hand` has the caller of each running job."""
    most = max(1, lane_slots - 1)
    return {caller for caller, held in Counter(in_hand).items() if held >= most}


class Turns(Generic[T]):
    """Waiting work by caller. The work of one caller is first in, first out."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, T]] = []
        self._arrivals = count()
        self._last: dict[str, int] = {}
        self._served = 0

    def __len__(self) -> int:
        """The number of waiting pieces."""
        return len(self._waiting)

    def add(self, caller: str, work: T) -> None:
        number = self._last[caller] = turn(self._last.get(caller), self._served)
        heapq.heappush(self._waiting, (number, next(self._arrivals), work))

    def next(self) -> T:
        """Return the next work. Raises IndexError if the queue is empty."""
        self._served, _, work = heapq.heappop(self._waiting)
        # Numbers below the served one have no effect any more; dropping them bounds the memory.
        self._last = {caller: last for caller, last in self._last.items() if last >= self._served}
        return work
