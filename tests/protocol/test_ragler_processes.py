"""The toolset `ragler` as started by `kb up` without further settings, and from `.mcp.json` over stdio."""

from __future__ import annotations

import json
import os
import re
import string
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters

from kb_load.processes import clean_environment, free_port
from tests.protocol.conftest import Start, stdio_environment
from tests.support.eventually import eventually
from tests.support.mcp_http import Caller
from tests.support.mcp_messages import call, initialize, modern
from tests.support.patience import ANSWER_SECONDS, JOB_SECONDS
from tests.support.ragler import NOWHERE, THREE
from tests.support.stack import ROOT, Process, Stack, running_stack

pytestmark = pytest.mark.process

BIN = Path(sys.executable).parent
AGENT = "claude-code/1.0"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """`kb up` with RAGler's tools and two workers, without settings for a backend or a key."""
    home = tmp_path_factory.mktemp("ragler")
    with running_stack(home, KB_TOOLSETS="ragler", KB_EMBEDDER="hash", KB_WORKERS="2") as running:
        kb = Caller(f"{running.server_url}/mcp/kb")
        for collection in ("api-docs", "support-faq"):
            for text in ("API authentication by token", "Invoices come monthly"):
                kb.ok(
                    "kb_addnote",
                    text=f"{text} ({collection})",
                    collection=collection,
                    wait_seconds=JOB_SECONDS,
                )
        kb.http.close()
        yield running


@pytest.fixture
def caller(stack: Stack) -> Iterator[Caller]:
    """A client with a User-Agent."""
    caller = Caller(stack.mcp_url)
    caller.http.headers["User-Agent"] = AGENT
    yield caller
    caller.http.close()


@pytest.fixture(scope="module")
def collections(stack: Stack) -> dict[str, str]:
    """The ids of the collections by their names, from the engine directly."""
    answer = httpx.get(f"{stack.engine_url}/collections", timeout=ANSWER_SECONDS).raise_for_status().json()
    return {each["name"]: each["id"] for each in answer["collections"]}


# --- out of the box -------------------------------------------------------------------------------


@pytest.mark.requirement("R35", "R36")
def test_kb_up_points_the_tools_at_its_own_engine(caller: Caller, collections: dict[str, str]) -> None:
    """It has no key, so that none need be configured."""
    told = caller.ok("list_collections")["collections"]
    assert {each["name"]: each["id"] for each in told} == collections
    found = caller.ok("search_knowledge", query="authentication", collection_id=collections["api-docs"])
    assert found["results"][0]["content"] == "API authentication by token (api-docs)"


either_way = pytest.mark.parametrize("flags", [(), ("--single",)], ids=["two processes", "one process"])


@pytest.mark.requirement("R36", "R41")
@either_way
def test_kb_up_hands_on_the_key_of_its_engine(tmp_path: Path, flags: tuple[str, ...]) -> None:
    settings = {"KB_TOOLSETS": "ragler", "KB_EMBEDDER": "hash", "KB_API_KEY": "between-them"}
    with running_stack(tmp_path, *flags, LOG_LEVEL="warn", **settings) as stack:
        caller = Caller(stack.mcp_url)
        assert caller.ok("list_collections") == {"collections": []}
        caller.http.close()
        assert httpx.get(f"{stack.engine_url}/collections", timeout=ANSWER_SECONDS).status_code == 401


@either_way
def test_a_backend_that_is_named_is_not_replaced(tmp_path: Path, flags: tuple[str, ...]) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    environment = {"RAGLER_API_URL": nobody, "RAGLER_API_KEY": "k", "LOG_LEVEL": "warn"}
    with running_stack(tmp_path, *flags, KB_EMBEDDER="hash", **environment) as stack:
        caller = Caller(f"{stack.server_url}/mcp/ragler")
        told = caller.refused("list_collections")
        caller.http.close()
    assert told["error"] == "backend_unreachable"
    assert nobody in told["message"]


@pytest.mark.requirement("R36", "R39")
def test_kb_serve_starts_without_a_key_and_says_what_is_missing(tmp_path: Path) -> None:
    """On the port of MCP_SERVER_PORT; calls report it too."""
    port = free_port()
    environment = {"KB_TOOLSETS": "ragler", "MCP_SERVER_PORT": str(port), "KB_HOME": str(tmp_path)}
    process = Process.start("-m", "kb_cli.main", "serve", **environment)
    try:
        base = f"http://127.0.0.1:{port}"
        eventually(lambda: _answers(f"{base}/healthz"), bool, what="a server on that port")
        ready = httpx.get(f"{base}/readyz", timeout=ANSWER_SECONDS)
        caller = Caller(f"{base}/mcp")
        told = caller.refused("search_knowledge", query="x")
        caller.http.close()
    finally:
        assert process.stop() == 0
    assert (ready.status_code, ready.json()["reason"]) == (
        503,
        "neither RAGLER_API_URL nor RAGLER_API_KEY is set",
    )
    assert told["error"] == "not_configured"


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=ANSWER_SECONDS).is_success
    except httpx.TransportError:
        return False


