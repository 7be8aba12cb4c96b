"""Spans of a real server process, at a collector that speaks OTLP over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from kb_config.installing import install_command
from kb_load.processes import clean_environment, free_port
from tests.support.collector import CONSUMER, SERVER, Collector, SeenSpan, collecting
from tests.support.engines import API_KEY, engine
from tests.support.eventually import eventually
from tests.support.mcp_http import Caller
from tests.support.mcp_messages import call, for_the_kernel, initialize
from tests.support.patience import ANSWER_SECONDS, COMMAND_SECONDS, JOB_SECONDS, TEST_SECONDS
from tests.support.stack import Process, wait_until_ready

pytestmark = pytest.mark.process

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-01"
KEY = "mcp-key-that-nobody-may-see"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as listening:
        yield listening


@dataclass
class Asked:
    """An engine, and the headers of its requests."""

    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    @web.middleware
    async def note(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path.startswith("/api/"):
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
        return await handler(request)

    def traces(self) -> set[str | None]:
        return {headers.get("traceparent") for headers in self.headers}


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    """An engine that records its requests."""
    noting = Asked()
    with engine(tmp_path, middlewares=[noting.note]) as url:
        noting.url = url
        yield noting


@contextmanager
def engine_process(home: Path, collector: Collector) -> Iterator[Asked]:
    """Yield the address of an engine with spans, which must exit cleanly."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    process = Process.start(
        *("-m", "kb_engine"),
        KB_HOME=str(home),
        KB_EMBEDDER="hash",
        KB_API_KEY=API_KEY,
        KB_ENGINE_PORT=str(port),
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_BSP_SCHEDULE_DELAY="50",
    )
    try:
        wait_until_ready(f"{url}/readyz", process)
        yield Asked(url=url)
    finally:
        assert process.stop() == 0, process.output()


@contextmanager
def served(asked: Asked, **environment: str) -> Iterator[tuple[Caller, Process]]:
    """Yield a caller of `kb serve` in front of the engine, and its process, which must exit cleanly."""
    port = free_port()
    settings = {
        "KB_ENGINE_URL": asked.url,
        "KB_API_KEY": API_KEY,
        "KB_MCP_API_KEY": KEY,
        "KB_MCP_PORT": str(port),
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        **environment,
    }
    process = Process.start("-m", "kb_cli.main", "serve", **settings)
    caller = Caller(f"http://127.0.0.1:{port}/mcp", KEY)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/healthz", process)
        yield caller, process
    finally:
        caller.http.close()
        assert process.stop() == 0, process.output()


def spans(collector: Collector, tool: str, count: int = 1) -> list[SeenSpan]:
    """Return the spans of a tool when there are at least `count`."""
    return eventually(lambda: collector.named(tool), lambda seen: len(seen) >= count, what="a span")


def test_a_call_is_a_span_that_goes_on_in_the_engine(asked: Asked, collector: Collector) -> None:
    with served(asked, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{collector.url}/v1/traces") as (caller, _):
        message = call("kb_search", meta={"traceparent": TRACEPARENT}, query="honey bees")
        caller.send(message)
        (short,) = spans(collector, "kb_search")
        caller.send(for_the_kernel(message))
        kernel = spans(collector, "kb_search", 2)[1]
    for span in (short, kernel):
        assert (span.trace_id, span.parent_id, span.kind) == (TRACE, PARENT, SERVER)
        assert (span.status, span.service) == (0, "kb-server")
        assert span.attributes == {
            "mcp.method.name": "tools/call",
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "kb_search",
            "kb.correlation_id": TRACE,
        }
    onward = {f"00-{TRACE}-{span.span_id}-01" for span in (short, kernel)}
    assert onward <= asked.traces()
    assert len(collector.spans) == 2


def test_the_engine_continues_the_trace_with_the_steps_of_requests_and_jobs(
    tmp_path: Path, collector: Collector
) -> None:
    def steps(root: SeenSpan) -> list[str]:
        """Return the names of the spans below a span, each with its parent before it."""
        below = {span.span_id: span for span in collector.spans if span.trace_id == root.trace_id}
        of_root = [span for span in below.values() if span.parent_id == root.span_id]
        return sorted(name for span in of_root for name in (span.name, *steps(span)))

    with (
        engine_process(tmp_path, collector) as asked,
        served(asked, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url) as (caller, _),
    ):
        caller.ok("kb_addnote", text="secret bees", tags=["secret"], wait_seconds=JOB_SECONDS)
        caller.ok("kb_search", query="secret bees")
        caller.refused("kb_get", document_id="999")
        caller.refused("kb_status", secret_name="secret value")
        key = {b"Authorization": f"Bearer {API_KEY}".encode()}
        for headers in ({b"traceparent": OTHER.encode()}, {**key, b"X-Request-ID": b"caf\xe9"}):
            httpx.get(f"{asked.url}/api/v1/status", headers=headers, timeout=ANSWER_SECONDS)
    (tool,) = collector.named("kb_search")
    seen = {(span.name, span.parent_id): span for span in collector.spans}
    search = seen["POST /api/v1/search", tool.span_id]
    assert (search.kind, search.status, search.service) == (SERVER, 0, "kb-engine")
    assert search.attributes == {
        "http.request.method": "POST",
        "http.route": "/api/v1/search",
        "http.response.status_code": 200,
        "kb.operation": "search",
        "kb.correlation_id": tool.attributes["kb.correlation_id"],
    }
    assert steps(search) == ["embed query", "search index"]
    assert seen["GET /api/v1/status", ""].attributes["kb.correlation_id"] == "caf?"
    (added,) = collector.named("kb_addnote")
    (request,) = (span for span in collector.spans if span.attributes.get("kb.operation") == "createJob")
    (job,) = (span for span in collector.spans if span.name == "job note")
    assert request.trace_id == added.trace_id != job.trace_id
    assert (job.kind, job.status, job.parent_id, job.links) == (CONSUMER, 0, "", [request.span_id])
    assert job.attributes == {"kb.job_id": request.attributes["kb.job_id"], "kb.lane": "short"}
    assert steps(request) == ["store write accept"]
    assert {"embed passages", "split", "store write commit_note"} <= set(steps(job))
    lacking = [span for span in collector.spans if span.attributes.get("error.type") == "document_not_found"]
    assert {(span.name, span.status) for span in lacking} == {
        ("GET /api/v1/documents/{document_id}", 0),
        ("store read detail", 0),
    }
    assert OTHER.split("-")[1] not in {span.trace_id for span in collector.spans}, "it had no key"
    sent = b"".join(collector.bodies)
    assert b"kb_status" in sent
    assert b"secret" not in sent
    assert KEY.encode() not in sent
    assert API_KEY.encode() not in sent


def test_the_trace_is_taken_from_the_message_before_the_header(asked: Asked, collector: Collector) -> None:
    """A malformed one is ignored, a missing one starts a trace, and an unsampled one is not exported.

    Spans that still wait when the server is told to stop are sent at its end.
    """
    sent: list[tuple[Any, dict[str, str]]] = [
        (TRACEPARENT, {"traceparent": OTHER}),
        (None, {"traceparent": OTHER, "tracestate": "vendor=1"}),
        ("00-broken", {}),
        (7, {}),
        (TRACEPARENT[:-2] + "00", {}),
        (None, {}),
    ]
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": f"{1000 * TEST_SECONDS:.0f}",
    }
    with served(asked, OTEL_SERVICE_NAME="mine", **settings) as (caller, _):
        for traceparent, headers in sent:
            meta = {"traceparent": traceparent} if traceparent else None
            caller.send(call("kb_search", meta=meta, query="a"), **headers)
        assert collector.spans == []
    seen = collector.named("kb_search")
    assert [span.trace_id for span in seen[:2]] == [TRACE, OTHER.split("-")[1]]
    assert [span.parent_id for span in seen[2:]] == ["", "", ""]
    assert len({span.trace_id for span in seen}) == 5
    assert {span.service for span in seen} == {"mine"}
    assert any(headers.get("tracestate") == "vendor=1" for headers in asked.headers)
    assert all("traceparent" in headers for headers in asked.headers if "x-request-id" in headers)


