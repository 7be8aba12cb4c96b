"""A run of an evaluation: the results of each question, their totals, and the comparison of two runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np

from kb_cli.evaluation.dataset import lines
from kb_cli.evaluation.metrics import METRICS, Difference, Interval, difference, interval, mean, rounded
from kb_cli.output import UsageError
from kb_contracts.api import models as m

MODES: tuple[m.Mode, ...] = get_args(m.Mode)
MAIN = "ndcg@10"
"""The metric for kinds of question and for single questions."""

_SHORT, _LONG = 10, 20
_INTERROGATIVES = frozenset({
    "what", "which", "who", "whom", "whose", "when", "where", "why", "how", "is", "are", "was", "were", "do",
    "does", "did", "has", "have", "had", "can", "could", "may", "might", "must", "shall", "should", "will",
    "would",
})  # fmt: skip


class Answered(msgspec.Struct, frozen=True):
    """The result of one mode for one question.

    `scores` are by metric, and empty for an unanswerable question. `documents` are the first ten; `ms` is the
    time for ten results as reported by the engine, in milliseconds.
    """

    scores: dict[str, float]
    documents: list[str]
    ms: float
    weak: bool


class Judged(msgspec.Struct, frozen=True):
    """One line of a run. `gains` is the relevance by document, and empty for an unanswerable question."""

    id: str
    question: str
    gains: dict[str, int]
    modes: dict[m.Mode, Answered]

    def score(self, mode: m.Mode, metric: str = MAIN) -> float:
        return self.modes[mode].scores[metric]


class Weak(msgspec.Struct, frozen=True):
    """Reliability of `weak`: the share of answerable questions where it is true, and of unanswerable ones
    where it is false.
    """

    false_alarms: float
    answerable: int
    missed: float | msgspec.UnsetType = msgspec.UNSET
    unanswerable: int | msgspec.UnsetType = msgspec.UNSET


class Kind(msgspec.Struct, frozen=True):
    """nDCG@10 of a kind of question; `over_better_half` is hybrid's gain over the better of its two parts."""

    questions: int
    ndcg: float = msgspec.field(name=MAIN)
    interval: Interval
    over_better_half: Difference | msgspec.UnsetType = msgspec.UNSET


