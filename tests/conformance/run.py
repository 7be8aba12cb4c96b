"""Test this project's MCP servers with the protocol's conformance suite, inspector and client.

    python -m tests.conformance.run

It also tests `kb connect` with the supported clients. Two servers are started: the SDK's example server on
`mcp_aiohttp` (examples/hosting), which has every feature that the suite requires, and the product, `kb serve`
in front of a simulated engine, once without and once with a key. The exit status is 0 if every check passes
or is listed with a reason in `expected_failures.yaml`, and 1 if an unlisted check fails or a listed one
passes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Literal, TypeAlias

import httpx
from rich.console import Console
from rich.table import Table

from kb_load.processes import clean_environment, free_port
from tests.conformance import node
from tests.conformance.verdict import Verdict, judge, read_expected, read_results
from tests.support.commands import ended
from tests.support.patience import ANSWER_SECONDS, COMMAND_SECONDS, SUITE_SECONDS
from tests.support.stack import ROOT, Process, wait_until_ready

VERSIONS = ("2025-11-25", "2026-07-28")
KEY = "a-key-for-agents"

_PLACES_OF_NULL = ("outputSchema", "untyped-schema")
"""The only accepted warning of the inspector: a nullable field of a result has no `type`.

Some clients validate results but support neither unions nor lists of types.
"""


@dataclass(frozen=True)
class Servers:
    example: str
    """Base URLs."""
    product: str
    keyed: str
    """The product again, with the required key `KEY`."""
    text: Path
    """The file behind the product's toolset textfile."""

    def url(self, target: str) -> str:
        return f"{self.example if target == 'example' else self.product}/mcp"


@contextmanager
def servers() -> Iterator[Servers]:
    """Yield example and product, each in a separate process; they are stopped afterwards."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        text = folder / "text.txt"
        text.write_text("A text that an agent may read.\n")
        example, product = free_port(), free_port()
        _start(stack, example, "examples.hosting.serve", str(example))
        engine, keyed = free_port(), free_port()
        _start(stack, engine, "kb_cli.main", "sim", "--port", str(engine))
        settings = {
            "KB_HOME": str(folder),
            "KB_TEXT_FILE": str(text),
            "KB_ENGINE_URL": f"http://127.0.0.1:{engine}",
        }
        _start(stack, product, "kb_cli.main", "serve", "--port", str(product), **settings)
        _start(stack, keyed, "kb_cli.main", "serve", "--port", str(keyed), KB_MCP_API_KEY=KEY, **settings)
        example_url, product_url, keyed_url = (
            f"http://127.0.0.1:{port}" for port in (example, product, keyed)
        )
        yield Servers(example_url, product_url, keyed_url, text)


def _start(stack: ExitStack, port: int, module: str, *arguments: str, **environment: str) -> None:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    process = Process.start("-m", module, *arguments, PYTHONPATH=path, **environment)
    stack.callback(process.stop)
    wait_until_ready(f"http://127.0.0.1:{port}/healthz", process)


def scenarios(version: str) -> list[str]:
    listed = node.run(node.SUITE, "list", "--server", "--spec-version", version, seconds=COMMAND_SECONDS)
    return [line.split()[1] for line in listed.stdout.splitlines() if line.startswith("  - ")]


def run_suite(target: str, version: str, url: str, records: Path) -> Verdict:
    """Run every scenario of `version`; the suite's output is stored below `records`."""
    folder = records / f"{target}-{version}"
    arguments = ["--url", url, "--suite", "all", "--spec-version", version, "--output-dir", str(folder)]
    done = node.run(node.SUITE, "server", *arguments, seconds=SUITE_SECONDS)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    return judge(target, version, scenarios(version), read_results(folder), read_expected(target, version))


@dataclass
class Inspection:
    """The inspector's result for the tool list of one endpoint."""

    path: str
    era: str
    """The negotiation mode of the inspector: legacy or modern."""
    tools: int = 0
    errors: list[str] = field(default_factory=list)
    warnings: int = 0
    """Number of accepted warnings."""


def inspect(servers: Servers, path: str, era: str) -> Inspection:
    """Run the inspector's command line with `--strict` on the tools of one endpoint."""
    with tempfile.TemporaryDirectory() as home:
        options = ["--cli", "--strict", "--format", "json", "--quiet", "--method", "tools/list"]
        server = ["--server-url", servers.product + path, "--transport", "http", "--protocol-era", era]
        done = node.run(
            node.INSPECTOR, *options, *server, seconds=COMMAND_SECONDS, environment={"HOME": home}
        )
    inspection = Inspection(path, era)
    if not done.stdout.startswith("{"):
        inspection.errors.append(f"exit {done.returncode}: {done.stderr.strip()[:500]}")
        return inspection
    answer = json.loads(done.stdout)
    inspection.tools = len(answer["result"]["tools"])
    for tool in answer.get("schemaFindings", []):
        for finding in tool["findings"]:
            if (finding["schema"], finding["rule"]) == _PLACES_OF_NULL:
                inspection.warnings += 1
            else:
                inspection.errors.append(f"{tool['toolName']} {finding['schema']}: {finding['issue']}")
    if not inspection.tools or done.returncode != 0:
        inspection.errors.append(f"exit {done.returncode} with {inspection.tools} tools")
    return inspection


