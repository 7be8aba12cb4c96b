"""`kb bench workers`: what a call costs one process of `kb serve`, and two that share a port.

Both stand over the same stub engine, with a key, metrics and the log at `info`, and are loaded in turns, at
both protocol versions, in two ways. Equally busy: each worker has as many clients, who pause between calls,
so that the processors are not fought for; what differs is that there are two. Flat out: as many clients as
ever call without a pause. Processor time is that of all processes of a server, the parent of the workers
among them. Each worker's calls are read from where it counts them for `/metrics`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec

from kb_load.bench import Option
from kb_load.bench.generator import client_name
from kb_load.bench.host import Circumstances, Cost, Standing, check, kb_serve, measured, stub_engine, warm
from kb_load.machine import describe
from kb_load.messages import ERAS, Era
from kb_load.plots import Sheet
from kb_load.processes import Running
from kb_load.stats import table
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
    machine = describe()
    done: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="kb-bench-") as folder, _standing(Path(folder)) as stand:
        engine, servers = stand
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
                    done.append(each)
                    note(_line(each))
    return WorkersReport(
        machine=machine,
        client=client_name(),
        connections=connections,
        seconds=seconds,
        rounds=done,
        figures=figures(done),
    )


def figures(rounds: list[Round]) -> list[Figures]:
    """Medians, and ratios to the one worker of the same round."""
    single = {(each.manner, each.era, each.round): each for each in rounds if each.workers == 1}
    kinds = sorted({(each.manner, each.era, each.workers) for each in rounds})
    found = []
    for manner, era, workers in kinds:
        of = [each for each in rounds if (each.manner, each.era, each.workers) == (manner, era, workers)]
        ratios = [each.host_cpu / single[manner, era, each.round].host_cpu for each in of]
        found.append(
            Figures(
                workers=workers,
                era=era,
                manner=manner,
                rate=round(median(each.load.rate for each in of), 1),
                p99=round(median(each.load.p99 for each in of), 2),
                cpu=round(median(each.host_cpu for each in of), 1),
                cpu_ratio=round(median(ratios), 3),
                least_share=round(_least_share(of), 3),
            )
        )
    return found


def text(report: WorkersReport) -> str:
    """The report for people."""
    header = ["load", "version", "workers", "calls/s", "p99 ms", "CPU us/call", "x one", "least share"]
    rows = [
        [
            each.manner, each.era, str(each.workers), f"{each.rate:.0f}", f"{each.p99:.1f}",
            f"{each.cpu:.0f}", f"{each.cpu_ratio:.2f}", f"{each.least_share:.2f}",
        ]
        for each in report.figures
    ]  # fmt: skip
    rounds = max(each.round for each in report.rounds)
    return f"{table(header, rows)}\n{report.footer(rounds)}"


def plot(report: WorkersReport, path: Path) -> None:
    """Draw processor time a call."""
    kinds = list(dict.fromkeys((each.manner, each.era) for each in report.figures))
    of = {(each.workers, each.manner, each.era): each for each in report.figures}
    sheet = Sheet(1, title="tools/call of kb_search: one worker and two")
    values = {f"--workers {count}": [of[count, *kind].cpu for kind in kinds] for count in WORKERS}
    labels = {
        f"--workers {count}": [
            f"{of[count, *kind].cpu:.0f}\n{of[count, *kind].cpu_ratio:.2f}" for kind in kinds
        ]
        for count in WORKERS
    }
    groups = [f"{manner}\n{era}" for manner, era in kinds]
    sheet.bars(groups, values, labels, y="processor, microseconds a call")
    sheet.save(path, under=report.machine.line())


def _line(each: Round) -> str:
    parts = " ".join(f"{share:.2f}" for share in each.shares)
    what = f"round {each.round} {each.manner} {each.era} {each.workers}"
    return f"{what} {each.load.rate:7.0f}/s  cpu {each.host_cpu:4.0f} us  {parts}"


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


@contextmanager
def _standing(folder: Path) -> Iterator[tuple[Running, list[_Server]]]:
    with ExitStack() as stack:
        engine, url = stack.enter_context(stub_engine(folder))
        yield (
            engine,
            [stack.enter_context(_server(workers, url, folder / str(workers))) for workers in WORKERS],
        )


@contextmanager
def _server(workers: int, engine_url: str, home: Path) -> Iterator[_Server]:
    home.mkdir()
    flags = ("--workers", str(workers))
    with kb_serve(f"workers {workers}", engine_url, home, *flags, TMPDIR=str(home)) as standing:
        yield _Server(workers, standing, home, {era: check(standing, era) for era in ERAS})
