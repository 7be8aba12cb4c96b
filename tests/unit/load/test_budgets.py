"""Budgets: what a load run must keep, and what is said of what it broke."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_load.budgets import (
    Budgets,
    BudgetsUnreadable,
    Entry,
    Figures,
    SoakBudget,
    ToolBudget,
    TotalBudget,
    broken,
    broken_by_soak,
    read_budgets,
)
from kb_load.sampling import Sample
from tests.support.stack import ROOT


def entry(tool: str = "kb_search", *, calls: int = 100, failures: int = 0, p95: float = 20) -> Entry:
    return Entry(tool=tool, era="2025-11-25", calls=calls, failures=failures, p50=10, p95=p95, p99=30)


def figures(*entries: Entry, seconds: float = 10) -> Figures:
    return Figures(seconds=seconds, entries=list(entries))


def server(seconds: float, *, mib: float = 80, sockets: int = 10) -> Sample:
    return Sample(seconds=seconds, name="server", resident_mib=mib, cpu=0.5, sockets=sockets)


def test_a_run_within_its_budgets_breaks_nothing() -> None:
    """Every limit is inclusive."""
    budgets = Budgets(
        total=TotalBudget(error_share=0.01, calls_per_second=10),
        tools={"kb_search": ToolBudget(p95=20, p99=30)},
    )
    assert broken(budgets, figures(entry(failures=1))) == []


def test_a_percentile_over_its_budget_is_named_with_tool_version_and_value() -> None:
    """The reader learns what to look at without opening the report."""
    budgets = Budgets(tools={"kb_search": ToolBudget(p95=19)})
    assert broken(budgets, figures(entry())) == ["kb_search at 2025-11-25: p95 20 ms; budget 19"]


def test_the_share_of_errors_counts_all_tools_together() -> None:
    """Two failures of two hundred calls are one in a hundred."""
    budgets = Budgets(total=TotalBudget(error_share=0.005))
    found = broken(budgets, figures(entry(failures=2), entry("kb_get")))
    assert found == ["2 of 200 calls failed (1.00%); budget 0.50%"]


def test_fewer_calls_a_second_than_the_floor_are_a_breach() -> None:
    """A server that answers nothing quickly is not fast."""
    budgets = Budgets(total=TotalBudget(calls_per_second=11))
    assert broken(budgets, figures(entry())) == ["10.0 calls a second; budget at least 11"]


def test_a_tool_with_a_budget_that_was_never_called_is_a_breach() -> None:
    """A scenario that lost its uploads must not pass as fast uploads."""
    budgets = Budgets(tools={"kb_upload_chunk": ToolBudget(p95=5)})
    assert broken(budgets, figures(entry())) == ["kb_upload_chunk was never called, and has a budget"]


def test_a_run_without_calls_breaks_its_budgets() -> None:
    """Nothing measured is nothing kept."""
    assert broken(Budgets(), figures()) == ["no call was made"]


def test_memory_that_grows_breaks_a_soak() -> None:
    """Two MiB a minute over ten minutes are told as two MiB a minute."""
    samples = [server(second, mib=80 + second / 30) for second in range(0, 601, 10)]
    assert broken_by_soak(SoakBudget(server_mib_per_minute=1.0), samples, 600) == [
        "the server's memory grew by 2.00 MiB a minute; budget 1"
    ]


def test_what_grows_while_the_server_warms_does_not_break_a_soak() -> None:
    """The first `skip_seconds` are left out."""
    samples = [server(second, mib=min(second, 60)) for second in range(0, 601, 10)]
    assert broken_by_soak(SoakBudget(skip_seconds=60, server_mib_per_minute=0.1), samples, 600) == []


def test_sockets_that_stay_open_break_a_soak() -> None:
    """The lowest count at the end is held against the highest at the beginning."""
    samples = [server(second, sockets=10 + second // 10) for second in range(0, 601, 10)]
    budget = SoakBudget(skip_seconds=0, server_more_sockets=4)
    assert broken_by_soak(budget, samples, 600) == ["the server holds 38 more sockets at the end; budget 4"]


def test_a_short_run_is_not_judged_as_a_soak() -> None:
    """A slope over a few seconds is noise."""
    samples = [server(second, mib=80 + second) for second in range(0, 60, 10)]
    assert broken_by_soak(SoakBudget(from_seconds=300, server_mib_per_minute=1.0), samples, 60) == []


@pytest.mark.parametrize("name", ["budgets.toml", "budgets-engine.toml"])
def test_the_budgets_that_come_along_can_be_read(name: str) -> None:
    """Both files name every tool of the agents' tool set."""
    budgets = read_budgets(ROOT / "load" / "kb_load" / name)
    assert {"kb_search", "kb_addnote", "kb_upload_chunk", "PUT upload_url"} <= set(budgets.tools)


@pytest.mark.parametrize(
    "text", ["[total]\nerror_share = 2", "[totals]\nerror_share = 0", "[tools.kb_search]\np95 = 0", "p95 ="]
)
def test_budgets_that_say_something_else_are_refused_by_file_name(tmp_path: Path, text: str) -> None:
    """A typing error must not turn a budget off."""
    path = tmp_path / "budgets.toml"
    path.write_text(text)
    with pytest.raises(BudgetsUnreadable, match=r"budgets\.toml"):
        read_budgets(path)


def test_a_missing_file_of_budgets_is_told(tmp_path: Path) -> None:
    """It is named, with the reason of the system."""
    with pytest.raises(BudgetsUnreadable, match="No such file"):
        read_budgets(tmp_path / "none.toml")
