"""`kb bench ingestion`: what others feel of files that are taken in.

Starts `kb up` in a folder of its own on free ports and warms it. First notes: how long each takes from
`kb_addnote` until it can be searched, alone and behind a folder of 200 files, a scan of 300 pages and PDFs
whose page tree loops, each of them and all of them at once, sent by the same caller. Then `kb_search`, while
a large PDF is taken in and when all is quiet, in turns. One client does one thing at a time.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import msgspec

from kb_load.bench import Option
from kb_load.files import looping_pdf, page_of_text, scanned_pdf, text_pdf
from kb_load.machine import Machine, describe
from kb_load.messages import HANDSHAKE, CallFailed, structured, tool_call
from kb_load.plots import Sheet
from kb_load.processes import LOOPBACK, free_port, running
from kb_load.stats import percentile, table

WORDS = ("amber", "river", "ledger", "quartz", "harvest", "signal", "meadow", "copper", "lantern", "orchard")
QUIET_CALLS = 300
SHARES = (0.5, 0.95, 0.99)
FOLDER_FILES = 200
SCAN_PAGES = 300
BACKGROUNDS: dict[str, tuple[str, ...]] = {
    "alone": (),
    f"behind a folder of {FOLDER_FILES} files": ("folder",),
    f"behind a scan of {SCAN_PAGES} pages": ("scan",),
    "behind looping PDFs": ("loop",),
    "behind all three": ("folder", "scan", "loop"),
}
"""What is taken in while notes are added."""
_PAUSE_SECONDS = 0.25
_WAIT_SECONDS = 30
_ids = count(1)


class Stack:
    """A `kb up` that runs, called over `session`; the base URLs of its parts."""

    def __init__(self, session: aiohttp.ClientSession, engine_url: str, server_url: str) -> None:
        self._session = session
        self._engine = f"{engine_url}/api/v1"
        self._mcp = f"{server_url}/mcp"

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The structured result of one tool call over Streamable HTTP."""
        message = tool_call(HANDSHAKE, tool, arguments, request_id=next(_ids))
        async with self._session.post(self._mcp, data=message.body, headers=message.headers) as response:
            return structured(await response.read())

    async def timed_search(self, rng: random.Random) -> float:
        """Milliseconds of one search."""
        query = " ".join(rng.sample(WORDS, 4))
        started = time.perf_counter()
        await self.call("kb_search", {"query": query, "top": 10})
        return (time.perf_counter() - started) * 1000

    async def timed_note(self, number: int) -> float:
        """Milliseconds until a note's job has completed; the note is then searched for.

        Raises:
            CallFailed: it is not found.
        """
        word = f"note{number}x{random.Random(number).getrandbits(32):x}"
        text = f"{word}. " + " ".join(page_of_text(number + 1, seed=11))[:600]
        arguments = {"text": text, "collection": "memory", "wait_seconds": _WAIT_SECONDS}
        started = time.perf_counter()
        job = await self.call("kb_addnote", arguments)
        milliseconds = (time.perf_counter() - started) * 1000
        if word not in json.dumps(await self.call("kb_search", {"query": word, "top": 1})):
            raise CallFailed(f"a note cannot be found after {milliseconds:.0f} ms: {job}")
        return milliseconds

    async def upload(self, pages: int, seed: int) -> str:
        """Send a PDF through the server; the id of its job."""
        data = text_pdf(pages, seed=seed)
        start = await self.call("kb_upload_start", {"filename": f"{seed}.pdf", "total_size": len(data)})
        async with self._session.put(start["upload_url"], data=data) as response:
            response.raise_for_status()
        finish = await self.call("kb_upload_finish", {"upload_id": start["upload_id"]})
        return str(finish["job_id"])

    async def send(self, name: str, data: bytes) -> str:
        """Send a file to the engine; the id of its job."""
        form = aiohttp.FormData()
        form.add_field("dedup_scope", name)
        form.add_field("file", data, filename=name)
        async with self._session.post(f"{self._engine}/jobs", data=form) as response:
            response.raise_for_status()
            return str((await response.json())["id"])

    async def is_running(self, job_id: str, *, wait: int = 0, may_fail: bool = False) -> bool:
        """Whether a job has not ended, asked for `wait` seconds; a failed one raises unless it may fail."""
        async with self._session.get(f"{self._engine}/jobs/{job_id}?wait={wait}") as response:
            job = await response.json()
        if job["status"] == "failed" and not may_fail:
            raise CallFailed(f"ingestion failed: {job['error']}")
        return bool(job["status"] in {"queued", "running"})

    async def unfinished(self) -> int:
        """How many jobs the engine has not ended."""
        async with self._session.get(f"{self._engine}/status") as response:
            queue = (await response.json())["queue"]
        return int(queue["queued"] + queue["running"])

    async def clear(self) -> None:
        """Remove all documents, and cancel what is taken in."""
        async with self._session.delete(f"{self._engine}/documents?confirm=true") as response:
            response.raise_for_status()


