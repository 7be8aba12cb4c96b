"""Whose turn it is: work that waits, in an order that is fair to those who asked for it. No I/O.

Every piece of work gets a number when it comes in, and the lowest number is next (start-time fair queueing):

    the caller has nothing in hand           the turn that is being served
    the caller has work in hand or waiting   the number after its last one

A caller that brings two hundred pieces has the next two hundred turns; what another one brings meanwhile
stands at the turn being served, behind one piece of the first caller and not behind all of them. The durable
queue keeps the number with the job (`turn`); the threads that embed keep theirs in memory (`Turns`).

    lane     what is in it                                                   places (`places`)
    short    notes and updates of at most `SHORT_BYTES`                        3
    long     longer notes, and files                                         2 more than threads embed
    scan     PDFs that turned out to have many pages to read by OCR          2

No lane waits for another one. Of the places of a lane one caller leaves one to the others (`greedy`), so that
whatever it sends, and however long that takes, the next caller's job begins at once.
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

SHORT_BYTES = 8 * 1024
"""A text of up to so many bytes in UTF-8 is short work: some ten passages."""


def places(threads: int) -> dict[Lane, int]:
    """How many jobs of each lane are worked on at once, where so many `threads` embed files."""
    return {"short": 3, "long": threads + 2, "scan": 2}


def lane_of(kind: Literal["note", "file", "update"], size_bytes: int) -> Lane:
    """Where work begins. How long a file takes to read is known only afterwards, so none is short."""
    return "short" if kind != "file" and size_bytes <= SHORT_BYTES else "long"


def turn(last_of_caller: int | None, served: int) -> int:
    """The number of new work; `last_of_caller` is the highest one that it has waiting or in hand."""
    return served if last_of_caller is None else max(served, last_of_caller + 1)


def greedy(in_hand: Collection[str], places: int) -> set[str]:
    """The callers that may have nothing more of a lane, by the callers of what is in hand there."""
    most = max(1, places - 1)
    return {caller for caller, held in Counter(in_hand).items() if held >= most}


class Turns(Generic[T]):
    """Work that waits, and whose it is. Within a caller it is first come, first served."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, T]] = []
        self._arrivals = count()
        self._last: dict[str, int] = {}
        self._served = 0

    def __len__(self) -> int:
        """How much waits."""
        return len(self._waiting)

    def add(self, caller: str, work: T) -> None:
        """New work of a caller."""
        number = self._last[caller] = turn(self._last.get(caller), self._served)
        heapq.heappush(self._waiting, (number, next(self._arrivals), work))

    def next(self) -> T:
        """The work whose turn it is. Raises IndexError where none waits."""
        self._served, _, work = heapq.heappop(self._waiting)
        # A number that lies behind is of no consequence any more, so that nobody is kept for ever.
        self._last = {caller: last for caller, last in self._last.items() if last >= self._served}
        return work
