"""Budgets, percentiles, slopes, shapes, histories and reports: the arithmetic of every figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from bench import calls, uploads
from bench.runner import Load
from kb_load.plan import (
    CURVES,
    Budgets,
    BudgetsUnreadable,
    Entry,
    Figures,
    Plan,
    ShapeName,
    SoakBudget,
    ToolBudget,
    TotalBudget,
    broken,
    broken_by_soak,
    read_budgets,
)
from kb_load.processes import Machine, Sample, describe, slope
from kb_load.report import Moment, Run, Sheet, moments, percentile, plot, read_figures, table, text
from tests.support.stack import ROOT


def sample(seconds: float, mib: float) -> Sample:
    return Sample(seconds=seconds, name="server", resident_mib=mib, cpu=0.0, sockets=0)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 51), (0.95, 95), (0.99, 99), (1.0, 100)])
def test_a_percentile_is_one_of_the_values(share: float, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == value


def test_a_percentile_of_no_values_is_an_error() -> None:
    """A figure that was not measured must not look like zero."""
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_table_keeps_its_columns_apart() -> None:
    assert table(["name", "ms"], [["a", "1.0"], ["longer", "12.5"]]) == (
        "name      ms\na        1.0\nlonger  12.5"
    )


def test_a_slope_is_in_mib_a_minute() -> None:
    """One MiB every ten seconds is six a minute."""
    assert slope([sample(second, second / 10) for second in range(0, 100, 10)]) == pytest.approx(6.0)


def test_one_moment_has_no_slope() -> None:
    with pytest.raises(ValueError, match="two samples"):
        slope([sample(1, 1), sample(1, 2)])


@pytest.mark.parametrize("shape", list(CURVES))
def test_a_shape_reaches_its_peak_never_passes_it_and_ends(shape: ShapeName) -> None:
    plan = Plan(shape, 50, 100)
    users = [plan.users(second) for second in range(100)]
    assert all(count is not None and 1 <= count <= 50 for count in users)
    assert 50 in users
    assert plan.users(100) is None


def test_a_ramp_never_goes_down() -> None:
    plan = Plan("ramp", 50, 100)
    users = [plan.users(second) or 0 for second in range(100)]
    assert users == sorted(users)


def test_a_spike_comes_back() -> None:
    plan = Plan("spike", 50, 100)
    assert [plan.users(second) for second in (10, 50, 90)] == [10, 50, 10]


@pytest.mark.parametrize(("peak", "seconds"), [(0, 60), (5_001, 60), (1, 4), (1, 24 * 3600 + 1)])
def test_a_plan_out_of_bounds_is_refused(peak: int, seconds: int) -> None:
    """Every run ends, with no more users than a machine can hold."""
    with pytest.raises(ValueError, match=r"users|seconds"):
        Plan("steady", peak, seconds)


def test_a_history_is_of_all_calls_together_and_begins_with_the_first() -> None:
    row = {
        "Timestamp": "1000", "User Count": "5", "Name": "Aggregated", "Requests/s": "2.5", "Failures/s": "0",
        "50%": "10", "95%": "N/A", "99%": "30", "Total Request Count": "0",
    }  # fmt: skip
    rows = [
        row,
        {**row, "Timestamp": "1002", "Total Request Count": "4"},
        {**row, "Timestamp": "1003", "Total Request Count": "9", "Name": "kb_search"},
        {**row, "Timestamp": "1004", "Total Request Count": "9"},
    ]
    found = moments(rows)
    assert [moment.seconds for moment in found] == [0, 2]
    assert (found[0].users, found[0].rate, found[0].p50, found[0].p95) == (5, 2.5, 10, 0)


def entry(tool: str = "kb_search", *, calls: int = 100, failures: int = 0, p95: float = 20) -> Entry:
    return Entry(tool=tool, era="2025-11-25", calls=calls, failures=failures, p50=10, p95=p95, p99=30)


def server(seconds: float, *, mib: float = 80, sockets: int = 10) -> Sample:
    return Sample(seconds=seconds, name="server", resident_mib=mib, cpu=0.5, sockets=sockets)


FAST_ENOUGH = Budgets(total=TotalBudget(calls_per_second_per_user=1.5))


@pytest.mark.parametrize(
    ("budgets", "entries", "users", "complaints"),
    [
        (Budgets(total=TotalBudget(error_share=0.01, calls_per_second_per_user=10),
                 tools={"kb_search": ToolBudget(p95=20, p99=30)}), [entry(failures=1)], 1, []),
        (Budgets(tools={"kb_search": ToolBudget(p95=19)}), [entry()], 1,
         ["kb_search at 2025-11-25: p95 20 ms; budget 19"]),
        (Budgets(total=TotalBudget(error_share=0.005)), [entry(failures=2), entry("kb_get")], 1,
         ["2 of 200 calls failed (1.00%); budget 0.50%"]),
        (FAST_ENOUGH, [entry()], 8, ["10.0 calls a second of 8 users; budget at least 12"]),
        (FAST_ENOUGH, [entry()], 6, []),
        (Budgets(tools={"kb_upload_chunk": ToolBudget(p95=5)}), [entry()], 1,
         ["kb_upload_chunk was never called, and has a budget"]),
        (Budgets(), [], 1, ["no call was made"]),
    ],
    ids=["within", "a slow tool", "errors of all tools", "few calls", "few users", "a tool not called",
         "no call"],
)  # fmt: skip
def test_a_breach_of_a_budget_is_named_with_its_values(
    budgets: Budgets, entries: list[Entry], users: int, complaints: list[str]
) -> None:
    """A server that responds to few calls is not fast, nor a scenario that lost its uploads."""
    assert broken(budgets, Figures(seconds=10, entries=entries), users) == complaints


@pytest.mark.parametrize(("shape", "mean"), [("steady", 20), ("ramp", 14.7), ("spike", 7.2)])
def test_the_users_of_a_plan_are_counted_on_average(shape: ShapeName, mean: float) -> None:
    """A peak that lasts a fifth of the time does not raise the floor for all of it."""
    assert Plan(shape, 20, 60).mean_users == pytest.approx(mean, abs=0.5)


@pytest.mark.parametrize(
    ("budget", "seconds", "mib", "complaints"),
    [
        (SoakBudget(server_mib_per_minute=1.0), 600, lambda at: 80 + at / 30,
         ["the server's memory grew by 2.00 MiB a minute; budget 1"]),
        (SoakBudget(skip_seconds=60, server_mib_per_minute=0.1), 600, lambda at: min(at, 60), []),
        (SoakBudget(from_seconds=300, server_mib_per_minute=1.0), 50, lambda at: 80 + at, []),
        (SoakBudget(skip_seconds=0, server_more_sockets=4), 600, lambda _: 80,
         ["the server holds 38 more sockets at the end; budget 4"]),
    ],
    ids=["memory", "memory of the warm-up", "a short run, in which a slope is noise", "sockets"],
)  # fmt: skip
def test_growth_over_the_budget_breaks_a_soak(
    budget: SoakBudget, seconds: int, mib: Callable[[int], float], complaints: list[str]
) -> None:
    samples = [server(at, mib=mib(at), sockets=10 + at // 10) for at in range(0, seconds + 1, 10)]
    assert broken_by_soak(budget, samples, seconds) == complaints


@pytest.mark.parametrize(
    "path", ["load/kb_load/budgets.toml", "load/kb_load/budgets-engine.toml", "tests/tiers/load.toml"]
)
def test_the_budgets_that_come_along_can_be_read(path: str) -> None:
    budgets = read_budgets(ROOT / path)
    assert {"kb_search", "kb_addnote", "kb_upload_chunk", "PUT upload_url"} <= set(budgets.tools)


@pytest.mark.parametrize(
    "text", ["[total]\nerror_share = 2", "[totals]\nerror_share = 0", "[tools.kb_search]\np95 = 0", "p95 ="]
)
def test_budgets_that_say_something_else_are_refused_by_file_name(tmp_path: Path, text: str) -> None:
    """A typing error must not disable a budget."""
    path = tmp_path / "budgets.toml"
    path.write_text(text)
    with pytest.raises(BudgetsUnreadable, match=r"budgets\.toml"):
        read_budgets(path)


def test_a_missing_file_of_budgets_is_told(tmp_path: Path) -> None:
    with pytest.raises(BudgetsUnreadable, match="No such file"):
        read_budgets(tmp_path / "none.toml")


MACHINE = Machine(
    measured_at="2026-03-01T00:00:00Z", system="Linux", processor="a <processor>", cores=2, memory_gib=8,
    load_before=0.5, python="3.13.0", commit="abc", versions={"aiohttp": "3.14"},
)  # fmt: skip


def turn(host: str, number: int, rate: float, cpu: float = 100) -> calls.Round:
    load = Load(calls=int(rate * 5), seconds=5, p50=1, p95=2, p99=3, errors=0, bytes_each=1000)
    return calls.Round(host=host, era="2025-11-25", round=number, load=load, host_cpu=cpu, engine_cpu=50)


def run(complaints: list[str]) -> Run:
    entry = Entry(tool="kb_search", era="2025-11-25", calls=10, failures=1, p50=1, p95=2, p99=3)
    return Run(
        title="Steady load",
        machine=MACHINE,
        command="python -m kb_load.run",
        figures=Figures(seconds=10, entries=[entry]),
        history=[Moment(seconds=0, users=1, rate=1, failures=0, p50=1, p95=2, p99=3)],
        samples=[Sample(seconds=0, name="server", resident_mib=80, cpu=0.2, sockets=4)],
        budgets=Budgets(tools={"kb_search": ToolBudget(p95=250)}),
        complaints=complaints,
    )


@pytest.mark.process
def test_the_clean_up_phase_is_marked_in_every_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows the load."""
    marked: list[tuple[str, float, float]] = []
    monkeypatch.setattr(Sheet, "mark", lambda _sheet, *phase: marked.append(phase))
    samples = [Sample(seconds=at, name="server", resident_mib=80, cpu=0.2, sockets=4) for at in (0, 9, 14)]
    ended = msgspec.structs.replace(run([]), samples=samples, load_seconds=10)
    plot(ended, tmp_path / "plot.png")
    plot(msgspec.structs.replace(ended, load_seconds=20), tmp_path / "plot.png")
    assert marked == [("clean-up", 10, 14)]


