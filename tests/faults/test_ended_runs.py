"""A test run that is ended by a signal leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.eventually import eventually
from tests.support.patience import START_SECONDS
from tests.support.stack import ROOT

pytestmark = pytest.mark.process

RUN = """
import signal, sys
import pytest
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what a shell starts in the background
sys.exit(pytest.main(sys.argv[1:]))
"""
HOLDING = """
import threading
from pathlib import Path

from tests.support.postgres import new_server
from tests.support.stack import running_stack


def test_it(tmp_path):
    server = new_server()
    with running_stack(tmp_path, KB_EMBEDDER="hash") as stack:
        Path({ready!r}).write_text(f"{{server._process.pid}} {{stack.process.pid}}")
        threading.Event().wait()
"""


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_by_a_signal_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    """PostgreSQL, `kb up` and its engine, owned by a worker of pytest-xdist; the signal goes to the group."""
    ready, source = tmp_path / "ready", tmp_path / "test_holding.py"
    source.write_text(HOLDING.format(ready=str(ready)))
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-n", "1", str(source)]
    with (tmp_path / "output").open("wb") as output:
        run = subprocess.Popen(
            [sys.executable, "-c", RUN, *options],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    started: list[psutil.Process] = []
    try:
        told = eventually(
            lambda: ready.read_text() if ready.exists() else run.poll() and (tmp_path / "output").read_text(),
            what="the processes of the test",
        )
        started = psutil.Process(run.pid).children(recursive=True)
        assert {int(pid) for pid in str(told).split()} <= {each.pid for each in started}
        os.killpg(run.pid, number)
        run.wait(START_SECONDS)
        eventually(lambda: alive(started), lambda left: left == [], what="the end of all processes")
    finally:
        for process in (*alive(started), *([psutil.Process(run.pid)] if run.poll() is None else [])):
            process.kill()
