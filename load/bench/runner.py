"""Shared parts of the benchmarks: the report with table and plots, servers, and the load generator.

Load comes from wrk, in one thread: it keeps a fixed number of connections busy (a closed loop, with optional
pauses) with one constant request. The content of a response is checked before.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import httpx
import msgspec

from bench.servers import search_response
from kb_load.messages import CallFailed, Era, Message, result_of, tool_call
from kb_load.processes import LOOPBACK, Machine, Running, describe, free_port, running
from kb_load.report import Sheet, figures_table

KEY = "a-key-for-the-benchmark"
ARGUMENTS = {"query": "how are pensions revalued when prices rise", "top": 10}
T = TypeVar("T")


class Panel(NamedTuple):
    """A plot of the member `height` of each row, drawn by `Sheet.compare`."""

    group: str
    bar: str
    height: str
    label: str
    y: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a benchmark. `columns` belong to its table; without `panels` it has no plot."""

    title: ClassVar[str] = ""
    columns: ClassVar[Mapping[str, str]] = {}
    panels: ClassVar[tuple[Panel, ...]] = ()
    machine: Machine = msgspec.field(default_factory=describe)

    def rows(self) -> Sequence[Any]:
        """Return the rows of the table, which are also the bars of the plots."""
        raise NotImplementedError

    def footer(self) -> Sequence[str]:
        """Return the lines between the table and the machine."""
        return ()

    def text(self) -> str:
        """Return the report as text."""
        return "\n".join([figures_table(self.columns, self.rows()), *self.footer(), self.machine.line()])

    def plot(self, path: Path) -> None:
        sheet = Sheet(len(self.panels), title=self.title)
        for panel in self.panels:
            sheet.compare(self.rows(), **panel._asdict())
        sheet.save(path, under=self.machine.line())


def rotate(sides: Sequence[T], number: int) -> list[T]:
    """Return the sides rotated by `number`, so that no side always runs after the same one."""
    first = number % len(sides)
    return [*sides[first:], *sides[:first]]


# --- load -----------------------------------------------------------------------------------------


_MOST_SECONDS, _GRACE_SECONDS = 60, 60.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Calls and latencies of a run; milliseconds. `bytes_each` is the mean length of a response."""

    calls: int
    seconds: float
    p50: float
    p95: float
    p99: float
    errors: int
    bytes_each: float

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds


_SCRIPT = """\
wrk.method = "POST"
wrk.body = {body}
{headers}
{delay}
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'RESULT {{"calls":%d,"seconds":%f,"p50":%.3f,"p95":%.3f,"p99":%.3f,"errors":%d,"bytes_each":%.1f}}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(95) / 1e3,
    latency:percentile(99) / 1e3, e.connect + e.read + e.write + e.status + e.timeout,
    summary.bytes / math.max(1, summary.requests)))
end
"""


def generate(port: int, message: Message, *, connections: int, seconds: int, pause: float = 0.0) -> Load:
    """Post `message` to `/mcp` over `connections` for `seconds`, on each as soon as its response has arrived.

    With `pause`, wait before each request, uniformly from 0 to twice `pause` seconds. If no response arrives,
    as in a pause of a busy machine, it is done again for twice as long, up to `_MOST_SECONDS`.
    Raises CallFailed: wrk is not installed, or failed.
    """
    headers = "\n".join(
        f"wrk.headers[{_lua(name)}] = {_lua(value)}" for name, value in message.headers.items()
    )
    delay = f"delay = function() return math.random(0, {2000 * pause:.0f}) end" if pause else ""
    script = _SCRIPT.format(body=_lua(message.body.decode()), headers=headers, delay=delay)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.lua"
        path.write_text(script)
        while True:
            load = _run_wrk(
                *("--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s"),
                *("--timeout", "30s", "--script", str(path), f"http://{LOOPBACK}:{port}/mcp"),
                seconds=seconds + _GRACE_SECONDS,
            )
            if load.calls or load.errors or seconds >= _MOST_SECONDS:
                return load
            seconds *= 2


def _run_wrk(*arguments: str, seconds: float) -> Load:
    try:
        done = subprocess.run(
            ["wrk", *arguments], capture_output=True, text=True, check=False, timeout=seconds
        )
    except FileNotFoundError:
        raise CallFailed("wrk is not installed. Install the package wrk of your distribution.") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise CallFailed(f"wrk: {done.stderr or done.stdout}")
    return msgspec.json.decode(lines[0].removeprefix("RESULT "), type=Load)


def _lua(text: str) -> str:
    escaped = "".join(
        character if " " <= character <= "~" and character not in '"\\' else
        "".join(f"\\{byte:03d}" for byte in character.encode())
        for character in text
    )  # fmt: skip
    return f'"{escaped}"'


# --- servers --------------------------------------------------------------------------------------


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Load on a host, and processor time in microseconds a call."""

    load: Load
    host_cpu: float
    engine_cpu: float


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The tool call of a benchmark; `check` raises CallFailed for a wrong result."""

    tool: str
    arguments: Mapping[str, Any]
    check: Callable[[dict[str, Any]], None]


def _check_search(result: dict[str, Any]) -> None:
    content = result["structuredContent"]
    if msgspec.json.decode(result["content"][0]["text"]) != content:
        raise CallFailed("the text and the structured content differ")
    wanted = [(each.chunk.id, each.chunk.text) for each in search_response().results]
    chunks = [each.get("chunk") or {**each, "id": each.get("chunk_id")} for each in content["results"]]
    if [(chunk["id"], chunk["text"]) for chunk in chunks] != wanted:
        raise CallFailed("the passages are not those of the engine")


SEARCH = ToolCall("kb_search", ARGUMENTS, _check_search)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running host; `counts` if its `/metrics` count failed calls. `home` is its data folder."""

    process: Running
    port: int
    counts: bool = False
    call: ToolCall = SEARCH
    home: Path | None = None

    def message(self, era: Era) -> Message:
        return tool_call(era, self.call.tool, self.call.arguments, key=KEY)

    def check_counts(self) -> None:
        """Raise CallFailed if `/metrics` counts errors of calls, which have status 200 too."""
        if not self.counts:
            return
        metrics = httpx.get(f"http://{LOOPBACK}:{self.port}/metrics", timeout=30).raise_for_status().text
        errors = [line for line in metrics.splitlines() if line.startswith("mcp_errors_total{")]
        # Calls in flight are cancelled when the client ends.
        if failed := [line for line in errors if 'error_type="cancelled"' not in line]:
            raise CallFailed(f"{self.process.name}: {', '.join(failed)}")


