"""Comparison of the conformance suite's findings with the list of expected failures."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests.conformance.verdict import Check, judge, read_expected, read_results

PASSED, FAILED = Check("said", "SUCCESS"), Check("said", "FAILURE", "no answer")
WIRE = Check("wire-schema-valid", "SUCCESS")


def test_a_failure_that_nobody_expects_is_told_with_its_reason() -> None:
    verdict = judge("example", "v", ["ping"], {"ping": [FAILED, WIRE]}, [])
    assert verdict.unexpected == {"ping:said": "no answer"}
    assert not verdict.good


def test_a_warning_counts_as_a_failure() -> None:
    verdict = judge("example", "v", ["ping"], {"ping": [Check("said", "WARNING")]}, [])
    assert list(verdict.unexpected) == ["ping:said"]


def test_an_expected_failure_is_good_and_counted_apart() -> None:
    verdict = judge("product", "v", ["ping"], {"ping": [FAILED, WIRE]}, ["ping:said"])
    assert verdict.good
    assert (verdict.passed, verdict.expected) == ([], ["ping"])


def test_an_expected_failure_excuses_no_other_check_of_its_scenario() -> None:
    other = Check("heard", "FAILURE")
    verdict = judge("product", "v", ["ping"], {"ping": [FAILED, other]}, ["ping:said"])
    assert list(verdict.unexpected) == ["ping:heard"]
    assert verdict.expected == []


@pytest.mark.parametrize("expected", ["ping:said", "ping:gone", "gone:said"])
def test_an_expected_failure_that_passes_or_never_runs_is_stale(expected: str) -> None:
    """Obsolete entries must be removed from the list."""
    verdict = judge("product", "v", ["ping"], {"ping": [PASSED]}, [expected])
    assert verdict.stale == [expected]
    assert not verdict.good


def test_a_scenario_without_a_result_is_a_failure() -> None:
    """A suite that was aborted must not count as passed."""
    verdict = judge("example", "v", ["ping"], {}, [])
    assert list(verdict.unexpected) == ["ping:-"]


def test_a_scenario_that_found_nothing_to_check_is_not_counted_as_passed() -> None:
    verdict = judge("example", "v", ["ping"], {"ping": [Check("said", "INFO"), WIRE]}, [])
    assert (verdict.passed, verdict.inapplicable) == ([], ["ping"])


def test_results_are_read_from_the_folders_of_the_suite(tmp_path: Path) -> None:
    folder = tmp_path / "server-tools-list-2026-11-21T23-05-30-158Z"
    folder.mkdir()
    checks = [{"id": "said", "status": "FAILURE", "errorMessage": "no answer", "timestamp": "now"}]
    (folder / "checks.json").write_text(json.dumps(checks))
    assert read_results(tmp_path) == {"tools-list": [FAILED]}


def test_the_list_gives_each_expected_failure_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "expected.yaml"
    file.write_text('- {targets: [product], versions: ["v"], reason: "", checks: ["ping:said"]}')
    with pytest.raises(msgspec.ValidationError, match="reason"):
        read_expected("product", "v", file)


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
def test_the_committed_list_names_each_check_once(version: str) -> None:
    for target in ("example", "product"):
        expected = read_expected(target, version)
        assert len(expected) == len(set(expected))
        assert all(name.count(":") == 1 for name in expected)


def test_the_example_fails_nothing_at_the_current_version() -> None:
    """An exception there could hide a limitation of the hosting."""
    assert read_expected("example", "2026-07-28") == []
