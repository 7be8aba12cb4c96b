"""The table of the tiers covers every test that `make test` leaves out, and every part of the source."""

from __future__ import annotations

import re

import pytest

from tests.support.stack import ROOT
from tests.tiers.budget import committed
from tests.tiers.preparations import PREPARATIONS
from tests.tiers.table import EVERYWHERE, TIERS, Tier, command_of

PARTS = ("contracts", "server", "engine", "simulator", "cli", "load", "deploy", "docs", "examples", "skills")
MARKED = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "tests").rglob("test_*.py")
    if re.search(r"pytest\.mark\.process", path.read_text("utf-8"))
)


def runs(tier: Tier, path: str) -> bool:
    """True if the command of a tier runs the tests of a file."""
    command = command_of(tier)
    below = [part for part in command if path == part or path.startswith(f"{part}/")]
    left_out = [
        part for part in command if part.startswith("--ignore=") and f"--ignore={path}".startswith(part)
    ]
    return bool(below) and not left_out


def test_each_file_with_process_tests_runs_in_one_tier() -> None:
    owners = {path: [tier.name for tier in TIERS if runs(tier, path)] for path in MARKED}
    assert {path: names for path, names in owners.items() if len(names) != 1} == {}


def test_each_part_of_the_source_is_watched_by_a_tier() -> None:
    watched = {path.partition("/")[0] for tier in TIERS for path in tier.paths}
    assert set(PARTS) <= watched


@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.name)
def test_a_tier_names_paths_and_preparations_that_exist(tier: Tier) -> None:
    assert [path for path in (*EVERYWHERE, *tier.paths) if not (ROOT / path).exists()] == []
    assert set(tier.needs) <= PREPARATIONS.keys()


def test_two_engines_are_checked_on_every_run() -> None:
    """Access attempts, the comparison of two bases, and kills run without a relevant change too."""
    [promises] = [tier for tier in TIERS if tier.name == "promises"]
    assert promises.always
    assert {path.rpartition("/")[2] for path in promises.tests} == {
        "test_access.py",
        "test_non_interference.py",
        "test_engine_kill.py",
    }


def test_costs_are_committed_for_each_measured_tier() -> None:
    measured = {tier.name for tier in TIERS if tier.measured}
    assert measured == set(committed())