@contextmanager
def stub_engine(folder: Path) -> Iterator[tuple[Running, str]]:
    port = free_port()
    program = ["-m", "bench.servers", "engine", "--port", str(port)]
    with running("stub engine", program, folder, port=port) as engine:
        yield engine, f"http://{LOOPBACK}:{port}"


@contextmanager
def kb_serve(
    name: str,
    engine_url: str,
    home: Path,
    *flags: str,
    program: Sequence[str] = ("-m", "kb_cli.main"),
    **environment: str,
) -> Iterator[RunningServer]:
    """Run `kb serve` with a key, metrics and log level `info`; `program` are the arguments to start it."""
    home.mkdir(exist_ok=True)
    port = free_port()
    settings = {
        "KB_ENGINE_URL": engine_url,
        "KB_HOME": str(home),
        "KB_MCP_API_KEY": KEY,
        "ENABLE_METRICS": "true",
        "LOG_LEVEL": "info",
        **environment,
    }
    with running(
        name, [*program, "serve", "--port", str(port), *flags], home, port=port, **settings
    ) as process:
        yield RunningServer(process, port, counts=settings["ENABLE_METRICS"] == "true", home=home)


def check(host: RunningServer, era: Era) -> int:
    """Call the tool once and check the response; return its length in bytes.
    Raises CallFailed: the response is wrong.
    """
    message = host.message(era)
    with httpx.Client(timeout=30) as client:
        response = client.post(
            f"http://{LOOPBACK}:{host.port}/mcp", headers=dict(message.headers), content=message.body
        )
    where = f"{host.process.name}, {era}"
    if response.status_code != 200:
        raise CallFailed(f"{where}: {response.status_code} {response.text[:300]}")
    if not response.headers["content-type"].startswith("application/json"):
        raise CallFailed(f"{where}: answered as {response.headers['content-type']}")
    host.call.check(result_of(response.content))
    return len(response.content)


def check_load(host: RunningServer, load: Load, length: int) -> None:
    """Check the calls of `generate`; `length` is the result of `check`.
    Raises CallFailed: calls failed, or responses have an unexpected length.
    """
    name = host.process.name
    if load.errors:
        raise CallFailed(f"{name}: {load.errors} of {load.calls} calls failed")
    # wrk counts the head too. An error response is far shorter than a result.
    if not length <= load.bytes_each + length * 0.02 <= length * 1.1 + 2_000:
        raise CallFailed(f"{name}: answers of {load.bytes_each} bytes, not about {length}")
    host.check_counts()


def measured(
    host: RunningServer,
    engine: Running,
    era: Era,
    length: int,
    *,
    connections: int,
    seconds: int,
    pause: float = 0.0,
) -> Cost:
    """Run `generate` against the host and measure processor time; `length` is the result of `check`.
    Raises CallFailed: calls failed, or responses have an unexpected length.
    """
    before = host.process.cpu_seconds(), engine.cpu_seconds()
    load = generate(host.port, host.message(era), connections=connections, seconds=seconds, pause=pause)
    after = host.process.cpu_seconds(), engine.cpu_seconds()
    check_load(host, load, length)
    own, behind = ((late - early) / load.calls * 1e6 for late, early in zip(after, before, strict=True))
    return Cost(load=load, host_cpu=round(own, 1), engine_cpu=round(behind, 1))
