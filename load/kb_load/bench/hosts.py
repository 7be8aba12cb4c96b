"""`kb bench hosts`: what hosting MCP costs, side by side, between the same client and the same engine.

The engine is a stub that answers every search with the same bytes. Against it stand this server as
`kb serve` runs it (with a key, metrics and the log at `info`), the official SDK on uvicorn and on this
project's `mcp_aiohttp`, FastMCP, and a bare handler that is the ceiling; and the SDK's own example server on
both, whose call of a tool without an engine shows what hosting alone costs. They run one at a time, in turns,
at both protocol versions. Before a host is timed its answer is looked at: the passages, their order and their
texts must be the engine's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec

from kb_load.bench import Option
from kb_load.bench.contenders import EXAMPLE_FILE
from kb_load.bench.generator import client_name
from kb_load.bench.host import (
    SEARCH,
    Circumstances,
    Cost,
    Standing,
    ToolCall,
    check,
    kb_serve,
    measured,
    stub_engine,
    warm,
)
from kb_load.machine import describe
from kb_load.messages import ERAS, CallFailed
from kb_load.plots import Sheet
from kb_load.processes import Running, free_port, running
from kb_load.stats import table

CEILING = "bare"
EXAMPLES = ("example", "example-uvicorn")
HOSTS = ("kb", "sdk", "sdk-aiohttp", "fastmcp", CEILING, *(EXAMPLES if EXAMPLE_FILE.exists() else ()))
"""The example is part of a checkout, not of an installed kb."""
TITLES = {
    "kb": "kb serve",
    "sdk": "official SDK on uvicorn",
    "sdk-aiohttp": "the same on mcp_aiohttp",
    "fastmcp": "FastMCP on uvicorn",
    CEILING: "bare handler (ceiling)",
    "example": "SDK's example, no engine",
    "example-uvicorn": "the same on uvicorn",
}


def _check_example(result: dict[str, Any]) -> None:
    if result["content"][0]["text"] != "This is a simple text response for testing.":
        raise CallFailed("the text is not that of the example")


EXAMPLE_CALL = ToolCall("test_simple_text", {}, _check_example)


class Round(Cost, frozen=True, kw_only=True):
    """What a call cost one host in one turn."""

    host: str
    era: str
    round: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A host at one version: medians over the rounds; ratios are taken within each round."""

    host: str
    era: str
    rate: float
    p50: float
    p99: float
    cpu: float
    rate_ratio: float
    cpu_ratio: float
    lowest_ratio: float
    highest_ratio: float


class HostsReport(Circumstances, frozen=True, kw_only=True):
    """The whole run."""

    rounds: list[Round]
    figures: list[Figures]


def run(
    *,
    rounds: Annotated[int, Option("turns")] = 5,
    seconds: Annotated[int, Option("how long each turn takes")] = 5,
    connections: Annotated[int, Option("how many are busy")] = 32,
    hosts: tuple[str, ...] = HOSTS,
    note: Callable[[str], None] = print,
) -> HostsReport:
    """Measure `hosts` in turns.

    Raises:
        CallFailed: a host's answer is wrong; nothing is timed then.
        kb_load.processes.NotReady: one did not start.
    """
    machine = describe()
    done: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="kb-bench-") as folder, _standing(hosts, Path(folder)) as stand:
        engine, standing = stand
        lengths = {(host, era): check(standing[host], era) for host in hosts for era in ERAS}
        note(f"answers of {', '.join(hosts)} checked at {' and '.join(ERAS)}")
        for host in hosts:
            for era in ERAS:
                warm(standing[host], era, connections=connections)
        for number in range(1, rounds + 1):
            for era in ERAS:
                for host in _turn(hosts, number):
                    cost = measured(
                        standing[host],
                        engine,
                        era,
                        lengths[host, era],
                        connections=connections,
                        seconds=seconds,
                    )
                    each = Round(host=host, era=era, round=number, **msgspec.structs.asdict(cost))
                    done.append(each)
                    note(
                        f"round {number} {era} {host:8} {each.load.rate:7.0f}/s  p99 {each.load.p99:6.1f} ms"
                        f"  cpu {each.host_cpu:6.0f} us  engine {each.engine_cpu:4.0f} us"
                    )
    return HostsReport(
        machine=machine,
        client=client_name(),
        connections=connections,
        seconds=seconds,
        rounds=done,
        figures=figures(done),
    )


