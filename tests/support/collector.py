"""An OpenTelemetry collector on loopback that keeps the received spans, and fails on command."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.patience import ANSWER_SECONDS

SERVER, CONSUMER = 2, 5


@dataclass(frozen=True)
class SeenSpan:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    status: int
    status_message: str
    service: str
    attributes: dict[str, Any]
    links: list[str]


@dataclass
class Collector:
    """The received spans; `bodies` holds the raw requests. While `hangs` is set, requests get no response."""

    url: str = ""
    spans: list[SeenSpan] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    hangs: bool = False
    released: threading.Event = field(default_factory=threading.Event)

    def named(self, tool: str) -> list[SeenSpan]:
        return [span for span in self.spans if span.name == f"tools/call {tool}"]

    def take(self, body: bytes) -> None:
        self.bodies.append(body)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            service = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [_seen(span, service.get("service.name", "")) for span in scope.spans]


def _seen(span: Any, service: str) -> SeenSpan:
    return SeenSpan(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.kind,
        status=span.status.code,
        status_message=span.status.message,
        service=service,
        attributes={each.key: each.value.string_value or each.value.int_value for each in span.attributes},
        links=[each.span_id.hex() for each in span.links],
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if collector.hangs:
                collector.released.wait()
                return
            collector.take(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        collector.released.set()
        server.shutdown()
        server.server_close()
        thread.join(ANSWER_SECONDS)
