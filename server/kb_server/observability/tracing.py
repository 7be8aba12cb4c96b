"""Spans for OpenTelemetry: one per tool call, if an endpoint is configured; otherwise nothing is imported.

    caller ── traceparent (`_meta`, or the header) ──▶ span `tools/call kb_search` ── traceparent ──▶ engine
                                                       └─ a thread ──▶ OTLP/HTTP collector

The configuration comes from OpenTelemetry's own variables, OTEL_*. Attributes follow its conventions for MCP;
they contain no argument, no result and no key. An unavailable collector costs only spans: they wait in a
queue of bounded length, and the log reports their loss.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kb_config.installing import install_command
from kb_server.tool import Call

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span
    from opentelemetry.trace import TracerProvider as AnyProvider

log = logging.getLogger("kb_server.tracing")

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Either of these enables spans."""

TOOL_ERROR = "tool_error"
"""The conventional `error.type` of an answer with `isError`; its own code is in `kb.error`."""

_FLUSH_SECONDS = 3.0
_SENDABLE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,510}[\x21-\x7e])?")
"""Pattern of values that may be sent to the engine as a header when no span is made."""
_CODES = {"internal_error": "-32603"}


class Tracing:
    """Makes spans; one object serves all calls of the process."""

    def __init__(self, provider: AnyProvider) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("kb_server")
        self._propagator = TraceContextTextMapPropagator()
        self._server = SpanKind.SERVER

    def begin(self, tool: str, call: Call) -> ToolSpan:
        """Begin a span below that of the caller; `call.trace` becomes the context below this span."""
        from opentelemetry.trace import set_span_in_context

        span = self._tracer.start_span(
            f"tools/call {tool}",
            context=self._propagator.extract(call.trace or {}),
            kind=self._server,
            attributes={
                "mcp.method.name": "tools/call",
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": tool,
                "kb.correlation_id": call.correlation_id,
            },
        )
        onward: dict[str, str] = {}
        self._propagator.inject(onward, set_span_in_context(span))
        call.trace = onward
        return ToolSpan(span)


class ToolSpan:
    """The span of one call."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, error: str | None, *, answered: bool) -> None:
        """End the span; an `error` was `answered` as a tool result, or is one of the protocol's."""
        if error is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_attribute("error.type", TOOL_ERROR if answered else _CODES.get(error, error))
            self._span.set_attribute("kb.error", error)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


ACTIVE: Tracing | None = None
"""The tracer of this process; None if tracing is off."""


def trace_of(meta: Mapping[str, object] | None, header: object, state: object) -> dict[str, str]:
    """Return the caller's W3C trace context: from `_meta`, or else from the headers.

    Values that could not be sent on as a header are left out.
    """
    parent = (meta or {}).get("traceparent")
    if isinstance(parent, str):
        header, state = parent, (meta or {}).get("tracestate")
    found = {"traceparent": header, "tracestate": state}
    return {
        name: value for name, value in found.items() if isinstance(value, str) and _SENDABLE.fullmatch(value)
    }


@contextmanager
def exporting(environ: Mapping[str, str]) -> Iterator[None]:
    """Make spans within the block, if the environment names an endpoint; at its end, send the rest."""
    global ACTIVE
    off = {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "none"}
    is_off = any(environ.get(name, "").lower() == value for name, value in off.items())
    provider = None
    if not is_off and any(environ.get(name) for name in ENDPOINTS):
        if (foreign := _foreign_provider()) is not None:
            ACTIVE = Tracing(foreign)
        elif (provider := _own_provider(environ)) is not None:
            ACTIVE = Tracing(provider)
    try:
        yield
    finally:
        ACTIVE = None
        if provider is not None:
            # Limited to a few seconds: a hanging collector must not delay the shutdown.
            ending = threading.Thread(target=provider.shutdown, name="spans", daemon=True)
            ending.start()
            ending.join(_FLUSH_SECONDS)


def _foreign_provider() -> AnyProvider | None:
    """Return the provider of OpenTelemetry's own instrumentation, if it started this process."""
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace import get_tracer_provider
    except ImportError:
        return None
    provider = get_tracer_provider()
    return provider if isinstance(provider, TracerProvider) else None


def _own_provider(environ: Mapping[str, str]) -> TracerProvider | None:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("A span endpoint is set, but OpenTelemetry is not installed: %s", install_command("otel"))
        return None
    named = environ.get("OTEL_SERVICE_NAME") or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    try:
        provider = TracerProvider(
            resource=Resource.create({} if named else {"service.name": "kb-server"}), shutdown_on_exit=False
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except Exception:
        log.warning("No spans are sent: OpenTelemetry cannot be set up", exc_info=True)
        return None
    log.info("Exporting spans to an OpenTelemetry collector")
    return provider
