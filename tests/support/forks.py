"""Tests in processes forked after the collection: `pytest --forks 3`, or `--forks auto` for one per core.

Imports and collection, a fifth of the processor time of `make test`, happen once instead of once per process.
The processes take files of tests from a pipe, in the order of collection, and send reports to the first
process, which reports as if it had run the tests itself. No imported library may have threads of its own:
Qdrant's core has, and aborts at the end of a forked process.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryFile
from typing import Any

import pytest

Location = tuple[str, int | None, str]
_NUMBER_BYTES = 2
"""Length of a file's number in the pipe, in bytes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", default="1", metavar="N", help="number of processes for tests, or `auto`")


def pytest_configure(config: pytest.Config) -> None:
    number = config.option.forks
    most = (os.cpu_count() or 1) if number == "auto" else int(number)
    config.pluginmanager.register(Forks(config, most))


class Forks:
    """Pytest plugin, in the first process and in the forked ones."""

    def __init__(self, config: pytest.Config, most: int) -> None:
        self._config = config
        self._most = most
        self._first: Connection | None = None
        """In a forked process: the pipe to the first one."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        files = defaultdict(list)
        for item in session.items:
            files[item.path].append(item)
        count = min(self._most, len(files))
        if count < 2 or session.testsfailed or self._config.option.collectonly:
            return None  # pytest's own loop
        queue, numbers = os.pipe()
        os.write(numbers, b"".join(number.to_bytes(_NUMBER_BYTES) for number in range(len(files))))
        os.close(numbers)
        self._config.get_terminal_writer().flush()
        running: dict[Connection, int] = {}
        for _ in range(count):
            ours, theirs = Pipe(duplex=False)
            if (process := os.fork()) == 0:
                for inherited in (ours, *running):
                    inherited.close()
                self._first = theirs
                self._run(session, [*files.values()], queue)
                return True  # pytest ends this process like any other run
            theirs.close()
            running[ours] = process
        os.close(queue)
        try:
            self._report(session, running)
        finally:
            for reports in running:
                reports.close()  # the process ends at its next report
            for process in running.values():
                os.waitpid(process, 0)
        return True

    def _run(self, session: pytest.Session, files: Sequence[list[pytest.Item]], queue: int) -> None:
        """Run files of tests, in a forked process."""
        plugins = self._config.pluginmanager
        plugins.unregister(name="terminalreporter")
        capture = plugins.get_plugin("capturemanager")
        if capture is not None and self._config.option.capture == "fd":
            capture.resume_global_capture()
            for stream in (sys.stdout, sys.stderr):  # the files of the capture, shared with other processes
                with TemporaryFile(buffering=0) as own:
                    os.dup2(own.fileno(), stream.fileno())
            capture.suspend_global_capture()
        for item, following in pairwise(chain(_taken(files, queue), (None,))):
            assert item is not None
            self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
        self._send(None)

    def _report(self, session: pytest.Session, running: dict[Connection, int]) -> None:
        """Report the results of all processes, in the first process. Ended processes leave `running`."""
        begun: dict[Connection, tuple[str, Location]] = {}
        while running:
            for ready in wait([*running]):
                assert isinstance(ready, Connection)
                try:
                    message = ready.recv()
                except EOFError:
                    status = os.waitstatus_to_exitcode(os.waitpid(running.pop(ready), 0)[1])
                    if ready in begun or status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                        self._reported(_ended(*begun.get(ready, ("", ("", None, ""))), status))
                    continue
                if message is None:
                    begun.pop(ready, None)
                elif isinstance(message, tuple):
                    begun[ready] = message
                else:
                    hook = self._config.hook
                    self._reported(hook.pytest_report_from_serializable(config=self._config, data=message))
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)

    def _reported(self, report: pytest.TestReport) -> None:
        self._config.hook.pytest_runtest_logreport(report=report)

    def _send(self, message: Any) -> None:
        if self._first is not None:
            self._first.send(message)

    def pytest_runtest_logstart(self, nodeid: str, location: Location) -> None:
        self._send((nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._first is not None:
            hook = self._config.hook
            self._send(hook.pytest_report_to_serializable(config=self._config, report=report))


def _taken(files: Sequence[list[pytest.Item]], queue: int) -> Iterator[pytest.Item | None]:
    """Yield the tests of one file after the other that no other process has taken."""
    while number := os.read(queue, _NUMBER_BYTES):
        yield from files[int.from_bytes(number)]


def _ended(test: str, location: Location, status: int) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=test,
        location=location,
        keywords={},
        outcome="failed",
        longrepr=f"the process of this test ended with status {status}",
        when="call",
    )