def figures(rounds: list[Round]) -> list[Figures]:
    """Medians, and ratios to the ceiling of the same round."""
    ceilings = {(each.era, each.round): each for each in rounds if each.host == CEILING}
    found = []
    for era in dict.fromkeys(each.era for each in rounds):
        for host in dict.fromkeys(each.host for each in rounds):
            of = [each for each in rounds if (each.host, each.era) == (host, era)]
            pairs = [(each, ceilings[era, each.round]) for each in of]
            ratios = [each.load.rate / ceiling.load.rate for each, ceiling in pairs]
            found.append(
                Figures(
                    host=host,
                    era=era,
                    rate=round(median(each.load.rate for each in of), 1),
                    p50=round(median(each.load.p50 for each in of), 2),
                    p99=round(median(each.load.p99 for each in of), 2),
                    cpu=round(median(each.host_cpu for each in of), 1),
                    rate_ratio=round(median(ratios), 3),
                    cpu_ratio=round(median(each.host_cpu / ceiling.host_cpu for each, ceiling in pairs), 2),
                    lowest_ratio=round(min(ratios), 3),
                    highest_ratio=round(max(ratios), 3),
                )
            )
    return found


def text(report: HostsReport) -> str:
    """The report for people."""
    header = ["tools/call kb_search", "version", "calls/s", "of ceiling", "lowest-highest", "p50 ms",
              "p99 ms", "CPU us/call", "x ceiling"]  # fmt: skip
    rows = [
        [
            TITLES[each.host], each.era, f"{each.rate:.0f}", f"{each.rate_ratio:.2f}",
            f"{each.lowest_ratio:.2f}-{each.highest_ratio:.2f}", f"{each.p50:.1f}", f"{each.p99:.1f}",
            f"{each.cpu:.0f}", f"{each.cpu_ratio:.2f}",
        ]
        for each in report.figures
    ]  # fmt: skip
    rounds = max(each.round for each in report.rounds)
    return f"{table(header, rows)}\n{report.footer(rounds)}"


def _turn(hosts: tuple[str, ...], number: int) -> tuple[str, ...]:
    """The order of a round: each begins with another host, so that none always runs after the same."""
    shift = number % len(hosts)
    return hosts[shift:] + hosts[:shift]


@contextmanager
def _standing(hosts: tuple[str, ...], folder: Path) -> Iterator[tuple[Running, dict[str, Standing]]]:
    with ExitStack() as stack:
        engine, url = stack.enter_context(stub_engine(folder))
        yield engine, {host: stack.enter_context(_host(host, url, folder)) for host in hosts}


def _host(name: str, engine_url: str, folder: Path) -> AbstractContextManager[Standing]:
    return kb_serve(name, engine_url, folder) if name == "kb" else _contender(name, engine_url, folder)


@contextmanager
def _contender(name: str, engine_url: str, folder: Path) -> Iterator[Standing]:
    port = free_port()
    arguments = ["-m", "kb_load.bench.contenders", name, "--port", str(port), "--engine", engine_url]
    with running(name, arguments, folder, port=port) as process:
        yield Standing(process, port, call=EXAMPLE_CALL if name in EXAMPLES else SEARCH)


def plot(report: HostsReport, path: Path) -> None:
    """Draw calls a second and processor time a call."""
    eras = list(dict.fromkeys(each.era for each in report.figures))
    hosts = [host for host in HOSTS if any(each.host == host for each in report.figures)]
    of = {(each.host, each.era): each for each in report.figures}
    sheet = Sheet(2, title="tools/call of kb_search over one stub engine")
    sheet.bars(
        eras,
        {TITLES[host]: [of[host, era].rate for era in eras] for host in hosts},
        {
            TITLES[host]: [
                f"{of[host, era].rate:.0f}\n{of[host, era].rate_ratio:.2f} of ceiling" for era in eras
            ]
            for host in hosts
        },
        y="calls a second",
    )
    sheet.bars(
        eras,
        {TITLES[host]: [of[host, era].cpu for era in eras] for host in hosts},
        {TITLES[host]: [f"{of[host, era].cpu:.0f}" for era in eras] for host in hosts},
        y="processor, microseconds a call",
    )
    sheet.save(path, under=report.machine.line())
