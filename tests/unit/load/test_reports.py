"""Reports: ratios are taken within a round, and a page says what it measured and where."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kb_load.bench import hosts, uploads, workers
from kb_load.bench.generator import Load
from kb_load.budgets import Budgets, Entry, Figures, ToolBudget
from kb_load.history import Moment
from kb_load.machine import Machine, describe
from kb_load.report import Run, html
from kb_load.sampling import Sample

MACHINE = Machine(
    measured_at="2026-03-01T00:00:00Z", system="Linux", processor="a <processor>", cores=2, memory_gib=8,
    load_before=0.5, python="3.13.0", commit="abc", versions={"aiohttp": "3.14"},
)  # fmt: skip


def turn(host: str, number: int, rate: float, cpu: float = 100) -> hosts.Round:
    load = Load(calls=int(rate * 5), seconds=5, p50=1, p95=2, p99=3, errors=0, bytes_each=1000)
    return hosts.Round(host=host, era="2025-11-25", round=number, load=load, host_cpu=cpu, engine_cpu=50)


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


def test_a_ratio_is_to_the_ceiling_of_the_same_round() -> None:
    rounds = [
        turn("bare", 1, 1000), turn("kb", 1, 700), turn("bare", 2, 500), turn("kb", 2, 350),
        turn("bare", 3, 1000), turn("kb", 3, 600),
    ]  # fmt: skip
    found = {each.host: each for each in hosts.figures(rounds)}
    assert found["kb"].rate_ratio == 0.7
    assert (found["kb"].lowest_ratio, found["kb"].highest_ratio) == (0.6, 0.7)
    assert found["bare"].rate_ratio == 1.0


def test_processor_time_is_compared_with_the_ceiling_too() -> None:
    """Twice the time a call is twice the ceiling's."""
    rounds = [turn("bare", 1, 1000, cpu=100), turn("kb", 1, 700, cpu=200)]
    assert next(each.cpu_ratio for each in hosts.figures(rounds) if each.host == "kb") == 2.0


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
    """Of the round; and the least share is that of all its calls, not of the worst turn."""

    def turn(count: int, manner: str, number: int, cpu: float, shares: list[float]) -> workers.Round:
        load = Load(calls=1000, seconds=2, p50=1, p95=2, p99=3, errors=0, bytes_each=1000)
        return workers.Round(
            workers=count, era="2025-11-25", manner=manner, round=number, shares=shares, load=load,
            host_cpu=cpu, engine_cpu=50,
        )  # fmt: skip

    made = [
        turn(1, workers.FLAT_OUT, 1, 100, [1.0]), turn(2, workers.FLAT_OUT, 1, 110, [0.3, 0.7]),
        turn(1, workers.FLAT_OUT, 2, 200, [1.0]), turn(2, workers.FLAT_OUT, 2, 200, [0.7, 0.3]),
        turn(1, workers.EQUALLY_BUSY, 1, 50, [1.0]), turn(2, workers.EQUALLY_BUSY, 1, 75, [0.4, 0.6]),
    ]  # fmt: skip
    found = {(each.manner, each.workers): each for each in workers.figures(made)}
    assert found[workers.FLAT_OUT, 2].cpu_ratio == 1.05
    assert found[workers.FLAT_OUT, 2].least_share == 0.5
    assert found[workers.EQUALLY_BUSY, 2].cpu_ratio == 1.5
    assert found[workers.EQUALLY_BUSY, 2].least_share == 0.4
    assert {each.cpu_ratio for (_, count), each in found.items() if count == 1} == {1.0}


def test_growth_is_that_of_a_soak_after_it_has_warmed() -> None:
    """Memory that a server takes in its first minute is not a leak."""
    samples = [
        Sample(seconds=30 * number, name="server", resident_mib=mib, cpu=0.2, sockets=number)
        for number, mib in enumerate([20, 60, 80, 81, 82, 83])
    ]
    page = html(msgspec.structs.replace(run([]), samples=samples), b"png")
    assert "<td>server</td><td>83</td><td>+21.83</td><td>0</td><td>5</td>" in page
    soaked = msgspec.structs.replace(run([]), samples=samples, figures=Figures(seconds=300, entries=[]))
    assert "<td>server</td><td>83</td><td>+2.00</td><td>2</td><td>5</td>" in html(soaked, b"png")


def test_the_page_names_machine_versions_command_and_budgets() -> None:
    page = html(run([]), b"png")
    for wanted in (
        "a &lt;processor&gt;",
        "aiohttp 3.14",
        "python -m kb_load.run",
        "All budgets were kept",
        "250",
    ):
        assert wanted in page


def test_the_page_names_what_was_broken() -> None:
    page = html(run(["kb_search at 2025-11-25: p95 300 ms; budget 250"]), b"png")
    assert "p95 300 ms; budget 250" in page
    assert "All budgets were kept" not in page


def test_this_machine_is_described() -> None:
    machine = describe()
    assert machine.cores >= 1
    assert "aiohttp" in machine.versions
    assert str(machine.cores) in machine.line()


def test_a_plot_is_a_small_png(tmp_path: Path) -> None:
    """Small enough to lie in the repository."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "hosts.png"
    rounds = [
        turn(host, 1, rate) for host, rate in (("kb", 700), ("sdk", 100), ("fastmcp", 50), ("bare", 1000))
    ]
    report = hosts.HostsReport(
        machine=MACHINE, client="wrk", connections=32, seconds=5, rounds=rounds, figures=hosts.figures(rounds)
    )
    hosts.plot(report, path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) < 150_000
