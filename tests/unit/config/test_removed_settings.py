"""Names of former settings: each that is still set is reported at start, and never refused."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from kb_cli.main import main
from kb_config.settings import Settings
from kb_engine.app import create_app
from kb_engine.settings import EngineSettings
from kb_load.processes import clean_environment
from kb_server.settings import ServerSettings
from tests.support.commands import ended


@pytest.mark.parametrize("kind", [ServerSettings, EngineSettings])
def test_every_removed_name_that_is_set_is_reported_with_its_replacement(kind: type[Settings]) -> None:
    removed = kind.removed()
    assert "KB_HEADER_TIMEOUT" in removed
    settings = kind.read(dict.fromkeys(removed, "no number"))
    reported = sorted(settings.removal_warnings())
    assert [line.partition(" ")[0] for line in reported] == sorted(removed)
    assert all(any(reason in line for line in reported) for reason in removed.values())


def test_a_removed_name_is_reported_from_the_file_and_only_if_it_is_set(tmp_path: Path) -> None:
    file = tmp_path / "kb.toml"
    file.write_text("KB_MAX_WEBSOCKETS_PER_ADDRESS = 12\n")
    (warning,) = ServerSettings.read({"KB_HEADER_TIMEOUT": ""}, file=file).removal_warnings()
    half = "the maximum is half of KB_MAX_CONNECTIONS_PER_ADDRESS"
    assert f"KB_MAX_WEBSOCKETS_PER_ADDRESS has no effect any more: {half}" in warning


def test_no_removed_name_is_a_setting() -> None:
    for kind in (ServerSettings, EngineSettings):
        assert not kind.removed().keys() & {entry.variable for entry in kind.describe({})}


def test_kb_config_lists_the_removed_names_that_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kb.toml").write_text("KB_OCR_TIMEOUT = 60\n")
    monkeypatch.setenv("KB_HEADER_TIMEOUT", "5")
    assert main(["config", "--json"]) == 0
    rows = {row["variable"]: row for row in json.loads(capsys.readouterr().out)}
    parts = {"KB_OCR_TIMEOUT": ["engine"], "KB_HEADER_TIMEOUT": ["server", "engine"]}
    removed = ServerSettings.removed() | EngineSettings.removed()
    for name, source in (("KB_OCR_TIMEOUT", "file"), ("KB_HEADER_TIMEOUT", "environment")):
        assert rows.pop(name) == {
            "variable": name,
            "value": "no effect",
            "source": source,
            "help": f"removed: {removed[name]}",
            "parts": parts[name],
        }
    assert not rows.keys() & removed


async def test_the_engine_reports_a_removed_name_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {"KB_HOME": str(tmp_path), "KB_EMBEDDER": "hash", "KB_KEEP_FAILED_BYTES": "1"}
    with caplog.at_level(logging.WARNING, "kb_engine"):
        app = await create_app(EngineSettings.read(environ))
        await app.cleanup()
    assert "KB_KEEP_FAILED_BYTES has no effect any more" in caplog.text


@pytest.mark.process
def test_stdio_reports_a_removed_name_at_start(tmp_path: Path) -> None:
    (text := tmp_path / "text.txt").write_text("text")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kb_cli.main", "stdio", "--toolset", "textfile"],
        env=clean_environment(KB_HOME=str(tmp_path), KB_TEXT_FILE=str(text), KB_HEADER_TIMEOUT="5"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "KB_HEADER_TIMEOUT has no effect any more" in done.stderr


def test_serve_reports_a_removed_name_at_start(tmp_path: Path) -> None:
    """It ends after its report, because the certificate does not exist."""
    absent = dict.fromkeys(("KB_TLS_CERT", "KB_TLS_KEY"), str(tmp_path / "none"))
    done = ended("serve", KB_HOME=str(tmp_path), KB_HEADER_TIMEOUT="5", **absent)
    assert "KB_HEADER_TIMEOUT has no effect any more" in done.stderr
