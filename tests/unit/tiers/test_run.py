"""A run of several tiers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.tiers import run
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
