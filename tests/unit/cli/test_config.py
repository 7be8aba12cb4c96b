"""`kb config` and the sources of settings."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from kb_cli.config import ClientSettings, all_settings, config_file, path_of, read
from kb_cli.main import main
from kb_cli.output import Exit
from kb_engine.settings import EngineSettings
from kb_server.settings import ServerSettings

NO_FILE = argparse.Namespace(config=None)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder and an environment without settings."""
    monkeypatch.chdir(tmp_path)
    for variable in {row.variable for row in all_settings(NO_FILE, {})} | {"KB_CONFIG"}:
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    assert main(["config", "--json", *arguments]) == 0
    rows = json.loads(capsys.readouterr().out)
    by_variable = {row["variable"]: row for row in rows}
    assert len(by_variable) == len(rows)
    return by_variable


def test_every_setting_of_every_part_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(capsys)
    known = {row.variable for kind in (ServerSettings, EngineSettings) for row in kind.describe({})}
    assert rows.keys() == known
    assert rows["KB_API_KEY"]["parts"] == ["server", "engine"]
    assert all(row["help"] and row["source"] == "default" for row in rows.values())


def test_a_secret_is_never_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KB_API_KEY", "hunter2-engine")
    monkeypatch.setenv("KB_MCP_API_KEY", "hunter2-agents")
    for arguments in (["config"], ["config", "--json"]):
        assert main(arguments) == 0
        output = capsys.readouterr()
        assert "hunter2" not in output.out + output.err
    assert printed(capsys)["KB_API_KEY"]["value"] == "set"


def test_the_environment_stands_over_the_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("kb.toml").write_text("KB_MCP_PORT = 4000\nKB_ENGINE_PORT = 9000\n")
    monkeypatch.setenv("KB_ENGINE_PORT", "9001")
    rows = printed(capsys)
    assert (rows["KB_MCP_PORT"]["value"], rows["KB_MCP_PORT"]["source"]) == ("4000", "file")
    assert (rows["KB_ENGINE_PORT"]["value"], rows["KB_ENGINE_PORT"]["source"]) == ("9001", "environment")


def test_flags_stand_over_the_environment() -> None:
    environ = {"KB_ENGINE_URL": "http://environment:1"}
    assert read(ClientSettings, NO_FILE, environ=environ).engine_url == "http://environment:1"
    assert (
        read(ClientSettings, NO_FILE, environ=environ, engine_url="http://flag:1").engine_url
        == "http://flag:1"
    )


@pytest.mark.requirement("F40")
def test_the_file_is_the_flags_then_the_variables_then_the_folders(tmp_path: Path) -> None:
    """`--config`, then KB_CONFIG, then ./kb.toml; all are optional."""
    by_flag, by_variable = tmp_path / "flag.toml", tmp_path / "variable.toml"
    assert config_file(NO_FILE, {}) is None
    Path("kb.toml").touch()
    by_flag.touch()
    by_variable.touch()
    assert config_file(NO_FILE, {}) == Path("kb.toml")
    assert config_file(NO_FILE, {"KB_CONFIG": str(by_variable)}) == by_variable
    options = argparse.Namespace(config=str(by_flag))
    assert config_file(options, {"KB_CONFIG": str(by_variable)}) == by_flag


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("KB_MCP_PROT = 1", "there is no setting KB_MCP_PROT; did you mean KB_MCP_PORT?"),
        ("KB_MCP_PORT = ", "kb.toml"),
        ("KB_MCP_PORT = 99999", "KB_MCP_PORT"),
    ],
)
def test_a_file_that_does_not_fit_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], content: str, words: str
) -> None:
    Path("kb.toml").write_text(content)
    assert main(["config"]) == Exit.USAGE
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("kb config: ")
    assert words in output.err
    assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("config", "--config", "gone.toml"), "gone.toml"),
        (("sim", "--port", "70000"), "KB_SIM_PORT"),
        (("sim", "--jobs", "later"), "KB_SIM_JOBS='later': takes at-once, polls:N, seconds:S, stuck"),
        (("reindex", "--embedder", "nope"), "KB_EMBEDDER"),
    ],
)
def test_a_wrong_value_is_refused_with_the_variables_name(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert main([*arguments]) == Exit.USAGE
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value"), [("LOG_LEVEL", "loud"), ("KB_PUBLISHED_COLLECTIONS", "guides,a/b")]
)
def test_a_wrong_variable_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["config"]) == Exit.USAGE
    assert f"{variable}={value!r}: takes " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "command"),
    [("KB_KEYS", "keys list"), ("KB_AUDIT_FOLDER", "audit"), ("KB_STORE", "check"), ("KB_HOME", "check")],
)
def test_a_path_of_an_unknown_user_is_refused_by_the_variables_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, command: str
) -> None:
    value = "~no-such-user/kb"
    monkeypatch.setenv(variable, f"sqlite:{value}" if variable == "KB_STORE" else value)
    assert main(command.split()) == Exit.USAGE
    assert f"{variable}='{value}': no home is known for this ~; give the path" in capsys.readouterr().err


def test_a_name_that_begins_like_a_user_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert path_of("~/notes") == tmp_path / "home" / "notes"
    assert path_of("~$report.docx") == Path("~$report.docx")
    assert main(["add", "~$report.docx"]) == Exit.USAGE
    assert "~$report.docx: there is no such file or folder" in capsys.readouterr().err
