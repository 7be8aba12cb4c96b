"""`bench engine`: speed of ingestion, and search latency as the base grows.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, ClassVar

import httpx
import msgspec
import numpy as np
from faker import Faker

from bench import Option
from bench.corpus import PASSAGES_EACH, TAG, TAGGED_EVERY, Document, around, centres_of
from bench.runner import Report
from kb_contracts.api import models as m
from kb_engine.embed.registry import embedder_from
from kb_engine.index.port import Selection
from kb_engine.store.port import EmbedderIdentity, NewJob, Prepared, PreparedChunk, Query
from kb_engine.store.repository import documents, jobs
from kb_engine.store.sqlite.sqlite_store import open_sqlite
from kb_engine.store.store import Store
from kb_load.processes import LOOPBACK, Running, describe, free_port, running
from kb_load.report import Sheet, percentile

SEED = 7
SIZES = (1_000, 10_000, 100_000)
MODES: tuple[m.Mode, ...] = ("hybrid", "fts")
_VOCABULARY = 20_000
_WORDS_OF_CHUNK = 120
_WORDS_TAKEN = 60
_READY_SECONDS = 180.0
_PAUSE = 0.25


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Searches of one kind at one size, in milliseconds: percentiles of a round, medians over the rounds.

    `where` is `store` (the search alone, with the query's vector given) or `http` (the engine's whole
    response, the query's embedding included). `busy`: while files were taken in.
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
        """The kind of search, without `where`."""
        tag = ", 5 % by tag" if self.filtered else ""
        return f"{self.mode}{tag}{', while taking in' if self.busy else ''}"


class Taking(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of ingestion."""

    chunks: int
    seconds: float
    documents: int

    @property
    def rate(self) -> float:
        """Chunks a second."""
        return self.chunks / self.seconds


class EngineReport(Report, frozen=True, kw_only=True):
    """Results of a run. `embedding_ms` is p50, p95 and p99 of one query's embedding."""

    title = "Search in the engine as the base grows, p95"
    columns: ClassVar = {
        "search": "{0.where}, {0.kind}",
        "chunks": "{0.chunks}",
        **{f"{name} ms": f"{{0.{name}:.1f}}" for name in ("p50", "p95", "p99")},
    }
    embedder: str
    embedding_ms: tuple[float, float, float]
    taking: list[Taking]
    latencies: list[Latency]
    memory_mib: dict[int, float]

    def rows(self) -> list[Latency]:
        return sorted(self.latencies, key=lambda each: (f"{each.where}, {each.kind}", each.chunks))

    def footer(self) -> list[str]:
        first = self.latencies[0]
        p50, p95, p99 = self.embedding_ms
        lines = [
            f"medians of {first.rounds} rounds of some {first.calls // first.rounds} questions",
            f"a query's embedding ({self.embedder}): {p50:.1f} ms p50, {p95:.1f} p95, {p99:.1f} p99",
        ]
        for taking in self.taking:
            lines.append(
                f"taking in: {taking.chunks} chunks of {taking.documents} files in {taking.seconds:.1f} s, "
                f"{taking.rate:.1f} a second"
            )
        for smaller, larger in pairwise(self.memory_mib):
            grown = self.growth(smaller, larger)
            lines.append(f"from {smaller} to {larger} chunks the store's p95 grows {grown:.1f} times")
        memory = ", ".join(f"{mib:.0f} MiB at {size} chunks" for size, mib in self.memory_mib.items())
        return [*lines, f"the engine's memory: {memory}"]

    def growth(self, smaller: int, larger: int) -> float:
        """Return the ratio of a search's p95 at `larger` chunks: hybrid, in the store, without a filter."""
        of = {
            each.chunks: each.p95
            for each in self.latencies
            if (each.where, each.mode, each.filtered) == ("store", "hybrid", False)
        }
        return of[larger] / of[smaller]

    def plot(self, path: Path) -> None:
        """Draw p95 by size: in the store, and over HTTP with the query's embedding."""
        sheet = Sheet(2, title=self.title)
        for where, y in (("store", "in the store, ms"), ("http", "over HTTP, embedding included, ms")):
            latencies = [each for each in self.latencies if each.where == where]
            sheet.compare(
                latencies, group="{0.chunks} chunks", bar="{0.kind}", height="p95", label="{0.p95:.1f}", y=y
            )
        sheet.save(path, under=self.machine.line())