@pytest.mark.parametrize("state", ["down", "hangs"])
def test_a_collector_that_fails_slows_and_fails_no_call(
    asked: Asked, collector: Collector, state: str
) -> None:
    """A call that waited for its span would take longer than its caller waits."""
    collector.hangs = True
    url = collector.url if state == "hangs" else f"http://127.0.0.1:{free_port()}"
    with served(
        asked,
        OTEL_EXPORTER_OTLP_ENDPOINT=url,
        OTEL_EXPORTER_OTLP_TIMEOUT="600",
        OTEL_BSP_MAX_QUEUE_SIZE="16",
        OTEL_BSP_MAX_EXPORT_BATCH_SIZE="8",
    ) as (caller, _):
        for _ in range(60):
            caller.ok("kb_search", query="honey bees")
    assert collector.spans == []


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_SERVICE_NAME": "mine"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_RESOURCE_ATTRIBUTES": "a=b"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_an_endpoint_nothing_is_imported(environment: dict[str, str]) -> None:
    program = (
        "import os, sys\n"
        "from kb_config import tracing\n"
        "with tracing.exporting(os.environ, 'kb'):\n"
        "    assert tracing.ACTIVE is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.exporter')]\n"
        "assert 'opentelemetry.sdk.trace' not in sys.modules and 'requests' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=clean_environment(**environment))


def test_without_the_packages_the_server_says_so_and_serves(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['opentelemetry.exporter.otlp.proto.http.trace_exporter'] = None\n"
    )
    with served(asked, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", PYTHONPATH=str(tmp_path)) as (
        caller,
        process,
    ):
        caller.ok("kb_search", query="a")
    assert f"OpenTelemetry is not installed: {install_command('otel')}" in process.output()
    assert not any("traceparent" in headers for headers in asked.headers)


def test_a_wrong_variable_keeps_nobody_from_serving(asked: Asked) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_BSP_MAX_QUEUE_SIZE": "1"}
    with served(asked, **environment) as (caller, process):
        caller.ok("kb_search", query="a")
    assert "No spans are sent" in process.output()


def test_stdio_makes_spans_too(asked: Asked, collector: Collector) -> None:
    """The trace is in `_meta`, because there are no headers."""
    messages = [
        initialize("2025-11-25"),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        call("kb_search", "2", meta={"traceparent": TRACEPARENT}, query="bees"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "kb_cli.main", "stdio"],
        input="".join(json.dumps(message) + "\n" for message in messages),
        env=clean_environment(
            KB_ENGINE_URL=asked.url, KB_API_KEY=API_KEY, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url
        ),
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=True,
    )
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["1", "2"]
    (span,) = collector.spans
    assert (span.name, span.trace_id, span.parent_id) == ("tools/call kb_search", TRACE, PARENT)
    assert f"00-{TRACE}-{span.span_id}-01" in asked.traces()
