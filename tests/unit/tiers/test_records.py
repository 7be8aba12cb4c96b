"""The record of a passed tier is found for the same files only."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.tiers.records import NARROWING, Records
from tests.tiers.table import Tier

TIER = Tier("engine", tests=("tests",), sources=("engine",), command=("true",))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a file of the tier and another file."""
    for name in NARROWING:
        monkeypatch.delenv(name, raising=False)
    checkout = tmp_path / "checkout"
    for path in ("engine/store.py", "tests/test_store.py", "server/tools.py"):
        (checkout / path).parent.mkdir(parents=True)
        (checkout / path).write_text("first\n")
    git(checkout, "init", "--quiet")
    commit(checkout)
    return checkout


@pytest.fixture
def records(checkout: Path, tmp_path: Path) -> Records:
    return Records(checkout, tmp_path / "records")


def git(checkout: Path, *arguments: str) -> None:
    name = ("-c", "user.name=kb", "-c", "user.email=kb@example.org")
    subprocess.run(["git", *name, *arguments], cwd=checkout, check=True, capture_output=True)


def commit(checkout: Path) -> None:
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "a change")


def test_a_tier_without_a_record_has_to_run(records: Records) -> None:
    assert records.passed_at(TIER) is None


def test_a_record_holds_while_other_files_change(checkout: Path, records: Records) -> None:
    assert records.add(TIER)
    (checkout / "server/tools.py").write_text("second\n")
    commit(checkout)
    assert records.passed_at(TIER)


@pytest.mark.parametrize("path", ["engine/store.py", "tests/test_store.py", "requirements.lock"])
def test_a_changed_file_of_the_tier_ends_the_record_until_it_is_as_before(
    checkout: Path, records: Records, path: str
) -> None:
    assert records.add(TIER)
    (checkout / path).write_text("second\n")
    assert records.passed_at(TIER) is None
    commit(checkout)
    assert records.passed_at(TIER) is None
    git(checkout, "revert", "--no-edit", "HEAD")
    assert records.passed_at(TIER)


def test_files_that_are_not_committed_are_vouched_for_by_no_record(checkout: Path, records: Records) -> None:
    (checkout / "engine/store.py").write_text("second\n")
    assert not records.add(TIER)
    git(checkout, "checkout", "engine/store.py")
    assert records.passed_at(TIER) is None


@pytest.mark.parametrize("name", NARROWING)
def test_a_run_that_was_narrowed_is_not_recorded(
    records: Records, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "-k one")
    assert not records.add(TIER)


def test_a_record_is_valid_for_its_command_only(records: Records) -> None:
    assert records.add(TIER)
    assert (
        records.passed_at(Tier("engine", tests=("tests",), sources=("engine",), command=("false",))) is None
    )