@pytest.mark.process
def test_the_label_of_a_bar_stands_above_its_interval() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    bar = SimpleNamespace(mode="hybrid", metric="ndcg@10", value=0.5, ends=(0.25, 0.75))
    form = {"group": "{0.metric}", "bar": "{0.mode}", "height": "value", "label": "{0.value:.2f}"}
    Sheet(1, title="intervals").compare([bar], **form, y="share", interval="ends")
    (label,) = pyplot.gcf().axes[0].texts
    pyplot.close()
    assert (label.get_text(), label.xy) == ("0.50", (0, 0.75))


def test_a_ratio_is_to_the_ceiling_of_the_same_round() -> None:
    rounds = [
        turn("bare", 1, 1000), turn("kb", 1, 700), turn("bare", 2, 500), turn("kb", 2, 350),
        turn("bare", 3, 1000), turn("kb", 3, 600),
    ]  # fmt: skip
    found = {each.host: each for each in calls.figures(rounds, "bare")}
    assert found["kb"].rate_ratio == 0.7
    assert (found["kb"].lowest_ratio, found["kb"].highest_ratio) == (0.6, 0.7)
    assert found["bare"].rate_ratio == 1.0


def test_processor_time_is_compared_with_the_ceiling_too() -> None:
    rounds = [turn("bare", 1, 1000, cpu=100), turn("kb", 1, 700, cpu=200)]
    assert next(each.cpu_ratio for each in calls.figures(rounds, "bare") if each.host == "kb") == 2.0


