"""A run of several tiers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import budget, records, run
from tests.tiers.records import Records
from tests.tiers.table import Tier


def test_a_tier_whose_preparation_failed_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> None:
        raise subprocess.CalledProcessError(1, ("docker", "build"))

    monkeypatch.setattr(run, "PREPARATIONS", {"images": build})
    monkeypatch.setattr(run, "REFERENCE", ("true",))
    tiers = [Tier("images", command=("true",), needs=("images",)), Tier("engine", command=("true",))]
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    name = ("-c", "user.name=kb", "-c", "user.email=kb@example.org")
    subprocess.run(["git", *name, "commit", "--quiet", "--allow-empty", "-m", "x"], cwd=tmp_path, check=True)
    results = run.run_all(tiers, Records(tmp_path, tmp_path / "records"), tmp_path)
    assert [(result.tier.name, result.passed) for result in results] == [("images", False), ("engine", True)]


@pytest.mark.parametrize(("committed", "runs", "status"), [(1e9, 1, 0), (0.0, 2, 1)])
def test_a_tier_beyond_its_budget_runs_twice_before_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: float, runs: int, status: int
) -> None:
    log = tmp_path / "log"
    tier = Tier("engine", command=(sys.executable, "-c", f"open({str(log)!r}, 'a').write('run ')"))
    monkeypatch.setattr(run, "TIERS", [tier])
    monkeypatch.setattr(run, "REFERENCE", (sys.executable, "-c", ""))
    monkeypatch.setattr(budget, "FILE", tmp_path / "costs.json")
    monkeypatch.setenv(records.FOLDER_VARIABLE, str(tmp_path / "records"))
    for name in ("CI", "KB_REQUIRE_DOCKER", "TMPDIR", "PYDANTIC_DISABLE_PLUGINS"):
        monkeypatch.setenv(name, "")  # `main` sets it
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    budget.FILE.write_text("{}")
    budget.commit({"engine": budget.Cost(committed)})
    assert run.main(["engine"]) == status
    assert log.read_text().split() == ["run"] * runs
