"""`kb bench uploads`: chunked and direct uploads beside bare handlers that decode and write the same.

One client, one file after another, in turns: in each round one host goes first and last, in the next the
other, for what is written first meets another disk cache than what follows. Chunks hold 4 MiB before
base64. The engine is a stub that reads what it is handed; handing over is not in the timed part, for the bare
handlers have none, and it goes at the engine's speed. Memory is the highest resident memory of the server
while a file goes up, for a small file and for a large one.
"""

from __future__ import annotations

import base64
import http.client
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from kb_load.bench import Option
from kb_load.machine import Machine, describe
from kb_load.messages import HANDSHAKE, CallFailed, Message, structured, tool_call
from kb_load.plots import Sheet
from kb_load.processes import LOOPBACK, Running, free_port, running
from kb_load.sampling import MEBIBYTE, Sampler
from kb_load.stats import table

CHUNK_BYTES = 4 * MEBIBYTE
KEY = "a-key-for-the-benchmark"
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


class UploadsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run."""

    machine: Machine
    uploads: list[Upload]
    figures: list[Figures]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one host takes uploads."""

    name: str
    process: Running
    port: int


def run(
    *,
    mib: Annotated[int, Option("size of the large file")] = 256,
    small_mib: int = 32,
    rounds: Annotated[int, Option("turns")] = 6,
    note: Callable[[str], None] = print,
) -> UploadsReport:
    """Measure; files of `small_mib` and of `mib`.

    Raises:
        CallFailed: something was not taken, or came out with another length.
    """
    machine = describe()
    done: list[Upload] = []
    with tempfile.TemporaryDirectory(prefix="kb-bench-") as folder, _places(Path(folder), mib) as places:
        for number in range(rounds + 1):
            order = places if number % 2 else places[::-1]
            for size in (small_mib, mib):
                for way in ("chunked", "direct"):
                    for place in (*order, *reversed(order)):
                        each = _measured(place, way, size, number)
                        note(f"round {number} {way} {size} MiB {place.name}: {each.rate:.0f} MiB/s")
                        if number:  # the first round warms
                            done.append(each)
    return UploadsReport(machine=machine, uploads=done, figures=figures(done))


def figures(uploads: list[Upload]) -> list[Figures]:
    """Medians over the rounds, and of the ratios to the bare handler of the same round."""
    rounds: defaultdict[tuple[str, int, str], defaultdict[int, list[Upload]]]
    rounds = defaultdict(lambda: defaultdict(list))
    for each in uploads:
        rounds[each.way, each.mib, each.host][each.round].append(each)
    rates = {
        kind: {
            number: sum(each.mib for each in of) / sum(each.seconds for each in of)
            for number, of in by_round.items()
        }
        for kind, by_round in rounds.items()
    }
    found = []
    for (way, mib, host), by_round in sorted(rates.items()):
        of = [each for each in uploads if (each.way, each.mib, each.host) == (way, mib, host)]
        bare = rates[way, mib, "bare"]
        found.append(
            Figures(
                way=way,
                host=host,
                mib=mib,
                rate=round(median(by_round.values()), 1),
                ratio=round(median(rate / bare[number] for number, rate in by_round.items()), 3),
                cpu=round(median(each.cpu for each in of), 2),
                peak_mib=round(max(each.peak_mib for each in of), 1),
            )
        )
    return found


def text(report: UploadsReport) -> str:
    """The report for people."""
    header = ["upload", "file MiB", "host", "MiB/s", "of bare", "CPU s/GiB", "peak memory MiB"]
    rows = [
        [
            each.way, str(each.mib), each.host, f"{each.rate:.0f}", f"{each.ratio:.2f}", f"{each.cpu:.2f}",
            f"{each.peak_mib:.0f}",
        ]
        for each in report.figures
    ]  # fmt: skip
    rounds = max(each.round for each in report.uploads)
    how = f"medians of {rounds} rounds, in every other one each host goes first and last"
    return f"{table(header, rows)}\n{how}\n{report.machine.line()}"


def plot(report: UploadsReport, path: Path) -> None:
    """Draw speed and memory."""
    kinds = list(dict.fromkeys((each.way, each.mib) for each in report.figures))
    groups = [f"{way}, {mib} MiB" for way, mib in kinds]
    of = {(each.host, each.way, each.mib): each for each in report.figures}
    sheet = Sheet(2, title="Uploads: this server beside bare handlers of the same work")
    hosts = ("kb", "bare")
    sheet.bars(
        groups,
        {host: [of[host, *kind].rate for kind in kinds] for host in hosts},
        {host: [f"{of[host, *kind].rate:.0f}" for kind in kinds] for host in hosts},
        y="MiB a second",
    )
    sheet.bars(
        groups,
        {host: [of[host, *kind].peak_mib for kind in kinds] for host in hosts},
        {host: [f"{of[host, *kind].peak_mib:.0f}" for kind in kinds] for host in hosts},
        y="peak resident memory, MiB",
    )
    sheet.save(path, under=report.machine.line())


