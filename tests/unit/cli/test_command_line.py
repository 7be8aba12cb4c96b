"""The command line itself: versions, help, and exit on failure."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from kb_cli import VERSION, main
from kb_cli.command_line import commands, dispatch
from kb_cli.commands import Command
from kb_cli.output import Exit
from kb_config.installing import install_command
from kb_contracts.api.operations import API_VERSION
from kb_load.processes import clean_environment, free_port
from tests.support.stack import ROOT


@pytest.mark.requirement("E34")
def test_the_version_is_3_0_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        dispatch(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == "kb v3.0.0\n"
    assert VERSION == API_VERSION == f"v{importlib.metadata.version('kb-for-agents')}"


@pytest.mark.requirement("E1")
@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_each_command_has_a_function_a_purpose_and_a_help(
    capsys: pytest.CaptureFixture[str], command: Command
) -> None:
    module, _, function = command.run.partition(":")
    assert callable(getattr(import_module(module), function))
    with pytest.raises(SystemExit):
        dispatch([command.name, "--help"])
    assert f"usage: kb {command.name} [OPTIONS]" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        dispatch(["--help"])
    root = capsys.readouterr().out
    assert re.search(rf"(?m)^  {command.name} +{re.escape(command.summary)}$", root)
    assert ("exit status:" in root, max(map(len, root.splitlines())) <= 100) == (True, True)


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "package", "extras"),
    [
        ("serve", "mcp", ["server"]),
        ("stdio", "mcp", ["server"]),
        ("engine", "apsw", ["engine"]),
    ],
)
def test_a_part_without_its_packages_says_what_to_install(
    tmp_path: Path, command: str, package: str, extras: list[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{package!r}] = None\n")
    done = subprocess.run(
        [sys.executable, "-m", "kb_cli.main", command],
        env=clean_environment(PYTHONPATH=str(tmp_path), KB_HOME=str(tmp_path)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == Exit.FAILED, done.stderr
    assert f"the package {package} is not installed; install what `kb {command}` needs" in done.stderr
    assert install_command(*extras) in done.stderr


@pytest.mark.parametrize(
    ("arguments", "usage", "words"),
    [
        (["serch", "x"], "usage: kb COMMAND", "there is no command 'serch'; did you mean search?"),
        (["remove", "22"], "usage: kb COMMAND", "did you mean rm?"),
        (["ls"], "usage: kb COMMAND", "did you mean get?"),
        (["edit"], "usage: kb COMMAND", "did you mean updatenote?"),
        (["rm"], "usage: kb rm ", "\nkb rm: error: the following arguments are required: ID"),
        ([], "usage: kb COMMAND", "Find in a base"),
        (["zzzz"], "usage: kb COMMAND", "there is no command 'zzzz'; kb help lists them"),
        (["--versoin"], "usage: kb COMMAND", "there is no option --versoin; did you mean --version?"),
        (["search", "x", "--colection", "y"], "usage: kb search ", "did you mean --collection?"),
        (
            ["get", "--home", "x"],
            "usage: kb get ",
            "there is no option --home; KB_HOME=DIR names the data folder",
        ),
        (["rm", "--yess"], "usage: kb rm ", "there is no option --yess; did you mean --yes?"),
        (["status", "--tpo=3"], "usage: kb status ", "there is no option --tpo\n"),
        (["status", "more"], "usage: kb status ", "too many arguments: more"),
        (["help", "serch"], "usage: kb COMMAND", "did you mean search?"),
        (["search"], "usage: kb search ", "the following arguments are required: "),
        (["jobs", "--status", "lost"], "usage: kb jobs ", "--status: invalid choice: 'lost'"),
        (["get", "1", "--limit", "0"], "usage: kb get ", "--limit: "),
        (["search", "x", "--top", "0"], "usage: kb search ", "--top: "),
        (["search", "x", "--top", "101"], "usage: kb search ", "--top: "),
        (["search", "x", "--min-score", "2"], "usage: kb search ", "--min-score: "),
        (["search", "x", "--min-score", "nan"], "usage: kb search ", "--min-score: "),
        (["updatenote", "x", "y"], "usage: kb updatenote ", "ID: "),
    ],
)
def test_a_wrong_command_line_shows_the_usage_of_its_command_and_the_name_that_is_near(
    capsys: pytest.CaptureFixture[str], arguments: list[str], usage: str, words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        dispatch(arguments)
    assert ended.value.code == Exit.USAGE
    out, error = capsys.readouterr()
    assert (out, error.startswith(usage), words in error) == ("", True, True), error


@pytest.mark.parametrize(
    ("arguments", "same"),
    [
        (["version"], ["--version"]),
        (["-V"], ["--version"]),
        (["help"], ["--help"]),
        (["--help", "add"], ["--help"]),
        (["-h", "serve"], ["--help"]),
        (["help", "search"], ["search", "--help"]),
    ],
)
def test_help_and_version_are_commands_too(
    capsys: pytest.CaptureFixture[str], arguments: list[str], same: list[str]
) -> None:
    answers = []
    for each in (arguments, same):
        with pytest.raises(SystemExit) as ended:
            dispatch(each)
        assert ended.value.code == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != ""


@pytest.mark.process
@pytest.mark.parametrize(
    ("typed", "offered"),
    [("kb sea", ["search"]), ("kb search --exp", ["--explain"]), ("kb jobs --status can", ["cancelled"])],
)
def test_a_shell_completes_commands_options_and_choices(
    tmp_path: Path, typed: str, offered: list[str]
) -> None:
    answer = tmp_path / "answer"
    state = {"COMP_LINE": typed, "COMP_POINT": str(len(typed)), "COMP_TYPE": "9", "_ARGCOMPLETE": "1"}
    environment = clean_environment(**state, _ARGCOMPLETE_STDOUT_FILENAME=str(answer))
    subprocess.run([sys.executable, "-P", "-m", "kb_cli.main"], env=environment, check=True)
    assert answer.read_text().split() == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert dispatch(["completion", shell]) == Exit.OK
    script = capsys.readouterr().out
    assert "_ARGCOMPLETE" in script
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=script, text=True, check=True)


def test_a_text_that_begins_with_dashes_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for text in (["--from now on"], ["--", "--from"], ["from", "now", "on"]):
        assert dispatch(["search", "--url", url, *text]) == Exit.UNREACHABLE
        capsys.readouterr()


def test_an_engine_that_does_not_answer_ends_with_3_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert dispatch(["status", "--url", url]) == Exit.UNREACHABLE
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"kb status: no engine answers at {url} ")
    assert output.err.count("\n") == 1


@pytest.mark.parametrize("url", ["nonsense", "http://[", "ftp://127.0.0.1/"])
def test_a_wrong_url_is_reported_in_one_line(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert dispatch(["status", "--url", url]) in (Exit.USAGE, Exit.UNREACHABLE, Exit.FAILED)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_fault_of_ours_is_one_line_unless_asked_for_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kb_cli.config.show", lambda _options, _out: 1 // 0)
    monkeypatch.delenv("LOG_LEVEL", raising=False)
    assert dispatch(["config"]) == Exit.FAILED
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setenv("LOG_LEVEL", "debug")
    assert dispatch(["config"]) == Exit.FAILED
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "status", "words"),
    [
        (KeyboardInterrupt(), Exit.INTERRUPTED, "interrupted"),
        (ModuleNotFoundError("no", name="mcp.server"), Exit.FAILED, "the package mcp is not installed"),
        (ModuleNotFoundError("no", name="elsewhere"), Exit.FAILED, "elsewhere is not installed"),
    ],
)
def test_interruptions_and_missing_packages_are_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    status: Exit,
    words: str,
) -> None:
    def fail(_options: object, _out: object) -> int:
        raise raised

    monkeypatch.setattr("kb_cli.config.show", fail)
    assert dispatch(["config"]) == status
    errors = capsys.readouterr().err
    assert words in errors
    assert errors.count("\n") == 1


@pytest.mark.process
def test_a_reader_that_goes_away_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kb_cli.main", "config"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (Exit.BROKEN_PIPE, b"")


@pytest.mark.process
@pytest.mark.parametrize(
    "command", [["status"], ["get"], ["search", "bees"], ["history", "1"], ["move", "1", "memory"]]
)
def test_client_commands_import_no_module_of_the_server(command: list[str]) -> None:
    """The engine's image has these commands but no MCP."""
    url = f"http://127.0.0.1:{free_port()}"
    without = "import sys; sys.modules['mcp'] = None; from kb_cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", without, *command, "--url", url],
        stderr=subprocess.PIPE,
        env=clean_environment(),
        check=False,
    )
    assert done.returncode == Exit.UNREACHABLE, done.stderr.decode()


def test_an_old_python_is_told_in_one_line() -> None:
    assert main.refusal((3, 11, 0)) == ""
    assert main.refusal((3, 10, 12)).startswith("kb needs Python 3.11 or later; this is 3.10.12 (")
    assert "\n" not in main.refusal((3, 8, 0))


def test_the_version_check_runs_on_an_old_python() -> None:
    folder = Path(main.__file__).parent
    for name in ("__init__.py", "main.py"):
        ast.parse((folder / name).read_text("utf-8"), feature_version=(3, 7))


@pytest.mark.requirement("E30")
def test_mcp_and_httpx_are_declared_and_used() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    assert any(entry.startswith("httpx>") for entry in declared)
    assert any(entry.startswith("mcp>") for entry in declared)
    assert import_module("kb_cli.client").httpx.__name__ == "httpx"
    protocol = vars(import_module("kb_server.hosting.toolset_server"))
    assert any(str(getattr(value, "__module__", "")).startswith("mcp.") for value in protocol.values())