def test_uploads_are_compared_by_way_and_size() -> None:
    def upload(way: uploads.Way, host: str, seconds: float) -> uploads.Upload:
        return uploads.Upload(way=way, host=host, mib=100, round=1, seconds=seconds, cpu=1, peak_mib=50)

    made = [
        upload("chunked", "kb", 2), upload("chunked", "bare", 1),
        upload("direct", "kb", 1), upload("direct", "bare", 1),
    ]  # fmt: skip
    ratios = {(each.way, each.host): each.ratio for each in uploads.figures(made)}
    assert ratios["chunked", "kb"] == 0.5
    assert ratios["direct", "kb"] == 1.0


def test_two_workers_are_compared_with_one_under_the_same_load() -> None:
    """Ratios are taken within a round; the least share is that of all its calls, not of the worst turn."""

    def turn(host: str, manner: str, number: int, cpu: float, shares: list[float]) -> calls.Round:
        load = Load(calls=1000, seconds=2, p50=1, p95=2, p99=3, errors=0, bytes_each=1000)
        return calls.Round(
            host=host, era="2025-11-25", manner=manner, round=number, shares=shares, load=load, host_cpu=cpu,
            engine_cpu=50,
        )  # fmt: skip

    one, two = calls.WORKERS
    made = [
        turn(one, calls.FLAT_OUT, 1, 100, [1.0]), turn(two, calls.FLAT_OUT, 1, 110, [0.3, 0.7]),
        turn(one, calls.FLAT_OUT, 2, 200, [1.0]), turn(two, calls.FLAT_OUT, 2, 200, [0.7, 0.3]),
        turn(one, calls.EQUALLY_BUSY, 1, 50, [1.0]), turn(two, calls.EQUALLY_BUSY, 1, 75, [0.4, 0.6]),
    ]  # fmt: skip
    found = {(each.manner, each.host): each for each in calls.figures(made, one)}
    assert found[calls.FLAT_OUT, two].cpu_ratio == 1.05
    assert found[calls.FLAT_OUT, two].least_share == 0.5
    assert found[calls.EQUALLY_BUSY, two].cpu_ratio == 1.5
    assert found[calls.EQUALLY_BUSY, two].least_share == 0.4
    assert {each.cpu_ratio for (_, host), each in found.items() if host == one} == {1.0}


