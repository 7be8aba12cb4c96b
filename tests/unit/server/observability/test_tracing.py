"""Spans of calls: the status of each kind of end, and the tracer provider."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from kb_config import tracing
from kb_load.processes import clean_environment
from kb_server.engine_client.port import TRACE
from kb_server.hosting.calls import BrokenToolError, new_call
from kb_server.tool import Call
from mcp_aiohttp.protocol.caller import Caller
from tests.unit.server.hosting.test_calls import Arguments, Found, breaking, calls, found, lacking

TRACE_ID, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT}-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    provider, kept = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(tracing, "ACTIVE", tracing.Tracing(provider))
    yield kept
    provider.shutdown()


def only(spans: InMemorySpanExporter) -> tuple[ReadableSpan, Mapping[str, object]]:
    (span,) = spans.get_finished_spans()
    return span, span.attributes or {}


async def test_a_call_that_succeeds_has_no_error(spans: InMemorySpanExporter) -> None:
    await calls(found).outcome("find_things", {"query": "q"}, Call("corr"))
    span, attributes = only(spans)
    assert (span.name, span.status.status_code) == ("tools/call find_things", StatusCode.UNSET)
    assert attributes["kb.correlation_id"] == "corr"
    assert "error.type" not in attributes


@pytest.mark.parametrize("arguments", [{"query": "q"}, {"question": "a secret"}])
async def test_an_answer_with_an_error_is_a_tool_error(
    spans: InMemorySpanExporter, arguments: dict[str, str]
) -> None:
    await calls(lacking).outcome("find_things", arguments, Call())
    span, attributes = only(spans)
    assert attributes["error.type"] == "tool_error"
    assert attributes["kb.error"] in {"not_found", "invalid_parameter", "missing_required_parameter"}
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
    assert not span.events
    assert "secret" not in span.to_json()


async def test_a_tool_that_breaks_is_the_error_of_the_protocol(spans: InMemorySpanExporter) -> None:
    with pytest.raises(BrokenToolError):
        await calls(breaking).outcome("find_things", {"query": "q"}, Call())
    span, attributes = only(spans)
    assert (attributes["error.type"], attributes["kb.error"]) == ("-32603", "internal_error")
    assert not span.events


async def test_a_cancelled_call_ends_its_span(spans: InMemorySpanExporter) -> None:
    begun = asyncio.Event()

    async def waiting(_arguments: Arguments, _call: Call) -> Found:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("an event that nobody sets")

    task = asyncio.create_task(calls(waiting).outcome("find_things", {"query": "q"}, Call()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert only(spans)[1]["error.type"] == "cancelled"


async def test_the_engine_is_told_where_the_call_stands(spans: InMemorySpanExporter) -> None:
    seen: list[Mapping[str, str] | None] = []

    async def calling(_arguments: Arguments, _call: Call) -> Found:
        seen.append(TRACE.get())
        return Found([])

    call = new_call({"traceparent": TRACEPARENT, "tracestate": "vendor=1"}, Caller())
    await calls(calling).outcome("find_things", {"query": "q"}, call)
    seen.append(TRACE.get())
    span, _ = only(spans)
    assert span.context is not None
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE_ID, PARENT)
    onward = {"traceparent": f"00-{TRACE_ID}-{span.context.span_id:016x}-01", "tracestate": "vendor=1"}
    assert seen == [onward, None]


@pytest.mark.parametrize("value", ["a\r\nX-User-Role: admin", "\ud800", "é", " ", "x" * 513])
def test_invalid_trace_headers_are_not_forwarded(spans: InMemorySpanExporter, value: str) -> None:
    """`tools/cancel` makes no span, so its header values would reach the engine unchanged."""
    assert spans.get_finished_spans() == ()
    assert new_call({"traceparent": value, "tracestate": "a=1"}, Caller()).trace == {"tracestate": "a=1"}
    told = {"traceparent": TRACEPARENT, "tracestate": value}
    assert new_call(told, Caller()).trace == {"traceparent": TRACEPARENT}


async def test_without_anybody_who_collects_a_call_stands_in_no_trace() -> None:
    call = new_call({"traceparent": TRACEPARENT}, Caller(headers={"traceparent": TRACEPARENT}))
    await calls(found).outcome("find_things", {"query": "q"}, call)
    assert call.trace is None
    assert call.correlation_id == TRACE_ID


@pytest.mark.process
def test_a_provider_that_is_there_is_used() -> None:
    """For example under OpenTelemetry's own instrumentation: its spans, exporter and shutdown."""
    program = """
import asyncio, os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
kept, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
from kb_config import tracing
from tests.unit.server.hosting.test_calls import Call, calls, found
with tracing.exporting(os.environ, "kb"):
    asyncio.run(calls(found).outcome("find_things", {"query": "q"}, Call()))
assert tracing.ACTIVE is None
with trace.get_tracer("other").start_as_current_span("after"):
    pass
print([span.name for span in kept.get_finished_spans()])
"""
    environment = clean_environment(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['tools/call find_things', 'after']"
