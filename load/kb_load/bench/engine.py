"""`kb bench engine`: how fast the engine takes in, and how long a search takes as the base grows.

Taking in is real: text files of a known number of passages go through extraction, chunking, embedding
and commit. For searches the base is filled in bulk through the store, with texts made by seed from a
vocabulary of Zipf's frequencies and synthetic vectors around a few hundred centres; the engine then runs
over it as `kb engine` does, with the real model, and is asked over HTTP, one question at a time, each
another one. A twentieth of the documents carries the tag that the filtered searches ask for.

The embedding of a query does not depend on the base and is counted apart: the same questions are put to
the store with their vectors at hand, and the embedding itself is timed on its own.

All questions of all kinds are one round; a figure is the median over the rounds of what one round shows.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated

import httpx
import msgspec
import numpy as np
from faker import Faker
from numpy.typing import NDArray

from kb_contracts.api import models as m
from kb_engine.embed.registry import embedder_from
from kb_engine.encoder import Encoder
from kb_engine.index.port import Scoring, Selection
from kb_engine.store.port import EmbedderIdentity, NewJob, Prepared, PreparedChunk, Query
from kb_engine.store.repository import documents, jobs
from kb_engine.store.sqlite.store import SqliteStore, open_sqlite
from kb_load.bench import Option
from kb_load.machine import Machine, describe
from kb_load.plots import Sheet
from kb_load.processes import LOOPBACK, Running, free_port, running
from kb_load.stats import figures_table, percentile

SEED = 7
SIZES = (1_000, 10_000, 100_000)
FILTER_TAG = "team:actuaries"
MODES: tuple[m.Mode, ...] = ("hybrid", "fts")
CHUNKS_EACH = 50
_TAGGED_EVERY = 20
_VOCABULARY = 20_000
_CENTRES = 300
_WORDS_OF_CHUNK = 120
_WORDS_TAKEN = 60
_READY_SECONDS = 180.0
_PAUSE = 0.25


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Searches of one kind at one size, in milliseconds: percentiles of a round, medians over the rounds.

    `where` is `store` (the search itself, the query's vector at hand) or `http` (the engine's whole answer,
    the query's embedding included). `busy`: while files were taken in.
    """

    chunks: int
    where: str
    mode: str
    filtered: bool
    busy: bool
    rounds: int
    calls: int
    p50: float
    p95: float
    p99: float

    @property
    def kind(self) -> str:
        """What was searched, without where."""
        tag = ", 5 % by tag" if self.filtered else ""
        return f"{self.mode}{tag}{', while taking in' if self.busy else ''}"


class Taking(msgspec.Struct, frozen=True, kw_only=True):
    """What taking in came to."""

    chunks: int
    seconds: float
    documents: int

    @property
    def rate(self) -> float:
        """Chunks a second."""
        return self.chunks / self.seconds


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run. `embedding_ms` is p50, p95 and p99 of one query's embedding."""

    machine: Machine
    embedder: str
    embedding_ms: tuple[float, float, float]
    taking: Taking | None
    latencies: list[Latency]
    memory_mib: dict[int, float]


class EngineFailed(RuntimeError):
    """The engine did not do what was asked; the message says what."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Words by Zipf's law, made by seed: the same seed gives the same texts."""

    words: Sequence[str]
    rng: np.random.Generator

    @classmethod
    def seeded(cls, seed: int) -> Texts:
        """A vocabulary of word-like words; the frequent ones are English."""
        faker = Faker("en_GB")
        faker.seed_instance(seed)
        frequent = list(dict.fromkeys(faker.words(2_000)))
        rng = random.Random(seed)
        made = set(frequent)
        while len(made) < _VOCABULARY:
            made.add("".join(rng.choices("bcdfghklmnprstvw") + rng.choices("aeiou") + rng.choices("lmnrst")
                             + rng.choices("aeiou") + rng.choices("bcdfgklmnprst")))  # fmt: skip
        return cls([*frequent, *sorted(made - set(frequent))], np.random.default_rng(seed))

    def passage(self, words: int) -> str:
        """A text of so many words."""
        ranks = self.rng.zipf(1.15, words) % len(self.words)
        return " ".join(self.words[rank] for rank in ranks)

    def question(self) -> str:
        """Three to seven words, frequent and rare ones."""
        ranks = self.rng.zipf(1.15, int(self.rng.integers(3, 8))) % len(self.words)
        return "how does " + " ".join(self.words[rank] for rank in ranks)


