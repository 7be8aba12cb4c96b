"""`kb bench`: the benchmarks take their options from their own parameters, and run anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

from kb_cli.command_line import dispatch
from kb_cli.output import Exit
from kb_load.bench import BENCHMARKS
from kb_load.bench.__main__ import parser_for
from tests.support.stack import clean_environment


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_options_of_a_benchmark_are_parameters_with_their_defaults(name: str) -> None:
    """Every option reaches `run`, and what is not given is as `run` has it."""
    run = import_module(f"kb_load.bench.{name}").run
    options = vars(parser_for(run, "kb bench", "").parse_args([]))
    assert (options.pop("json"), options.pop("report")) == (False, None)
    parameters = signature(run).parameters
    assert options == {option: parameters[option].default for option in options}
    assert options


@pytest.mark.parametrize("arguments", [["hosts", "--rounds", "0"], ["engine", "--sizes", "x"], ["nothing"]])
def test_a_wrong_option_ends_before_anything_runs(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        dispatch(["bench", *arguments])
    assert ended.value.code == Exit.USAGE
    assert arguments[-1] in capsys.readouterr().err


@pytest.mark.process
def test_a_benchmark_runs_outside_the_repository(tmp_path: Path) -> None:
    """As from a wheel: what it needs is in installed packages."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kb_cli.main", "bench", "startup", "--rounds", "1", "--json"],
        cwd=tmp_path,
        env=clean_environment(PYTHONPATH=""),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(map(len, json.loads(done.stdout)["seconds"].values())) == {1}
