"""Memory while 500 MiB go through server and engine: flat in the size of the file."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from kb_load.processes import free_port
from tests.support.mcp_http import Caller
from tests.support.stack import Process, wait_until_ready

pytestmark = pytest.mark.process

MEBIBYTE = 1024 * 1024
SIZE = 500 * MEBIBYTE
CHUNK = 8 * MEBIBYTE
ALLOWED = 100 * MEBIBYTE


def memory(pid: int, line: str) -> int:
    """Bytes of a line of /proc/PID/status: VmRSS is resident now, VmHWM its peak."""
    for row in Path(f"/proc/{pid}/status").read_text().splitlines():
        if row.startswith(f"{line}:"):
            return int(row.split()[1]) * 1024
    raise AssertionError(f"no {line} for process {pid}")


@dataclass
class Measured:
    """Engine and server in processes of their own, and what each held before."""

    engine: Process
    server: Process
    engine_url: str
    caller: Caller
    baseline: dict[str, int]

    def note_baseline(self) -> None:
        for name, process in (("engine", self.engine), ("server", self.server)):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")
            self.baseline[name] = memory(process.pid, "VmRSS")

    def growth(self) -> dict[str, int]:
        return {
            name: memory(process.pid, "VmHWM") - self.baseline[name]
            for name, process in (("engine", self.engine), ("server", self.server))
        }


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """Both processes, warm: the embedder loaded, one upload done."""
    home = tmp_path_factory.mktemp("home")
    engine_port, server_port = free_port(), free_port()
    environment = {
        "KB_HOME": str(home),
        "KB_ENGINE_PORT": str(engine_port),
        "KB_MCP_PORT": str(server_port),
        "KB_ENGINE_URL": f"http://127.0.0.1:{engine_port}",
        "KB_MAX_UPLOAD_BYTES": str(600 * MEBIBYTE),
    }
    engine = Process.start("-m", "kb_cli.main", "engine", **environment)
    server = Process.start("-m", "kb_cli.main", "serve", **environment)
    try:
        wait_until_ready(f"http://127.0.0.1:{engine_port}/readyz", engine)
        wait_until_ready(f"http://127.0.0.1:{server_port}/readyz", server)
        caller = Caller(f"http://127.0.0.1:{server_port}/mcp")
        both = Measured(engine, server, f"http://127.0.0.1:{engine_port}", caller, {})
        caller.ok("kb_addnote", text="warm the embedder", wait_seconds=50)
        caller.ok("kb_search", query="warm")
        yield both
        caller.http.close()
    finally:
        server.stop()
        engine.stop()


def block(index: int) -> bytes:
    return index.to_bytes(8, "big") * (CHUNK // 8)


def blocks() -> Iterator[bytes]:
    """The file, a chunk at a time, of exactly `SIZE` bytes."""
    left = SIZE
    index = 0
    while left:
        yield block(index)[:left]
        left -= min(left, CHUNK)
        index += 1


def finish_and_cancel(measured: Measured, upload_id: str) -> None:
    job_id = measured.caller.ok("kb_upload_finish", upload_id=upload_id)["job_id"]
    path = f"{measured.engine_url}/api/v1/jobs/{job_id}"
    httpx.delete(path, timeout=60)  # too late where the size alone has failed it
    answer = httpx.get(path, timeout=60)
    assert answer.json()["status"] in {"cancelled", "failed"}, answer.text


def assert_flat(measured: Measured, way: str) -> None:
    growth = measured.growth()
    print(f"{way}: " + ", ".join(f"{name} +{size / MEBIBYTE:.1f} MiB" for name, size in growth.items()))
    assert all(size < ALLOWED for size in growth.values()), growth


@pytest.mark.timeout(300)
@pytest.mark.requirement("E26")
@pytest.mark.parametrize("filename", ["large.pdf", "large.txt"])
def test_a_large_file_by_put_leaves_memory_flat(measured: Measured, filename: str) -> None:
    upload = measured.caller.ok("kb_upload_start", filename=filename, total_size=SIZE)
    measured.note_baseline()
    answer = httpx.put(
        upload["upload_url"], content=blocks(), headers={"Content-Length": str(SIZE)}, timeout=120
    )
    assert answer.is_success, answer.text
    finish_and_cancel(measured, upload["upload_id"])
    assert_flat(measured, f"PUT {filename}")


@pytest.mark.timeout(300)
def test_a_large_file_in_chunks_leaves_memory_flat(measured: Measured) -> None:
    """500 MiB in base64, eight at a time, then through the server to the engine."""
    upload_id = measured.caller.ok("kb_upload_start", filename="large2.pdf", total_size=SIZE)["upload_id"]
    measured.note_baseline()
    for index, data in enumerate(blocks()):
        measured.caller.ok(
            "kb_upload_chunk", upload_id=upload_id, chunk_index=index, data=base64.b64encode(data).decode()
        )
    finish_and_cancel(measured, upload_id)
    assert_flat(measured, "chunks")
