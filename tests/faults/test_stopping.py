"""SIGTERM during the body of a request: it is accepted, or the sender learns that it must send it again."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from kb_verify.files import END, MULTIPART, file_part
from tests.faults.engine_process import Running, running, running_server
from tests.support.eventually import eventually
from tests.support.mcp_http import Caller
from tests.support.mcp_messages import BOTH, call
from tests.support.patience import ANSWER_SECONDS, START_SECONDS
from tests.support.stack import Process

pytestmark = pytest.mark.process

NOTE = json.dumps({"text": "The bees sleep in winter."}).encode()


class Slow:
    """A request whose body is sent in pieces, after the server asked for it."""

    def __init__(self, port: int, method: str, path: str, length: int, **headers: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)
        standing = {"Host": "127.0.0.1", "Content-Length": str(length), "Expect": "100-continue"}
        lines = [f"{name}: {value}" for name, value in {**standing, **headers}.items()]
        self.send("\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode())
        assert self._socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> tuple[int, dict[str, Any]]:
        with closing(self._socket), self._socket.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path) as started:
        yield started


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Process, int]]:
    with running_server(tmp_path) as started:
        yield started


def stop_listening(process: Process, port: int) -> None:
    """Send SIGTERM and wait until new connections are refused."""

    def refuses() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS).close()
        except ConnectionError:
            return True
        return False

    process.popen.send_signal(signal.SIGTERM)
    eventually(refuses, what="the end of listening")


def test_a_file_that_is_arriving_is_accepted_and_kept(engine: Running, tmp_path: Path) -> None:
    """The acknowledged file exists after the engine is started again."""
    body = file_part(b"Bees sleep in winter. " * 1_000) + END
    slow = Slow(engine.port, "POST", "/api/v1/jobs", len(body), **MULTIPART, Connection="close")
    slow.send(body[:-500])
    stop_listening(engine.process, engine.port)
    slow.send(body[-500:])
    status, job = slow.answer()
    assert (status, job["status"]) == (202, "queued")
    assert engine.process.popen.wait(START_SECONDS) == 0
    with running(tmp_path) as again:
        assert again.ended(job["id"]) == "completed"


def test_a_stopping_engine_refuses_an_incomplete_note_with_advice_to_resend(engine: Running) -> None:
    """The engine stops waiting for it and keeps no part of it."""
    slow = Slow(engine.port, "POST", "/api/v1/jobs", len(NOTE), **{"Content-Type": "application/json"})
    slow.send(NOTE[:-1])
    stop_listening(engine.process, engine.port)
    status, problem = slow.answer()
    assert (status, problem["code"]) == (503, "not_ready")
    assert "Send it again" in problem["detail"]
    assert engine.process.popen.wait(START_SECONDS) == 0


def test_an_upload_that_is_arriving_is_refused_at_once(server: tuple[Process, int]) -> None:
    """The upload would be lost with the server anyway; hence the server does not wait for it."""
    process, port = server
    caller = Caller(f"http://127.0.0.1:{port}/mcp")
    with caller.http:
        upload = caller.ok("kb_upload_start", filename="a.txt", total_size=1_000_000)
    slow = Slow(port, "PUT", httpx.URL(upload["upload_url"]).path, 1_000_000)
    slow.send(bytes(500_000))
    stop_listening(process, port)
    status, refused = slow.answer()
    assert (status, refused["error"]) == (503, "server_stopping")
    assert "start again with kb_upload_start" in refused["message"]
    assert process.popen.wait(START_SECONDS) == 0


def test_a_call_whose_message_is_arriving_is_served(server: tuple[Process, int]) -> None:
    process, port = server
    message = json.dumps(call("kb_upload_start", filename="a.txt", total_size=3)).encode()
    slow = Slow(port, "POST", "/mcp", len(message), **BOTH, Connection="close")
    slow.send(message[:-1])
    stop_listening(process, port)
    slow.send(message[-1:])
    status, answer = slow.answer()
    assert status == 200
    assert answer["result"]["structuredContent"]["upload_id"]
    assert process.popen.wait(START_SECONDS) == 0


def test_a_call_whose_message_stops_arriving_is_refused(server: tuple[Process, int]) -> None:
    process, port = server
    slow = Slow(port, "POST", "/mcp", 100, **BOTH)
    slow.send(b"{")
    stop_listening(process, port)
    status, answer = slow.answer()
    assert (status, answer["error"]["data"]["error_type"]) == (503, "server_stopping")
    assert "Send it again" in answer["error"]["message"]
    assert process.popen.wait(START_SECONDS) == 0
