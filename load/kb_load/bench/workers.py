"""`kb bench workers`: what a call costs one process of `kb serve`, and two that share a port.

Both stand over the same stub engine, with a key, metrics and the log at `info`, and are loaded in turns, at
both protocol versions, in two ways. Equally busy: each worker has as many clients, who pause between calls,
so that the processors are not fought for; what differs is that there are two. Flat out: as many clients as
ever call without a pause. Processor time is that of all processes of a server, the parent of the workers
among them. Each worker's calls are read from where it counts them for `/metrics`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import msgspec

from kb_load.bench import Option
from kb_load.bench.host import Circumstances, Cost, Standing, check, kb_serve, measured, stub_engine, warm
from kb_load.messages import ERAS, Era
from kb_load.plots import Sheet
from kb_load.processes import Running
from kb_load.stats import figures_table, median_figures
from kb_server.observability.metrics import counters_by_slot

WORKERS = (1, 2)
EQUALLY_BUSY, FLAT_OUT = "equally busy", "flat out"
PAUSE_SECONDS = 0.02
_CALLS = ("requests", "kb_search", "success")
"""The name under which a worker counts the calls of this benchmark."""


class Round(Cost, frozen=True, kw_only=True):
    """One turn. `manner` is `EQUALLY_BUSY` or `FLAT_OUT`, `shares` are the workers' parts of the calls."""

    workers: int
    era: str
    manner: str
    round: int
    shares: list[float]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A number of workers under one load: medians over the rounds, ratios to one worker in each round."""

    workers: int
    era: str
    manner: str
    rate: float
    p99: float
    cpu: float
    cpu_ratio: float
    least_share: float
    """The smallest part of the calls that a worker had, over all rounds together."""


COLUMNS = {
    "load": "{0.manner}",
    "version": "{0.era}",
    "workers": "{0.workers}",
    "calls/s": "{0.rate:.0f}",
    "p99 ms": "{0.p99:.1f}",
    "CPU us/call": "{0.cpu:.0f}",
    "x one": "{0.cpu_ratio:.2f}",
    "least share": "{0.least_share:.2f}",
}


class WorkersReport(Circumstances, frozen=True, kw_only=True):
    """The whole run."""

    rounds: list[Round]
    figures: list[Figures]


def run(
    *,
    rounds: Annotated[int, Option("turns")] = 7,
    seconds: Annotated[int, Option("how long each turn takes")] = 2,
    connections: Annotated[int, Option("how many are busy")] = 32,
    note: Callable[[str], None] = print,
) -> WorkersReport:
    """Measure in turns: short ones and many, for neighbours on the machine come and go.

    `connections` are those of a server that is loaded flat out, and of two workers that are equally busy.

    Raises:
        CallFailed: an answer is wrong, or calls failed.
        kb_load.processes.NotReady: a server did not start.
    """
    report = WorkersReport(connections=connections, seconds=seconds, rounds=[], figures=[])
    with tempfile.TemporaryDirectory(prefix="kb-bench-") as name, ExitStack() as stack:
        engine, url = stack.enter_context(stub_engine(Path(name)))
        servers = []
        for workers in WORKERS:
            home = Path(name, str(workers))
            standing = stack.enter_context(
                kb_serve(f"workers {workers}", url, home, "--workers", str(workers), TMPDIR=str(home))
            )
            servers.append(_Server(workers, standing, home, {era: check(standing, era) for era in ERAS}))
        for server in servers:
            for era in ERAS:
                warm(server.standing, era, connections=connections)
        for number in range(1, rounds + 1):
            for era, manner in product(ERAS, (EQUALLY_BUSY, FLAT_OUT)):
                for server in servers if number % 2 else reversed(servers):
                    cost, shares = server.turn(engine, era, manner, connections=connections, seconds=seconds)
                    each = Round(
                        workers=server.workers,
                        era=era,
                        manner=manner,
                        round=number,
                        shares=shares,
                        **msgspec.structs.asdict(cost),
                    )
                    report.rounds.append(each)
                    note(
                        f"round {number} {manner} {era} {server.workers} {each.load.rate:7.0f}/s"
                        f"  cpu {each.host_cpu:4.0f} us  {' '.join(f'{share:.2f}' for share in shares)}"
                    )
    report.figures.extend(figures(report.rounds))
    return report


def figures(rounds: list[Round]) -> list[Figures]:
    """Medians, and ratios to the one worker of the same round."""
    single = {(each.manner, each.era, each.round): each for each in rounds if each.workers == 1}
    fields: dict[str, tuple[Callable[[Round], float], int]] = {
        "rate": (lambda each: each.load.rate, 1),
        "p99": (lambda each: each.load.p99, 2),
        "cpu": (lambda each: each.host_cpu, 1),
        "cpu_ratio": (
            lambda each: each.host_cpu / single[each.manner, each.era, each.round].host_cpu,
            3,
        ),
    }
    ordered = sorted(rounds, key=lambda each: (each.manner, each.era, each.workers))
    return [
        Figures(least_share=round(_least_share(of), 3), **medians)
        for of, medians in median_figures(ordered, ("manner", "era", "workers"), fields)
    ]


def text(report: WorkersReport) -> str:
    """The report for people."""
    return f"{figures_table(COLUMNS, report.figures)}\n{report.footer(report.rounds[-1].round)}"


def plot(report: WorkersReport, path: Path) -> None:
    """Draw processor time a call."""
    sheet = Sheet(1, title="tools/call of kb_search: one worker and two")
    sheet.compare(
        report.figures, group="{0.manner}\n{0.era}", bar="--workers {0.workers}", height="cpu",
        label="{0.cpu:.0f}\n{0.cpu_ratio:.2f}", y="processor, microseconds a call",
    )  # fmt: skip
    sheet.save(path, under=report.machine.line())


def _least_share(rounds: list[Round]) -> float:
    by_worker = zip(*([each.load.calls * share for share in each.shares] for each in rounds), strict=True)
    calls: list[float] = [sum(of_one) for of_one in by_worker]
    return min(calls) / sum(calls)


@dataclass(frozen=True, slots=True)
class _Server:
    """A server of some workers; `home` is its data folder, and where its temporary files are."""

    workers: int
    standing: Standing
    home: Path
    lengths: Mapping[Era, int]

    def turn(
        self, engine: Running, era: Era, manner: str, *, connections: int, seconds: int
    ) -> tuple[Cost, list[float]]:
        """Load it for some seconds: what a call cost, and the workers' parts of the calls."""
        busy = manner == EQUALLY_BUSY
        before = self._calls()
        cost = measured(
            self.standing,
            engine,
            era,
            self.lengths[era],
            connections=connections * self.workers // WORKERS[-1] if busy else connections,
            seconds=seconds,
            pause=PAUSE_SECONDS if busy else 0.0,
        )
        made = [late - early for late, early in zip(self._calls(), before, strict=True)]
        return cost, [round(each / sum(made), 4) for each in made] or [1.0]

    def _calls(self) -> list[float]:
        """How many calls each worker has counted so far; none where the server is one process."""
        folders = sorted(self.home.glob("kb-workers-*"))
        return (
            [numbers.get(_CALLS, 0.0) for numbers in counters_by_slot(folders[0]).values()] if folders else []
        )
