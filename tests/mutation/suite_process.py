"""The suite in a process forked from one that has collected it, so that no mutant starts an interpreter.

The simulator has another process, because a mutant breaks the contract that both import.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from kb_verify import Results, Status, Target
from kb_verify.plugin import TARGET
from kb_verify.run import KEY_VARIABLE, SuiteError, arguments, results_in

FORK = get_context("fork")

Catch = Callable[[Target, str], str | None]
"""Runs a test of the suite, as `module::name`, on an engine, and if it passes the whole suite. Returns the id
of the test that failed.
"""


@contextmanager
def suite_process(session: pytest.Session) -> Iterator[Catch]:
    """A process that runs tests on request; it must be forked while this process has a single thread."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_serve, args=(ours, theirs, session))
    process.start()
    theirs.close()

    def catch(target: Target, test: str) -> str | None:
        ours.send((target, test))
        answer: str | SuiteError | None = ours.recv()
        if isinstance(answer, SuiteError):
            raise answer
        return answer

    try:
        yield catch
    finally:
        ours.close()
        process.join()


def _serve(theirs: Connection, ours: Connection, session: pytest.Session) -> None:
    theirs.close()  # the requester's end: this copy would hide that the requester has closed it
    with contextlib.suppress(EOFError):
        while True:
            try:
                ours.send(_failed(session, *ours.recv()))
            except SuiteError as error:
                ours.send(error)


def _failed(session: pytest.Session, target: Target, test: str) -> str | None:
    session.config.stash[TARGET] = target
    module, _, name = test.partition("::")
    own = [
        item
        for item in session.items
        if item.path.stem == module and name in (item.name, getattr(item, "originalname", ""))
    ]
    if not own:
        raise SuiteError(f"no test is called {test}")
    for item in own:
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        if session.testsfailed:
            return f"{item.path.name}::{item.name}"
    # A new session asks the engine which operations it serves.
    for only in (("-k", name), ()):
        if failed := run_here(target, "-x", *only).of(Status.FAILED):
            return failed[0].id
    return None


@dataclass(frozen=True)
class Afterwards:
    """A plugin that calls `act` with the session, once all of its tests have passed."""

    act: Callable[[pytest.Session], None]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        if not session.testsfailed:
            self.act(session)
        return result


def run_here(target: Target, *only: str, quick: bool = False, plugin: Afterwards | None = None) -> Results:
    """Run the suite in this process. Raises SuiteError if there are no results."""
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", KEY_VARIABLE: target.api_key}
    with TemporaryDirectory(prefix="kb-verify-") as folder, Path(os.devnull).open("w") as nowhere:
        home = Path(folder)
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere), contextlib.chdir(home):
            given = arguments(target, home, quick=quick, only=("--tb=no", "--capture=no", *only))
            status = pytest.main(given, None if plugin is None else [plugin])
        try:
            return results_in(home)
        except (OSError, msgspec.DecodeError):
            raise SuiteError(f"the suite did not run to its end: {status!r}") from None