class EngineFailed(RuntimeError):
    """The engine failed a request or a job; the message has the cause."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of words by Zipf's law, determined by the seed."""

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
        ranks = self.rng.zipf(1.15, words) % len(self.words)
        return " ".join(self.words[rank] for rank in ranks)

    def question(self) -> str:
        """Three to seven words, frequent and rare ones."""
        ranks = self.rng.zipf(1.15, int(self.rng.integers(3, 8))) % len(self.words)
        return "how does " + " ".join(self.words[rank] for rank in ranks)


async def fill(store: Store, dimensions: int, texts: Texts, numbers: range) -> None:
    """Add documents with these numbers, each of `PASSAGES_EACH` chunks."""
    centres = centres_of(texts.rng, dimensions)
    for number in numbers:
        vectors = around(centres[texts.rng.integers(0, len(centres), PASSAGES_EACH)], texts.rng)
        passages = [texts.passage(_WORDS_OF_CHUNK) for _ in range(PASSAGES_EACH)]
        is_tagged = number % TAGGED_EVERY == 0
        await add_documents(store, [Document(number, texts.passage(5), passages, vectors, is_tagged)])


def _job(document: Document) -> NewJob:
    name = f"bulk-{document.number}"
    return NewJob(
        id=name, kind="file", title=document.title, metadata={}, source_path=f"bulk/{document.number}.txt",
        tags=["collection:documents", *([TAG] if document.tagged else [])],
        dedup_scope="collection:documents", sha256=f"{document.number:064x}", size_bytes=1, spool=name,
        filename=f"{document.number}.txt", format="txt", doc_type="text",
    )  # fmt: skip


def _prepared(document: Document) -> Prepared:
    chunks = [
        PreparedChunk(text, page=None, heading=None, start=0, end=1, tokens=1) for text in document.texts
    ]
    return Prepared(document.title, "text", pages=None, chunks=chunks, vectors=document.vectors)


async def add_documents(store: Store, new: Sequence[Document]) -> None:
    """Add documents with their vectors concurrently, as workers do that process one each.
    Raises EngineFailed: the store did not take one.
    """
    by_job = {_job(each).id: each for each in new}

    async def take_in() -> None:
        leased = await store.write(jobs.take, "bulk")
        assert leased is not None, "its job was accepted"
        if await store.write(documents.commit, leased, _prepared(by_job[leased.job.id])) is None:
            raise EngineFailed("the store did not take a bulk document")

    await asyncio.gather(*(store.once(None, jobs.accept, _job(each)) for each in new))
    await asyncio.gather(*(take_in() for _ in new))