# --- one file -------------------------------------------------------------------------------------


def _measured(place: _Place, way: Way, mib: int, number: int) -> Upload:
    send = {"chunked": _chunked, "direct": _direct}[way]
    before = place.process.cpu_seconds()
    with Sampler({place.name: place.process.pid}, interval=0.02, sockets=False) as sampler:
        seconds = send(place, mib)
    return Upload(
        way=way,
        host=place.name,
        mib=mib,
        round=number,
        seconds=seconds,
        cpu=(place.process.cpu_seconds() - before) / mib * 1024,
        peak_mib=max(sample.resident_mib for sample in sampler.samples),
    )


def _chunked(place: _Place, mib: int) -> float:
    connection = http.client.HTTPConnection(LOOPBACK, place.port, timeout=_TIMEOUT)
    upload_id, _ = _begin(place, connection, mib)
    data = base64.b64encode(os.urandom(CHUNK_BYTES)).decode()
    # Encoded before the clock starts, and sent as they are: the client's work is not the server's.
    count = mib * MEBIBYTE // CHUNK_BYTES
    head, _, tail = _chunk(upload_id, "DATA", 987_654).body.partition(b"DATA")
    path = "/chunk" if place.name == "bare" else "/mcp"
    headers = dict(_chunk(upload_id, "", 0).headers)
    seconds = 0.0
    for index in range(count):
        body = b"".join((head, data.encode(), tail)).replace(b"987654", str(index).encode(), 1)
        started = time.perf_counter()
        answer = _response(connection, "POST", path, body, headers)
        seconds += time.perf_counter() - started
        found = structured(answer)
        if found["received_bytes"] != (CHUNK_BYTES if place.name == "bare" else CHUNK_BYTES * (index + 1)):
            raise CallFailed(f"chunk {index}: {found}")
    _finish(place, connection, upload_id)
    connection.close()
    return seconds


def _chunk(upload_id: str, data: str, index: int) -> Message:
    arguments = {"upload_id": upload_id, "chunk_index": index, "data": data}
    return tool_call(HANDSHAKE, "kb_upload_chunk", arguments, key=KEY)


def _direct(place: _Place, mib: int) -> float:
    connection = http.client.HTTPConnection(LOOPBACK, place.port, timeout=_TIMEOUT)
    upload_id, path = _begin(place, connection, mib)
    block = os.urandom(MEBIBYTE)
    headers = {"Content-Length": str(mib * MEBIBYTE)}
    started = time.perf_counter()
    answer = _response(connection, "PUT", path, (block for _ in range(mib)), headers)
    seconds = time.perf_counter() - started
    if msgspec.json.decode(answer)["received_bytes"] != mib * MEBIBYTE:
        raise CallFailed(f"direct: {answer.decode()}")
    _finish(place, connection, upload_id)
    connection.close()
    return seconds


def _begin(place: _Place, connection: http.client.HTTPConnection, mib: int) -> tuple[str, str]:
    if place.name == "bare":
        return "bare", "/direct"
    arguments = {"filename": "large.bin.txt", "total_size": mib * MEBIBYTE}
    message = tool_call(HANDSHAKE, "kb_upload_start", arguments, key=KEY)
    found = structured(_response(connection, "POST", "/mcp", message.body, dict(message.headers)))
    return found["upload_id"], urlsplit(found["upload_url"]).path


def _finish(place: _Place, connection: http.client.HTTPConnection, upload_id: str) -> None:
    if place.name == "bare":
        _response(connection, "DELETE", "/files", b"", {})
        return
    message = tool_call(HANDSHAKE, "kb_upload_finish", {"upload_id": upload_id}, key=KEY)
    structured(_response(connection, "POST", "/mcp", message.body, dict(message.headers)))


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
def _places(folder: Path, mib: int) -> Iterator[list[_Place]]:
    engine_port, port, bare_port = free_port(), free_port(), free_port()
    engine = ["-m", "kb_load.bench.stub_engine", "--port", str(engine_port)]
    serve = ["-m", "kb_cli.main", "serve", "--port", str(port)]
    bare = ["-m", "kb_load.bench.bare_uploads", "--port", str(bare_port), "--folder", str(folder / "bare")]
    (folder / "bare").mkdir()
    settings = {
        "KB_ENGINE_URL": f"http://{LOOPBACK}:{engine_port}",
        "KB_HOME": str(folder / "home"),
        "KB_MCP_API_KEY": KEY,
        "KB_MAX_UPLOAD_BYTES": str(2 * mib * MEBIBYTE),
    }
    with (
        running("stub engine", engine, folder, port=engine_port),
        running("kb", serve, folder, port=port, **settings) as ours,
        running("bare", bare, folder, port=bare_port) as theirs,
    ):
        yield [_Place("kb", ours, port), _Place("bare", theirs, bare_port)]
