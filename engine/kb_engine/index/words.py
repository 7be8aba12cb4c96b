"""Which words of a query count, and how much: a bound on the work that frequent words cause.

To score every chunk that holds any word of a query takes about a microsecond a chunk and word, so a stop word
in 80,000 chunks costs 60 ms and distinguishes nothing. Words are therefore looked up one by one, the rarest
first, until a budget of chunks is spent; the words that remain do not count, unless no chunk that may answer
holds any other. Where the filters leave few chunks only those are scored, which is cheaper, so the budget is
larger.

A word's weight is `log(1 + (N - n + 0.5) / (n + 0.5))`, which stays above zero in a base of three chunks,
where that of FTS5 falls to nothing.

Both indexes that live in a store's database follow these rules, so that their scores are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

BUDGET_CHUNKS = 10_000
BUDGET_SHARE = 0.15
"""The budget is the larger of the number and this share of the base."""
FEW_CHUNKS = 2_000
FEW_SHARE = 0.02
"""Filters that leave no more than the larger of these leave "few"."""
FEW_ALLOWANCE = 6
"""How many times the budget is spent on few chunks: walking past a chunk costs a sixth of scoring it."""
CACHED_FROM = 500
"""Counting a word that is rarer costs less than remembering it."""
CACHE_SIZE = 50_000
DRIFT = 0.02
"""An earlier count serves as an estimate until the base has grown or shrunk by this share."""

Known = tuple[str, int]
"""A phrase that occurs, and in about how many chunks."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How many chunks the filters leave, out of `size` in the base, and in which state that is."""

    left: int
    size: int
    generation: int

    @property
    def few(self) -> bool:
        """Whether the filters leave so few that it pays to score these alone."""
        return self.left <= max(FEW_CHUNKS, self.size * FEW_SHARE)

    @property
    def budget(self) -> float:
        """In how many chunks the words that are looked up may occur together."""
        return max(BUDGET_CHUNKS, self.size * BUDGET_SHARE) * (FEW_ALLOWANCE if self.few else 1)

    def too_frequent(self, count: int) -> bool:
        """Whether a word in so many chunks counts as present and no more: a stop word."""
        return not self.few and count > max(self.budget, self.size / 2)


class Counts:
    """In how many chunks the frequent words stand, as far as it is remembered."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int, int]] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def about(self, phrase: str, extent: Extent) -> int | None:
        """A count that is good enough to order words by; None where there is none."""
        count, size, _ = self._counts.get(phrase, (0, 0, 0))
        return count if count and abs(size - extent.size) <= size * DRIFT else None

    def exactly(self, phrase: str, extent: Extent) -> int | None:
        """The count in this state of the base; None where it is not known."""
        count, _, generation = self._counts.get(phrase, (0, 0, -1))
        return count if generation == extent.generation else None

    def remember(self, phrase: str, count: int, extent: Extent) -> None:
        """Keep a count that was costly to take."""
        if count < CACHED_FROM:
            return
        if len(self._counts) >= CACHE_SIZE:
            self._counts.clear()
        self._counts[phrase] = (count, extent.size, extent.generation)


def affordable(known: list[Known], corpus: Extent) -> tuple[list[Known], list[Known]]:
    """The rarest phrases that the budget allows, one at least, and the rest."""
    left = corpus.budget
    for place, (_, count) in enumerate(known):
        left -= count
        if left < 0 and place > 0:
            return known[:place], known[place:]
    return known, []


def weight(count: int, size: int) -> float:
    """How much a word counts that occurs in `count` of `size` chunks."""
    return math.log1p((size - count + 0.5) / (count + 0.5))
