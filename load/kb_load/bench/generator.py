"""Load from one thread: wrk where it is installed, else a small client of our own.

Both keep a fixed number of connections busy (a closed loop, with pauses where wanted) with one request that
never changes, and read of an answer no more than its status and length; what answers look like is checked
before. Our own client costs two to three times wrk's processor time a call, which on few cores comes out of
the server's share: compare only figures of one client.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kb_load.messages import Message
from kb_load.stats import percentile


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of some seconds came to. Latencies are milliseconds, `bytes_each` is an answer's length."""

    calls: int
    seconds: float
    p50: float
    p95: float
    p99: float
    errors: int
    bytes_each: float

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes; `path` begins with a slash."""

    port: int
    path: str
    message: Message


def client_name() -> str:
    """The client that `generate` uses here."""
    return "wrk" if shutil.which("wrk") else "own asyncio client"


def generate(target: Target, *, connections: int, seconds: int, pause: float = 0.0) -> Load:
    """Send the target's request over `connections` for `seconds`, on each as soon as the last is answered.

    With a `pause` each waits before, by chance up to twice so many seconds.
    """
    if shutil.which("wrk"):
        return _with_wrk(target, connections, seconds, pause)
    return _with_own(target, connections, seconds, pause)


# --- wrk ------------------------------------------------------------------------------------------

_SCRIPT = """\
wrk.method = "POST"
wrk.body = {body}
{headers}
{delay}
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'RESULT {{"calls":%d,"seconds":%f,"p50":%f,"p95":%f,"p99":%f,"errors":%d,"bytes":%d}}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(95) / 1e3,
    latency:percentile(99) / 1e3, e.connect + e.read + e.write + e.status + e.timeout, summary.bytes))
end
"""


def _with_wrk(target: Target, connections: int, seconds: int, pause: float) -> Load:
    headers = "\n".join(
        f"wrk.headers[{_lua(name)}] = {_lua(value)}" for name, value in target.message.headers.items()
    )
    delay = f"delay = function() return math.random(0, {2000 * pause:.0f}) end" if pause else ""
    script = _SCRIPT.format(body=_lua(target.message.body.decode()), headers=headers, delay=delay)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.lua"
        path.write_text(script)
        command = [
            "wrk", "--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s",
            "--timeout", "30s", "--script", str(path), f"http://127.0.0.1:{target.port}{target.path}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 60)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise RuntimeError(f"wrk: {done.stderr or done.stdout}")
    return _load(json.loads(lines[0].removeprefix("RESULT ")))


def _lua(text: str) -> str:
    escaped = "".join(
        character if " " <= character <= "~" and character not in '"\\' else
        "".join(f"\\{byte:03d}" for byte in character.encode())
        for character in text
    )  # fmt: skip
    return f'"{escaped}"'


def _load(raw: dict[str, float]) -> Load:
    calls = int(raw["calls"])
    return Load(
        calls=calls,
        seconds=raw["seconds"],
        p50=round(raw["p50"], 3),
        p95=round(raw["p95"], 3),
        p99=round(raw["p99"], 3),
        errors=int(raw["errors"]),
        bytes_each=round(raw["bytes"] / max(1, calls), 1),
    )


# --- our own --------------------------------------------------------------------------------------


class _Connection(asyncio.Protocol):
    """Sends the request, waits for its answer whole, and sends again until the time is over."""

    def __init__(self, data: bytes, until: float, pause: float, ended: asyncio.Event) -> None:
        self._data = data
        self._until = until
        self._pause = pause
        self._ended = ended
        self._buffer = bytearray()
        self._began = 0.0
        self.latencies: list[float] = []
        self.errors = 0
        self.bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment]  # TCP's
        self._go_on()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        length = answer_length(self._buffer)
        if length is None or len(self._buffer) < length:
            return
        now = time.perf_counter()
        self.latencies.append((now - self._began) * 1000)
        self.errors += not self._buffer.startswith(b"HTTP/1.1 2")
        self.bytes += length
        self._buffer.clear()
        self._go_on()

    def connection_lost(self, _error: Exception | None) -> None:
        self.errors += time.perf_counter() < self._until
        self._ended.set()

    def _go_on(self) -> None:
        if not self._pause:
            self._send_or_end()
            return
        wait = random.uniform(0, 2 * self._pause)
        asyncio.get_running_loop().call_later(wait, self._send_or_end)

    def _send_or_end(self) -> None:
        if time.perf_counter() < self._until:
            self._send()
        else:
            self._transport.close()

    def _send(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._data)


def answer_length(buffer: bytes | bytearray) -> int | None:
    """The bytes of the answer at the start of `buffer`, head and body; None until that can be told.

    Raises:
        ValueError: it comes without a Content-Length.
    """
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(buffer[:end]).lower()
    mark = head.find(b"\r\ncontent-length:")
    if mark < 0:
        raise ValueError("the answer has no Content-Length")
    return end + 4 + int(head[mark + 17 :].split(b"\r\n", 1)[0])


async def _loop(target: Target, connections: int, seconds: int, pause: float) -> Load:
    message = target.message
    lines = [f"POST {target.path} HTTP/1.1", f"Host: 127.0.0.1:{target.port}"]
    lines += [f"{name}: {value}" for name, value in message.headers.items()]
    head = "\r\n".join([*lines, f"Content-Length: {len(message.body)}", "", ""])
    data, loop, began = head.encode() + message.body, asyncio.get_running_loop(), time.perf_counter()
    made = []
    for _ in range(connections):
        ended = asyncio.Event()
        connection = _Connection(data, began + seconds, pause, ended)
        await loop.create_connection(lambda each=connection: each, "127.0.0.1", target.port)  # type: ignore[misc]  # mypy does not infer a lambda with a default
        made.append((connection, ended))
    for _, ended in made:
        await asyncio.wait_for(ended.wait(), seconds + 60)
    latencies = [each for connection, _ in made for each in connection.latencies]
    return _load(
        {
            "calls": len(latencies),
            "seconds": time.perf_counter() - began,
            **{f"p{share}": percentile(latencies, share / 100) for share in (50, 95, 99)},
            "errors": sum(connection.errors for connection, _ in made),
            "bytes": sum(connection.bytes for connection, _ in made),
        }
    )


def _with_own(target: Target, connections: int, seconds: int, pause: float) -> Load:
    if sys.platform == "win32":
        return asyncio.run(_loop(target, connections, seconds, pause))
    import uvloop

    return uvloop.run(_loop(target, connections, seconds, pause))
