"""Cost of a tool call: `bench hosts`, `bench workers` and `bench single`.

Between the same client and the same engine, a stub that answers every search with the same bytes, servers are
loaded one at a time, in turns, at both protocol versions. Before one is timed its answer is looked at: the
passages, their order and their texts must be the engine's.

hosts     `kb serve` as it is run (with a key, metrics and the log at `info`), the official SDK on uvicorn
          and on this project's `mcp_aiohttp`, FastMCP, and a bare handler that is the ceiling; and the SDK's
          own example server on both, with a tool that needs no engine: the cost of hosting alone.
workers   one process of `kb serve`, and two that share a port, loaded in two ways. Equally busy: each worker
          has as many clients, with pauses between calls, so that processors stay idle and only the second
          process makes a difference. Flat out: the clients of both call without a pause. Processor time is
          the sum of all processes of a server, with the parent of the workers. Each worker counts its calls
          for `/metrics`, from which they are read.
single    `kb up`, whose server asks its engine over HTTP, and `kb up --single`, whose server calls it in the
          same process. These have no stub but kb's engine, with notes made by seed and the embedder that
          needs no model. Processor time is the sum of all processes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

import httpx
import msgspec
from faker import Faker

from bench import Option, runner
from bench.servers import EXAMPLE_FILE
from kb_load.messages import ERAS, CallFailed
from kb_load.processes import LOOPBACK, free_port, running
from kb_load.report import median_figures
from kb_server.observability.metrics import counters_by_slot

Rounds = Annotated[int, Option("number of rounds")]
Seconds = Annotated[int, Option("duration of a round, in seconds")]
WarmSeconds = Annotated[int, Option("duration of the load before the first round, in seconds", low=0)]
Connections = Annotated[int, Option("number of busy connections")]
CEILING = "bare"
EXAMPLES = ("example", "example-uvicorn")
HOSTS = ("kb", "sdk", "sdk-aiohttp", "fastmcp", CEILING, *(EXAMPLES if EXAMPLE_FILE.exists() else ()))
"""The example is a file of the checkout."""
WORKERS = ("--workers 1", "--workers 2")
EQUALLY_BUSY, FLAT_OUT = "equally busy", "flat out"
UP = ("kb up", "kb up --single")
TITLES = {
    "kb": "kb serve",
    "sdk": "official SDK on uvicorn",
    "sdk-aiohttp": "the same on mcp_aiohttp",
    "fastmcp": "FastMCP on uvicorn",
    CEILING: "bare handler (ceiling)",
    "example": "SDK's example, no engine",
    "example-uvicorn": "the same on uvicorn",
}
_PAUSE_SECONDS = 0.02
_FAKER = Faker("en_GB")
_COUNTED = ("requests", "kb_search", "success")
"""Name of the counter of these benchmarks' calls in a worker."""


