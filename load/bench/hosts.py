"""`kb bench hosts`: what hosting MCP costs, side by side, between the same client and the same engine.

The engine is a stub that answers every search with the same bytes. Against it stand this server as
`kb serve` runs it (with a key, metrics and the log at `info`), the official SDK, FastMCP, and a bare
handler that is the ceiling. They run one at a time, in turns, at both protocol versions. Before a host is
timed its answer is looked at: the passages, their order and their texts must be the engine's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import msgspec

from load.bench.generator import Load, Target, client_name, generate
from load.bench.stub_engine import search_response
from load.machine import Machine, describe
from load.messages import ERAS, CallFailed, Era, result_of, tool_call
from load.plots import Sheet
from load.processes import Running, free_port, running
from load.stats import table

CEILING = "bare"
HOSTS = ("kb", "sdk", "fastmcp", CEILING)
TITLES = {
    "kb": "kb serve",
    "sdk": "official SDK on uvicorn",
    "fastmcp": "FastMCP on uvicorn",
    CEILING: "bare handler (ceiling)",
}
KEY = "a-key-for-the-benchmark"
ARGUMENTS = {"query": "how are pensions revalued when prices rise", "top": 10}
_WARM_SECONDS = 2


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One host under load for some seconds. Processor times are microseconds a call."""

    host: str
    era: str
    round: int
    load: Load
    host_cpu: float
    engine_cpu: float


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


class HostsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run."""

    machine: Machine
    client: str
    connections: int
    seconds: int
    rounds: list[Round]
    figures: list[Figures]


@dataclass(frozen=True, slots=True)
class Standing:
    """A host that listens, with the length of its right answer at each version."""

    process: Running
    port: int


def run(
    *,
    rounds: int = 5,
    seconds: int = 5,
    connections: int = 32,
    hosts: tuple[str, ...] = HOSTS,
    note: Callable[[str], None] = print,
) -> HostsReport:
    """Measure `hosts` in turns.

    Raises:
        CallFailed: a host's answer is wrong; nothing is timed then.
        load.processes.NotReady: one did not start.
    """
    machine = describe()
    done: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="kb-bench-") as folder, _standing(hosts, Path(folder)) as stand:
        engine, standing = stand
        lengths = {(host, era): check(standing[host].port, era) for host in hosts for era in ERAS}
        note(f"answers of {', '.join(hosts)} checked at {' and '.join(ERAS)}")
        for host in hosts:
            for era in ERAS:
                generate(_target(standing[host].port, era), connections=connections, seconds=_WARM_SECONDS)
        for number in range(1, rounds + 1):
            for era in ERAS:
                for host in _turn(hosts, number):
                    each = _measured(standing[host], engine, host, era, number, connections, seconds)
                    _check_round(each, lengths[host, era])
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
    how = (
        f"medians of {rounds} rounds of {report.seconds} s in turns, {report.connections} connections, "
        f"{report.client}\n{report.machine.line()}"
    )
    return f"{table(header, rows)}\n{how}"


def check(port: int, era: Era) -> int:
    """Call the tool once and look at the answer; its length in bytes.

    Raises:
        CallFailed: it is not the engine's.
    """
    message = _target(port, era).message
    with httpx.Client(timeout=30) as client:
        response = client.post(
            f"http://127.0.0.1:{port}/mcp", headers=dict(message.headers), content=message.body
        )
    if response.status_code != 200:
        raise CallFailed(f"port {port}, {era}: {response.status_code} {response.text[:300]}")
    if not response.headers["content-type"].startswith("application/json"):
        raise CallFailed(f"port {port}, {era}: answered as {response.headers['content-type']}")
    result = result_of(response.content)
    content = result["structuredContent"]
    if msgspec.json.decode(result["content"][0]["text"]) != content:
        raise CallFailed("the text and the structured content differ")
    wanted = [(each.chunk.id, each.chunk.text) for each in search_response().results]
    if [_passage(each) for each in content["results"]] != wanted:
        raise CallFailed("the passages are not those of the engine")
    return len(response.content)


def _passage(result: dict[str, Any]) -> tuple[int, str]:
    chunk = result.get("chunk") or {"id": result.get("chunk_id"), "text": result.get("text")}
    return chunk["id"], chunk["text"]


def _check_round(each: Round, length: int) -> None:
    if each.load.errors:
        raise CallFailed(f"{each.host}: {each.load.errors} of {each.load.calls} calls failed")
    # wrk counts the head too. An error in place of an answer is far shorter; a correlation id is not.
    if not length <= each.load.bytes_each + length * 0.02 <= length * 1.1 + 2_000:
        raise CallFailed(f"{each.host}: answers of {each.load.bytes_each} bytes, not about {length}")


def _turn(hosts: tuple[str, ...], number: int) -> tuple[str, ...]:
    """The order of a round: each begins with another host, so that none always runs after the same."""
    shift = number % len(hosts)
    return hosts[shift:] + hosts[:shift]


def _target(port: int, era: Era) -> Target:
    return Target(port, "/mcp", tool_call(era, "kb_search", ARGUMENTS, key=KEY))


def _measured(
    host: Standing, engine: Running, name: str, era: Era, number: int, connections: int, seconds: int
) -> Round:
    before = host.process.cpu_seconds(), engine.cpu_seconds()
    load = generate(_target(host.port, era), connections=connections, seconds=seconds)
    after = host.process.cpu_seconds(), engine.cpu_seconds()
    own, behind = ((late - early) / load.calls * 1e6 for late, early in zip(after, before, strict=True))
    return Round(
        host=name,
        era=era,
        round=number,
        load=load,
        host_cpu=round(own, 1),
        engine_cpu=round(behind, 1),
    )


@contextmanager
def _standing(hosts: tuple[str, ...], folder: Path) -> Iterator[tuple[Running, dict[str, Standing]]]:
    with ExitStack() as stack:
        engine_port = free_port()
        arguments = ["-m", "load.bench.stub_engine", "--port", str(engine_port)]
        engine = stack.enter_context(running("stub engine", arguments, folder, port=engine_port))
        url = f"http://127.0.0.1:{engine_port}"
        standing = {}
        for host in hosts:
            port = free_port()
            process = stack.enter_context(_host(host, port, url, folder))
            standing[host] = Standing(process, port)
        yield engine, standing


@contextmanager
def _host(name: str, port: int, engine_url: str, folder: Path) -> Iterator[Running]:
    if name == "kb":
        arguments = ["-m", "kb_cli.main", "serve", "--port", str(port)]
        settings = {
            "KB_ENGINE_URL": engine_url,
            "KB_HOME": str(folder),
            "KB_MCP_API_KEY": KEY,
            "ENABLE_METRICS": "true",
            "LOG_LEVEL": "info",
        }
    else:
        arguments = ["-m", "load.bench.contenders", name, "--port", str(port), "--engine", engine_url]
        settings = {}
    with running(name, arguments, folder, port=port, **settings) as process:
        yield process


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
