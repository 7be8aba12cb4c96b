"""Break the simulator one promise at a time, and see that the suite notices.

    python -m tests.mutation.run            every mutant
    python -m tests.mutation.run patch      those with "patch" in their name

Exit status 1 where a mutant is not caught by its own test, or falls over instead of misbehaving. One that its
own test lets pass is shown to the whole suite, generated requests and all. There is a process for each core:
what is broken is broken in one of them.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

from aiohttp.http_exceptions import HttpProcessingError

from kb_verify import Results, Status, Target, run
from kb_verify.run import SUITE, SuiteError
from tests.mutation.mutants import MUTANTS
from tests.support.engines import API_KEY, simulator


@dataclass(frozen=True)
class Fate:
    """What became of a mutant. `expected`: it was caught by its own test.

    `crashes` are faults of the mutant itself: it was to misbehave, not to fall over.
    """

    name: str
    test: str
    caught_by: str | None
    expected: bool
    crashes: list[str]
    seconds: float

    @property
    def well(self) -> bool:
        """Whether its own test caught what it was made to do."""
        return self.expected and not self.crashes


class Crashes(logging.Handler):
    """What handlers raise that is no answer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, HttpProcessingError):
            self.seen.append(f"{type(error).__name__}: {error}")


def fate_of(name: str) -> Fate:
    """What becomes of the mutant of this name."""
    (mutant,) = (each for each in MUTANTS if each.name == name)
    started = time.monotonic()
    module, _, test = mutant.test.partition("::")
    with _crashes() as crashes, mutant.broken(), simulator() as url:
        target = Target(url, API_KEY)
        caught = _caught(run(target, tests=[f"{SUITE}.{module}"], only=["-x", "-k", f"{test}"]))
        expected = caught is not None
        if caught is None:
            caught = _caught(run(target, only=["-x"]))
    return Fate(name, mutant.test, caught, expected, crashes.seen, time.monotonic() - started)


@contextmanager
def _crashes() -> Iterator[Crashes]:
    handler, root = Crashes(), logging.getLogger()
    standing, root.handlers = root.handlers, [handler]
    try:
        yield handler
    finally:
        root.handlers = standing


def _caught(results: Results) -> str | None:
    if not results.outcomes:
        raise SuiteError("no test has that name")
    failed = results.of(Status.FAILED)
    return failed[0].id if failed else None


def main(arguments: Sequence[str]) -> int:
    names = [each.name for each in MUTANTS]
    chosen = [name for name in names if not arguments or any(word in name for word in arguments)]
    _check_whole()
    started = time.monotonic()
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
        fates = [_printed(fate) for fate in processes.map(fate_of, chosen)]
    seconds = time.monotonic() - started
    survivors = sum(fate.caught_by is None for fate in fates)
    print(f"{len(fates)} mutants, {survivors} survived, {seconds:.0f} s")
    for fate in fates:
        if not fate.well:
            print(f"not well: {fate.name} ({fate.test}): {_trouble(fate)}")
    return 0 if fates and all(fate.well for fate in fates) else 1


def _trouble(fate: Fate) -> str:
    if fate.crashes:
        return f"it falls over: {fate.crashes[0]}"
    return "SURVIVED" if fate.caught_by is None else f"caught by {fate.caught_by} instead"


def _check_whole() -> None:
    """The tests that are to notice pass while nothing is broken."""
    with simulator() as url:
        results = run(Target(url, API_KEY), quick=True)
    if not results.passed:
        raise SystemExit(f"the suite fails on a whole simulator: {results.of(Status.FAILED)[0].id}")


def _printed(fate: Fate) -> Fate:
    print(f"{fate.name:48} {fate.caught_by or 'SURVIVED'}  {fate.seconds:.1f} s", flush=True)
    return fate


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
