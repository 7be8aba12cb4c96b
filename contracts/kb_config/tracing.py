"""Spans for OpenTelemetry, if an endpoint is configured; otherwise nothing is imported.

    caller ── traceparent ──▶ server: `tools/call kb_search` ── traceparent ──▶ engine: `POST /api/v1/search`
                                  │                                                 └─ its steps
                                  └──────── a thread of each process ────────▶ OTLP/HTTP collector

The configuration comes from OpenTelemetry's own variables, OTEL_*. Attributes contain no argument, no result
and no key. An unavailable collector costs only spans: they wait in a queue of bounded length, and the log
reports their loss.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal

from kb_config.installing import install_command

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as AnySpan
    from opentelemetry.trace import SpanContext
    from opentelemetry.trace import TracerProvider as AnyProvider

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Either of these enables spans."""

_FLUSH_SECONDS = 3.0
_SENDABLE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,510}[\x21-\x7e])?")
"""Pattern of values that may be sent on as a header."""


class Span:
    """A span. As a context manager it is the current one, ends with the block, and notes its exception."""

    __slots__ = ("_failed", "_span", "_token")

    def __init__(self, span: AnySpan) -> None:
        self._span = span
        self._failed = False

    @property
    def context(self) -> SpanContext:
        """The identity of the span, for `link`."""
        return self._span.get_span_context()

    def onward(self) -> dict[str, str]:
        """Return the W3C trace context below this span, as headers."""
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers, set_span_in_context(self._span))
        return headers

    def set(self, name: str, value: str | int) -> None:
        """Set an attribute."""
        self._span.set_attribute(name, value)

    def link(self, context: SpanContext) -> None:
        """Link this span to another one."""
        self._span.add_link(context)

    def fail(self, error_type: str, *, is_fault: bool = True) -> None:
        """Set `error.type`, and the status of an error unless the caller is at fault."""
        from opentelemetry.trace import StatusCode

        self._failed = True
        self._span.set_attribute("error.type", error_type)
        if is_fault:
            self._span.set_status(StatusCode.ERROR)

    def end(self) -> None:
        self._span.end()

    def __enter__(self) -> Span:
        from opentelemetry.context import attach
        from opentelemetry.trace import set_span_in_context

        self._token: Token[Context] = attach(set_span_in_context(self._span))
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        from opentelemetry.context import detach

        detach(self._token)
        if error is not None and not self._failed:
            code = getattr(error, "code", None)
            if isinstance(error, asyncio.CancelledError):
                self.fail("cancelled")
            elif isinstance(code, str):  # an error of the contract: the request decides if it is a fault
                self.fail(code, is_fault=False)
            else:
                self.fail(type(error).__name__)
        self.end()


class Tracing:
    """Makes spans; one object serves all calls of the process."""

    def __init__(self, provider: AnyProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("kb")
        self._kinds = trace.SpanKind
        self._current = trace.get_current_span
        self._extract = TraceContextTextMapPropagator().extract

    def begin(
        self,
        name: str,
        kind: Literal["SERVER", "CONSUMER"],
        attributes: Mapping[str, str],
        headers: Mapping[str, str] | None = None,
    ) -> Span:
        """Begin a span below that of the caller, whose W3C trace context is in the headers."""
        return Span(
            self._tracer.start_span(
                name, context=self._extract(headers or {}), kind=self._kinds[kind], attributes=attributes
            )
        )

    def current(self) -> Span | None:
        """Return the current span, or None outside of any."""
        span = self._current()
        return Span(span) if span.get_span_context().is_valid else None

    def step(self, name: str) -> AbstractContextManager[object]:
        """Begin a span below the current one; nothing outside of any."""
        return nullcontext() if self.current() is None else Span(self._tracer.start_span(name))


ACTIVE: Tracing | None = None
"""The tracer of this process; None if tracing is off."""
step: Callable[[str], AbstractContextManager[object]] = nullcontext
"""Begins a span below the current one, for a block; without effect if tracing is off. Set by `use`."""


def use(tracing: Tracing | None) -> None:
    """Make the spans of this process with `tracing`, or none."""
    global ACTIVE, step
    ACTIVE = tracing
    step = nullcontext if tracing is None else tracing.step


def sendable(traceparent: object, tracestate: object) -> dict[str, str]:
    """Return a W3C trace context as headers, without values that could not be sent as one."""
    found = {"traceparent": traceparent, "tracestate": tracestate}
    return {
        name: value for name, value in found.items() if isinstance(value, str) and _SENDABLE.fullmatch(value)
    }


@contextmanager
def exporting(environ: Mapping[str, str], service: str) -> Iterator[None]:
    """Make spans within the block, if the environment names an endpoint; at its end, send the rest.

    `service` is the name of the process in its spans, unless the environment has another.
    """
    off = {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "none"}
    is_off = any(environ.get(name, "").lower() == value for name, value in off.items())
    provider = None
    if not is_off and any(environ.get(name) for name in ENDPOINTS):
        if (foreign := _foreign_provider()) is not None:
            use(Tracing(foreign))
        elif (provider := _own_provider(environ, service)) is not None:
            use(Tracing(provider))
    try:
        yield
    finally:
        use(None)
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


def _own_provider(environ: Mapping[str, str], service: str) -> TracerProvider | None:
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
            resource=Resource.create({} if named else {"service.name": service}), shutdown_on_exit=False
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except Exception:
        log.warning("No spans are sent: OpenTelemetry cannot be set up", exc_info=True)
        return None
    log.info("Exporting spans to an OpenTelemetry collector")
    return provider
