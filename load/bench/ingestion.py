"""`kb bench ingestion`: `kb_search` while a large PDF is taken in, beside `kb_search` when all is quiet.

Starts `kb up` in a folder of its own on free ports, warms it, then measures quiet and busy in turns.
One client asks one question at a time, each question another one.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from load.machine import Machine, describe
from load.plots import Sheet
from load.stats import percentile, table
from tests.documents import large_pdf
from tests.stack import Stack, running_stack

WORDS = ("amber", "river", "ledger", "quartz", "harvest", "signal", "meadow", "copper", "lantern", "orchard")
QUIET_CALLS = 300
SHARES = (0.5, 0.95, 0.99)
_ids = count(1)


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
    async with session.post(stack.mcp_url, json=message) as response:
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
    data = large_pdf(pages, seed=seed)
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


class IngestionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run: milliseconds of each quiet and of each busy search."""

    machine: Machine
    pages: int
    quiet: list[float]
    busy: list[float]


def run(*, pages: int = 100, rounds: int = 3, note: Callable[[str], None] = print) -> IngestionReport:
    """Start the stack and measure."""
    machine = describe()
    with tempfile.TemporaryDirectory() as folder, running_stack(Path(folder)) as stack:
        note("the stack runs")
        quiet, busy = asyncio.run(measure(stack, pages, rounds))
    return IngestionReport(machine=machine, pages=pages, quiet=quiet, busy=busy)


def text(report: IngestionReport) -> str:
    """The table, with the ratios busy to quiet."""
    kinds = (("quiet", report.quiet), ("during ingestion", report.busy))
    rows = [
        [name, str(len(values)), *(f"{percentile(values, share):.1f}" for share in SHARES)]
        for name, values in kinds
    ]
    ratios = [f"{percentile(report.busy, share) / percentile(report.quiet, share):.2f}" for share in SHARES]
    found = table(["kb_search, ms", "calls", "p50", "p95", "p99"], [*rows, ["ratio", "", *ratios]])
    return f"{found}\n{report.machine.line()}"


def plot(report: IngestionReport, path: Path) -> None:
    """Draw the percentiles."""
    kinds = {"quiet": report.quiet, f"a PDF of {report.pages} pages comes in": report.busy}
    heights = {name: [percentile(values, share) for share in SHARES] for name, values in kinds.items()}
    sheet = Sheet(1, title="kb_search while a document is taken in")
    labels = {name: [f"{value:.0f}" for value in values] for name, values in heights.items()}
    sheet.bars(["p50", "p95", "p99"], heights, labels, y="milliseconds")
    sheet.save(path, under=report.machine.line())
