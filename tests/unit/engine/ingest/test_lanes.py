"""Lanes keep jobs from waiting for other callers' files; tested by the order of ends, without a clock."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from kb_contracts.api.formats import FORMATS
from kb_engine.ingest import workers
from kb_engine.ingest.pipeline import Pipeline
from kb_engine.store.repository import state
from kb_engine.turns import SHORT_BYTES
from kb_readers.memory import MemoryBudget
from kb_readers.model import OCR_MEMORY, Limits
from tests.support.eventually import eventually_async
from tests.support.ingesting import HELD, Parts, parts_in
from tests.support.patience import ANSWER_SECONDS
from tests.support.scans import drawn, pdf_of_sheets, scan
from tests.support.stack import own_children


async def test_a_note_is_searchable_before_the_folder_that_came_first(parts: Parts) -> None:
    files = [await parts.accept_file("held.txt", HELD.encode())]
    await parts.embedding()
    files += [await parts.accept_file(f"{number}.txt", b"basalt %d" % number) for number in range(49)]
    assert (await parts.done("granite")).status == "completed"
    assert (await parts.store.read(state.counts)).queue.queued == len(files) - 1 == 49


async def test_a_note_is_searchable_before_the_long_text_that_is_being_split(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting its tokens takes a thread that the note does not need."""
    counted = parts.embedder.count_tokens

    def count_tokens(passage: str) -> int:
        if passage.startswith("basalt"):
            parts.embedder.entered.set()
            assert parts.embedder.release.wait(ANSWER_SECONDS)
        return counted(passage)

    monkeypatch.setattr(parts.embedder, "count_tokens", count_tokens)
    long = await parts.accept("basalt " * SHORT_BYTES)
    await parts.embedding()
    assert (await parts.done("granite")).status == "completed"
    parts.embedder.release.set()
    assert (await parts.ended(long)).status == "completed"


@pytest.mark.process
async def test_files_progress_under_a_constant_stream_of_notes(parts: Parts) -> None:
    file = await parts.accept_file("a.txt", b"granite. " * 30_000)
    notes = count()
    while (await parts.job(file)).finished_at is None:
        await parts.done(f"basalt {next(notes)}")
    assert (await parts.job(file)).status == "completed"


@pytest.mark.process
async def test_a_scan_holds_no_place_of_the_other_files(parts: Parts) -> None:
    """Its lane changes once its pages are known; the attempt stays its first."""
    sheets = [scan([f"Line {line} of page {page}" for line in range(25)]) for page in range(30)]
    scanned = await parts.accept_file("scan.pdf", pdf_of_sheets(sheets))
    behind = await parts.accept_file("b.txt", b"granite")
    assert (await parts.ended(behind)).status == "completed"
    job = await eventually_async(
        lambda: parts.job(scanned), lambda job: job.step.startswith("Processing"), what="the first page"
    )
    assert (job.status, job.attempts) == ("running", 1)
    assert own_children()
    await parts.cancel(scanned)
    assert not own_children()
    await parts.workers.stop()
    assert [path.name for path in parts.spool.folder.iterdir()] == []


@pytest.mark.process
async def test_readers_together_keep_to_their_memory(parts: Parts, tmp_path: Path) -> None:
    """The memory allows one picture reader at a time, for any number of workers."""
    pipeline = Pipeline(parts.encoder, Limits(), memory=MemoryBudget(OCR_MEMORY))
    drawn(["Granite"], (300, 120)).save(tmp_path / "a.png")
    seen: list[int] = []

    async def progress(_step: str, _done: int, _total: int) -> None:
        """Ignore the progress."""

    def is_over() -> bool:
        seen.append(len(own_children()))
        return reading.done()

    read = [pipeline.file(tmp_path / "a.png", FORMATS["png"], "a.png", None, progress) for _ in range(3)]
    reading = asyncio.gather(*read)
    await eventually_async(is_over, what="the end of all three")
    await reading
    assert max(seen) == 1


async def test_a_free_worker_takes_the_job_behind_those_of_a_caller_at_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller of that job had earlier ones, so its turn is behind all of the first caller."""
    monkeypatch.setattr(workers, "_POLL_SECONDS", 60 * ANSWER_SECONDS)
    async with asyncio.timeout(ANSWER_SECONDS), parts_in(tmp_path, count=2) as parts:
        await parts.workers.stop()
        mine = [await parts.accept_file(f"{n}.txt", b"\xff%d" % n, caller="other") for n in range(4)]
        for number in range(3):
            await parts.accept_file(f"held {number}.txt", f"{HELD} {number}".encode())
        for job_id in mine[:-1]:
            await parts.cancel(job_id)
        parts.workers.start()
        assert (await parts.ended(mine[-1])).status == "failed"  # takes no embedding thread
