"""A host under load: started over the stub engine, its answer looked at, and what a call costs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from kb_load.bench.generator import Load, Target, client_name, generate
from kb_load.bench.stub_engine import search_response
from kb_load.machine import Machine, describe
from kb_load.messages import CallFailed, Era, result_of, tool_call
from kb_load.processes import LOOPBACK, Running, free_port, running

KEY = "a-key-for-the-benchmark"
ARGUMENTS = {"query": "how are pensions revalued when prices rise", "top": 10}
WARM_SECONDS = 2


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """A host under load for some seconds. Processor times are microseconds a call."""

    load: Load
    host_cpu: float
    engine_cpu: float


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of turns was made with: every turn took `seconds` over `connections`."""

    machine: Machine = msgspec.field(default_factory=describe)
    client: str = msgspec.field(default_factory=client_name)
    connections: int
    seconds: int

    def footer(self, rounds: int) -> str:
        """The lines below a table of `rounds` rounds."""
        turns = f"medians of {rounds} rounds of {self.seconds} s in turns"
        return f"{turns}, {self.connections} connections, {self.client}\n{self.machine.line()}"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a host is measured with; `check` raises CallFailed for a result that is not due."""

    tool: str
    arguments: Mapping[str, Any]
    check: Callable[[dict[str, Any]], None]


SEARCH = ToolCall("kb_search", ARGUMENTS, lambda result: _check_search(result))


@dataclass(frozen=True, slots=True)
class Standing:
    """A host that listens; `counts` where its `/metrics` tell of calls that failed."""

    process: Running
    port: int
    counts: bool = False
    call: ToolCall = SEARCH

    def target(self, era: Era) -> Target:
        """Where the call goes, and how."""
        return Target(self.port, "/mcp", tool_call(era, self.call.tool, self.call.arguments, key=KEY))

    def check_counts(self) -> None:
        """Raises CallFailed: it has answered calls with errors, which have a status of 200 as well."""
        if not self.counts:
            return
        metrics = httpx.get(f"http://{LOOPBACK}:{self.port}/metrics", timeout=30).raise_for_status().text
        errors = [line for line in metrics.splitlines() if line.startswith("mcp_errors_total{")]
        # The calls in flight are cancelled when the client ends.
        if failed := [line for line in errors if 'error_type="cancelled"' not in line]:
            raise CallFailed(f"{self.process.name}: {', '.join(failed)}")


@contextmanager
def stub_engine(folder: Path) -> Iterator[tuple[Running, str]]:
    """The engine behind every host, and its URL."""
    port = free_port()
    program = ["-m", "kb_load.bench.stub_engine", "--port", str(port)]
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
) -> Iterator[Standing]:
    """`kb serve` as it is run: a key, metrics on, the log at `info`; `program` is how `kb` is started."""
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
        yield Standing(process, port, counts=settings["ENABLE_METRICS"] == "true")


def check(host: Standing, era: Era) -> int:
    """Call the tool once and look at the answer; its length in bytes.

    Raises:
        CallFailed: it is not the one that is due.
    """
    message = host.target(era).message
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


def _check_search(result: dict[str, Any]) -> None:
    content = result["structuredContent"]
    if msgspec.json.decode(result["content"][0]["text"]) != content:
        raise CallFailed("the text and the structured content differ")
    wanted = [(each.chunk.id, each.chunk.text) for each in search_response().results]
    chunks = [each.get("chunk") or {**each, "id": each.get("chunk_id")} for each in content["results"]]
    if [(chunk["id"], chunk["text"]) for chunk in chunks] != wanted:
        raise CallFailed("the passages are not those of the engine")


def warm(host: Standing, era: Era, *, connections: int) -> None:
    """Let it run for a moment before anything counts."""
    generate(host.target(era), connections=connections, seconds=WARM_SECONDS)


def measured(
    host: Standing,
    engine: Running,
    era: Era,
    length: int,
    *,
    connections: int,
    seconds: int,
    pause: float = 0.0,
) -> Cost:
    """Load it as `generate` does; `length` is what `check` found.

    Raises:
        CallFailed: calls failed, or were answered with something else.
    """
    before = host.process.cpu_seconds(), engine.cpu_seconds()
    load = generate(host.target(era), connections=connections, seconds=seconds, pause=pause)
    after = host.process.cpu_seconds(), engine.cpu_seconds()
    name = host.process.name
    if load.errors:
        raise CallFailed(f"{name}: {load.errors} of {load.calls} calls failed")
    # wrk counts the head too. An error in place of an answer is far shorter; a correlation id is not.
    if not length <= load.bytes_each + length * 0.02 <= length * 1.1 + 2_000:
        raise CallFailed(f"{name}: answers of {load.bytes_each} bytes, not about {length}")
    host.check_counts()
    own, behind = ((late - early) / load.calls * 1e6 for late, early in zip(after, before, strict=True))
    return Cost(load=load, host_cpu=round(own, 1), engine_cpu=round(behind, 1))
