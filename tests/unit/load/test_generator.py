"""The client of the benchmarks where wrk is not installed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kb_load.bench import generator
from kb_load.bench.generator import Target, generate
from kb_load.messages import Message


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """A server that answers at once, on a machine without wrk."""
    monkeypatch.setattr(generator.shutil, "which", lambda _: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Target(server.server_port, "/mcp", Message({}, b"{}"))
    server.shutdown()
    thread.join()
    server.server_close()


def test_every_connection_is_kept_busy(target: Target) -> None:
    """Each answer is followed by a request; nothing is lost at the end."""
    load = generate(target, connections=2, seconds=1)
    assert load.errors == 0
    assert load.calls > 20
    assert 0 < load.p50 <= load.p99


def test_with_a_pause_there_is_time_between_calls(target: Target) -> None:
    """A tenth of a second on average makes about ten calls a second on a connection."""
    load = generate(target, connections=2, seconds=1, pause=0.1)
    assert load.errors == 0
    assert 4 <= load.calls <= 60
