"""Quality of a ranking, from 0 to 1, as in trec_eval and BEIR; and the confidence of a mean.

A ranking is the ids of documents, best first, each once. `gains` is the relevance by document; a document
without an entry above 0 is not relevant. At least one document is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log2

import msgspec
import numpy as np

DEPTH = 100
"""Maximum number of documents of a ranking that a metric uses."""

_FIRST = 10
_RESAMPLES = 1_000
Gains = Mapping[str, int]
Interval = tuple[float, float]


def ndcg(ranking: Sequence[str], gains: Gains) -> float:
    """Return nDCG@10: the gains of the first ten, each over log2(rank + 1), relative to the best order."""
    found = _discounted(gains.get(document, 0) for document in ranking[:_FIRST])
    return found / _discounted(sorted(gains.values(), reverse=True)[:_FIRST])


def recall(ranking: Sequence[str], gains: Gains) -> float:
    """Return recall@100: the share of the relevant documents that are among the first hundred."""
    relevant = {document for document, gain in gains.items() if gain > 0}
    return len(relevant.intersection(ranking[:DEPTH])) / len(relevant)


def reciprocal_rank(ranking: Sequence[str], gains: Gains) -> float:
    """Return MRR@10 of one question: one over the rank of the first relevant document, 0 beyond the tenth."""
    ranks = (rank for rank, document in enumerate(ranking[:_FIRST], 1) if gains.get(document, 0) > 0)
    return 1 / next(ranks, float("inf"))


METRICS: Mapping[str, Callable[[Sequence[str], Gains], float]] = {
    "ndcg@10": ndcg,
    "recall@100": recall,
    "mrr@10": reciprocal_rank,
}


def scores_of(ranking: Sequence[str], gains: Gains) -> dict[str, float]:
    """Return all metrics of one question."""
    return {name: metric(ranking, gains) for name, metric in METRICS.items()}


def interval(values: Sequence[float], seed: int) -> Interval:
    """Return the 95 % interval of the mean, by the percentiles of bootstrap resamples."""
    drawn = np.random.default_rng(seed).integers(0, len(values), (_RESAMPLES, len(values)))
    means = np.asarray(values, np.float64)[drawn].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return rounded(low), rounded(high)


class Difference(msgspec.Struct, frozen=True):
    """The difference of two means over the same questions; `interval` is that of the paired difference."""

    difference: float
    interval: Interval
    better: int
    worse: int


def difference(before: Sequence[float], after: Sequence[float], seed: int) -> Difference:
    """Return the difference from `before` to `after`, question by question."""
    differences = [new - old for old, new in zip(before, after, strict=True)]
    better, worse = sum(each > 0 for each in differences), sum(each < 0 for each in differences)
    return Difference(mean(differences), interval(differences, seed), better, worse)


def mean(values: Sequence[float]) -> float:
    """Return the mean, rounded for reports."""
    return rounded(sum(values) / len(values))


def rounded(value: float) -> float:
    """Return the value with the four decimals of a report."""
    return round(float(value), 4)


def _discounted(gains: Iterable[int]) -> float:
    return sum(max(gain, 0) / log2(rank + 1) for rank, gain in enumerate(gains, 1))
