"""A pytest plugin that records the tests that reach each fault, and activates one fault.

`faults.py` copies this module as `kb_fault` into a scratch tree, in which the changed source calls `at`. It
imports neither pytest nor kb, because the process of a reader imports it too.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ACTIVE = int((HERE / "kb_fault_active.py").read_text())
"""Number of the active fault, or -1 if all are off. Named as a module for the sandbox of readers."""

added: frozenset[str] = frozenset()
"""Tests, or files of tests, that run although they are marked `process`."""
reached: defaultdict[int, set[str]] = defaultdict(set)
costs: defaultdict[str, float] = defaultdict(float)
failed: dict[str, str] = {}
_place = ""
_began = 0.0


def at(number: int) -> bool:
    """Record that the running test reached this fault; return True if the fault is active."""
    reached[number].add(_place)
    return number == ACTIVE


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def pytest_configure(config: Any) -> None:
    global added
    added = frozenset((HERE / "kb_fault_added.txt").read_text().splitlines())
    config.addinivalue_line("markers", "added: runs although it is marked `process`")


def pytest_itemcollected(item: Any) -> None:
    if added & {item.nodeid, item.nodeid.partition("::")[0]}:
        item.add_marker("added")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Attribute the set-up to the whole file: its other tests may use the same fixtures."""
    global _place, _began
    _place, _began = nodeid.partition("::")[0], _processor_seconds()


def pytest_runtest_logreport(report: Any) -> None:
    global _place
    function = report.nodeid.partition("[")[0]
    _place = function if report.when == "setup" else function.partition("::")[0]
    if report.failed and report.nodeid not in failed:
        failed[report.nodeid] = (report.longreprtext.strip().splitlines() or [""])[-1][:200]
    if report.when == "teardown":
        costs[function] += _processor_seconds() - _began


def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None and session.config.getoption("numprocesses", None):
        return  # the workers ran the tests
    found = {number: sorted(tests - {""}) for number, tests in reached.copy().items()}
    result = {"status": int(exitstatus), "reached": found, "costs": costs, "failed": failed}
    (HERE / "kb_fault" / f"{worker or 'main'}.json").write_text(json.dumps(result))


def pytest_unconfigure(config: Any) -> None:
    """Exit at once in a run of one fault: a thread that the fault blocks would keep the process alive."""
    if ACTIVE >= 0:
        os._exit(0)
