"""Spans for OpenTelemetry: one a tool call, where an endpoint is configured. Else nothing is imported.

    caller ── traceparent (`_meta`, else the header) ──▶ span `tools/call kb_search` ── traceparent ──▶ engine
                                                              └─ a thread ──▶ OTLP/HTTP collector

The endpoint and all else come from the variables that OpenTelemetry names, OTEL_*. Attributes follow its
conventions for MCP; no argument, no result and no key is among them. A collector that is down costs nothing
but spans: they wait in a queue of bounded length, and the log says that they are lost.
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
"""Either of these switches spans on."""

TOOL_ERROR = "tool_error"
"""What the conventions call an answer with `isError`; its own code stands in `kb.error`."""

_FLUSH_SECONDS = 3.0
_SENDABLE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,510}[\x21-\x7e])?")
"""What may go on to the engine as a header, where no span comes between."""
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
        """A span below that of the caller; `call.trace` then says how to go on below this one."""
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
        """The call has ended; an `error` was `answered` as a tool result, or is one of the protocol's."""
        if error is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_attribute("error.type", TOOL_ERROR if answered else _CODES.get(error, error))
            self._span.set_attribute("kb.error", error)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


ACTIVE: Tracing | None = None
"""What makes the spans of this process; None: nobody collects any."""


def trace_of(meta: Mapping[str, object] | None, header: object, state: object) -> dict[str, str]:
    """The caller's W3C trace context: that of `_meta` where it has one, else that of the headers.

    What could not be sent on as a header is left out.
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
    """Make spans meanwhile, where the environment names an endpoint; in the end send what is left."""
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
            # In a few seconds or not at all: a collector that hangs holds up no shutdown.
            ending = threading.Thread(target=provider.shutdown, name="spans", daemon=True)
            ending.start()
            ending.join(_FLUSH_SECONDS)


def _foreign_provider() -> AnyProvider | None:
    """That of whoever started this process under OpenTelemetry's own instrumentation."""
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
        log.warning(
            "An endpoint for spans is set, but OpenTelemetry is not installed: %s", install_command("otel")
        )
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
    log.info("Spans are sent to an OpenTelemetry collector")
    return provider
