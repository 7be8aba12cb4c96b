"""What the journal is held to: counts, order, what never came; and what came near where it does not hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Meta

from kb_simulator.harness.fault_registry import ArmedFault
from kb_simulator.harness.faults import Data, Match
from kb_simulator.harness.journal import Entry, Journal

_STRANGE_CODES = frozenset({"route_not_found", "method_not_allowed", "unknown_parameter"})

Number = Annotated[int, Meta(ge=0)]


class Expectation(Data, frozen=True):
    """How many requests match: `exactly` so many (0: never), or within bounds; with neither, one at least."""

    match: Match = Match()
    exactly: Number | None = None
    at_least: Number | None = None
    at_most: Number | None = None


class Verification(Data, frozen=True):
    """What is expected: each of `expectations`, and requests `in_order`, with others between them or not."""

    expectations: tuple[Expectation, ...] = ()
    in_order: tuple[Match, ...] = ()


class Verdict(Data, frozen=True):
    """`failures` in words; `unfired` faults that never fired; `strangers`, requests that fit no operation."""

    failures: tuple[str, ...] = ()
    unfired: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all expectations hold and every fault fired. Strangers are told, not judged."""
        return not self.failures and not self.unfired


def verify(journal: Journal, wanted: Verification, armed: Iterable[ArmedFault]) -> Verdict:
    """Hold the journal to what is wanted."""
    failures = [text for each in wanted.expectations if (text := _failure(journal, each))]
    if text := _disorder(journal, wanted.in_order):
        failures.append(text)
    if journal.dropped and (wanted.expectations or wanted.in_order):
        failures.append(f"the oldest {journal.dropped} entries were dropped, so that nothing is certain")
    return Verdict(
        failures=tuple(failures), unfired=tuple(unfired(armed)), strangers=tuple(strangers(journal))
    )


def unfired(armed: Iterable[ArmedFault]) -> list[str]:
    """The armed faults that never fired and had to, in words."""
    return [
        f"{each.id} ({each.fault.match}) never fired; {each.matched} requests matched"
        for each in armed
        if not each.fired and not each.fault.optional
    ]


def strangers(journal: Journal) -> list[str]:
    """Requests that fit no operation: another path, another method, a field that does not exist."""
    return [f"{entry.request} ({entry.code})" for entry in journal if entry.code in _STRANGE_CODES]


def _failure(journal: Journal, wanted: Expectation) -> str | None:
    found = [entry for entry in journal if not wanted.match.differs(entry.request)]
    low, high = _bounds(wanted)
    if len(found) >= low and (high is None or len(found) <= high):
        return None
    summary = f"{wanted.match} was expected {_times(low, high)} and came {_times(len(found), len(found))}"
    if len(found) < low:
        return f"{summary}; {_nearest(journal, wanted.match)}"
    return f"{summary}: {', '.join(f'#{entry.number}' for entry in found[:10])}"


def _bounds(wanted: Expectation) -> tuple[int, int | None]:
    if wanted.exactly is not None:
        return wanted.exactly, wanted.exactly
    if wanted.at_least is None and wanted.at_most is None:
        return 1, None
    return wanted.at_least or 0, wanted.at_most


def _times(low: int, high: int | None) -> str:
    if low == high:
        return {0: "never", 1: "once"}.get(low, f"{low} times")
    if high is None:
        return f"at least {_times(low, low)}"
    return f"at most {_times(high, high)}" if low == 0 else f"{low} to {high} times"


def _nearest(journal: Journal, match: Match) -> str:
    """The request that came nearest to the expected one, and in what it differs."""
    misses = [
        (len(differs := match.differs(entry.request)), -entry.number, differs, entry) for entry in journal
    ]
    misses = [miss for miss in misses if miss[0]]
    if not misses:
        return "the journal holds no other request"
    _, _, differs, entry = min(misses, key=lambda miss: miss[:2])
    return f"the nearest was #{entry.number} {entry.request}, another {' and '.join(differs)}"


def _disorder(journal: Journal, wanted: Sequence[Match]) -> str | None:
    """Where the order breaks: the first match that does not come after those before it."""
    entries = iter(journal)
    for place, match in enumerate(wanted):
        if not _comes(entries, match):
            earlier = f" after {wanted[place - 1]}" if place else ""
            return f"{match} did not come{earlier}; {_elsewhere(journal, match)}"
    return None


def _elsewhere(journal: Journal, match: Match) -> str:
    numbers = [f"#{entry.number}" for entry in journal if not match.differs(entry.request)]
    return f"it came as {', '.join(numbers[:10])}" if numbers else _nearest(journal, match)


def _comes(entries: Iterable[Entry], match: Match) -> bool:
    return any(not match.differs(entry.request) for entry in entries)
