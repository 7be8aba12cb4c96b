"""The findings of the conformance suite, compared with the expected failures.

A scenario consists of checks. A check that fails or warns must be in `expected_failures.yaml`, with a reason;
a listed check that passes, or that never ran, must be removed from the list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

EXPECTED_FAILURES = Path(__file__).resolve().parent / "expected_failures.yaml"

_FAILED = ("FAILURE", "WARNING")
_WIRE = "wire-schema-valid"
"""Checked in every scenario, also in scenarios that do not apply to this server."""
_FOLDER = re.compile(r"^server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z$")


class Check(msgspec.Struct, frozen=True):
    """One finding of one scenario."""

    id: str
    status: str
    message: str = msgspec.field(default="", name="errorMessage")


class ExpectedFailures(msgspec.Struct, forbid_unknown_fields=True):
    """Checks that fail for the same reason."""

    targets: list[str]
    versions: list[str]
    reason: Annotated[str, msgspec.Meta(min_length=20)]
    checks: list[str]
    """The checks as `scenario:check`."""


@dataclass(frozen=True)
class Verdict:
    """The result of one server at one version. Names of checks are `scenario:check`."""

    target: str
    version: str
    scenarios: int
    passed: Sequence[str]
    """Scenarios without a failed check."""
    inapplicable: Sequence[str]
    """Scenarios that found nothing to check."""
    expected: Sequence[str]
    """Scenarios whose failed checks are all expected."""
    unexpected: Mapping[str, str]
    """Failed checks with the reasons."""
    stale: Sequence[str]
    """Expected failures that passed or never ran."""
    checks_passed: int
    checks_failed: int
    """Warnings count as failures."""

    @property
    def good(self) -> bool:
        return not self.unexpected and not self.stale


def read_results(folder: Path) -> dict[str, list[Check]]:
    """Return the checks of each scenario from the suite's output in `folder`."""
    results = {}
    for file in sorted(folder.glob("*/checks.json")):
        if match := _FOLDER.match(file.parent.name):
            results[match["scenario"]] = msgspec.convert(json.loads(file.read_bytes()), list[Check])
    return results


def read_expected(target: str, version: str, file: Path = EXPECTED_FAILURES) -> list[str]:
    """Return the checks of `target` that are expected to fail at `version`, from `file`.

    Raises:
        msgspec.ValidationError: an entry is incomplete, for example without a reason.
    """
    groups = msgspec.yaml.decode(file.read_bytes(), type=list[ExpectedFailures])
    return [
        check
        for group in groups
        if target in group.targets and version in group.versions
        for check in group.checks
    ]


def judge(
    target: str,
    version: str,
    scenarios: Sequence[str],
    results: Mapping[str, Sequence[Check]],
    expected: Collection[str],
) -> Verdict:
    """Compare `results` with `expected`; `scenarios` are the suite's scenarios for `version`."""
    failures = {scenario: _failures(scenario, results.get(scenario)) for scenario in scenarios}
    every = {name: message for failed in failures.values() for name, message in failed.items()}
    clean = [scenario for scenario in scenarios if not failures[scenario]]
    statuses = [check.status for scenario in scenarios for check in results.get(scenario, ())]
    return Verdict(
        target,
        version,
        scenarios=len(scenarios),
        passed=[scenario for scenario in clean if _has_substance(results[scenario])],
        inapplicable=[scenario for scenario in clean if not _has_substance(results[scenario])],
        expected=[
            scenario for scenario, failed in failures.items() if failed and set(failed) <= set(expected)
        ],
        unexpected={name: message for name, message in every.items() if name not in expected},
        stale=sorted(set(expected) - set(every)),
        checks_passed=statuses.count("SUCCESS"),
        checks_failed=sum(status in _FAILED for status in statuses),
    )


def _failures(scenario: str, checks: Sequence[Check] | None) -> dict[str, str]:
    """Return the failed checks with the suite's messages."""
    if checks is None:
        return {f"{scenario}:-": "the scenario left no result"}
    return {f"{scenario}:{check.id}": check.message for check in checks if check.status in _FAILED}


def _has_substance(checks: Sequence[Check]) -> bool:
    return any(check.status == "SUCCESS" and check.id != _WIRE for check in checks)
