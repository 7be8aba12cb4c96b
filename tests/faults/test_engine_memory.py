"""Memory of the engine while it takes in a large upload: flat in the size of the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.stack import Process, free_port, wait_until_ready

pytestmark = pytest.mark.process

MEBIBYTE = 1024 * 1024
SIZE = 500 * MEBIBYTE
ALLOWED = 100 * MEBIBYTE
BLOCK = b"granite quarry " * 69_905 + b"\n" * 151  # a mebibyte


def memory(pid: int, line: str) -> int:
    """Bytes of a line of /proc/PID/status: VmRSS is resident now, VmHWM its peak."""
    for row in Path(f"/proc/{pid}/status").read_text().splitlines():
        if row.startswith(f"{line}:"):
            return int(row.split()[1]) * 1024
    raise AssertionError(f"no {line} for process {pid}")


def body() -> Iterator[bytes]:
    """A multipart body with one file of `SIZE` bytes, a mebibyte at a time."""
    yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="large.NAME"\r\n\r\n'
    for _ in range(SIZE // len(BLOCK)):
        yield BLOCK
    yield b"\r\n--b--\r\n"


@pytest.mark.timeout(300)
@pytest.mark.requirement("E26")
@pytest.mark.parametrize("extension", ["txt", "pdf"])
def test_500_mebibytes_raise_the_peak_by_less_than_100(tmp_path: Path, extension: str) -> None:
    """Over an engine with its model loaded; the job is cancelled as soon as it is accepted."""
    port = free_port()
    process = Process.start(
        "-m",
        "kb_engine",
        KB_HOME=str(tmp_path),
        KB_ENGINE_PORT=str(port),
        KB_MAX_UPLOAD_BYTES=str(600 * MEBIBYTE),
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(f"{url}/readyz", process)
        with httpx.Client(base_url=f"{url}/api/v1", timeout=120) as http:
            warm = http.post("/jobs", json={"text": "warm the model"}).json()
            assert http.get(f"/jobs/{warm['id']}?wait=30").json()["status"] == "completed"
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # the peak starts from here
            baseline = memory(process.pid, "VmRSS")
            job = http.post(
                "/jobs",
                content=(part.replace(b"NAME", extension.encode()) for part in body()),
                headers={"Content-Type": "multipart/form-data; boundary=b"},
            )
            assert job.status_code == 202, job.text
            path = f"/jobs/{job.json()['id']}"
            http.delete(path)  # too late where the size alone has failed it
            assert http.get(path).json()["status"] in {"cancelled", "failed"}
            growth = memory(process.pid, "VmHWM") - baseline
            print(f"{extension}: +{growth / MEBIBYTE:.1f} MiB over {baseline / MEBIBYTE:.1f} MiB")
            assert growth < ALLOWED
    finally:
        process.stop()
