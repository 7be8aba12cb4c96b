"""`kb serve --workers`: several processes on one port behave as one server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import psutil
import pytest

from kb_cli.output import Exit
from tests.protocol.sockets import Connect
from tests.protocol.sockets import connect as connect
from tests.support.eventually import eventually
from tests.support.mcp_messages import BOTH, call
from tests.support.patience import ANSWER_SECONDS, JOB_SECONDS, START_SECONDS
from tests.support.stack import Process, Stack, running_stack

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """`kb up` whose server has two workers; the last test ends it."""
    home = tmp_path_factory.mktemp("workers")
    with running_stack(home, KB_EMBEDDER="hash", KB_WORKERS="2", LOG_LEVEL="warn") as running:
        yield running


@pytest.fixture
def two(stack: Stack) -> Iterator[list[httpx.Client]]:
    """Two clients with a connection each; consecutive connections go to different workers."""
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=60.0)
    clients = [
        httpx.Client(base_url=stack.server_url, limits=limits, timeout=ANSWER_SECONDS) for _ in range(2)
    ]
    try:
        for client in clients:
            client.get("/healthz").raise_for_status()
        yield clients
    finally:
        for client in clients:
            client.close()


def workers(stack: Stack) -> list[psutil.Process]:
    children = psutil.Process(stack.process.pid).children(recursive=True)
    return [child for child in children if _is_worker(child)]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "--worker" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def connections(process: psutil.Process, port: int) -> int:
    found = process.net_connections(kind="tcp")
    return len([each for each in found if each.status == "ESTABLISHED" and each.laddr.port == port])


def shares(stack: Stack) -> list[int]:
    """Open two connections, and return how many of the port's each worker has."""
    port = int(stack.server_url.rpartition(":")[2])
    with ExitStack() as opened:
        for _ in range(2):
            client = httpx.Client(base_url=stack.server_url, timeout=ANSWER_SECONDS)
            opened.enter_context(client).get("/healthz").raise_for_status()
        return [connections(worker, port) for worker in workers(stack)]


def ask(client: httpx.Client, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = client.post("/mcp", json=call(tool, **arguments), headers=BOTH).json()
    result: dict[str, Any] = answer["result"]
    assert not result["isError"], result
    content: dict[str, Any] = result["structuredContent"]
    return content


def counted(client: httpx.Client, tool: str) -> float:
    """Number of calls of the tool according to `/metrics`."""
    found = re.search(
        rf'mcp_requests_total\{{tool="{tool}",status="success"\}} (\S+)', client.get("/metrics").text
    )
    return float(found[1]) if found else 0.0


def test_connections_are_shared_out_evenly(stack: Stack, two: list[httpx.Client]) -> None:
    port = int(stack.server_url.rpartition(":")[2])
    assert len(two) == 2
    assert [connections(worker, port) for worker in workers(stack)] == [1, 1]


def test_an_upload_whose_chunks_reach_both_workers_comes_out_whole(two: list[httpx.Client]) -> None:
    text = "".join(f"Line {number}: bees keep warm in winter.\n" for number in range(4000)).encode()
    size = -(-len(text) // 5)
    started = ask(two[0], "kb_upload_start", filename="bees.txt", total_size=len(text))
    for index in range(5):
        piece = base64.b64encode(text[index * size : (index + 1) * size]).decode()
        ask(
            two[(index + 1) % 2],
            "kb_upload_chunk",
            upload_id=started["upload_id"],
            chunk_index=index,
            data=piece,
        )
    checksum = hashlib.sha256(text).hexdigest()
    done = ask(
        two[1], "kb_upload_finish", upload_id=started["upload_id"], sha256=checksum, wait_seconds=JOB_SECONDS
    )
    document = ask(two[0], "kb_get", document_id=done["document_id"])
    assert document["sha256"] == checksum


def test_a_worker_that_dies_is_started_again(stack: Stack) -> None:
    """The other worker answers in the meantime, and counts and staged files are kept."""
    with httpx.Client(base_url=stack.server_url, timeout=ANSWER_SECONDS) as client:
        started = ask(client, "kb_upload_start", filename="a.txt", total_size=3)
        count = counted(client, "kb_upload_start")
    victims = workers(stack)
    victims[0].kill()
    victims[0].wait(START_SECONDS)
    with httpx.Client(base_url=stack.server_url, timeout=ANSWER_SECONDS) as client:
        ask(client, "kb_status")
    eventually(lambda: shares(stack), lambda shares: shares == [1, 1], what="a second worker")
    with httpx.Client(base_url=stack.server_url, timeout=ANSWER_SECONDS) as client:
        data = base64.b64encode(b"abc").decode()
        arrived = ask(client, "kb_upload_chunk", upload_id=started["upload_id"], chunk_index=0, data=data)
        assert arrived["complete"]
        assert counted(client, "kb_upload_start") == count


def test_a_taken_port_is_reported_once_for_all_workers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = Process.start("-m", "kb_cli.main", "serve", "--workers", "2", "--port", port)
        assert process.popen.wait(START_SECONDS) == Exit.FAILED
        process.stop()
    assert "another process listens there already" in process.output()


@pytest.mark.requirement("N80")
async def test_each_worker_keeps_its_websockets_and_closes_them_when_told_to_stop(
    stack: Stack, connect: Connect
) -> None:
    """Interrupted, all processes end in order."""
    port = int(stack.server_url.rpartition(":")[2])
    wires = [await connect(stack.server_url) for _ in range(4)]
    for wire in wires:
        assert (await wire.greet())["serverInfo"]["name"] == "kb"
    assert [connections(worker, port) for worker in workers(stack)] == [2, 2]
    await asyncio.gather(*(wire.ask(call("kb_status", 1)) for wire in wires))
    children = psutil.Process(stack.process.pid).children(recursive=True)
    stack.process.popen.send_signal(signal.SIGINT)
    assert [await wire.closed() for wire in wires] == [1001] * 4
    assert await asyncio.to_thread(stack.process.popen.wait, START_SECONDS) == Exit.OK
    assert not psutil.wait_procs(children, timeout=START_SECONDS)[1]
