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
from typing import Annotated, Any

import msgspec

from kb_load.bench import Option
from kb_load.bench.contenders import EXAMPLE_FILE
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
from kb_load.messages import ERAS, CallFailed
from kb_load.plots import Sheet
from kb_load.processes import free_port, running
from kb_load.stats import figures_table, median_figures

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

    @property
    def title(self) -> str:
        """The host's name for people."""
        return TITLES[self.host]


COLUMNS = {
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
    report = HostsReport(connections=connections, seconds=seconds, rounds=[], figures=[])
    with tempfile.TemporaryDirectory(prefix="kb-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        engine, url = stack.enter_context(stub_engine(folder))
        standing = {host: stack.enter_context(_host(host, url, folder)) for host in hosts}
        lengths = {(host, era): check(standing[host], era) for host in hosts for era in ERAS}
        note(f"answers of {', '.join(hosts)} checked at {' and '.join(ERAS)}")
        for host in hosts:
            for era in ERAS:
                warm(standing[host], era, connections=connections)
        for number in range(1, rounds + 1):
            # Each round begins with another host, so that none always runs after the same.
            first = number % len(hosts)
            for era in ERAS:
                for host in hosts[first:] + hosts[:first]:
                    cost = measured(
                        standing[host],
                        engine,
                        era,
                        lengths[host, era],
                        connections=connections,
                        seconds=seconds,
                    )
                    each = Round(host=host, era=era, round=number, **msgspec.structs.asdict(cost))
                    report.rounds.append(each)
                    note(
                        f"round {number} {era} {host:8} {each.load.rate:7.0f}/s  p99 {each.load.p99:6.1f} ms"
                        f"  cpu {each.host_cpu:6.0f} us  engine {each.engine_cpu:4.0f} us"
                    )
    report.figures.extend(figures(report.rounds))
    return report


def figures(rounds: list[Round]) -> list[Figures]:
    """Medians, and ratios to the ceiling of the same round."""
    ceilings = {(each.era, each.round): each for each in rounds if each.host == CEILING}

    def ratio(each: Round) -> float:
        return each.load.rate / ceilings[each.era, each.round].load.rate

    fields: dict[str, tuple[Callable[[Round], float], int]] = {
        "rate": (lambda each: each.load.rate, 1),
        "p50": (lambda each: each.load.p50, 2),
        "p99": (lambda each: each.load.p99, 2),
        "cpu": (lambda each: each.host_cpu, 1),
        "rate_ratio": (ratio, 3),
        "cpu_ratio": (lambda each: each.host_cpu / ceilings[each.era, each.round].host_cpu, 2),
    }
    return [
        Figures(
            lowest_ratio=round(min(map(ratio, of)), 3), highest_ratio=round(max(map(ratio, of)), 3), **medians
        )
        for of, medians in median_figures(rounds, ("era", "host"), fields)
    ]


def text(report: HostsReport) -> str:
    """The report for people."""
    return f"{figures_table(COLUMNS, report.figures)}\n{report.footer(report.rounds[-1].round)}"


def plot(report: HostsReport, path: Path) -> None:
    """Draw calls a second and processor time a call."""
    figures = sorted(report.figures, key=lambda each: HOSTS.index(each.host))
    sheet = Sheet(2, title="tools/call of kb_search over one stub engine")
    sheet.compare(
        figures, group="{0.era}", bar="{0.title}", height="rate",
        label="{0.rate:.0f}\n{0.rate_ratio:.2f} of ceiling", y="calls a second",
    )  # fmt: skip
    sheet.compare(
        figures, group="{0.era}", bar="{0.title}", height="cpu",
        label="{0.cpu:.0f}", y="processor, microseconds a call",
    )  # fmt: skip
    sheet.save(path, under=report.machine.line())


def _host(name: str, engine_url: str, folder: Path) -> AbstractContextManager[Standing]:
    return kb_serve(name, engine_url, folder) if name == "kb" else _contender(name, engine_url, folder)


@contextmanager
def _contender(name: str, engine_url: str, folder: Path) -> Iterator[Standing]:
    port = free_port()
    arguments = ["-m", "kb_load.bench.contenders", name, "--port", str(port), "--engine", engine_url]
    with running(name, arguments, folder, port=port) as process:
        yield Standing(process, port, call=EXAMPLE_CALL if name in EXAMPLES else SEARCH)
