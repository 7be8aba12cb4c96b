"""`kb bench taking`: how fast a folder is taken in, beside the model alone on all cores.

In turns, for each runtime of the model: the model by itself, as many threads as cores, over the passages of
the folder; and engines, each with a base of its own, that take the folder in from `POST /jobs` until the last
document can be searched, with one thread that embeds and with as many as there are cores. The files are
Markdown of some ten passages, made by seed. Ratios are taken within a round, then their median.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Annotated, ClassVar, NamedTuple

import msgspec

from kb_engine.chunk import chunks
from kb_engine.embed.protocol import Embedder
from kb_engine.embed.registry import embedder_from
from kb_load.bench import Option
from kb_load.bench.engine import is_running, running_engine, submit
from kb_load.bench.runner import Panel, Report, in_turn
from kb_load.pdf import text_of_page
from kb_readers import Extraction

RUNTIMES = ("minilm", "minilm-openvino")
_PAGES_EACH = 4
_PASSAGES_EACH = 12  # of a file of so many pages
_SEED = 5


class Side(NamedTuple):
    """What is measured; `threads` 0: the model alone."""

    embedder: str
    threads: int

    @property
    def name(self) -> str:
        if not self.threads:
            return f"{self.embedder}, the model alone"
        return f"{self.embedder}, {self.threads} thread{'s' if self.threads > 1 else ''}"


class Run(NamedTuple):
    """One run: passages a second, and processor seconds a passage of all threads and children."""

    rate: float
    cpu: float


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What one side came to.

    `of_model` is its rate beside that of its model alone, `of_first` beside one thread of the first runtime.
    """

    side: str
    rate: float
    cpu_ms: float
    of_model: float
    of_first: float


class TakingReport(Report, frozen=True, kw_only=True):
    """The whole run."""

    title = "Passages taken in a second"
    columns: ClassVar = {
        "taking in": "{0.side}",
        "passages/s": "{0.rate:.1f}",
        "CPU ms/passage": "{0.cpu_ms:.1f}",
        "of the model": "{0.of_model:.2f}",
        "x one thread": "{0.of_first:.2f}",
    }
    panels = (Panel("{0.side}", "passages a second", "rate", "{0.rate:.0f}", "passages a second"),)
    passages: int
    files: int
    rounds: int
    taken: list[Taken]

    def rows(self) -> Sequence[Taken]:
        return self.taken

    def footer(self) -> list[str]:
        return [f"medians of {self.rounds} rounds of {self.passages} passages in {self.files} files"]


def run(
    *,
    passages: Annotated[int, Option("passages of the folder, about", 10, 1_000_000)] = 500,
    rounds: Annotated[int, Option("turns")] = 5,
    note: Callable[[str], None] = print,
) -> TakingReport:
    """Measure.

    Raises:
        kb_load.bench.engine.EngineFailed: a job failed.
        kb_engine.embed.protocol.EmbedderUnavailable: a runtime is not installed.
    """
    files = [
        "\n\n".join(
            "\n".join(text_of_page(_PAGES_EACH * file + page, seed=_SEED))
            for page in range(1, _PAGES_EACH + 1)
        )
        for file in range(max(1, passages // _PASSAGES_EACH))
    ]
    models = {name: embedder_from(name) for name in RUNTIMES}
    texts = [piece.text for file in files for piece in chunks(Extraction.of_note(file))]
    cores = os.cpu_count() or 1
    sides = [Side(name, threads) for name in RUNTIMES for threads in dict.fromkeys((0, 1, cores))]
    runs: dict[Side, list[Run]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in in_turn(sides, number):
            done = _embedded(models[side.embedder], texts, cores) if not side.threads else _taken(side, files)
            runs[side].append(done)
            note(f"{side.name}: {done.rate:.1f} passages/s, {done.cpu * 1000:.1f} ms of processor each")

    def beside(side: Side, other: Side) -> float:
        return median(mine.rate / its.rate for mine, its in zip(runs[side], runs[other], strict=True))

    return TakingReport(
        passages=len(texts),
        files=len(files),
        rounds=rounds,
        taken=[
            Taken(
                side=side.name,
                rate=round(median(each.rate for each in runs[side]), 2),
                cpu_ms=round(median(each.cpu for each in runs[side]) * 1000, 2),
                of_model=round(beside(side, Side(side.embedder, 0)), 3),
                of_first=round(beside(side, Side(RUNTIMES[0], 1)), 3),
            )
            for side in sides
        ],
    )


def _embedded(model: Embedder, texts: Sequence[str], threads: int) -> Run:
    """The model alone."""
    model.load()
    model.embed(texts[:1])
    size = model.batch_size
    began, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(model.embed, (texts[start : start + size] for start in range(0, len(texts), size))))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return Run(len(texts) / seconds, cpu / len(texts))


def _taken(side: Side, files: Sequence[str]) -> Run:
    """An engine that takes the files in, its model warm."""
    with (
        tempfile.TemporaryDirectory(prefix="kb-bench-") as folder,
        running_engine(Path(folder), side.embedder, KB_INGEST_WORKERS=str(side.threads)) as (engine, client),
    ):
        client.post("/api/v1/search", json={"query": "is it warm"}).raise_for_status()
        began, cpu = time.perf_counter(), engine.cpu_seconds()
        jobs = [submit(client, f"{number}.md", text) for number, text in enumerate(files)]
        for job in jobs:
            while is_running(client, job, wait=20):
                pass
        seconds, cpu = time.perf_counter() - began, engine.cpu_seconds() - cpu
        passages = int(client.get("/api/v1/status").json()["chunks"])
    return Run(passages / seconds, cpu / passages)
