"""The package exports its intended names, and starts without optional imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import httpx
import pytest

import kb_simulator
from kb_simulator.__main__ import main
from tests.support.patience import ANSWER_SECONDS, START_SECONDS
from tests.unit.simulator.parts import API

pytestmark = pytest.mark.process


def test_the_public_names_are_all_there() -> None:
    assert [name for name in kb_simulator.__all__ if getattr(kb_simulator, name) is None] == []
    assert dir(kb_simulator) == sorted(kb_simulator.__all__)
    with pytest.raises(AttributeError, match="Simulater"):
        _ = kb_simulator.Simulater


def test_the_command_says_where_it_listens_and_ends_when_told() -> None:
    command = [sys.executable, "-m", "kb_simulator", "--seed", "9", "--port", "0", "--control", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline().split()
        assert (line[:2], line[-2:]) == (["simulator", "ready:"], ["seed", "9"])
        assert (
            httpx.get(f"{line[2].rstrip(',')}{API}/status", verify=False, timeout=ANSWER_SECONDS).status_code
            == 200
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_SECONDS) == 0


def test_starting_loads_nothing_that_can_wait() -> None:
    """The client, the page and the readers load later; their import would double the start time."""
    late = ["httpx", "html.parser", "zipfile", "xml.parsers.expat", "kb_simulator.harness.control"]
    loaded = f"print([name for name in {late} if name in sys.modules])"
    # aiohttp loads last, because it reads settings that the command makes first.
    start = "import sys, kb_simulator.__main__\nassert 'aiohttp' not in sys.modules"
    code = f"{start}\nimport kb_simulator.harness.app\n{loaded}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_wrong_setting_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KB_SIM_CONTROL", "eight")
    assert main([]) == 2
    assert "KB_SIM_CONTROL" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with kb_simulator.in_thread(kb_simulator.SimulatorSettings(port=0)) as running:
        port = httpx.URL(running.url).port
        command = [sys.executable, "-m", "kb_simulator", "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert (done.returncode, "in use" in done.stderr) == (1, True)