def test_growth_is_that_of_a_soak_after_it_has_warmed() -> None:
    """Memory that a server takes in its first minute is not a leak."""
    samples = [
        Sample(seconds=30 * number, name="server", resident_mib=mib, cpu=0.2, sockets=number)
        for number, mib in enumerate([20, 60, 80, 81, 82, 83])
    ]
    short = text(msgspec.structs.replace(run([]), samples=samples))
    soaked = text(msgspec.structs.replace(run([]), samples=samples, figures=Figures(seconds=300, entries=[])))
    rows = [line.split() for shown in (short, soaked) for line in shown.splitlines() if "server" in line]
    assert rows == [["server", "83", "+21.83", "0", "5"], ["server", "83", "+2.00", "2", "5"]]


def test_the_figures_stand_beside_their_budgets_and_the_machine() -> None:
    shown = [line.split() for line in text(run([])).splitlines()]
    assert shown[1] == ["kb_search", "2025-11-25", "10", "1", "1", "2", "3", "250"]
    assert " ".join(shown[-2]) == MACHINE.line()


def test_a_run_is_as_long_as_locust_counts_it(tmp_path: Path) -> None:
    path, head = tmp_path / "stats.csv", "Type,Name,Request Count,Failure Count,Requests/s,50%,95%,99%"
    path.write_text(f"{head}\n2026-07-28,kb_get,10,1,2.0,5,6,N/A\n,Aggregated,10,1,2.0,5,6,N/A\n")
    entry = Entry(tool="kb_get", era="2026-07-28", calls=10, failures=1, p50=5, p95=6, p99=0)
    assert read_figures(path) == Figures(seconds=5.0, entries=[entry])


def test_this_machine_is_described() -> None:
    machine = describe()
    assert machine.cores >= 1
    assert "aiohttp" in machine.versions
    assert str(machine.cores) in machine.line()


@pytest.mark.process
def test_a_plot_is_a_small_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "hosts.png"
    rounds = [
        turn(host, 1, rate) for host, rate in (("kb", 700), ("sdk", 100), ("fastmcp", 50), ("bare", 1000))
    ]
    report = calls.HostsReport(
        machine=MACHINE, connections=32, seconds=5, rounds=rounds, figures=calls.figures(rounds, "bare")
    )
    report.plot(path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) < 150_000
