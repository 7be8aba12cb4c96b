"""`bench taking`: speed of ingesting a folder, beside the model alone, and search latency during it.

In turns, for each runtime of the model: the model by itself, as many threads as cores, over the passages of
the folder; and engines, each with a base of its own, that take the folder in from `POST /jobs` until the last
document can be searched, with one thread that embeds and with as many as there are cores. The files are
texts of some twenty passages, made by seed.

Then an engine over a base that was filled in bulk is asked over HTTP, one question after the other: while all
is quiet, and as long as it takes a folder in on all cores. Ratios are taken within a round, then their
median.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from statistics import median
from typing import Annotated, ClassVar, NamedTuple

import msgspec

from bench import Option
from bench.engine import (
    CHUNKS_EACH,
    Texts,
    ask,
    connection_to,
    fill,
    is_running,
    running_engine,
    submit,
)
from bench.runner import Report, rotate
from kb_engine.chunk import chunks
from kb_engine.embed.protocol import Embedder
from kb_engine.embed.registry import embedder_from
from kb_engine.store.port import EmbedderIdentity
from kb_engine.store.sqlite.sqlite_store import open_sqlite
from kb_load.pdf import text_of_page
from kb_load.report import percentile
from kb_readers.model import Extraction

RUNTIMES = ("minilm", "minilm-openvino")
_PAGES_EACH = 4
_PASSAGES_EACH = 22  # of a file of so many pages
_SEED = 5
_QUESTIONS = 200  # asked in a row


class Side(NamedTuple):
    """A configuration; `threads` 0: the model alone."""

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
    """Figures of one configuration.

    `of_model` is its rate beside that of its model alone, `of_first` beside one thread of the first runtime.
    """

    side: str
    rate: float
    cpu_ms: float
    of_model: float
    of_first: float


class Searched(msgspec.Struct, frozen=True, kw_only=True):
    """Searches of one runtime: their p95 while all is quiet and while a folder is taken in, milliseconds."""

    side: str
    quiet: float
    busy: float
    ratio: float


class TakingReport(Report, frozen=True, kw_only=True):
    """Results of a run."""

    columns: ClassVar = {
        "taking in": "{0.side}",
        "passages/s": "{0.rate:.1f}",
        "CPU ms/passage": "{0.cpu_ms:.1f}",
        "of the model": "{0.of_model:.2f}",
        "x one thread": "{0.of_first:.2f}",
    }
    passages: int
    files: int
    rounds: int
    taken: list[Taken]
    base: int
    searches: list[Searched]

    def rows(self) -> Sequence[Taken]:
        return self.taken

    def footer(self) -> list[str]:
        return [
            f"medians of {self.rounds} rounds of {self.passages} passages in {self.files} files",
            *(
                f"{each.side}: a search of {self.base} passages has a p95 of {each.quiet:.1f} ms while all "
                f"is quiet, and of {each.busy:.1f} while a folder is taken in: {each.ratio:.2f} times that"
                for each in self.searches
            ),
        ]


def run(
    *,
    passages: Annotated[int, Option("approximate number of passages of the folder", 10, 1_000_000)] = 300,
    base: Annotated[int, Option("number of passages in the searched base", 50, 10_000_000)] = 20_000,
    rounds: Annotated[int, Option("number of rounds")] = 2,
    note: Callable[[str], None] = print,
) -> TakingReport:
    """Measure.

    Raises:
        bench.engine.EngineFailed: a job failed.
        kb_engine.embed.protocol.EmbedderUnavailable: a runtime is not installed.
    """
    files = list(_folder(passages, seed=_SEED))
    models = {name: embedder_from(name) for name in RUNTIMES}
    model = models[RUNTIMES[0]]  # the other one's tokens are the same
    texts = [
        piece.text
        for file in files
        for piece in chunks(
            Extraction.of_note(file), count_tokens=model.count_tokens, max_tokens=model.max_tokens
        )
    ]
    cores = os.cpu_count() or 1
    sides = [Side(name, threads) for name in RUNTIMES for threads in dict.fromkeys((0, 1, cores))]
    runs: dict[Side, list[Run]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in rotate(sides, number):
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
        base=base,
        searches=_searched(models, passages, base, rounds, note),
    )


def _folder(passages: int, *, seed: int) -> Iterator[str]:
    for file in range(max(1, passages // _PASSAGES_EACH)):
        first = _PAGES_EACH * file + 1
        pages = (text_of_page(page, seed=seed) for page in range(first, first + _PAGES_EACH))
        yield "\n\n".join(map("\n".join, pages))


def _embedded(model: Embedder, texts: Sequence[str], threads: int) -> Run:
    """Measure the model alone."""
    model.load()
    model.embed(texts[:1])
    size = model.batch_size
    began, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(model.embed, (texts[start : start + size] for start in range(0, len(texts), size))))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return Run(len(texts) / seconds, cpu / len(texts))


def _taken(side: Side, files: Sequence[str]) -> Run:
    """Measure an engine that ingests the files, with its model loaded."""
    with (
        tempfile.TemporaryDirectory(prefix="kb-bench-") as folder,
        running_engine(Path(folder), side.embedder, KB_INGEST_WORKERS=str(side.threads)) as (engine, client),
    ):
        ask(connection_to(client), "is it warm", filtered=False)
        began, cpu = time.perf_counter(), engine.cpu_seconds()
        jobs = [submit(client, f"{number}.md", text) for number, text in enumerate(files)]
        for job in jobs:
            while is_running(client, job, wait=20):
                pass
        seconds, cpu = time.perf_counter() - began, engine.cpu_seconds() - cpu
        passages = int(client.get("/api/v1/status").json()["chunks"])
    return Run(passages / seconds, cpu / passages)


def _searched(
    models: Mapping[str, Embedder], passages: int, base: int, rounds: int, note: Callable[[str], None]
) -> list[Searched]:
    """Searches of a base that is filled once, by an engine on each runtime that takes in on all cores."""
    texts, seeds, found = Texts.seeded(_SEED), count(_SEED + 1), list[Searched]()
    with tempfile.TemporaryDirectory(prefix="kb-bench-") as folder:
        asyncio.run(_filled(Path(folder) / "engine" / "kb.sqlite", models[RUNTIMES[0]], texts, base))
        for name in RUNTIMES:
            quiet, busy = list[float](), list[float]()
            with running_engine(Path(folder), name, KB_INGEST_WORKERS=str(os.cpu_count())) as (_, client):
                connection = connection_to(client)
                for number in range(rounds + 1):  # the first turn warms
                    alone = [ask(connection, texts.question(), filtered=False) for _ in range(_QUESTIONS)]
                    if not number:
                        continue
                    seed, meanwhile = next(seeds), list[float]()
                    files = enumerate(_folder(passages, seed=seed))
                    jobs = [submit(client, f"{seed}-{file}.md", text) for file, text in files]
                    while not meanwhile or (len(meanwhile) < _QUESTIONS and is_running(client, jobs[-1])):
                        meanwhile += [ask(connection, texts.question(), filtered=False) for _ in range(10)]
                    for job in jobs:  # a busy machine has not done them all
                        client.delete(f"/api/v1/jobs/{job}")
                    quiet.append(percentile(alone, 0.95))
                    busy.append(percentile(meanwhile, 0.95))
                    note(f"{name}: p95 {quiet[-1]:.1f} ms, while taking in {busy[-1]:.1f} ({len(meanwhile)})")
            found.append(
                Searched(
                    side=name,
                    quiet=round(median(quiet), 2),
                    busy=round(median(busy), 2),
                    ratio=round(median(b / q for b, q in zip(busy, quiet, strict=True)), 3),
                )
            )
    return found


async def _filled(path: Path, model: Embedder, texts: Texts, base: int) -> None:
    path.parent.mkdir(parents=True)
    store = await open_sqlite(path, embedder=EmbedderIdentity(model.name, model.dimensions))
    try:
        await fill(store, model.dimensions, texts, range(max(1, base // CHUNKS_EACH)))
    finally:
        await store.close()