class Round(runner.Cost, frozen=True, kw_only=True):
    """Cost of a call on one host in one turn. `shares` are the workers' shares of the calls."""

    host: str
    era: str
    round: int
    manner: str = FLAT_OUT
    shares: list[float] = msgspec.field(default_factory=lambda: [1.0])


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A host under one load: medians over the rounds; ratios are to the yardstick, within each round.

    `least_share` is the smallest part of the calls that a worker had, over all rounds together.
    """

    host: str
    era: str
    manner: str
    rate: float
    p50: float
    p99: float
    cpu: float
    rate_ratio: float
    cpu_ratio: float
    lowest_ratio: float
    highest_ratio: float
    least_share: float

    @property
    def title(self) -> str:
        """Display name of the host."""
        return TITLES.get(self.host, self.host)


def figures(rounds: Sequence[Round], yardstick: str) -> list[Figures]:
    """Medians, and ratios to the host `yardstick` under the same load in the same round."""
    yards = {(each.manner, each.era, each.round): each for each in rounds if each.host == yardstick}

    def ratio(each: Round) -> float:
        return each.load.rate / yards[each.manner, each.era, each.round].load.rate

    fields: dict[str, tuple[Callable[[Round], float], int]] = {
        "rate": (lambda each: each.load.rate, 1),
        "p50": (lambda each: each.load.p50, 2),
        "p99": (lambda each: each.load.p99, 2),
        "cpu": (lambda each: each.host_cpu, 1),
        "rate_ratio": (ratio, 3),
        "cpu_ratio": (lambda each: each.host_cpu / yards[each.manner, each.era, each.round].host_cpu, 3),
    }
    found = []
    for of, medians in median_figures(rounds, ("manner", "era", "host"), fields):
        by_worker = zip(*([each.load.calls * share for share in each.shares] for each in of), strict=True)
        calls: list[float] = [sum(of_one) for of_one in by_worker]
        ratios = [round(ratio(each), 3) for each in of]
        least = round(min(calls) / sum(calls), 3)
        found.append(
            Figures(lowest_ratio=min(ratios), highest_ratio=max(ratios), least_share=least, **medians)
        )
    return found


class CallsReport(runner.Report, frozen=True, kw_only=True):
    """Results of a run, with turns of `seconds` over `connections`."""

    connections: int
    seconds: int
    rounds: list[Round]
    figures: list[Figures]

    def rows(self) -> list[Figures]:
        return self.figures

    def footer(self) -> list[str]:
        turns = f"medians of {self.rounds[-1].round} rounds of {self.seconds} s in turns"
        return [f"{turns}, {self.connections} connections, wrk"]


class HostsReport(CallsReport, frozen=True, kw_only=True):
    title = "tools/call of kb_search over one stub engine"
    columns: ClassVar = {
        "tools/call kb_search": "{0.title}",
        "version": "{0.era}",
        "calls/s": "{0.rate:.0f}",
        "of ceiling": "{0.rate_ratio:.2f}",
        "lowest-highest": "{0.lowest_ratio:.2f}-{0.highest_ratio:.2f}",
        "p50 ms": "{0.p50:.1f}",
        "p99 ms": "{0.p99:.1f}",
        "CPU us/call": "{0.cpu:.0f}",
        "x ceiling": "{0.cpu_ratio:.2f}",
    }
    panels = (
        runner.Panel(
            "{0.era}", "{0.title}", "rate", "{0.rate:.0f}\n{0.rate_ratio:.2f} of ceiling", "calls a second"
        ),
        runner.Panel("{0.era}", "{0.title}", "cpu", "{0.cpu:.0f}", "processor, microseconds a call"),
    )


class WorkersReport(CallsReport, frozen=True, kw_only=True):
    title = "tools/call of kb_search: one worker and two"
    columns: ClassVar = {
        "load": "{0.manner}",
        "version": "{0.era}",
        "server": "{0.title}",
        "calls/s": "{0.rate:.0f}",
        "p99 ms": "{0.p99:.1f}",
        "CPU us/call": "{0.cpu:.0f}",
        "x one": "{0.cpu_ratio:.2f}",
        "least share": "{0.least_share:.2f}",
    }
    panels = (
        runner.Panel(
            "{0.manner}\n{0.era}",
            "{0.title}",
            "cpu",
            "{0.cpu:.0f}\n{0.cpu_ratio:.2f}",
            "processor, microseconds a call",
        ),
    )


def run_hosts(
    *,
    rounds: Rounds = 5,
    seconds: Seconds = 5,
    warm: WarmSeconds = 2,
    connections: Connections = 32,
    hosts: tuple[str, ...] = HOSTS,
    note: Callable[[str], None] = print,
) -> HostsReport:
    """Measure `hosts` in turns. Raises as `measure`."""
    report = HostsReport(connections=connections, seconds=seconds, rounds=[], figures=[])

    def start(name: str, engine_url: str, folder: Path) -> AbstractContextManager[runner.RunningServer]:
        return (
            runner.kb_serve(name, engine_url, folder)
            if name == "kb"
            else _contender(name, engine_url, folder)
        )

    measure(report, hosts, start, (FLAT_OUT,), CEILING, rounds, warm, note)
    return report


@contextmanager
def _contender(name: str, engine_url: str, folder: Path) -> Iterator[runner.RunningServer]:
    port = free_port()
    arguments = ["-m", "bench.servers", name, "--port", str(port), "--engine", engine_url]
    with running(name, arguments, folder, port=port) as process:
        yield runner.RunningServer(process, port, call=EXAMPLE_CALL if name in EXAMPLES else runner.SEARCH)


def _check_example(result: dict[str, Any]) -> None:
    if result["content"][0]["text"] != "This is a simple text response for testing.":
        raise CallFailed("the text is not that of the example")


EXAMPLE_CALL = runner.ToolCall("test_simple_text", {}, _check_example)


def run_workers(
    *,
    rounds: Rounds = 7,
    seconds: Seconds = 2,
    warm: WarmSeconds = 2,
    connections: Connections = 32,
    note: Callable[[str], None] = print,
) -> WorkersReport:
    """Measure in many short turns, since other load on the machine varies. Raises as `measure`.

    `connections`: number for a server that is loaded flat out, and for two equally busy workers.
    """
    report = WorkersReport(connections=connections, seconds=seconds, rounds=[], figures=[])

    def start(name: str, engine_url: str, folder: Path) -> AbstractContextManager[runner.RunningServer]:
        home = folder / name
        return runner.kb_serve(name, engine_url, home, *name.split(), TMPDIR=str(home))

    measure(report, WORKERS, start, (EQUALLY_BUSY, FLAT_OUT), WORKERS[0], rounds, warm, note)
    return report


def measure(
    report: CallsReport,
    names: Sequence[str],
    start: Callable[[str, str, Path], AbstractContextManager[runner.RunningServer]],
    manners: Sequence[str],
    yardstick: str,
    rounds: int,
    warm: int,
    note: Callable[[str], None],
) -> None:
    """Start all `names`, check their responses, warm them up, and measure them in turns, into `report`.

    Raises:
        CallFailed: a server's answer is wrong (nothing is timed then), or calls failed.
        kb_load.processes.NotReady: a server did not start.
    """
    taken: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="kb-bench-") as folder, ExitStack() as stack:
        engine, url = stack.enter_context(runner.stub_engine(Path(folder)))
        standing = {name: stack.enter_context(start(name, url, Path(folder))) for name in names}
        lengths = {(name, era): runner.check(standing[name], era) for name in names for era in ERAS}
        note(f"answers of {', '.join(names)} checked at {' and '.join(ERAS)}")
        for name, era in product(names, ERAS) if warm else ():
            server = standing[name]
            runner.generate(server.port, server.message(era), connections=report.connections, seconds=warm)
        for number in range(1, rounds + 1):
            for era, manner in product(ERAS, manners):
                for name in runner.rotate(names, number):
                    server, before = standing[name], _worker_calls(standing[name])
                    busy = manner == EQUALLY_BUSY
                    alone = busy and name == WORKERS[0]
                    connections = report.connections // 2 if alone else report.connections
                    pause = _PAUSE_SECONDS if busy else 0.0
                    cost = runner.measured(
                        server, engine, era, lengths[name, era], connections=connections,
                        seconds=report.seconds, pause=pause,
                    )  # fmt: skip
                    made = [late - early for late, early in zip(_worker_calls(server), before, strict=True)]
                    parts = [round(one / sum(made), 4) for one in made] or [1.0]
                    each = Round(
                        host=name, era=era, round=number, manner=manner, shares=parts,
                        **msgspec.structs.asdict(cost),
                    )  # fmt: skip
                    taken.append(each)
                    shares = " ".join(f"{share:.2f}" for share in each.shares)
                    note(
                        f"round {number} {manner} {era} {name:11} {each.load.rate:7.0f}/s  p99 "
                        f"{each.load.p99:6.1f} ms  cpu {each.host_cpu:6.0f} us  engine {each.engine_cpu:4.0f}"
                        f" us  {shares}"
                    )
    report.rounds.extend(taken)
    ordered = sorted(taken, key=lambda each: (each.manner, each.era, names.index(each.host)))
    report.figures.extend(figures(ordered, yardstick))


class SingleReport(CallsReport, frozen=True, kw_only=True):
    columns: ClassVar = {
        "server and engine": "{0.title}",
        "version": "{0.era}",
        "calls/s": "{0.rate:.0f}",
        "p50 ms": "{0.p50:.1f}",
        "p99 ms": "{0.p99:.1f}",
        "CPU us/call": "{0.cpu:.0f}",
        "x two": "{0.cpu_ratio:.2f}",
    }


def run_single(
    *,
    rounds: Rounds = 7,
    seconds: Seconds = 2,
    warm: WarmSeconds = 2,
    connections: Connections = 8,
    notes: Annotated[int, Option("number of notes in the searched base", high=100_000)] = 300,
    note: Callable[[str], None] = print,
) -> SingleReport:
    """Measure in turns. Raises as `measure`."""
    report = SingleReport(connections=connections, seconds=seconds, rounds=[], figures=[])

    @contextmanager
    def start(name: str, _engine_url: str, folder: Path) -> Iterator[runner.RunningServer]:
        home, port, engine_port = folder / name, free_port(), free_port()
        home.mkdir()
        settings = {"KB_HOME": str(home), "KB_MCP_PORT": str(port), "KB_ENGINE_PORT": str(engine_port)}
        arguments = ["-m", "kb_cli.main", *name.split()[1:]]
        with running(
            name, arguments, home, port=port, KB_EMBEDDER="hash", KB_MCP_API_KEY=runner.KEY, **settings
        ) as process:
            add_notes(f"http://{LOOPBACK}:{engine_port}", notes)
            yield runner.RunningServer(process, port, counts=True, call=NOTES_CALL, home=home)

    measure(report, UP, start, (FLAT_OUT,), UP[0], rounds, warm, note)
    return report


def add_notes(engine_url: str, notes: int) -> None:
    """Add `notes` generated notes to the engine, and wait for their jobs."""
    with httpx.Client(base_url=engine_url, timeout=60) as http:
        bodies = [{"text": note_text(number), "tags": [NOTES_TAG]} for number in range(1, notes + 1)]
        jobs = [http.post("/api/v1/jobs", json=each).raise_for_status().json()["id"] for each in bodies]
        for job in jobs:
            while http.get(f"/api/v1/jobs/{job}", params={"wait": 30}).json()["status"] != "completed":
                pass


def note_text(number: int) -> str:
    """Return a text of about 2,500 characters, determined by the number."""
    _FAKER.seed_instance(f"7:{number}")
    return " ".join(_FAKER.paragraph(10) for _ in range(4))


NOTES_TAG = "collection:documents"


def check_notes(result: dict[str, Any]) -> None:
    if not result["structuredContent"]["results"]:
        raise CallFailed("nothing was found")


NOTES_CALL = runner.ToolCall("kb_search", {"query": note_text(1)[:60]}, check_notes)


def _worker_calls(server: runner.RunningServer) -> list[float]:
    """Return the calls counted by each worker; empty for a single process."""
    folders = sorted(server.home.glob("kb-workers-*")) if server.home is not None else []
    return (
        [numbers.get(_COUNTED, 0.0) for numbers in counters_by_slot(folders[0]).values()] if folders else []
    )
