"""`kb sim`: a fake engine as a process."""

from __future__ import annotations

import re

import httpx
import pytest

from kb_cli.exits import Exit
from kb_cli.main import main
from tests.support.eventually import eventually
from tests.support.stack import Process

pytestmark = pytest.mark.process


def test_sim_says_where_it_is_and_stops_when_told(capsys: pytest.CaptureFixture[str]) -> None:
    """One line with both URLs; SIGTERM ends it well."""
    process = Process.start("-m", "kb_cli.main", "sim", "--seed", "11", "--port", "0", "--control", "0")
    try:
        line = eventually(process.output, lambda text: "\n" in text, seconds=30, what="the ready line")
        url, control = re.findall(r"http://[\d.:]+", line)
        assert "seed 11" in line
        assert httpx.get(f"{url}/healthz").json()["status"] == "ok"
        assert httpx.get(f"{control}/").status_code == 200
    finally:
        assert process.stop() == 0


def test_a_port_that_is_none_is_a_wrong_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """It names the variable."""
    assert main(["sim", "--port", "70000"]) == Exit.USAGE
    assert "KB_SIM_PORT" in capsys.readouterr().err


def test_a_policy_that_is_none_is_a_wrong_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """The flag says the variable's name and what it takes."""
    assert main(["sim", "--jobs", "later"]) == Exit.USAGE
    assert "KB_SIM_JOBS='later': takes at-once, polls:N, seconds:S, stuck" in capsys.readouterr().err