@dataclass(frozen=True)
class Trip:
    """A server for the TypeScript client, and its calls."""

    name: str
    target: dict[str, Any]
    plan: dict[str, Any]
    progress: list[int]
    unknown: int | None = -32602
    """The error code for an unknown tool, or None for a result with `isError` (the SDK's MCPServer)."""
    modes: Sequence[str] = ("legacy", "2026-07-28")
    """Negotiation modes of the TypeScript client; `legacy` is 2025-11-25."""


def trips(servers: Servers) -> list[Trip]:
    """Return trips over HTTP and stdio, with a success, a refusal and, at the example, progress."""
    info: dict[str, Any] = {"name": "get_kb_info", "arguments": {}}
    plan = {"call": info, "refused": {**info, "arguments": {"nothing": 1}}, "progress": None}
    everything = {
        "call": {"name": "test_simple_text", "arguments": {}},
        "refused": {"name": "test_error_handling", "arguments": {}},
        "progress": {"name": "test_tool_with_progress", "arguments": {}},
    }
    stdio = ["-m", "kb_cli.main", "stdio", "--toolset", "textfile", "--file", str(servers.text)]
    return [
        Trip(
            "example",
            {"url": servers.url("example")},
            everything,
            [0, 50, 100],
            unknown=None,
            modes=("legacy", "auto", "2026-07-28"),
        ),
        Trip("product", {"url": f"{servers.product}/mcp/textfile"}, plan, []),
        Trip(
            "product, stdio", {"command": sys.executable, "args": stdio, "env": clean_environment()}, plan, []
        ),
    ]


@dataclass(frozen=True)
class Arrival:
    name: str
    mode: str
    version: str
    wrong: dict[str, Any]
    """The wrong results by name, with their actual values."""


def travel(trip: Trip, mode: str) -> Arrival:
    """Connect, list tools, make a good and a refused call, follow progress, call an unknown tool."""
    arguments = [json.dumps(trip.target), mode, json.dumps(trip.plan)]
    done = node.run(node.HERE / "round_trip.mjs", *arguments, seconds=COMMAND_SECONDS)
    if done.returncode != 0:
        return Arrival(trip.name, mode, "-", {"exit": done.returncode, "output": done.stderr[-2000:]})
    got = json.loads(done.stdout)
    version = "2025-11-25" if mode == "legacy" else "2026-07-28"
    due = {
        "version": version,
        "called": "string",
        "refused": "string",
        "progress": trip.progress,
        "unknown": trip.unknown,
    }
    wrong = {key: got[key] for key, value in due.items() if got[key] != value}
    if not got["tools"]:
        wrong["tools"] = got["tools"]
    return Arrival(trip.name, mode, got["version"], wrong)


@dataclass(frozen=True)
class Visit:
    """The result of a client at the product with an engine; `said` is its output."""

    client: str
    where: str
    good: bool
    said: str


def visits(servers: Servers) -> list[Visit]:
    """Call every tool with and without a key, at a server with and without one; connect each client.

    The entries that clients get for an open server are tested in `tests/unit/cli/connect`.
    """
    doors: list[tuple[str, str, str | None]] = [
        ("open", servers.product, None),
        ("key", servers.keyed, KEY),
        ("no key", servers.keyed, None),
    ]
    calls = [_all_tools(where, f"{url}/mcp", key, let_in=where != "no key") for where, url, key in doors]
    return [*calls, *(_connect(client, f"{servers.keyed}/mcp") for client in LISTS)]


def _all_tools(where: str, url: str, key: str | None, *, let_in: bool) -> Visit:
    """Call every tool with the TypeScript client, which validates each result against its schema."""
    arguments = [url] if key is None else [url, key]
    done = node.run(node.HERE / "all_tools.mjs", *arguments, seconds=COMMAND_SECONDS)
    due = {"nulls": [None] * 4, "found": True, "followed": True}
    good = done.returncode == 0 and json.loads(done.stdout) == due
    refused = done.returncode != 0 and "KB_MCP_API_KEY" in done.stderr
    return Visit("TypeScript, every tool", where, good if let_in else refused, done.stdout + done.stderr)


Listing: TypeAlias = Literal["connected", "failed", "absent"]
"""The state of kb in a client's list of servers."""


def _claude(home: Path) -> tuple[Listing, str]:
    done = node.claude(home, "mcp", "list", seconds=COMMAND_SECONDS)
    [line] = [line for line in done.stdout.splitlines() if line.startswith("kb:")] or [""]
    return _listing(line), done.stdout + done.stderr


def _gemini(home: Path) -> tuple[Listing, str]:
    done = node.gemini(home, "mcp", "list", seconds=COMMAND_SECONDS)
    said = done.stdout + done.stderr
    [line] = [line for line in said.splitlines() if " kb:" in line] or [""]
    return _listing(line), said