# --- the log --------------------------------------------------------------------------------------


def entry(stack: Stack, correlation_id: str) -> dict[str, Any]:
    """Return the log entry of a finished call."""

    def found() -> list[dict[str, Any]]:
        lines = [line for line in stack.process.lines if correlation_id in line and "response_time" in line]
        return [json.loads(line) for line in lines]

    (line,) = eventually(found, bool, what="the line of the call")
    return line


def traced(caller: Caller, correlation_id: str, tool: str, **arguments: Any) -> None:
    """Make a call under a correlation id of the client."""
    message = call(tool, meta={"correlation_id": correlation_id}, **arguments)
    caller.send(message).raise_for_status()


@pytest.mark.requirement("R54", "R55", "R56", "R57", "R58")
def test_a_search_leaves_one_line_with_all_the_fields(
    stack: Stack, caller: Caller, collections: dict[str, str]
) -> None:
    wanted = collections["api-docs"]
    query = "authentication api for anna@company.com"
    traced(caller, "req-abc123", "search_knowledge", query=query, collection_id=wanted, limit=2)
    line = entry(stack, "req-abc123")
    assert datetime.fromisoformat(line.pop("timestamp")).tzinfo is not None
    assert line.pop("response_time") > 0
    told = {name: line[name] for name in ("level", "correlation_id", "tool", "query", "collection_id")}
    assert told == {
        "level": "info",
        "correlation_id": "req-abc123",
        "tool": "search_knowledge",
        "query": "authentication api for ***",
        "collection_id": wanted,
    }
    assert (line["result_count"], line["user_agent"]) == (2, AGENT)
    assert "error" not in line
    assert "anna@company.com" not in stack.process.output()


@pytest.mark.requirement("R59", "R60", "R61", "R62", "R63")
def test_a_failure_leaves_one_line_with_its_error(stack: Stack, caller: Caller) -> None:
    traced(caller, "req-lost", "search_knowledge", query="x", collection_id=NOWHERE)
    line = entry(stack, "req-lost")
    assert (line["error"], line["collection_id"], line["user_agent"]) == ("not_found", NOWHERE, AGENT)
    assert isinstance(line["response_time"], float)
    assert "result_count" not in line