async def fill(store: SqliteStore, dimensions: int, texts: Texts, numbers: range) -> None:
    """Add documents with these numbers, each of `CHUNKS_EACH` chunks."""
    centres = texts.rng.standard_normal((_CENTRES, dimensions), dtype=np.float32)
    for number in numbers:
        near = centres[texts.rng.integers(0, len(centres), CHUNKS_EACH)]
        vectors = near + texts.rng.standard_normal(near.shape, dtype=np.float32) * 0.6
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        chunks = [
            PreparedChunk(
                text=texts.passage(_WORDS_OF_CHUNK), page=None, heading=None, start=0, end=1, tokens=1
            )
            for _ in range(CHUNKS_EACH)
        ]
        prepared = Prepared(
            title=texts.passage(5), extraction_method="text", pages=None, chunks=chunks, vectors=vectors
        )
        tags = ["collection:documents", *([FILTER_TAG] if number % _TAGGED_EVERY == 0 else [])]
        job = NewJob(
            id=f"bulk-{number}", kind="file", title=prepared.title, tags=tags, metadata={},
            source_path=f"bulk/{number}.txt", dedup_scope="collection:documents", sha256=f"{number:064x}",
            size_bytes=1, spool=f"bulk-{number}", filename=f"{number}.txt", format="txt", doc_type="text",
        )  # fmt: skip
        await store.once(None, jobs.accept, job)
        leased = await store.write(jobs.take, "bulk")
        if leased is None or await store.write(documents.commit, leased, prepared) is None:
            raise EngineFailed("the store did not take a bulk document")


