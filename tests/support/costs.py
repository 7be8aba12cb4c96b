"""Processor time of each test: user and system seconds of its process and of the children that ended in it.

`tests/conftest.py` registers `Costs`. A run of `make test` ends with a list of the tests above
`BUDGET_SECONDS`. `KB_TEST_COSTS=FILE` writes the seconds of all tests to a file, from which `.ci/run` names
the tests that grew. A shared fixture is paid for by the first test that uses it.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Generator
from pathlib import Path

import pytest

BUDGET_SECONDS = 0.15
"""Processor time allowed for one test of `make test`, in seconds."""

FILE_VARIABLE = "KB_TEST_COSTS"
"""Environment variable: path of the output file, a JSON object of test IDs and seconds."""

_PROPERTY = "processor seconds"


def processor_seconds() -> float:
    """User and system time of this process and its ended children, in seconds."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Costs:
    """Pytest plugin: every process measures its tests, and the process that reports adds the results up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = 0.0

    def pytest_runtest_logstart(self) -> None:
        self._last = processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "teardown":
            spent = processor_seconds() - self._last
            report.user_properties = [*report.user_properties, (_PROPERTY, spent)]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY:
                self.seconds[report.nodeid] = float(str(value))

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        if path := os.environ.get(FILE_VARIABLE):
            Path(path).write_text(json.dumps(self.seconds), encoding="utf-8")
        if config.option.markexpr == "not process":
            lines = above_budget(self.seconds)
            if lines:
                terminalreporter.section(f"processor time above {BUDGET_SECONDS * 1000:.0f} ms a test")
                terminalreporter.write("".join(f"{line}\n" for line in lines))


def above_budget(seconds: dict[str, float]) -> list[str]:
    """A line for each test above the budget, the most expensive first."""
    over = sorted(((cost, test) for test, cost in seconds.items() if cost > BUDGET_SECONDS), reverse=True)
    return [f"{cost:6.2f} s  {test}" for cost, test in over]