@pytest.mark.requirement("R56")
def test_the_trace_of_the_request_is_the_correlation_id(stack: Stack, caller: Caller) -> None:
    """The client sends a `traceparent`, or its own header."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    message = call("list_collections")
    caller.send(message, traceparent=f"00-{trace}-00f067aa0ba902b7-01")
    assert entry(stack, trace)["tool"] == "list_collections"
    caller.send(message, **{"X-Correlation-ID": "by-header"})
    assert entry(stack, "by-header")["tool"] == "list_collections"


# --- the metrics ----------------------------------------------------------------------------------

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Scrape = dict[str, Vector]

_SAMPLE = re.compile(r"(?P<name>\w+)(\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def scraped(stack: Stack) -> Scrape:
    """Return all samples by name and labels, checking that no two have the same labels."""
    found: Scrape = defaultdict(dict)
    for line in (
        httpx.get(f"{stack.server_url}/metrics", timeout=ANSWER_SECONDS).raise_for_status().text.splitlines()
    ):
        if not line.startswith("#"):
            sample = _SAMPLE.fullmatch(line)
            assert sample is not None, line
            labels = frozenset(_LABEL.findall(sample["labels"] or ""))
            assert labels not in found[sample["name"]], line
            found[sample["name"]][labels] = float(sample["value"])
    return found


def increase(before: Scrape, after: Scrape, name: str, **wanted: str) -> Vector:
    """`increase(name{wanted}[…])` over two scrapes: series that are in both, without extrapolation."""
    return {
        labels: after[name][labels] - value
        for labels, value in before[name].items()
        if wanted.items() <= set(labels)
    }


def of(vector: Vector, **labels: str) -> float:
    (value,) = [value for key, value in vector.items() if labels.items() <= set(key)]
    return value


def busy(caller: Caller, collections: Mapping[str, str]) -> None:
    """Make eight searches that succeed, with sixteen results, and two that fail."""
    for _ in range(2):
        caller.ok("search_knowledge", query="authentication")  # four documents
        for collection in collections.values():
            caller.ok("search_knowledge", query="authentication", collection_id=collection, limit=1)
        caller.ok("search_knowledge", query="authentication", collection_id=collections["api-docs"])
        caller.refused("search_knowledge", query="x", collection_id=NOWHERE)


@pytest.mark.requirement("R64", "R65", "R66", "R67", "R68")
def test_the_four_families_count_what_happened(
    stack: Stack, caller: Caller, collections: dict[str, str]
) -> None:
    """Summed over the workers, each series once."""
    busy(caller, collections)
    before = scraped(stack)
    busy(caller, collections)
    caller.refused("get_collection_info", collection_id=NOWHERE)
    after = scraped(stack)
    requests = increase(before, after, "mcp_requests_total", tool="search_knowledge")
    assert (of(requests, status="success"), of(requests, status="error")) == (8, 2)
    errors = increase(before, after, "mcp_errors_total", tool="search_knowledge")
    assert of(errors, error_type="not_found") == 2
    results = increase(before, after, "mcp_search_results_count")
    told = {name: of(results, collection_id=id_) for name, id_ in {"all": "all", **collections}.items()}
    assert told == {"all": 8, "api-docs": 6, "support-faq": 2}
    buckets = after["mcp_request_duration_seconds_bucket"]
    bounds = {dict(labels)["le"] for labels in buckets if ("tool", "search_knowledge") in labels}
    assert {"0.1", "0.5", "1.0", "+Inf"} <= bounds
    family = "mcp_request_duration_seconds"
    assert of(buckets, tool="search_knowledge", le="+Inf") == of(
        after[f"{family}_count"], tool="search_knowledge"
    )
    seconds, count = (
        of(increase(before, after, f"{family}_{each}"), tool="search_knowledge") for each in ("sum", "count")
    )
    assert 0 < seconds / count < 10


# --- from .mcp.json -------------------------------------------------------------------------------


@pytest.mark.requirement("R31", "R32", "R33", "R34")
async def test_the_command_of_mcp_json_serves_the_three_tools_over_stdio(
    stack: Stack, tmp_path: Path
) -> None:
    """With its environment as a client fills it in; the backend is the stack's engine, not port 3000."""
    told = json.loads((ROOT / "deploy" / "ragler" / ".mcp.json").read_text("utf-8"))
    server = told["server"]
    filled = {
        name: string.Template(value).substitute(RAGLER_API_KEY="k") for name, value in server["env"].items()
    }
    path = os.pathsep.join((str(BIN), os.environ.get("PATH", "")))
    environment = clean_environment(**{**filled, "RAGLER_API_URL": stack.engine_url, "PATH": path})
    parameters = StdioServerParameters(
        command=server["command"], args=server["args"], env=environment, cwd=str(tmp_path)
    )
    async with Client(parameters, read_timeout_seconds=ANSWER_SECONDS) as session:
        if session.server_info is not None:  # without a handshake the client does not ask for it
            assert session.server_info.name == told["name"]
            assert session.server_info.version == told["version"]
        tools = (await session.list_tools()).tools
        assert [{"name": tool.name, "description": tool.description} for tool in tools] == told["tools"]
        assert tuple(tool.name for tool in tools) == THREE
        found = await session.call_tool("search_knowledge", {"query": "authentication", "limit": 1})
        assert found.structured_content is not None
        assert len(found.structured_content["results"]) == 1
        assert (await session.call_tool("list_collections", {})).is_error is False


@pytest.mark.requirement("R56", "R63")
@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_over_stdio_the_log_names_the_client_of_the_protocol(
    start: Start, tmp_path: Path, era: str
) -> None:
    environment = {**stdio_environment(), "KB_HOME": str(tmp_path), "LOG_LEVEL": "info"}
    process = await start(
        command=("-m", "kb_cli.main", "stdio", "--toolset", "ragler"), environment=environment
    )
    asked = call("search_knowledge", 2, meta={"correlation_id": "req-stdio"}, query="call 0171 1234567")
    if era == "handshake":
        await process.ask(initialize("2025-11-25"))
        await process.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    told = await process.ask(modern(asked) if era == "modern" else asked)
    assert json.loads(told["result"]["content"][0]["text"])["error"] == "not_configured"
    _, _, err = await process.end()
    (line,) = [json.loads(each) for each in err.splitlines() if b"response_time" in each]
    assert (line["user_agent"], line["correlation_id"]) == ("test/1", "req-stdio")
    assert (line["query"], line["error"]) == ("call ***", "not_configured")