def run(
    *,
    sizes: Annotated[Sequence[int], Option("number of chunks in the base", 50, 10_000_000)] = SIZES,
    calls: Annotated[int, Option("number of questions of each kind")] = 300,
    rounds: Annotated[int, Option("number of rounds")] = 5,
    ingest_chunks: Annotated[int, Option("number of chunks to ingest; 0: none", 0, 10_000_000)] = 2_000,
    embedder: str = "minilm",
    note: Callable[[str], None] = print,
) -> EngineReport:
    """Measure; `ingest_chunks` 0 omits ingestion, and the searches during it.

    Raises:
        EngineFailed: a job failed, or the engine did not answer as agreed.
        kb_load.processes.NotReady: it did not start.
    """
    machine, texts = describe(), Texts.seeded(SEED)
    questions = [texts.question() for _ in range(calls)]
    model = embedder_from(embedder)
    model.load()
    model.embed(questions[:1])
    taken, vectors = [], []
    for question in questions:
        started = time.perf_counter()
        vectors.append(model.embed([question])[0])
        taken.append((time.perf_counter() - started) * 1000)
    p50, p95, p99 = _percentiles([taken])
    note(f"a query's embedding: {p50:.1f} ms p50, {p95:.1f} p95, {p99:.1f} p99")
    scoring = model.scoring
    queries = {
        (mode, bool(tags)): [
            Query(
                text=question,
                mode=mode,
                vector=None if mode == "fts" else vector,
                scoring=scoring,
                top=10,
                selection=Selection(tags=tags),
            )
            for question, vector in zip(questions, vectors, strict=True)
        ]
        for mode in MODES
        for tags in ((), (TAG,))
    }
    identity = EmbedderIdentity(model.name, model.dimensions)
    report = EngineReport(
        machine=machine,
        embedder=embedder,
        embedding_ms=(p50, p95, p99),
        taking=[],
        latencies=[],
        memory_mib={},
    )
    with tempfile.TemporaryDirectory(prefix="kb-bench-") as folder:
        if ingest_chunks:
            with running_engine(Path(folder) / "taking", embedder) as (_, client):
                taking = take_in(client, texts, ingest_chunks)
            report.taking.append(taking)
            note(f"taking in: {taking.chunks} chunks in {taking.seconds:.1f} s, {taking.rate:.1f} a second")
        home, documents = Path(folder) / "home", 0
        for size in sizes:
            numbers = range(documents, size // PASSAGES_EACH)
            documents = numbers.stop
            turns = asyncio.run(_in_store(home, identity, queries, texts, numbers, rounds))
            with running_engine(home, embedder) as (process, client):
                turns |= _over_http(client, texts, questions, rounds, busy=bool(ingest_chunks))
                report.memory_mib[size] = round(process.resident_bytes() / 2**20, 1)
            for (where, mode, filtered, busy), values in turns.items():
                p50, p95, p99 = _percentiles(values)
                each = Latency(
                    chunks=size, where=where, mode=mode, filtered=filtered, busy=busy, rounds=len(values),
                    calls=sum(map(len, values)), p50=p50, p95=p95, p99=p99,
                )  # fmt: skip
                report.latencies.append(each)
                note(f"{size} chunks, {where}, {each.kind}: p50 {p50:.1f}, p95 {p95:.1f} ms")
    return report


Turns = dict[tuple[str, m.Mode, bool, bool], list[list[float]]]
"""The milliseconds of the searches of each round, by where, mode, `filtered` and `busy`."""


def _percentiles(turns: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(
        round(median(percentile(values, share) for values in turns), 2) for share in (0.5, 0.95, 0.99)
    )


async def _in_store(
    home: Path,
    identity: EmbedderIdentity,
    queries: Mapping[tuple[m.Mode, bool], Sequence[Query]],
    texts: Texts,
    numbers: range,
    rounds: int,
) -> Turns:
    """Fill the base and search it through the store; the first turn is short, and warms."""
    path = home / "engine" / "kb.sqlite"
    path.parent.mkdir(parents=True, exist_ok=True)
    store = await open_sqlite(path, embedder=identity)
    turns: Turns = {}
    try:
        await fill(store, identity.dimensions, texts, numbers)
        for turn in range(rounds + 1):
            for (mode, filtered), of_kind in queries.items():
                taken = []
                for query in of_kind if turn else of_kind[:20]:
                    started = time.perf_counter()
                    await store.search(query)
                    taken.append((time.perf_counter() - started) * 1000)
                if turn:
                    turns.setdefault(("store", mode, filtered, False), []).append(taken)
    finally:
        await store.close()
    return turns


def take_in(client: httpx.Client, texts: Texts, chunks: int) -> Taking:
    """Send text files until about `chunks` chunks are asked for, and wait until all are searchable."""

    def count() -> int:
        return int(client.get("/api/v1/status").json()["chunks"])

    before, began = count(), time.perf_counter()
    jobs = []
    for number in range(max(1, chunks // 100)):
        # A passage of 60 words, many of them made up, fills about one chunk; how many it were is counted.
        body = "\n\n".join(texts.passage(_WORDS_TAKEN).capitalize() + "." for _ in range(100))
        jobs.append(submit(client, f"taken-{number}.txt", body))
    for job_id in jobs:
        while is_running(client, job_id, wait=20):
            continue
    seconds = time.perf_counter() - began
    return Taking(chunks=count() - before, seconds=seconds, documents=len(jobs))


def _over_http(
    client: httpx.Client, texts: Texts, questions: Sequence[str], rounds: int, *, busy: bool
) -> Turns:
    """Search the engine when all is quiet and, `busy`, while files are taken in; the start warms."""
    connection = connection_to(client)
    for question in questions[:20]:
        ask(connection, question, filtered=False)
    turns: Turns = {}
    for _ in range(rounds):
        for filtered in (False, True):
            quiet = [ask(connection, question, filtered=filtered) for question in questions]
            turns.setdefault(("http", "hybrid", filtered, False), []).append(quiet)
        if not busy:
            continue
        found: tuple[list[float], list[float]] = [], []
        jobs: list[str] = []
        for number, question in enumerate([*questions, *questions]):
            if number % 20 == 0:
                jobs = [job for job in jobs if is_running(client, job)]
                while len(jobs) < 2:  # there is always one more waiting
                    body = "\n\n".join(texts.passage(_WORDS_OF_CHUNK) for _ in range(40))
                    jobs.append(submit(client, f"busy-{texts.rng.integers(1 << 40)}.txt", body))
            found[number % 2].append(ask(connection, question, filtered=bool(number % 2)))
        for job in jobs:
            client.delete(f"/api/v1/jobs/{job}")
        for tagged, values in enumerate(found):
            turns.setdefault(("http", "hybrid", bool(tagged), True), []).append(values)
    return turns


def connection_to(client: httpx.Client) -> HTTPConnection:
    """Return a connection to the same engine for `ask`: httpx would add a millisecond to each search."""
    return HTTPConnection(LOOPBACK, client.base_url.port, timeout=120)


@contextmanager
def running_engine(home: Path, embedder: str, **settings: str) -> Iterator[tuple[Running, httpx.Client]]:
    """Yield a ready engine, on a base in `home`, and its client."""
    port = free_port()
    home.mkdir(parents=True, exist_ok=True)
    arguments = ["-m", "kb_cli.main", "engine", "--port", str(port), "--embedder", embedder]
    with (
        running(
            "engine", arguments, home, port=port, KB_HOME=str(home), LOG_LEVEL="warn", **settings
        ) as process,
        httpx.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=120) as client,
    ):
        deadline = time.monotonic() + _READY_SECONDS
        while client.get("/readyz").status_code != 200:
            if time.monotonic() > deadline:
                raise EngineFailed("the engine does not become ready")
            time.sleep(_PAUSE)
        yield process, client


def ask(connection: HTTPConnection, question: str, *, filtered: bool) -> float:
    """Return the milliseconds of one search over HTTP."""
    body = msgspec.json.encode({"query": question, "tags": [TAG] if filtered else []})
    started = time.perf_counter()
    connection.request("POST", "/api/v1/search", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    taken = (time.perf_counter() - started) * 1000
    if response.status != 200:
        raise EngineFailed(f"search: {response.status} {text[:200]!r}")
    return taken


def submit(client: httpx.Client, name: str, text: str) -> str:
    """Send a text file; return the id of its job."""
    response = client.post("/api/v1/jobs", files={"file": (name, text.encode(), "text/plain")})
    if response.status_code != 202:
        raise EngineFailed(f"job: {response.status_code} {response.text[:200]}")
    return str(response.json()["id"])


def is_running(client: httpx.Client, job_id: str, *, wait: int = 0) -> bool:
    """Return True if a job is still active after `wait` seconds. Raises EngineFailed."""
    job = client.get(f"/api/v1/jobs/{job_id}", params={"wait": wait}).json()
    if job["status"] == "failed":
        raise EngineFailed(f"ingestion failed: {job['error']}")
    return bool(job["status"] in ("queued", "running"))
