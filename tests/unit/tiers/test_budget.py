"""A tier that costs more than its budget is reported with the tests that grew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.costs import BUDGET_SECONDS, above_budget
from tests.tiers import budget
from tests.tiers.reference import work


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "costs.json").write_text("{}")
    monkeypatch.setattr(budget, "FILE", tmp_path / "costs.json")


def test_costs_are_multiples_of_the_reference_workload() -> None:
    cost = budget.cost_of(60.0, {"slow": 3.0, "quick": 0.1}, reference=2.0)
    assert cost == budget.Cost(30.0, {"slow": 1.5})


def test_a_tier_within_its_budget_is_not_reported() -> None:
    budget.commit({"engine": budget.Cost(100.0)})
    assert list(budget.growth({"engine": budget.Cost(125.0)})) == []


def test_a_tier_beyond_its_budget_is_reported_with_the_tests_that_grew() -> None:
    budget.commit({"engine": budget.Cost(100.0, {"same": 5.0, "grew": 1.0})})
    now = budget.Cost(126.0, {"same": 5.0, "grew": 20.0, "new": 11.0})
    [head, *tests] = budget.growth({"engine": now})
    assert head.startswith("engine: 126.0")
    assert [line.split() for line in tests] == [["+19.00", "grew"], ["+11.00", "new"]]


def test_tiers_that_did_not_run_keep_their_costs() -> None:
    budget.commit({"engine": budget.Cost(100.0)})
    budget.commit({"server": budget.Cost(50.0)})
    assert budget.committed() == {"engine": budget.Cost(100.0), "server": budget.Cost(50.0)}


def test_the_most_expensive_test_above_the_budget_comes_first() -> None:
    lines = above_budget({"a": BUDGET_SECONDS + 1, "b": BUDGET_SECONDS, "c": BUDGET_SECONDS + 2})
    assert [line.split()[-1] for line in lines] == ["c", "a"]


def test_the_reference_workload_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.tiers.reference.ROUNDS", 1)
    work()
