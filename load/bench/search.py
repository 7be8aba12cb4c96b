"""`bench search`: searches of kb and of other stores, on the same passages.

Each peer is filled by one process and asked by another, so that the start is a real one and the memory is
that of a process which only searches. The effort of a peer's vector search is raised until it finds 0.99 of
the true neighbours, with the tag and without, or cannot be raised further; the table says what it reached.
Times are of hybrid searches in that process, the question's vector at hand; for a peer that ranks by vectors
alone, of those.
"""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
import psutil

from bench import Option
from bench.corpus import PARTS, TAG, Answer, Corpus, Part, Question, static_embedder
from bench.peers import PEERS, Peer, opener
from bench.runner import Report
from kb_load.report import percentile

SEED = 7
SIZES = (10_000, 100_000)
FEW_FROM = 1_000_000
"""Number of passages from which only kb and the three peers in `LARGE` are measured."""
LARGE = ("kb", "tantivy", "lancedb", "qdrant")
_DOCUMENTS_AT_ONCE = 20
_CLIENTS = 4
_GOOD = 0.99
_TO_TUNE = 50
_TO_WARM = 20


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles in milliseconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        return cls(
            **{f"p{share}": round(percentile(seconds, share / 100) * 1000, 2) for share in (50, 95, 99)}
        )

    def __str__(self) -> str:
        return f"{self.p50:.1f}/{self.p95:.1f}/{self.p99:.1f}"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a peer at one size. `equal` counts the exact rankings, with and without the tag; `recall` is
    the share of the exact ten that is found, without and with it, or None if the peer does not rank so.
    """

    peer: str
    passages: int
    inserts: float
    disk_mib: float
    memory_mib: float
    start: float
    effort: int
    hybrid: Times
    filtered: Times
    clients: Times
    recall: dict[Part, tuple[float, float] | None]
    equal: int
    searches: int


class SearchReport(Report, frozen=True, kw_only=True):
    """Results of a run; `missing` peers are not installed, `failed` peers ended with an error."""

    columns: ClassVar = {
        "passages": "{0.passages}",
        "": "{0.peer}",
        "inserts/s": "{0.inserts:.0f}",
        "disk MiB": "{0.disk_mib:.0f}",
        "PSS MiB": "{0.memory_mib:.0f}",
        "start s": "{0.start:.2f}",
        "p50/p95/p99 ms": "{0.hybrid}",
        "5 % by tag": "{0.filtered}",
        "four clients": "{0.clients}",
    }
    measured: list[Measured]
    missing: list[str]
    failed: list[str]

    def rows(self) -> list[Measured]:
        return self.measured

    def footer(self) -> list[str]:
        lines = ["", "recall at ten without/with the tag by vectors, words, both; equal rankings; effort"]
        for each in self.measured:
            pairs = (each.recall["vectors"], each.recall["words"], each.recall["hybrid"])
            shares = ", ".join("none" if pair is None else f"{pair[0]:.3f}/{pair[1]:.3f}" for pair in pairs)
            lines.append(
                f"{each.passages} {each.peer}: {shares}; {each.equal} of {each.searches}; {each.effort}"
            )
        if self.missing:
            lines.append(f"not installed (extra `bench`): {', '.join(self.missing)}")
        lines += [f"failed: {each}" for each in self.failed]
        return lines


def run(
    *,
    sizes: Annotated[Sequence[int], Option("number of passages in the base", 50, 10_000_000)] = SIZES,
    questions: Annotated[int, Option("number of questions of each kind", 20, 10_000)] = 200,
    peers: Annotated[Sequence[str], Option("products to measure", names=PEERS)] = tuple(PEERS),
    texts: Annotated[Path | None, Option("folder of text files for the passages, instead of --sizes")] = None,
    note: Callable[[str], None] = print,
) -> SearchReport:
    """Measure the installed `peers`; their data are in the temporary folder and removed at the end.

    Raises:
        ModuleNotFoundError: `texts` are given, and the embedder for them is not installed.
        ValueError: they have too few words.
    """
    missing = [key for key in peers if not _installed(key)]
    report = SearchReport(measured=[], failed=[], missing=[PEERS[key].name for key in missing])
    for wished in sizes if texts is None else (0,):
        with tempfile.TemporaryDirectory(prefix="kb-bench-search-") as folder:
            Path(folder).chmod(0o755)  # a peer's server may run as another user
            place = Path(folder) / "corpus"
            if texts is None:
                corpus = Corpus.made(place, wished, questions, SEED)
            else:
                corpus = Corpus.of_texts(place, texts, static_embedder(), questions, SEED)
            size = corpus.size
            wanted = [key for key in peers if key not in missing and (size < FEW_FROM or key in LARGE)]
            note(f"{size} passages are made")
            answers = corpus.answers()
            note("the exact answers are known")
            for key in wanted:
                place = Path(folder) / key
                place.mkdir()
                try:
                    seconds = _in_process(_fill, key, place, corpus)
                    disk = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
                    searched = _in_process(_search, key, place, corpus, answers)
                except PeerFailed as failure:
                    report.failed.append(f"{size}, {failure}")
                    note(report.failed[-1])
                    shutil.rmtree(place)
                    continue
                measured = Measured(
                    peer=PEERS[key].name,
                    passages=size,
                    inserts=size / seconds,
                    disk_mib=disk / 2**20,
                    **searched,
                )
                report.measured.append(measured)
                note(f"{size}, {key}: {measured.inserts:.0f} inserts a second, hybrid {measured.hybrid} ms")
                shutil.rmtree(place)
    return report


class PeerFailed(RuntimeError):
    """A peer's process failed; its message is on standard error."""