def _listing(line: str) -> Listing:
    return "absent" if not line else "connected" if line.rstrip().endswith(" Connected") else "failed"


def _codex(home: Path) -> tuple[Listing, str]:
    """It counts as connected if Codex has listed the tools."""
    servers = node.codex_servers(home, seconds=COMMAND_SECONDS)
    kb = next((server for server in servers if server["name"] == "kb"), None)
    return "absent" if kb is None else "connected" if "kb_search" in kb["tools"] else "failed", str(servers)


LISTS: Mapping[str, Callable[[Path], tuple[Listing, str]]] = {
    "claude-code": _claude,
    "codex": _codex,
    "gemini": _gemini,
}


def _connect(client: str, url: str) -> Visit:
    """Run `kb connect`, check the client's list, for which it connects to kb, and undo the connection."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        said = [_kb_connect(home, client, "--endpoint", url)]
        connected, listed = LISTS[client](home)
        said += [listed, _kb_connect(home, client, "--undo")]
        left, listed = LISTS[client](home)
        said.append(listed)
    good = (connected, left) == ("connected", "absent")
    return Visit(f"kb connect {client}", "key", good, "\n".join(said))


def _kb_connect(home: Path, client: str, *arguments: str) -> str:
    done = ended("connect", client, "--yes", *arguments, HOME=str(home), KB_MCP_API_KEY=KEY)
    return done.stdout + done.stderr


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.run",
        description="MCP's own suite, inspector and client against this server",
    )
    parser.add_argument("--records", type=Path, help="keep what the suite writes below this folder")
    arguments = parser.parse_args(argv)
    console = Console(width=120)
    started = monotonic()
    try:
        node.install()
    except node.NodeError as error:
        console.print(error, markup=False)
        return 2
    installed = monotonic()
    with tempfile.TemporaryDirectory() as scratch, servers() as running:
        records = arguments.records or Path(scratch)
        verdicts = [
            run_suite(target, version, running.url(target), records)
            for target in ("example", "product")
            for version in VERSIONS
        ]
        paths = httpx.get(running.product, timeout=ANSWER_SECONDS).json()["mcp"]
        inspections = [inspect(running, path, "modern") for path in paths]
        inspections.append(inspect(running, "/mcp", "legacy"))
        arrivals = [travel(trip, mode) for trip in trips(running) for mode in trip.modes]
        visited = visits(running)
    wrong = report(console, verdicts, inspections, arrivals, visited)
    console.print(f"{monotonic() - installed:.0f} s, and {installed - started:.0f} s to install")
    return 1 if wrong else 0


def report(
    console: Console,
    verdicts: Sequence[Verdict],
    inspections: Sequence[Inspection],
    arrivals: Sequence[Arrival],
    visited: Sequence[Visit],
) -> list[str]:
    """Print a table for each, with a line for each failure; return these lines."""
    counts = ("scenarios", "passed", "not applicable", "expected to fail", "unexpected", "stale", "checks")
    rows = [
        (
            verdict.target,
            verdict.version,
            verdict.scenarios,
            len(verdict.passed),
            len(verdict.inapplicable),
            len(verdict.expected),
            len({name.partition(":")[0] for name in verdict.unexpected}),
            len(verdict.stale),
            f"{verdict.checks_passed} of {verdict.checks_passed + verdict.checks_failed}",
        )
        for verdict in verdicts
    ]
    failed = [
        f"UNEXPECTED {verdict.target} {verdict.version} {name}: {message}"
        for verdict in verdicts
        for name, message in verdict.unexpected.items()
    ] + [
        f"STALE {verdict.target} {verdict.version} {name}: passes or does not run; strike it"
        for verdict in verdicts
        for name in verdict.stale
    ]
    _print(console, "The conformance suite", ("server", "version", *counts), rows, failed)
    warned = ("endpoint", "era", "tools", "errors", "warnings that are meant")
    inspected = [(each.path, each.era, each.tools, len(each.errors), each.warnings) for each in inspections]
    errors = [f"ERROR {each.path} {each.era}: {error}" for each in inspections for error in each.errors]
    _print(console, "The inspector, --strict", warned, inspected, errors)
    arrived = [(each.name, each.mode, each.version, "wrong" if each.wrong else "good") for each in arrivals]
    lost = [
        f"WRONG {each.name} {each.mode} {what}: {how}"
        for each in arrivals
        for what, how in each.wrong.items()
    ]
    _print(console, "The TypeScript client", ("server", "mode", "version", "round trip"), arrived, lost)
    guests = [(each.client, each.where, "yes" if each.good else "no") for each in visited]
    turned_away = [
        f"WRONG {each.client}, {each.where}: {each.said[-2000:]}" for each in visited if not each.good
    ]
    columns = ("client", "key", "as it should be")
    _print(console, "Clients of the product with an engine", columns, guests, turned_away)
    return [*failed, *errors, *lost, *turned_away]


def _print(
    console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], wrong: list[str]
) -> None:
    table = Table(*columns, title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table)
    for line in wrong:
        console.print(line, markup=False)
    console.print()


if __name__ == "__main__":
    sys.exit(main())
