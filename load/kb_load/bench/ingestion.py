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
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import msgspec

from kb_load.bench import Option
from kb_load.files import looping_pdf, page_of_text, scanned_pdf, text_pdf
from kb_load.machine import Machine, describe
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


@dataclass(frozen=True, slots=True)
class Stack:
    """A `kb up` that runs; the base URLs of its parts."""

    engine_url: str
    server_url: str


@contextmanager
def running_stack(folder: Path) -> Iterator[Stack]:
    """`kb up` with its data in `folder`."""
    port, engine_port = free_port(), free_port()
    settings = {"KB_HOME": str(folder), "KB_MCP_PORT": str(port), "KB_ENGINE_PORT": str(engine_port)}
    with running("kb up", ["-m", "kb_cli.main", "up"], folder, port=port, **settings):
        yield Stack(f"http://{LOOPBACK}:{engine_port}", f"http://{LOOPBACK}:{port}")


async def call(
    session: aiohttp.ClientSession, stack: Stack, tool: str, arguments: dict[str, Any]
) -> dict[str, Any]:
    """The structured result of one tool call over Streamable HTTP."""
    message = {
        "jsonrpc": "2.0",
        "id": next(_ids),
        "method": "tools/call",
        "params": {"name": tool, "arguments": arguments},
    }
    async with session.post(f"{stack.server_url}/mcp", json=message) as response:
        answer = await response.json()
    if "error" in answer or answer["result"].get("isError"):
        raise RuntimeError(f"{tool}: {answer}")
    return dict(answer["result"]["structuredContent"])


async def timed_search(session: aiohttp.ClientSession, stack: Stack, rng: random.Random) -> float:
    """Milliseconds of one search."""
    query = " ".join(rng.sample(WORDS, 4))
    started = time.perf_counter()
    await call(session, stack, "kb_search", {"query": query, "top": 10})
    return (time.perf_counter() - started) * 1000


async def upload(session: aiohttp.ClientSession, stack: Stack, pages: int, seed: int) -> str:
    """Send a PDF through the server; the id of its job."""
    data = text_pdf(pages, seed=seed)
    start = await call(
        session, stack, "kb_upload_start", {"filename": f"{seed}.pdf", "total_size": len(data)}
    )
    async with session.put(start["upload_url"], data=data) as response:
        response.raise_for_status()
    finish = await call(session, stack, "kb_upload_finish", {"upload_id": start["upload_id"]})
    return str(finish["job_id"])


async def is_running(session: aiohttp.ClientSession, stack: Stack, job_id: str) -> bool:
    """Whether a job has not ended; a failed one ends the measurement."""
    async with session.get(f"{stack.engine_url}/api/v1/jobs/{job_id}") as response:
        job = await response.json()
    if job["status"] == "failed":
        raise RuntimeError(f"ingestion failed: {job['error']}")
    return bool(job["status"] in {"queued", "running"})


