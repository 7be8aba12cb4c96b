"""`kb backup` and `kb restore` of the base of an engine that goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_cli.output import Exit
from tests.support import engines
from tests.unit.cli.conftest import KEY, Kb


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
        counts = "1 documents, 1 chunks, 0 uploads that wait, 1 of failed jobs, "
        assert (status, out.startswith(counts)) == (Exit.OK, True)
        status, _, error = kb("restore", copy, "--home", home)
        assert (status, error.count("\n")) == (Exit.FAILED, 1)
        assert "is there already" in error
    with engines.engine(tmp_path / "restored", api_key=KEY) as url:
        monkeypatch.setenv("KB_ENGINE_URL", url)
        assert kb.json("search", "granite")["results"][0]["chunk"]["text"] == "granite quarry"


def test_a_base_of_postgresql_has_its_own_tools(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KB_STORE", "postgresql://user:secret@127.0.0.1:9/kb")
    for command in ("backup", "restore"):
        status, _, error = kb(command, str(tmp_path / "copy"))
        assert status == Exit.USAGE
        assert "pg_dump" in error
        assert "secret" not in error
