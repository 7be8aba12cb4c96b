"""Open load on a real server: calls come when they are due, and an error ends the run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kb_load.fleet.recording import observe, request_bytes
from kb_load.messages import CallFailed


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(body)  # type: ignore[attr-defined]  # put there below
        self.send_response(200 if self.path == "/well" else 503)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.bodies = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_each_request_is_sent_in_turn_and_its_time_is_taken(server: ThreadingHTTPServer) -> None:
    port = server.server_port
    requests = {port: [request_bytes(port, "/well", {"X-Any": "1"}, body) for body in (b"a", b"bc")]}
    observed = observe([], [port], requests, rate=60, seconds=1, seed=1)
    bodies = server.bodies  # type: ignore[attr-defined]
    assert len(bodies) > 20
    assert set(bodies) == {b"a", b"bc"}
    assert 0 < observed.p50 <= observed.p95
    assert observed.client > 0
    assert observed.rate > 0
    assert observed.cores >= 0.1


def test_an_error_ends_it(server: ThreadingHTTPServer) -> None:
    port = server.server_port
    requests = {port: [request_bytes(port, "/ill", {}, b"")]}
    with pytest.raises(CallFailed, match="ok"):
        observe([], [port], requests, rate=20, seconds=0.1, seed=1)
