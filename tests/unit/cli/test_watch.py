"""`kb watch` as a process: changes in the folder reach the base, even across outages of the engine."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kb_load.processes import clean_environment, free_port
from tests.support import engines
from tests.support.eventually import eventually
from tests.support.patience import START_SECONDS
from tests.unit.cli.conftest import KEY, Kb, RunningEngine

pytestmark = pytest.mark.process


@contextmanager
def watching(folder: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "kb_cli.main", "watch", str(folder), "--collection", "watched"],
        env=clean_environment(KB_ENGINE_URL=url, KB_API_KEY=KEY, PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def names(kb: Kb) -> list[str]:
    return sorted(one["filename"] for one in kb.json("get", "--collection", "watched")["documents"])


def test_changes_reach_the_base_until_it_is_ended(kb: Kb, engine: RunningEngine, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    (folder / "a.md").write_text("granite quarry")
    with watching(folder, engine.url) as process:
        eventually(lambda: names(kb), lambda seen: seen == ["a.md"])
        (folder / "below" / "b.md").write_text("basalt columns")
        eventually(lambda: names(kb), lambda seen: seen == ["a.md", "b.md"])
        (folder / "a.md").unlink()
        eventually(lambda: names(kb), lambda seen: seen == ["b.md"])
        process.terminate()
        assert process.wait(START_SECONDS) == -signal.SIGTERM


def test_it_waits_for_an_engine_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kb: Kb) -> None:
    folder, port = tmp_path / "folder", free_port()
    folder.mkdir()
    (folder / "a.md").write_text("granite quarry")
    monkeypatch.setenv("KB_ENGINE_URL", f"http://127.0.0.1:{port}")
    with watching(folder, f"http://127.0.0.1:{port}") as process:
        assert process.stdout is not None
        assert "no engine answers" in process.stdout.readline()
        with engines.engine(tmp_path / "home", api_key=KEY, port=port):
            eventually(lambda: names(kb), lambda seen: seen == ["a.md"])