class Parts(msgspec.Struct, frozen=True):
    """The gain of hybrid over its two parts.

    `relevant` counts the relevant documents among its first ten, by the part that also has them there.
    """

    over_fts: Difference
    over_vector: Difference
    relevant: dict[str, int]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One mode over a run: means with their 95 % intervals by bootstrap, and milliseconds."""

    ndcg: float = msgspec.field(name="ndcg@10")
    recall: float = msgspec.field(name="recall@100")
    reciprocal_rank: float = msgspec.field(name="mrr@10")
    intervals: dict[str, Interval]
    questions: int
    latency_ms: dict[str, float]
    kinds: dict[str, Kind]
    weak: Weak
    parts: Parts | msgspec.UnsetType = msgspec.UNSET

    def means(self) -> dict[str, float]:
        """Return the means by metric."""
        return dict(zip(METRICS, (self.ndcg, self.recall, self.reciprocal_rank), strict=True))


def figures(run: Sequence[Judged], seed: int) -> dict[m.Mode, Figures]:
    """Return the totals of a run, by mode; at least one question must be answerable."""
    answerable = [judged for judged in run if judged.gains]
    unanswerable = [judged for judged in run if not judged.gains]
    kinds = dict(_kinds(answerable))
    found = {}
    for mode in MODES:
        values = {metric: [judged.score(mode, metric) for judged in answerable] for metric in METRICS}
        p50, p95 = np.percentile([judged.modes[mode].ms for judged in run], (50, 95))
        weak = Weak(mean([judged.modes[mode].weak for judged in answerable]), len(answerable))
        if unanswerable:
            missed = mean([not judged.modes[mode].weak for judged in unanswerable])
            weak = Weak(weak.false_alarms, weak.answerable, missed, len(unanswerable))
        found[mode] = Figures(
            ndcg=mean(values["ndcg@10"]),
            recall=mean(values["recall@100"]),
            reciprocal_rank=mean(values["mrr@10"]),
            intervals={metric: interval(each, seed) for metric, each in values.items()},
            questions=len(answerable),
            latency_ms={"p50": rounded(p50), "p95": rounded(p95)},
            kinds={name: _kind(alike, mode, seed) for name, alike in kinds.items()},
            weak=weak,
            parts=_parts(answerable, seed) if mode == "hybrid" else msgspec.UNSET,
        )
    return found


def _kinds(run: Sequence[Judged]) -> Iterator[tuple[str, list[Judged]]]:
    """Yield the kinds that occur, by length and by form; a question has one kind of each."""
    for name, low, high in (
        (f"up to {_SHORT} words", 0, _SHORT),
        (f"{_SHORT + 1} to {_LONG} words", _SHORT + 1, _LONG),
        (f"over {_LONG} words", _LONG + 1, 1_000_000),
    ):
        if alike := [judged for judged in run if low <= len(judged.question.split()) <= high]:
            yield name, alike
    for name, form in (("questions", True), ("keywords", False)):
        if alike := [judged for judged in run if _is_question(judged.question) is form]:
            yield name, alike


def _is_question(text: str) -> bool:
    """True for an English question, or one with a question mark; the rest are keywords and statements."""
    return text.split()[0].lower() in _INTERROGATIVES or "?" in text or "？" in text


def _kind(run: Sequence[Judged], mode: m.Mode, seed: int) -> Kind:
    values = [judged.score(mode) for judged in run]
    kind = Kind(len(run), mean(values), interval(values, seed))
    if mode != "hybrid":
        return kind
    halves = ([judged.score(half) for judged in run] for half in MODES if half != "hybrid")
    over = difference(max(halves, key=sum), values, seed)
    return msgspec.structs.replace(kind, over_better_half=over)


def _parts(run: Sequence[Judged], seed: int) -> Parts:
    hybrid, fts, vector = ([judged.score(mode) for judged in run] for mode in ("hybrid", "fts", "vector"))
    counts = dict.fromkeys(("both", "fts", "vector", "neither"), 0)
    for judged in run:
        for document in judged.modes["hybrid"].documents:
            if judged.gains.get(document, 0) > 0:
                by_words, by_meaning = (
                    document in judged.modes[part].documents for part in ("fts", "vector")
                )
                alone = "fts" if by_words else "vector" if by_meaning else "neither"
                counts["both" if by_words and by_meaning else alone] += 1
    return Parts(difference(fts, hybrid, seed), difference(vector, hybrid, seed), counts)


class Change(msgspec.Struct, frozen=True):
    """A question whose nDCG@10 changed from one run to another."""

    id: str
    question: str
    before: float
    after: float


class Comparison(msgspec.Struct, frozen=True):
    """One mode in two runs, over the questions of both; largest changes first."""

    questions: int
    metrics: dict[str, Difference]
    better: list[Change]
    worse: list[Change]


def compare(before: Sequence[Judged], after: Sequence[Judged], seed: int) -> dict[m.Mode, Comparison]:
    """Compare the second run with the first, over the questions in both.
    Raises CliError: no question is in both.
    """
    earlier = {judged.id: judged for judged in before if judged.gains}
    pairs = [
        (old, new)
        for new in after
        if new.gains and (old := earlier.get(new.id)) is not None and old.question == new.question
    ]
    if not pairs:
        raise UsageError("the two runs have no question in common; were both on the same dataset?")
    return {mode: _compared(pairs, mode, seed) for mode in MODES}


def _compared(pairs: Sequence[tuple[Judged, Judged]], mode: m.Mode, seed: int) -> Comparison:
    metrics = {
        metric: difference(
            [old.score(mode, metric) for old, _ in pairs], [new.score(mode, metric) for _, new in pairs], seed
        )
        for metric in METRICS
    }
    changes = [
        Change(new.id, new.question, rounded(old.score(mode)), rounded(new.score(mode))) for old, new in pairs
    ]
    changes.sort(key=lambda each: each.after - each.before)
    worse = [each for each in changes if each.after < each.before]
    better = [each for each in reversed(changes) if each.after > each.before]
    return Comparison(len(pairs), metrics, better, worse)


def write_run(path: Path, run: Iterable[Judged]) -> None:
    """Write a line for each question. Raises OSError."""
    path.write_bytes(b"".join(msgspec.json.encode(judged) + b"\n" for judged in run))


def read_run(path: Path) -> list[Judged]:
    """Return the run written by `write_run`. Raises CliError."""
    run = []
    for line, judged in lines(path, Judged):
        if set(judged.modes) != set(MODES):
            raise line.wrong("a run has the answers of all modes; write one with `kb eval --output`")
        if judged.gains and any(set(METRICS) - set(answer.scores) for answer in judged.modes.values()):
            raise line.wrong("a metric is missing; write the run again with `kb eval --output`")
        run.append(judged)
    return run