async def measure(stack: Stack, pages: int, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each quiet and of each busy search."""
    rng = random.Random(7)
    quiet: list[float] = []
    busy: list[float] = []
    async with aiohttp.ClientSession() as session:
        first = await upload(session, stack, 5, seed=1)
        while await is_running(session, stack, first):
            await timed_search(session, stack, rng)
        for round_number in range(rounds):
            quiet += [await timed_search(session, stack, rng) for _ in range(QUIET_CALLS)]
            job = await upload(session, stack, pages, seed=100 + round_number)
            while await is_running(session, stack, job):
                busy += [await timed_search(session, stack, rng) for _ in range(10)]
    return quiet, busy


# --- notes ----------------------------------------------------------------------------------------


async def measure_notes(stack: Stack, calls: int, note: Callable[[str], None]) -> dict[str, list[float]]:
    """Milliseconds from `kb_addnote` until the note can be searched, by what is taken in meanwhile."""
    files = {
        "folder": _folder(),
        "scan": [("scan.pdf", scanned_pdf(SCAN_PAGES))],
        "loop": [("loop.pdf", looping_pdf())],
    }
    found: dict[str, list[float]] = {}
    async with aiohttp.ClientSession() as session:
        await timed_note(session, stack, 0)  # the model is loaded
        for name, kinds in BACKGROUNDS.items():
            async with _taking_in(session, stack, {kind: files[kind] for kind in kinds}) as left:
                found[name] = [await _after_a_pause(session, stack, next(_ids)) for _ in range(calls)]
                note(f"{name}: p95 {percentile(found[name], 0.95):.0f} ms, {await left()} files left")
    return found


async def timed_note(session: aiohttp.ClientSession, stack: Stack, number: int) -> float:
    """Milliseconds until a note's job has completed; the note is then searched for.

    Raises:
        RuntimeError: it is not found.
    """
    word = f"note{number}x{random.Random(number).getrandbits(32):x}"
    text = f"{word}. " + " ".join(page_of_text(number + 1, seed=11))[:600]
    arguments = {"text": text, "collection": "memory", "wait_seconds": _WAIT_SECONDS}
    started = time.perf_counter()
    job = await call(session, stack, "kb_addnote", arguments)
    milliseconds = (time.perf_counter() - started) * 1000
    answer = await call(session, stack, "kb_search", {"query": word, "top": 1})
    if word not in json.dumps(answer):
        raise RuntimeError(f"a note cannot be found after {milliseconds:.0f} ms: {job}")
    return milliseconds


async def _after_a_pause(session: aiohttp.ClientSession, stack: Stack, number: int) -> float:
    await asyncio.sleep(_PAUSE_SECONDS)
    return await timed_note(session, stack, number)


@asynccontextmanager
async def _taking_in(
    session: aiohttp.ClientSession, stack: Stack, files: dict[str, Sequence[tuple[str, bytes]]]
) -> AsyncIterator[Callable[[], Any]]:
    """Have the engine busy with these, sent again whenever all of a kind have ended; how many have not."""
    begun = [asyncio.Event() for _ in files]
    sending = [
        asyncio.create_task(_send_again(session, stack, kind, sent))
        for kind, sent in zip(files.values(), begun, strict=True)
    ]

    async def left() -> int:
        return sum([(await _queue(session, stack))[state] for state in ("queued", "running")])

    try:
        for sent in begun:
            await sent.wait()
        yield left
    finally:
        for task in sending:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        async with session.delete(f"{stack.engine_url}/api/v1/documents?confirm=true") as response:
            response.raise_for_status()


async def _send_again(
    session: aiohttp.ClientSession, stack: Stack, files: Sequence[tuple[str, bytes]], sent: asyncio.Event
) -> None:
    for turn in count():
        jobs = [await _send(session, stack, f"{turn}-{name}", data) for name, data in files]
        sent.set()
        for job in jobs:
            while await _unfinished(session, stack, job):
                pass


async def _send(session: aiohttp.ClientSession, stack: Stack, name: str, data: bytes) -> str:
    form = aiohttp.FormData()
    form.add_field("dedup_scope", name)
    form.add_field("file", data, filename=name)
    async with session.post(f"{stack.engine_url}/api/v1/jobs", data=form) as response:
        response.raise_for_status()
        return str((await response.json())["id"])


async def _unfinished(session: aiohttp.ClientSession, stack: Stack, job_id: str) -> bool:
    url = f"{stack.engine_url}/api/v1/jobs/{job_id}?wait={_WAIT_SECONDS}"
    async with session.get(url) as response:
        return (await response.json())["status"] in {"queued", "running"}


async def _queue(session: aiohttp.ClientSession, stack: Stack) -> dict[str, int]:
    async with session.get(f"{stack.engine_url}/api/v1/status") as response:
        return dict((await response.json())["queue"])


def _folder() -> list[tuple[str, bytes]]:
    """Markdown files of some ten passages each."""
    texts = ["\n\n".join("\n".join(page_of_text(4 * n + k, seed=5)) for k in range(1, 5)) for n in range(200)]
    return [(f"{n}.md", text.encode()) for n, text in enumerate(texts[:FOLDER_FILES])]


# --- the run --------------------------------------------------------------------------------------


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
    with tempfile.TemporaryDirectory() as folder, running_stack(Path(folder)) as stack:
        note("the stack runs")
        added = asyncio.run(measure_notes(stack, notes, note))
        quiet, busy = asyncio.run(measure(stack, pages, rounds))
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
        labels = {name: [f"{value:.0f}" for value in values] for name, values in heights.items()}
        sheet.bars(["p50", "p95", "p99"], heights, labels, y="milliseconds")
    sheet.save(path, under=report.machine.line())
