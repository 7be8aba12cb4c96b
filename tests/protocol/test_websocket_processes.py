"""WebSockets of `kb serve --workers`: each stays with the process that was handed it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psutil
import pytest

from kb_cli.output import Exit
from tests.protocol.conftest import BOUND, Served
from tests.protocol.sockets import Connect
from tests.protocol.sockets import connect as connect
from tests.support.eventually import eventually_async
from tests.support.mcp_messages import call
from tests.support.stack import Process, free_port

pytestmark = pytest.mark.process

START_SECONDS = 60.0


@pytest.mark.requirement("N80")
async def test_each_worker_keeps_its_websockets_and_closes_them_when_told_to_stop(
    tmp_path: Path, connect: Connect
) -> None:
    """With 1001 and exit status 0; until then all of them answer, with a call of each in flight."""
    port = free_port()
    process = Process.start(
        *("-m", "kb_cli.main", "serve", "--workers", "2", "--port", str(port), "--home", str(tmp_path)),
        *("--toolsets", "knowledge"),
        LOG_LEVEL="info",
    )
    try:
        await eventually_async(
            process.output, lambda said: '"workers":2' in said, seconds=START_SECONDS, what="listening"
        )
        served = Served(f"http://127.0.0.1:{port}", asyncio.Event(), asyncio.ensure_future(asyncio.sleep(0)))
        wires = [await connect(served) for _ in range(4)]
        for wire in wires:
            assert (await wire.greet())["serverInfo"]["name"] == "knowledge-server"
        workers = psutil.Process(process.pid).children(recursive=True)
        held = [len(_connections(worker, port)) for worker in workers]
        assert sorted(count for count in held if count) == [2, 2]
        await asyncio.gather(*(wire.ask(call("knowledge-status", 1)) for wire in wires))
        process.popen.send_signal(signal.SIGTERM)
        assert [await wire.closed() for wire in wires] == [1001] * 4
        assert await asyncio.to_thread(process.popen.wait, 4 * BOUND) == Exit.OK
    finally:
        process.stop()


def _connections(process: psutil.Process, port: int) -> list[object]:
    try:
        found = process.net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return []
    return [each for each in found if each.status == "ESTABLISHED" and each.laddr.port == port]
