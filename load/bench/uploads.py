"""`bench uploads`: chunked and direct uploads beside bare handlers that decode and write the same.

One client, one file after another, in turns: in each round one host goes first and last, in the next the
other, for what is written first meets another disk cache than what follows. Chunks hold 4 MiB before
base64. The engine is a stub that reads what it is sent; that is not in the timed part, for the bare handlers
send nothing on, and it goes at the engine's speed. Memory is the highest resident memory of the server
while a file goes up, for a small file and for a large one.
"""

from __future__ import annotations

import base64
import http.client
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec

from bench import Option
from bench.runner import KEY, Panel, Report, RunningServer, kb_serve, rotate, stub_engine
from kb_load.messages import HANDSHAKE, CallFailed, Message, structured, tool_call
from kb_load.processes import LOOPBACK, MEBIBYTE, Sampler, free_port, running
from kb_load.report import median_figures

CHUNK_BYTES = 4 * MEBIBYTE
_TIMEOUT = 120.0

Way = Literal["chunked", "direct"]


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """One file sent. `cpu` is processor seconds of the server for each GiB."""

    way: Way
    host: str
    mib: int
    round: int
    seconds: float
    cpu: float
    peak_mib: float

    @property
    def rate(self) -> float:
        """MiB a second."""
        return self.mib / self.seconds


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of one way and host at one size; `ratio` is to the bare handler of the same round."""

    way: str
    host: str
    mib: int
    rate: float
    ratio: float
    cpu: float
    peak_mib: float


class UploadsReport(Report, frozen=True, kw_only=True):
    title = "Uploads: this server beside bare handlers of the same work"
    columns: ClassVar = {
        "upload": "{0.way}",
        "file MiB": "{0.mib}",
        "host": "{0.host}",
        "MiB/s": "{0.rate:.0f}",
        "of bare": "{0.ratio:.2f}",
        "CPU s/GiB": "{0.cpu:.2f}",
        "peak memory MiB": "{0.peak_mib:.0f}",
    }
    panels = (
        Panel("{0.way}, {0.mib} MiB", "{0.host}", "rate", "{0.rate:.0f}", "MiB a second"),
        Panel("{0.way}, {0.mib} MiB", "{0.host}", "peak_mib", "{0.peak_mib:.0f}", "peak memory, MiB"),
    )
    uploads: list[Upload]
    figures: list[Figures]

    def rows(self) -> list[Figures]:
        return self.figures

    def footer(self) -> list[str]:
        rounds = self.uploads[-1].round
        return [f"medians of {rounds} rounds, in every other one each host goes first and last"]


def run(
    *,
    mib: Annotated[int, Option("size of the large file, in MiB")] = 256,
    small_mib: int = 32,
    rounds: Annotated[int, Option("number of rounds")] = 6,
    note: Callable[[str], None] = print,
) -> UploadsReport:
    """Measure; files of `small_mib` and of `mib`.
    Raises CallFailed: an upload was refused, or stored with a wrong length.
    """
    report = UploadsReport(uploads=[], figures=[])
    with tempfile.TemporaryDirectory(prefix="kb-bench-") as folder, _standing(Path(folder), mib) as hosts:
        for number in range(rounds + 1):
            order = rotate(hosts, number)
            for size in sorted({min(small_mib, mib), mib}):
                for way in ("chunked", "direct"):
                    for host in (*order, *reversed(order)):
                        each = _measured(host, way, size, number)
                        note(f"round {number} {way} {size} MiB {each.host}: {each.rate:.0f} MiB/s")
                        if number:  # the first round warms
                            report.uploads.append(each)
    report.figures.extend(figures(report.uploads))
    return report


def figures(uploads: list[Upload]) -> list[Figures]:
    """Medians over the rounds, and of the ratios to the bare handler of the same round."""

    def rate(of: Upload, host: str) -> float:
        """Return the MiB a second of all uploads to `host` in the round of `of`."""
        kind = (of.way, of.mib, of.round, host)
        alike = [each for each in uploads if (each.way, each.mib, each.round, each.host) == kind]
        return sum(each.mib for each in alike) / sum(each.seconds for each in alike)

    fields: dict[str, tuple[Callable[[Upload], float], int]] = {
        "rate": (lambda each: rate(each, each.host), 1),
        "ratio": (lambda each: rate(each, each.host) / rate(each, "bare"), 3),
        "cpu": (lambda each: each.cpu, 2),
    }
    ordered = sorted(uploads, key=lambda each: (each.way, each.mib, each.host))
    return [
        Figures(peak_mib=round(max(each.peak_mib for each in of), 1), **medians)
        for of, medians in median_figures(ordered, ("way", "mib", "host"), fields)
    ]


# --- one file -------------------------------------------------------------------------------------


def _measured(host: RunningServer, way: Way, mib: int, number: int) -> Upload:
    send = {"chunked": _chunked, "direct": _direct}[way]
    process = host.process
    before = process.cpu_seconds()
    with (
        Sampler({process.name: process.pid}, interval=0.02, sockets=False) as sampler,
        closing(http.client.HTTPConnection(LOOPBACK, host.port, timeout=_TIMEOUT)) as connection,
    ):
        bare = process.name == "bare"
        upload_id, path = "bare", "/direct"
        if not bare:
            arguments = {"filename": "large.bin.txt", "total_size": mib * MEBIBYTE}
            started = _call(connection, tool_call(HANDSHAKE, "kb_upload_start", arguments, key=KEY))
            upload_id, path = started["upload_id"], urlsplit(started["upload_url"]).path
        seconds = send(connection, mib, upload_id, path)
        if bare:
            _response(connection, "DELETE", "/files", b"", {})
        else:
            arguments = {"upload_id": upload_id}
            _call(connection, tool_call(HANDSHAKE, "kb_upload_finish", arguments, key=KEY))
    return Upload(
        way=way,
        host=process.name,
        mib=mib,
        round=number,
        seconds=seconds,
        cpu=(process.cpu_seconds() - before) / mib * 1024,
        peak_mib=max(sample.resident_mib for sample in sampler.samples),
    )


def _chunked(connection: http.client.HTTPConnection, mib: int, upload_id: str, _path: str) -> float:
    def message(data: str, index: int) -> Message:
        arguments = {"upload_id": upload_id, "chunk_index": index, "data": data}
        return tool_call(HANDSHAKE, "kb_upload_chunk", arguments, key=KEY)

    bare = upload_id == "bare"
    path = "/chunk" if bare else "/mcp"
    # Encoded before the clock starts, and sent as they are: the client's work is not the server's.
    data = base64.b64encode(os.urandom(CHUNK_BYTES))
    head, _, tail = message("DATA", 987_654).body.partition(b"DATA")
    headers = dict(message("", 0).headers)
    seconds = 0.0
    for index in range(mib * MEBIBYTE // CHUNK_BYTES):
        body = b"".join((head, data, tail)).replace(b"987654", str(index).encode(), 1)
        started = time.perf_counter()
        answer = _response(connection, "POST", path, body, headers)
        seconds += time.perf_counter() - started
        found = structured(answer)
        if found["received_bytes"] != (CHUNK_BYTES if bare else CHUNK_BYTES * (index + 1)):
            raise CallFailed(f"chunk {index}: {found}")
    return seconds


def _direct(connection: http.client.HTTPConnection, mib: int, _upload_id: str, path: str) -> float:
    block = os.urandom(MEBIBYTE)
    headers = {"Content-Length": str(mib * MEBIBYTE)}
    started = time.perf_counter()
    answer = _response(connection, "PUT", path, (block for _ in range(mib)), headers)
    seconds = time.perf_counter() - started
    if msgspec.json.decode(answer)["received_bytes"] != mib * MEBIBYTE:
        raise CallFailed(f"direct: {answer.decode()}")
    return seconds


def _call(connection: http.client.HTTPConnection, message: Message) -> dict[str, Any]:
    return structured(_response(connection, "POST", "/mcp", message.body, dict(message.headers)))


def _response(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | Iterator[bytes],
    headers: dict[str, Any],
) -> bytes:
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    answer = response.read()
    if response.status >= 300:
        raise CallFailed(f"{method} {path}: {response.status} {answer[:300]!r}")
    return answer


@contextmanager
def _standing(folder: Path, mib: int) -> Iterator[list[RunningServer]]:
    port = free_port()
    bare = ["-m", "bench.servers", "uploads", "--port", str(port), "--folder", str(folder / "bare")]
    (folder / "bare").mkdir()
    limit = str(2 * mib * MEBIBYTE)
    with (
        stub_engine(folder) as (_, url),
        kb_serve("kb", url, folder / "home", KB_MAX_UPLOAD_BYTES=limit) as ours,
        running("bare", bare, folder, port=port) as theirs,
    ):
        yield [ours, RunningServer(theirs, port)]
