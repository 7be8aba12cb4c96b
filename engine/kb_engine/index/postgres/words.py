"""Which words of a query count, and how much each weighs, by the rules of `kb_engine.index.words`.

The terms and their weights are found here; the scores are summed where the postings lie, by `search.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kb_engine.index.words import Counts, Extent, Known, affordable, weight
from kb_engine.store.postgres.connection import Db, rows


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms, each once, with what each weighs; of a `flat` one only that it occurs counts."""

    terms: Sequence[str] = ()
    weights: Sequence[float] = ()
    flat: Sequence[bool] = ()


class Words:
    """The counts of frequent words that are remembered between searches."""

    def __init__(self) -> None:
        self._counts = Counts()

    async def choose(self, db: Db, terms: Sequence[str], extent: Extent) -> tuple[list[Known], list[Known]]:
        """The rarest terms that the budget allows, one at least, and the rest; each with its count."""
        about = {term: self._counts.about(term, extent) for term in terms}
        counted = await self._count(db, [term for term, count in about.items() if count is None], extent)
        known = [(term, about[term] or counted[term]) for term in terms if about[term] or counted[term]]
        return affordable(sorted(known, key=lambda entry: entry[1]), extent)

    async def weighed(self, db: Db, known: Sequence[Known], extent: Extent, *, flatten: bool) -> Terms:
        """The terms with their weights; a term that the query has twice weighs twice.

        With `flatten`, words in too many chunks count as present and no more.
        """
        exact = await self._exactly(db, [term for term, _ in known], extent)
        weights: dict[str, float] = {}
        flat: dict[str, bool] = {}
        for term, about in known:
            weights[term] = weights.get(term, 0.0) + weight(exact[term], extent.size)
            flat[term] = flatten and extent.too_frequent(about)
        return Terms(list(weights), list(weights.values()), list(flat.values()))

    async def _exactly(self, db: Db, terms: Sequence[str], extent: Extent) -> dict[str, int]:
        known = {term: self._counts.exactly(term, extent) for term in terms}
        counted = await self._count(db, [term for term, count in known.items() if count is None], extent)
        return {term: counted[term] if count is None else count for term, count in known.items()}

    async def _count(self, db: Db, terms: Sequence[str], extent: Extent) -> dict[str, int]:
        if not terms:
            return {}
        sql = "SELECT term, count(*) FROM postings WHERE term = ANY (?::text[]) GROUP BY term"
        counts = dict.fromkeys(terms, 0) | dict(await rows(db, sql, (terms,)))
        for term, count in counts.items():
            self._counts.remember(term, count, extent)
        return counts