async def measure(stack: Stack, pages: int, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each quiet and of each busy search."""
    rng = random.Random(7)
    quiet: list[float] = []
    busy: list[float] = []
    first = await stack.upload(5, seed=1)
    while await stack.is_running(first):
        await stack.timed_search(rng)
    for round_number in range(rounds):
        quiet += [await stack.timed_search(rng) for _ in range(QUIET_CALLS)]
        job = await stack.upload(pages, seed=100 + round_number)
        while await stack.is_running(job):
            busy += [await stack.timed_search(rng) for _ in range(10)]
    return quiet, busy


async def measure_notes(stack: Stack, calls: int, note: Callable[[str], None]) -> dict[str, list[float]]:
    """Milliseconds from `kb_addnote` until the note can be searched, by what is taken in meanwhile."""
    # Markdown files of some ten passages each.
    pages = [[page_of_text(4 * n + k, seed=5) for k in range(1, 5)] for n in range(FOLDER_FILES)]
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
    """Have the engine busy with these, sent again whenever all of a kind have ended."""

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


class IngestionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run: milliseconds of each note, and of each quiet and of each busy search."""

    machine: Machine
    notes: dict[str, list[float]]
    pages: int
    quiet: list[float]
    busy: list[float]


def run(
    *,
    notes: Annotated[int, Option("notes behind each kind")] = 100,
    pages: Annotated[int, Option("pages of the PDF")] = 100,
    rounds: Annotated[int, Option("turns")] = 3,
    note: Callable[[str], None] = print,
) -> IngestionReport:
    """Start the stack and measure `notes` notes behind each background, then searches."""
    machine = describe()
    port, engine_port = free_port(), free_port()

    async def measured() -> tuple[dict[str, list[float]], list[float], list[float]]:
        async with aiohttp.ClientSession() as session:
            stack = Stack(session, f"http://{LOOPBACK}:{engine_port}", f"http://{LOOPBACK}:{port}")
            return await measure_notes(stack, notes, note), *await measure(stack, pages, rounds)

    with tempfile.TemporaryDirectory() as folder:
        settings = {"KB_HOME": folder, "KB_MCP_PORT": str(port), "KB_ENGINE_PORT": str(engine_port)}
        with running("kb up", ["-m", "kb_cli.main", "up"], Path(folder), port=port, **settings):
            note("the stack runs")
            added, quiet, busy = asyncio.run(measured())
    return IngestionReport(machine=machine, notes=added, pages=pages, quiet=quiet, busy=busy)


def text(report: IngestionReport) -> str:
    """The tables, of the searches with the ratios busy to quiet."""
    added = table(
        ["note to searchable, ms", "notes", "p50", "p95", "p99"],
        [_row(name, values, digits=0) for name, values in report.notes.items()],
    )
    kinds = (("quiet", report.quiet), ("during ingestion", report.busy))
    rows = [_row(name, values, digits=1) for name, values in kinds]
    ratios = [f"{percentile(report.busy, share) / percentile(report.quiet, share):.2f}" for share in SHARES]
    found = table(["kb_search, ms", "calls", "p50", "p95", "p99"], [*rows, ["ratio", "", *ratios]])
    return f"{added}\n\n{found}\n{report.machine.line()}"


def _row(name: str, values: Sequence[float], digits: int) -> list[str]:
    return [name, str(len(values)), *(f"{percentile(values, share):.{digits}f}" for share in SHARES)]


def plot(report: IngestionReport, path: Path) -> None:
    """Draw the percentiles."""
    sheet = Sheet(2, title="while files are taken in: notes until they can be searched, and kb_search")
    for kinds in (report.notes, {"quiet": report.quiet, f"a PDF of {report.pages} pages": report.busy}):
        heights = {name: [percentile(values, share) for share in SHARES] for name, values in kinds.items()}
        sheet.bars(["p50", "p95", "p99"], heights, "{:.0f}", y="milliseconds")
    sheet.save(path, under=report.machine.line())
