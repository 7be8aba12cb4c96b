"""Latency of start and of ingestion: `bench startup` and `bench ingestion`.

startup     time of `kb stdio` to its first response, beside its imports. In turns: the import
            of the official SDK's server and of aiohttp alone; `kb stdio` with the toolset `kb`, to the
            answer to `initialize` and to that of a search, by the engine that the first of them has started
            and that all share; `kb stdio` with the toolset `textfile` over a file of 10 MiB. Each is a
            process of its own; the clock runs from its start until the whole answer has been read (for the
            import: until it ends).
ingestion   latency of notes during ingestion. Starts `kb up` in a folder of its own on free ports
            and warms it, then measures each note from `kb_addnote` until it can be searched, alone
            and behind a folder of 200 files, a scan of 300 pages and PDFs whose page tree loops, each of
            them and all of them at once, sent by the same caller. One client does one thing at a time. All
            files are made by seed.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import aiohttp

from bench import Option
from bench.runner import Report
from kb_config.rendezvous import Rendezvous
from kb_load.messages import CLIENT, HANDSHAKE, CallFailed, structured, tool_call
from kb_load.pdf import looping_pdf, text_of_page
from kb_load.processes import LOOPBACK, clean_environment, free_port, running
from kb_load.report import percentile

_FILE_BYTES = 10 * 1024 * 1024
_IMPORT = "import mcp.server, aiohttp"
_SEARCH = "kb stdio, to a search, its engine running"
_LINGER_SECONDS = 5
_CASES: dict[str, tuple[str, ...]] = {
    _IMPORT: ("-c", _IMPORT),
    "kb stdio": ("-m", "kb_cli.main", "stdio"),
    _SEARCH: ("-m", "kb_cli.main", "stdio"),
    "kb stdio, textfile of 10 MiB": (
        *("-m", "kb_cli.main", "stdio", "--toolset", "textfile", "--file", "FILE"),
    ),
}
_INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
    "protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": CLIENT,
}}  # fmt: skip

_SEARCHED = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
    "name": "kb_search", "arguments": {"query": "granite"},
}}  # fmt: skip

FOLDER_FILES = 200
SCAN_PAGES = 300
BACKGROUNDS: dict[str, tuple[str, ...]] = {
    "alone": (),
    f"behind a folder of {FOLDER_FILES} files": ("folder",),
    f"behind a scan of {SCAN_PAGES} pages": ("scan",),
    "behind looping PDFs": ("loop",),
    "behind all three": ("folder", "scan", "loop"),
}
"""Files that are ingested while notes are added."""
_PAUSE_SECONDS = 0.25
_WAIT_SECONDS = 30
_ids = count(1)


class Median(NamedTuple):
    """Seconds of a case, and their ratio to those of the import alone."""

    case: str
    seconds: float
    ratio: float


class StartupReport(Report, frozen=True, kw_only=True):
    """The whole run: seconds by case."""

    columns: ClassVar = {
        "to the first answer": "{0.case}",
        "s, median": "{0.seconds:.3f}",
        "ratio": "{0.ratio:.2f}",
    }
    seconds: dict[str, list[float]]

    def rows(self) -> list[Median]:
        medians = {case: statistics.median(values) for case, values in self.seconds.items()}
        return [Median(case, median, median / medians[_IMPORT]) for case, median in medians.items()]


def run_startup(
    *, rounds: Annotated[int, Option("number of rounds")] = 7, note: Callable[[str], None] = print
) -> StartupReport:
    """Measure in turns; the first turn fills the caches of the disk and does not count."""
    report = StartupReport(seconds={case: [] for case in _CASES})
    ask = json.dumps(_INITIALIZE).encode() + b"\n"
    search = ask + json.dumps(_SEARCHED).encode() + b"\n"
    with _data_folder() as home, tempfile.NamedTemporaryFile(suffix=".txt") as text:
        text.write((b"All work and no play makes a dull text. " * (_FILE_BYTES // 40 + 1))[:_FILE_BYTES])
        text.flush()
        for turn in range(rounds + 1):
            for case, arguments in _CASES.items():
                command = [sys.executable, *(text.name if each == "FILE" else each for each in arguments)]
                started = time.perf_counter()
                with subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=clean_environment(
                        KB_HOME=home, KB_EMBEDDER="hash", KB_ENGINE_LINGER=str(_LINGER_SECONDS)
                    ),
                ) as process:
                    assert process.stdin is not None
                    assert process.stdout is not None
                    if case == _IMPORT:
                        process.wait()
                        taken, good = time.perf_counter() - started, process.returncode == 0
                    else:
                        process.stdin.write(search if case == _SEARCH else ask)
                        process.stdin.flush()
                        if case == _SEARCH:
                            process.stdout.readline()
                        answer = json.loads(process.stdout.readline())
                        taken, good = time.perf_counter() - started, "result" in answer
                    process.stdin.close()
                if not good:
                    raise RuntimeError(f"{command} does not start")
                if turn:
                    report.seconds[case].append(round(taken, 4))
            note(f"turn {turn} of {rounds}")
    return report


@contextmanager
def _data_folder() -> Iterator[str]:
    """Yield a data folder; remove it after its shared engine has ended."""
    with tempfile.TemporaryDirectory() as home:
        yield home
        place = Rendezvous(Path(home) / "engine")
        for _ in range(4 * _LINGER_SECONDS):
            if place.url() is None:
                break
            time.sleep(1.0)


# --- files to take in -----------------------------------------------------------------------------


def scanned_pdf(pages: int) -> bytes:
    """Return a PDF of `pages` pages, each an image of 25 lines of text."""
    from PIL import Image, ImageDraw, ImageFont  # comes with matplotlib, and one benchmark needs it alone

    sheet = Image.new("L", (1000, 1414), 255)
    text = "\n".join(f"Line {line} of a page that was scanned" for line in range(25))
    ImageDraw.Draw(sheet).text((80, 80), text, fill=0, font=ImageFont.load_default(28), spacing=16)
    file = BytesIO()
    sheet.save(file, "PDF", save_all=True, append_images=[sheet] * (pages - 1))
    return file.getvalue()


# --- ingestion ------------------------------------------------------------------------------------


class Stack:
    """A running `kb up`, called over `session`, with the base URLs of its parts."""

    def __init__(self, session: aiohttp.ClientSession, engine_url: str, server_url: str) -> None:
        self._session = session
        self._engine = f"{engine_url}/api/v1"
        self._mcp = f"{server_url}/mcp"

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        message = tool_call(HANDSHAKE, tool, arguments, request_id=next(_ids))
        async with self._session.post(self._mcp, data=message.body, headers=message.headers) as response:
            return structured(await response.read())

    async def timed_note(self, number: int) -> float:
        """Return the milliseconds until a note's job has completed, and check that a search finds the note.

        Raises:
            CallFailed: the search does not find it.
        """
        word = f"note{number}x{random.Random(number).getrandbits(32):x}"
        text = f"{word}. " + " ".join(text_of_page(number + 1, seed=11))[:600]
        arguments = {"text": text, "collection": "memory", "wait_seconds": _WAIT_SECONDS}
        started = time.perf_counter()
        job = await self.call("kb_addnote", arguments)
        milliseconds = (time.perf_counter() - started) * 1000
        if word not in json.dumps(await self.call("kb_search", {"query": word, "top": 1})):
            raise CallFailed(f"a note cannot be found after {milliseconds:.0f} ms: {job}")
        return milliseconds

    async def send(self, name: str, data: bytes) -> str:
        """Send a file to the engine; return the id of its job."""
        form = aiohttp.FormData()
        form.add_field("dedup_scope", name)
        form.add_field("file", data, filename=name)
        async with self._session.post(f"{self._engine}/jobs", data=form) as response:
            response.raise_for_status()
            return str((await response.json())["id"])

    async def is_running(self, job_id: str, *, wait: int = 0, may_fail: bool = False) -> bool:
        """Return True if a job is still active after `wait` seconds; raise if it failed and may not."""
        async with self._session.get(f"{self._engine}/jobs/{job_id}?wait={wait}") as response:
            job = await response.json()
        if job["status"] == "failed" and not may_fail:
            raise CallFailed(f"ingestion failed: {job['error']}")
        return bool(job["status"] in {"queued", "running"})

    async def unfinished(self) -> int:
        async with self._session.get(f"{self._engine}/status") as response:
            queue = (await response.json())["queue"]
        return int(queue["queued"] + queue["running"])

    async def clear(self) -> None:
        async with self._session.delete(f"{self._engine}/documents?confirm=true") as response:
            response.raise_for_status()


async def measure_notes(stack: Stack, calls: int, note: Callable[[str], None]) -> dict[str, list[float]]:
    """Return the milliseconds from `kb_addnote` until the note can be searched, by background load."""
    # Markdown files of some ten passages each.
    pages = [[text_of_page(4 * n + k, seed=5) for k in range(1, 5)] for n in range(FOLDER_FILES)]
    files = {
        "folder": [(f"{n}.md", "\n\n".join(map("\n".join, of)).encode()) for n, of in enumerate(pages)],
        "scan": [("scan.pdf", scanned_pdf(SCAN_PAGES))],
        "loop": [("loop.pdf", looping_pdf())],
    }
    found: dict[str, list[float]] = {}
    await stack.timed_note(0)  # the model is loaded
    for name, kinds in BACKGROUNDS.items():
        async with _taking_in(stack, [files[kind] for kind in kinds]):
            found[name] = []
            for _ in range(calls):
                await asyncio.sleep(_PAUSE_SECONDS)
                found[name].append(await stack.timed_note(next(_ids)))
            left = await stack.unfinished()
            note(f"{name}: p95 {percentile(found[name], 0.95):.0f} ms, {left} files left")
    return found


@asynccontextmanager
async def _taking_in(stack: Stack, kinds: Sequence[Sequence[tuple[str, bytes]]]) -> AsyncIterator[None]:
    """Keep the engine busy with these files; send all of a kind again when they have ended."""

    async def send_again(files: Sequence[tuple[str, bytes]], sent: asyncio.Event) -> None:
        for turn in count():
            jobs = [await stack.send(f"{turn}-{name}", data) for name, data in files]
            sent.set()
            for job in jobs:
                while await stack.is_running(job, wait=_WAIT_SECONDS, may_fail=True):
                    pass

    begun = [asyncio.Event() for _ in kinds]
    sending = [asyncio.create_task(send_again(*each)) for each in zip(kinds, begun, strict=True)]
    try:
        for sent in begun:
            await sent.wait()
        yield
    finally:
        for task in sending:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await stack.clear()


class NoteTimes(NamedTuple):
    """Milliseconds from adding a note until it can be searched, behind one background."""

    background: str
    notes: int
    p50: float
    p95: float
    p99: float


class IngestionReport(Report, frozen=True, kw_only=True):
    """The whole run: milliseconds of each note, by background."""

    columns: ClassVar = {
        "note to searchable, ms": "{0.background}",
        "notes": "{0.notes}",
        "p50": "{0.p50:.0f}",
        "p95": "{0.p95:.0f}",
        "p99": "{0.p99:.0f}",
    }
    notes: dict[str, list[float]]

    def rows(self) -> list[NoteTimes]:
        return [
            NoteTimes(name, len(values), *(percentile(values, share) for share in (0.5, 0.95, 0.99)))
            for name, values in self.notes.items()
        ]


def run_ingestion(
    *,
    notes: Annotated[int, Option("number of notes behind each kind")] = 100,
    note: Callable[[str], None] = print,
) -> IngestionReport:
    """Start the stack and measure `notes` notes behind each background."""
    report = IngestionReport(notes={})
    port, engine_port = free_port(), free_port()

    async def measure() -> None:
        async with aiohttp.ClientSession() as session:
            stack = Stack(session, f"http://{LOOPBACK}:{engine_port}", f"http://{LOOPBACK}:{port}")
            report.notes.update(await measure_notes(stack, notes, note))

    with tempfile.TemporaryDirectory() as folder:
        settings = {"KB_HOME": folder, "KB_MCP_PORT": str(port), "KB_ENGINE_PORT": str(engine_port)}
        with running("kb up", ["-m", "kb_cli.main", "up"], Path(folder), port=port, **settings):
            note("the stack runs")
            asyncio.run(measure())
    return report