def _installed(key: str) -> bool:
    try:
        opener(key)
    except ModuleNotFoundError:
        return False
    return True


def _in_process(work: Callable[..., Any], key: str, *arguments: object) -> Any:
    """Return the result of `work`, run in a new process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, work, key, *arguments))
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        raise PeerFailed(f"{key}: its process ended with an error") from None
    finally:
        process.join()


def _answer(pipe: Connection, work: Callable[..., Any], *arguments: object) -> None:
    pipe.send(work(*arguments))


def _fill(key: str, place: Path, corpus: Corpus) -> float:
    """Return the seconds of inserting, without the time of making the texts."""
    open_peer, documents, seconds = opener(key), corpus.documents(), 0.0
    began = time.perf_counter()
    peer = open_peer(place)
    seconds += time.perf_counter() - began
    while batch := list(islice(documents, _DOCUMENTS_AT_ONCE)):
        began = time.perf_counter()
        peer.insert(batch)
        seconds += time.perf_counter() - began
    began = time.perf_counter()
    peer.finish()
    peer.close()
    return seconds + time.perf_counter() - began


Answers = dict[tuple[Part, bool], list[Answer]]


def _search(key: str, place: Path, corpus: Corpus, answers: Answers) -> dict[str, Any]:
    """Return the members of `Measured` that searches determine."""
    open_peer, questions = opener(key), corpus.questions()
    began = time.perf_counter()
    peer = open_peer(place)
    words = True
    try:
        _ask(peer, questions[0], "hybrid", None)
    except NotImplementedError:
        words = False
        _ask(peer, questions[0], "vectors", None)
    start = time.perf_counter() - began
    effort = tune(peer, questions[:_TO_TUNE], answers)
    main: Part = "hybrid" if words else "vectors"
    for question in questions[:_TO_WARM]:
        _ask(peer, question, main, None)
    taken, shares = {}, dict[Part, tuple[float, float] | None](dict.fromkeys(PARTS))
    equal = 0
    for part in PARTS if words else (main,):
        pair = []
        for tag in (None, TAG):
            searches = [_ask(peer, question, part, tag) for question in questions]
            due = answers[part, tag is not None]
            if part == main:
                taken[tag] = [each.seconds for each in searches]
                equal += sum(answer.equals(each.found) for each, answer in zip(searches, due, strict=True))
            pair.append(_recall(due, searches))
        shares[part] = (pair[0], pair[1])
    with ThreadPoolExecutor(_CLIENTS) as pool:
        turns = [questions[first::_CLIENTS] for first in range(_CLIENTS)]
        crowded = list(
            chain(*pool.map(lambda own: [_ask(peer, each, main, None).seconds for each in own], turns))
        )
    memory = _pss()
    peer.close()
    return {
        "memory_mib": memory, "start": start, "effort": effort, "hybrid": Times.of(taken[None]),
        "filtered": Times.of(taken[TAG]), "clients": Times.of(crowded), "recall": shares,
        "equal": equal, "searches": 2 * len(questions),
    }  # fmt: skip


class _Searched(NamedTuple):
    found: Sequence[int]
    seconds: float


def _ask(peer: Peer, question: Question, part: Part, tag: str | None) -> _Searched:
    text = None if part == "vectors" else question.text
    vector = None if part == "words" else question.vector
    began = time.perf_counter()
    found = peer.search(text, vector, tag)
    return _Searched(found, time.perf_counter() - began)


def tune(peer: Peer, questions: Sequence[Question], answers: Answers) -> int:
    """Raise the effort until the recall of the vectors suffices or the effort is at its maximum."""
    for effort in peer.efforts:
        if len(peer.efforts) > 1:
            peer.effort = effort
        if all(
            _recall(
                answers["vectors", tag is not None], [_ask(peer, each, "vectors", tag) for each in questions]
            )
            >= _GOOD
            for tag in (None, TAG)
        ):
            break
    return peer.effort


def _recall(due: Sequence[Answer], searches: Sequence[_Searched]) -> float:
    return fmean(answer.share(each.found) for answer, each in zip(due, searches, strict=False))


def _pss() -> float:
    """Return the memory (PSS) of this process and its children, in MiB."""
    here = psutil.Process()
    return sum(each.memory_full_info().pss for each in [here, *here.children(recursive=True)]) / 2**20
