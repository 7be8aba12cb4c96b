"""A server's memory and sockets do not grow while its engine fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from kb_simulator.harness.app import in_thread
from kb_simulator.harness.client import ControlClient
from kb_simulator.settings import SimulatorSettings
from tests.faults.engine_process import running_server
from tests.faults.server_history import SERVER
from tests.faults.test_server_histories import DONE_FAULTS
from tests.support.eventually import eventually
from tests.support.mcp_http import Caller

pytestmark = pytest.mark.process

CALLERS = 16
WARM_UP, CALLS = 320, 800
ALLOWED_BYTES = 12 << 20
"""Maximum growth in bytes: caches may fill, and a leak of half a note per call would exceed it."""

BIG_NOTE = "granite " * 4_000


def call(url: str, calls: int) -> int:
    """Search, read, write and list from several threads, and return the number of failed calls."""

    def work(number: int) -> int:
        caller = Caller(url)
        failed = 0
        with caller.http:
            for turn in range(calls // CALLERS):
                match (number + turn) % 4:
                    case 0:
                        result = caller.call("kb_addnote", text=f"{number} {turn} {BIG_NOTE}")
                    case 1:
                        result = caller.call("kb_search", query="granite", mode="fts", top=3)
                    case 2:
                        result = caller.call("kb_get", document_id=1)
                    case _:
                        result = caller.call("kb_jobs", limit=5)
                failed += result["isError"]
        return failed

    with ThreadPoolExecutor(CALLERS) as pool:
        return sum(pool.map(work, range(CALLERS)))


def test_memory_and_sockets_do_not_grow_with_faulty_calls(tmp_path: Path) -> None:
    """Most of their requests are broken off, hang or are refused; afterwards the server is as before."""
    with (
        in_thread(SimulatorSettings(port=0, control=0)) as simulator,
        ControlClient(simulator.control_url or "") as control,
        running_server(tmp_path, KB_ENGINE_URL=simulator.url, LOG_LEVEL="error", REQUEST_TIMEOUT="300") as (
            process,
            port,
        ),
    ):
        url = f"http://127.0.0.1:{port}/mcp"
        server = psutil.Process(process.pid)

        def faulty(calls: int) -> int:
            control.reset()
            for name in (*DONE_FAULTS, "reset_before_headers", "internal_error", "bad_gateway", "not_json"):
                control.faults.arm(name, probability=0.07, header=SERVER, optional=True)
            control.faults.arm("hang", probability=0.005, header=SERVER, optional=True)
            failed = call(url, calls)
            control.faults.disarm_all()
            return failed

        assert faulty(WARM_UP) > 0
        descriptors, memory = server.num_fds(), server.memory_info().rss
        assert faulty(CALLS) > CALLS / 10
        eventually(
            server.num_fds,
            lambda seen: seen <= descriptors + CALLERS // 4,
            what="the closing of what faulty calls had opened",
        )
        assert server.memory_info().rss - memory < ALLOWED_BYTES
        eventually(
            lambda: call(url, CALLERS * 4),
            lambda failed: failed == 0,
            what="an answer to every call, once the circuit has closed",
        )
