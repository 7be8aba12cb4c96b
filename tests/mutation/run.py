"""Break the simulator one promise at a time, and check that the suite notices.

    python -m tests.mutation.run            every mutant
    python -m tests.mutation.run patch      those with "patch" in their name

The exit status is 1 if a mutant is not caught by its own test, or crashes instead of misbehaving. A mutant
that passes its own test is then run against the whole suite, with generated requests. Each mutant has two
processes, one with the broken simulator and one with the suite, both forked from this one after it has run
the suite itself, in whose session the test runs again.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

import pytest
from aiohttp.http_exceptions import HttpProcessingError

from kb_verify import Status, Target
from kb_verify.run import SuiteError
from tests.mutation.breaking import Mutant
from tests.mutation.mutants import MUTANTS
from tests.mutation.suite_process import FORK, Afterwards, run_here, suite_process
from tests.support.engines import API_KEY, simulator


@dataclass(frozen=True)
class Fate:
    """The outcome of a mutant. `expected`: it was caught by its own test.

    `crashes` are faults of the mutant itself, which was to misbehave and not to crash.
    """

    name: str
    test: str
    caught_by: str | None
    expected: bool
    crashes: list[str]
    seconds: float

    @property
    def well(self) -> bool:
        """True if its own test caught the intended misbehaviour."""
        return self.expected and not self.crashes


class Crashes(logging.Handler):
    """Collects exceptions of handlers that are not HTTP errors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, HttpProcessingError):
            self.seen.append(f"{type(error).__name__}: {error}")


def fate_of(mutant: Mutant, session: pytest.Session) -> Fate:
    """Break a simulator, and run the test that should notice, then the whole suite if the test passes."""
    started = time.monotonic()
    module, _, test = mutant.test.partition("::")
    with suite_process(session) as catch, _crashes() as crashes, mutant.broken(), simulator() as url:
        caught = catch(Target(url, API_KEY), mutant.test)
    own = f"{module}.py::{test}"
    expected = caught is not None and (caught == own or caught.startswith(f"{own}["))
    return Fate(mutant.name, mutant.test, caught, expected, crashes.seen, time.monotonic() - started)


@contextmanager
def _crashes() -> Iterator[Crashes]:
    handler, root = Crashes(), logging.getLogger()
    standing, root.handlers = root.handlers, [handler]
    try:
        yield handler
    finally:
        root.handlers = standing


def main(arguments: Sequence[str]) -> int:
    chosen = [each for each in MUTANTS if not arguments or any(word in each.name for word in arguments)]
    started = time.monotonic()
    fates, out = list[Fate](), sys.stdout

    def run_mutants(session: pytest.Session) -> None:
        gc.freeze()  # a garbage collection in a forked process would copy all imported pages
        for fate in fates_of(chosen, session):
            told = f"{fate.name:48} {fate.caught_by or 'SURVIVED'}  {fate.seconds:.1f} s"
            print(told, file=out, flush=True)
            fates.append(fate)

    _check_whole(Afterwards(run_mutants))
    seconds = time.monotonic() - started
    survivors = sum(fate.caught_by is None for fate in fates)
    print(f"{len(fates)} mutants, {survivors} survived, {seconds:.0f} s")
    for fate in fates:
        if not fate.well:
            print(f"not well: {fate.name} ({fate.test}): {_trouble(fate)}")
    return 0 if fates and all(fate.well for fate in fates) else 1


def fates_of(mutants: Sequence[Mutant], session: pytest.Session) -> Iterator[Fate]:
    """Yield the outcomes as they become known, with one mutant per core at a time."""
    waiting, running = deque(mutants), dict[Connection, Mutant]()
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            ours, theirs = FORK.Pipe(duplex=False)
            FORK.Process(target=_send_fate, args=(theirs, waiting[0], session)).start()
            theirs.close()
            running[ours] = waiting.popleft()
        for ready in [each for each in wait(list(running)) if isinstance(each, Connection)]:
            mutant = running.pop(ready)
            try:
                yield ready.recv()
            except EOFError:
                yield Fate(mutant.name, mutant.test, None, False, ["its process died"], 0.0)
            finally:
                ready.close()


def _send_fate(out: Connection, mutant: Mutant, session: pytest.Session) -> None:
    out.send(fate_of(mutant, session))


def _trouble(fate: Fate) -> str:
    if fate.crashes:
        return f"it falls over: {fate.crashes[0]}"
    return "SURVIVED" if fate.caught_by is None else f"caught by {fate.caught_by} instead"


def _check_whole(afterwards: Afterwards) -> None:
    """Run the mutants' tests on an unbroken simulator, and act in the session of that run."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_serve_whole, args=(theirs,))
    process.start()
    try:
        results = run_here(Target(ours.recv(), API_KEY), quick=True, plugin=afterwards)
    except SuiteError as error:
        raise SystemExit(str(error)) from None
    finally:
        ours.send(None)
        process.join()
    if not results.passed:
        raise SystemExit(f"the suite fails on a whole simulator: {results.of(Status.FAILED)[0].id}")


def _serve_whole(until: Connection) -> None:
    with simulator() as url:
        until.send(url)
        until.recv()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