def run(
    *,
    sizes: Annotated[Sequence[int], Option("chunks in the base", 50, 10_000_000)] = SIZES,
    calls: Annotated[int, Option("questions of each kind")] = 300,
    rounds: Annotated[int, Option("turns")] = 5,
    ingest_chunks: Annotated[int, Option("chunks to take in; 0: none", 0, 10_000_000)] = 2_000,
    embedder: str = "minilm",
    note: Callable[[str], None] = print,
) -> EngineReport:
    """Measure; `ingest_chunks` 0 leaves taking in out, and searches during ingestion with it.

    Raises:
        EngineFailed: a job failed, or the engine did not answer as agreed.
        kb_load.processes.NotReady: it did not start.
    """
    machine = describe()
    texts = Texts.seeded(SEED)
    questions = [texts.question() for _ in range(calls)]
    queries = _Questions.embedded(embedder, questions)
    p50, p95, p99 = queries.embedding_ms
    note(f"a query's embedding: {p50:.1f} ms p50, {p95:.1f} p95, {p99:.1f} p99")
    latencies: list[Latency] = []
    memory: dict[int, float] = {}
    taking = None
    with tempfile.TemporaryDirectory(prefix="kb-bench-") as folder:
        if ingest_chunks:
            with _engine(Path(folder) / "taking", embedder) as (_, client):
                taking = take_in(client, texts, ingest_chunks)
            note(f"taking in: {taking.chunks} chunks in {taking.seconds:.1f} s, {taking.rate:.1f} a second")
        home, documents = Path(folder) / "home", 0
        for size in sizes:
            numbers = range(documents, size // CHUNKS_EACH)
            found = asyncio.run(_filled(home / "engine" / "kb.sqlite", queries, texts, numbers, size, rounds))
            documents = numbers.stop
            with _engine(home, embedder) as (process, client):
                found += _over_http(client, texts, questions, size, rounds, busy=bool(ingest_chunks))
                memory[size] = round(process.resident_bytes() / 2**20, 1)
            latencies += found
            for each in found:
                kind = f"{each.chunks} chunks, {each.where}, {each.kind}"
                note(f"{kind}: p50 {each.p50:.1f}, p95 {each.p95:.1f} ms")
    return EngineReport(
        machine=machine,
        embedder=embedder,
        embedding_ms=queries.embedding_ms,
        taking=taking,
        latencies=latencies,
        memory_mib=memory,
    )


@dataclass(frozen=True, slots=True)
class _Questions:
    """The questions with their vectors, and what the embedding of one takes: p50, p95, p99."""

    questions: Sequence[str]
    vectors: Sequence[NDArray[np.float32]]
    identity: EmbedderIdentity
    scoring: Scoring
    embedding_ms: tuple[float, float, float]

    @classmethod
    def embedded(cls, name: str, questions: Sequence[str]) -> _Questions:
        embedder = embedder_from(name)
        embedder.load()
        embedder.embed(questions[:1])
        taken, vectors = [], []
        for question in questions:
            started = time.perf_counter()
            vectors.append(embedder.embed([question])[0])
            taken.append((time.perf_counter() - started) * 1000)
        p50, p95, p99 = (round(percentile(taken, share), 2) for share in (0.5, 0.95, 0.99))
        identity = EmbedderIdentity(embedder.name, embedder.dimensions)
        return cls(questions, vectors, identity, Encoder(embedder, workers=1).scoring, (p50, p95, p99))


async def _filled(
    path: Path, queries: _Questions, texts: Texts, numbers: range, size: int, rounds: int
) -> list[Latency]:
    """Fill the base and search it through the store."""
    path.parent.mkdir(parents=True, exist_ok=True)
    store = await open_sqlite(path, embedder=queries.identity)
    try:
        await fill(store, queries.identity.dimensions, texts, numbers)
        kinds = [(mode, tags) for mode in MODES for tags in ((), (FILTER_TAG,))]
        for mode, tags in kinds:
            await _in_store(store, queries, mode, tags, most=20)
        turns = [
            [await _in_store(store, queries, mode, tags, most=len(queries.questions)) for mode, tags in kinds]
            for _ in range(rounds)
        ]
        return [
            _latency(values, size, "store", mode, filtered=bool(tags), busy=False)
            for (mode, tags), values in zip(kinds, zip(*turns, strict=True), strict=True)
        ]
    finally:
        await store.close()


async def _in_store(
    store: SqliteStore, queries: _Questions, mode: m.Mode, tags: tuple[str, ...], *, most: int
) -> list[float]:
    taken = []
    for question, vector in list(zip(queries.questions, queries.vectors, strict=True))[:most]:
        query = Query(
            text=question,
            mode=mode,
            vector=None if mode == "fts" else vector,
            scoring=queries.scoring,
            top=10,
            selection=Selection(tags=tags),
        )
        started = time.perf_counter()
        await store.search(query)
        taken.append((time.perf_counter() - started) * 1000)
    return taken


def take_in(client: httpx.Client, texts: Texts, chunks: int) -> Taking:
    """Send text files until about `chunks` chunks are asked for, and wait until all are searchable."""
    before = _counts(client)
    names = []
    began = time.perf_counter()
    for number in range(max(1, chunks // 100)):
        # A passage of 60 words, many of them made up, fills about one chunk; how many it were is counted.
        body = "\n\n".join(texts.passage(_WORDS_TAKEN).capitalize() + "." for _ in range(100))
        names.append(_submit(client, f"taken-{number}.txt", body))
    for job_id in names:
        while _runs(client, job_id, wait=20):
            continue
    seconds = time.perf_counter() - began
    return Taking(chunks=_counts(client) - before, seconds=seconds, documents=len(names))


def _over_http(
    client: httpx.Client, texts: Texts, questions: Sequence[str], size: int, rounds: int, *, busy: bool
) -> list[Latency]:
    for question in questions[:20]:
        _ask(client, question, filtered=False)
    turns: dict[tuple[bool, bool], list[list[float]]] = {}
    for _ in range(rounds):
        for filtered in (False, True):
            quiet = [_ask(client, question, filtered=filtered) for question in questions]
            turns.setdefault((filtered, False), []).append(quiet)
        if busy:
            for filtered, values in _while_busy(client, texts, questions).items():
                turns.setdefault((filtered, True), []).append(values)
    return [
        _latency(values, size, "http", "hybrid", filtered=filtered, busy=during)
        for (filtered, during), values in turns.items()
    ]


def _while_busy(client: httpx.Client, texts: Texts, questions: Sequence[str]) -> dict[bool, list[float]]:
    """Milliseconds of searches while files are taken in; there is always one more waiting."""
    found: dict[bool, list[float]] = {False: [], True: []}
    jobs: list[str] = []
    sent = 0
    for number, question in enumerate([*questions, *questions]):
        if number % 20 == 0:
            jobs = [job for job in jobs if _runs(client, job)]
            while len(jobs) < 2:
                body = "\n\n".join(texts.passage(_WORDS_OF_CHUNK) for _ in range(40))
                jobs.append(_submit(client, f"busy-{sent}-{texts.rng.integers(1 << 40)}.txt", body))
                sent += 1
        filtered = bool(number % 2)
        found[filtered].append(_ask(client, question, filtered=filtered))
    for job in jobs:
        client.delete(f"/api/v1/jobs/{job}")
    return found


def _latency(
    turns: Sequence[Sequence[float]], size: int, where: str, mode: str, *, filtered: bool, busy: bool
) -> Latency:
    p50, p95, p99 = (
        round(median(percentile(values, share) for values in turns), 2) for share in (0.5, 0.95, 0.99)
    )
    return Latency(
        chunks=size, where=where, mode=mode, filtered=filtered, busy=busy, rounds=len(turns),
        calls=sum(map(len, turns)), p50=p50, p95=p95, p99=p99,
    )  # fmt: skip


@contextmanager
def _engine(home: Path, embedder: str) -> Iterator[tuple[Running, httpx.Client]]:
    port = free_port()
    home.mkdir(parents=True, exist_ok=True)
    arguments = ["-m", "kb_cli.main", "engine", "--port", str(port), "--embedder", embedder]
    with (
        running("engine", arguments, home, port=port, KB_HOME=str(home), LOG_LEVEL="warn") as process,
        httpx.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=120) as client,
    ):
        deadline = time.monotonic() + _READY_SECONDS
        while client.get("/readyz").status_code != 200:
            if time.monotonic() > deadline:
                raise EngineFailed("the engine does not become ready")
            time.sleep(_PAUSE)
        yield process, client


def _ask(client: httpx.Client, question: str, *, filtered: bool) -> float:
    """Milliseconds of one search, seen from outside."""
    body = {"query": question, "tags": [FILTER_TAG] if filtered else []}
    started = time.perf_counter()
    response = client.post("/api/v1/search", json=body)
    taken = (time.perf_counter() - started) * 1000
    if response.status_code != 200:
        raise EngineFailed(f"search: {response.status_code} {response.text[:200]}")
    return taken


def _submit(client: httpx.Client, name: str, text: str) -> str:
    response = client.post("/api/v1/jobs", files={"file": (name, text.encode(), "text/plain")})
    if response.status_code != 202:
        raise EngineFailed(f"job: {response.status_code} {response.text[:200]}")
    return str(response.json()["id"])


def _runs(client: httpx.Client, job_id: str, *, wait: int = 0) -> bool:
    job = client.get(f"/api/v1/jobs/{job_id}", params={"wait": wait}).json()
    if job["status"] == "failed":
        raise EngineFailed(f"ingestion failed: {job['error']}")
    return bool(job["status"] in ("queued", "running"))


def _counts(client: httpx.Client) -> int:
    return int(client.get("/api/v1/status").json()["chunks"])


def growth(report: EngineReport, smaller: int, larger: int) -> float:
    """How many times longer a search's p95 is at `larger` chunks: hybrid, in the store, no filter."""
    of = {
        each.chunks: each.p95
        for each in report.latencies
        if (each.where, each.mode, each.filtered) == ("store", "hybrid", False)
    }
    return of[larger] / of[smaller]


def text(report: EngineReport) -> str:
    """The report for people."""
    columns = {"search": "{0.where}, {0.kind}", "chunks": "{0.chunks}"}
    columns |= {f"{name} ms": f"{{0.{name}:.1f}}" for name in ("p50", "p95", "p99")}
    ordered = sorted(report.latencies, key=lambda each: (f"{each.where}, {each.kind}", each.chunks))
    first = report.latencies[0]
    lines = [figures_table(columns, ordered)]
    lines.append(f"medians of {first.rounds} rounds of some {first.calls // first.rounds} questions")
    p50, p95, p99 = report.embedding_ms
    lines.append(f"a query's embedding ({report.embedder}): {p50:.1f} ms p50, {p95:.1f} p95, {p99:.1f} p99")
    if (taking := report.taking) is not None:
        lines.append(
            f"taking in: {taking.chunks} chunks of {taking.documents} files in {taking.seconds:.1f} s, "
            f"{taking.rate:.1f} a second"
        )
    sizes = list(report.memory_mib)
    lines += [
        f"from {smaller} to {larger} chunks the store's p95 grows {growth(report, smaller, larger):.1f} times"
        for smaller, larger in pairwise(sizes)
    ]
    memory = ", ".join(f"{mib:.0f} MiB at {size} chunks" for size, mib in report.memory_mib.items())
    return "\n".join([*lines, f"the engine's memory: {memory}", report.machine.line()])


def plot(report: EngineReport, path: Path) -> None:
    """Draw p95 by size: in the store, and over HTTP with the query's embedding."""
    sheet = Sheet(2, title="Search in the engine as the base grows, p95")
    for where, y in (("store", "in the store, ms"), ("http", "over HTTP, embedding included, ms")):
        latencies = [each for each in report.latencies if each.where == where]
        sheet.compare(
            latencies, group="{0.chunks} chunks", bar="{0.kind}", height="p95", label="{0.p95:.1f}", y=y
        )
    sheet.save(path, under=report.machine.line())
