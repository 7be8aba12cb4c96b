"""`kb backup` and `kb restore` with an engine that keeps running."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kb_cli.output import Exit
from kb_engine.app import create_app
from kb_engine.settings import EngineSettings
from kb_engine.store.port import BaseUnfinished
from kb_load.processes import clean_environment
from tests.support import engines
from tests.unit.cli.conftest import KEY, Kb

KILLED_AT = """
import os, signal, sys
event, left = sys.argv.pop(1), int(sys.argv.pop(1))
def count(name, arguments):
    global left
    left -= name == event
    if name == event and left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
from kb_cli.main import main
main()
"""
"""A command that is killed at the n-th audit event of a given name."""


def test_a_copy_of_a_base_in_use_is_restored_elsewhere(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, copy, restored = (str(tmp_path / name) for name in ("home", "copy", "restored"))
    with engines.engine(tmp_path / "home", api_key=KEY) as url:
        monkeypatch.setenv("KB_ENGINE_URL", url)
        kb.note("granite quarry")
        (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7 not really")
        assert kb("add", "broken.pdf")[0] == Exit.FAILED
        made = kb.json("backup", copy, "--home", home)
        assert (made["documents"], made["chunks"]) == (1, 1)
        assert (made["uploads"], made["failed_uploads"]) == (0, 1)
        status, out, _ = kb("restore", copy, "--home", restored)
        counts = "1 document, 1 passage, 1 upload of failed jobs, as "
        assert (status, out.startswith(counts)) == (Exit.OK, True)
        status, _, error = kb("restore", copy, "--home", home)
        assert (status, error.count("\n")) == (Exit.FAILED, 1)
        assert "is there already" in error
    with engines.engine(tmp_path / "restored", api_key=KEY) as url:
        monkeypatch.setenv("KB_ENGINE_URL", url)
        assert kb.json("search", "granite")["results"][0]["chunk"]["text"] == "granite quarry"


@pytest.mark.process
@pytest.mark.parametrize(
    ("event", "before"), [("shutil.copyfile", 0), ("shutil.copyfile", 2), ("os.rename", 0)]
)
def test_a_restore_that_was_killed_is_completed_and_used_by_nothing_before(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str, before: int
) -> None:
    home, copy, restored = (str(tmp_path / name) for name in ("home", "copy", "restored"))
    with engines.engine(tmp_path / "home", api_key=KEY) as url:
        monkeypatch.setenv("KB_ENGINE_URL", url)
        (tmp_path / "quarry.txt").write_text("granite quarry")
        (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7 not really")
        assert kb("add", "quarry.txt")[0] == Exit.OK
        assert kb("add", "broken.pdf")[0] == Exit.FAILED
    made = kb.json("backup", copy, "--home", home)
    assert (made["originals"], made["failed_uploads"]) == (1, 1)
    command = [sys.executable, "-P", "-c", KILLED_AT, event, str(before), "restore", copy, "--home", restored]
    assert subprocess.run(command, env=clean_environment(), check=False).returncode == -signal.SIGKILL
    with pytest.raises(BaseUnfinished, match="Run `kb restore` again"):
        asyncio.run(create_app(EngineSettings(home=tmp_path / "restored", embedder="hash")))
    for other in ("check", "reindex"):
        status, _, error = kb(other, "--home", restored)
        assert (status, error.count("\n")) == (Exit.FAILED, 1)
        assert "Run `kb restore` again" in error
    assert kb("restore", copy, "--home", restored)[0] == Exit.OK
    with engines.engine(tmp_path / "restored", api_key=KEY) as url:
        monkeypatch.setenv("KB_ENGINE_URL", url)
        assert kb.json("search", "granite")["results"][0]["chunk"]["text"] == "granite quarry"
        assert kb("get", "1", "--original", "again.txt")[0] == Exit.OK
        assert [each["retryable"] for each in kb.json("jobs", "--status", "failed")["jobs"]] == [True]


def test_a_base_of_postgresql_has_its_own_tools(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KB_STORE", "postgresql://user:secret@127.0.0.1:9/kb")
    for command in ("backup", "restore"):
        status, _, error = kb(command, str(tmp_path / "copy"))
        assert status == Exit.USAGE
        assert "pg_dump" in error
        assert "secret" not in error
