"""Memory while 250 MiB go through server and engine: independent of the size of the file."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.faults.engine_process import running, running_server
from tests.support.mcp_http import Caller
from tests.support.patience import ANSWER_SECONDS, JOB_SECONDS
from tests.support.stack import running_stack

pytestmark = pytest.mark.process

MEBIBYTE = 1024 * 1024
SIZE = 250 * MEBIBYTE
CHUNK = 8 * MEBIBYTE
ALLOWED = 100 * MEBIBYTE


def memory(pid: int, line: str) -> int:
    """Bytes in a line of /proc/PID/status: VmRSS is resident now, VmHWM its peak."""
    for row in Path(f"/proc/{pid}/status").read_text().splitlines():
        if row.startswith(f"{line}:"):
            return int(row.split()[1]) * 1024
    raise AssertionError(f"no {line} for process {pid}")


@dataclass
class Measured:
    """Engine and server, which may be one process, and the memory of each before the upload."""

    engine: httpx.Client
    pids: set[int]
    caller: Caller
    baseline: dict[int, int] = field(default_factory=dict)

    def note_baseline(self) -> None:
        for pid in self.pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
            self.baseline[pid] = memory(pid, "VmRSS")

    def finish(self, upload_id: str) -> None:
        """Finish the upload and cancel its job; neither process may have grown."""
        path = f"/api/v1/jobs/{self.caller.ok('kb_upload_finish', upload_id=upload_id)['job_id']}"
        self.engine.delete(path)  # too late if the job has already failed because of the size
        answer = self.engine.get(path)
        assert answer.json()["status"] in {"cancelled", "failed"}, answer.text
        growth = [memory(pid, "VmHWM") - before for pid, before in self.baseline.items()]
        assert max(growth) < ALLOWED, growth


@contextmanager
def two_processes(home: Path, **settings: str) -> Iterator[Measured]:
    with (
        running(home, **settings) as engine,
        running_server(home, KB_ENGINE_URL=engine.url, **settings) as (server, port),
    ):
        pids = {engine.process.pid, server.pid}
        yield Measured(engine.http, pids, Caller(f"http://127.0.0.1:{port}/mcp"))


@contextmanager
def one_process(home: Path, **settings: str) -> Iterator[Measured]:
    """Engine and server without a socket between them: a file takes a different path."""
    with (
        running_stack(home, "--single", **settings) as stack,
        httpx.Client(base_url=stack.engine_url, timeout=ANSWER_SECONDS, verify=False) as engine,
    ):
        yield Measured(engine, {stack.process.pid}, Caller(stack.mcp_url))


@pytest.fixture(scope="module")
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """Engine and server after the embedder was loaded."""
    settings = {"KB_EMBEDDER": "minilm", "KB_MAX_UPLOAD_BYTES": str(300 * MEBIBYTE)}
    with request.param(tmp_path_factory.mktemp("home"), **settings) as made, made.caller.http:
        made.caller.ok("kb_addnote", text="warm the embedder", wait_seconds=JOB_SECONDS)
        made.caller.ok("kb_search", query="warm")
        yield made


def blocks() -> Iterator[bytes]:
    """Yield the file, a chunk at a time, of exactly `SIZE` bytes."""
    for index, start in enumerate(range(0, SIZE, CHUNK)):
        yield index.to_bytes(8, "big") * (min(CHUNK, SIZE - start) // 8)


@pytest.mark.requirement("E26")
@pytest.mark.parametrize(
    ("measured", "filename"),
    [(one_process, "large.txt"), (two_processes, "large.pdf"), (two_processes, "large.txt")],
    indirect=["measured"],
)
def test_a_large_file_by_put_leaves_memory_flat(measured: Measured, filename: str) -> None:
    upload = measured.caller.ok("kb_upload_start", filename=filename, total_size=SIZE)
    measured.note_baseline()
    answer = measured.caller.http.put(
        upload["upload_url"], content=blocks(), headers={"Content-Length": str(SIZE)}
    )
    assert answer.is_success, answer.text
    measured.finish(upload["upload_id"])


@pytest.mark.parametrize("measured", [two_processes], indirect=True)
def test_a_large_file_in_chunks_leaves_memory_flat(measured: Measured) -> None:
    """250 MiB in base64, 8 MiB at a time, then through the server to the engine."""
    upload_id = measured.caller.ok("kb_upload_start", filename="large2.pdf", total_size=SIZE)["upload_id"]
    measured.note_baseline()
    for index, data in enumerate(blocks()):
        measured.caller.ok(
            "kb_upload_chunk", upload_id=upload_id, chunk_index=index, data=base64.b64encode(data).decode()
        )
    measured.finish(upload_id)
