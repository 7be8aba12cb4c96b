"""The suite in a process forked from one that has imported it, so that no interpreter starts for a mutant.

The simulator has another process, because a mutant breaks the contract that both import.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from kb_verify import Results, Target
from kb_verify.run import KEY_VARIABLE, SUITE, SuiteError, arguments, results_in

FORK = get_context("fork")


@dataclass(frozen=True)
class Run:
    """A run of the suite, or of some of its modules, on an engine."""

    target: Target
    tests: Sequence[str] = (SUITE,)
    only: Sequence[str] = ()
    quick: bool = False


@contextmanager
def suite_process() -> Iterator[Callable[[Run], Results]]:
    """A process that runs the suite on request; it must be forked while this process has a single thread."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_serve, args=(ours, theirs))
    process.start()
    theirs.close()

    def run(wanted: Run) -> Results:
        ours.send(wanted)
        answer = ours.recv()
        if isinstance(answer, str):
            raise SuiteError(answer)
        assert isinstance(answer, Results)
        return answer

    try:
        yield run
    finally:
        ours.close()
        process.join()


def _serve(theirs: Connection, ours: Connection) -> None:
    theirs.close()  # the requester's end: this copy would hide that the requester has closed it
    with contextlib.suppress(EOFError):
        while True:
            ours.send(run_here(ours.recv()))


def run_here(wanted: Run) -> Results | str:
    """Run in this process; return the results, or the reason if there are no results."""
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", KEY_VARIABLE: wanted.target.api_key}
    with TemporaryDirectory(prefix="kb-verify-") as folder, Path(os.devnull).open("w") as nowhere:
        home = Path(folder)
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere), contextlib.chdir(home):
            given = arguments(wanted.target, home, quick=wanted.quick, tests=wanted.tests, only=wanted.only)
            status = pytest.main(given)
        try:
            return results_in(home)
        except (OSError, msgspec.DecodeError):
            return f"the suite did not run to its end: {status!r}"
