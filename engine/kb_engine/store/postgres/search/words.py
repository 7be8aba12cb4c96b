"""The terms of a query: their document frequencies, and the selection of terms to look up.

Scoring every chunk with any word of a query takes about a microsecond per chunk and word, so a stop word in
80,000 chunks costs 60 ms and distinguishes little. So words are looked up from the rarest on, until a budget
of chunks is spent. The remaining words find no chunks of their own, unless no chunk that passes the filters
has any other word; but they count in the scores of the chunks found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kb_contracts.access.reach import Reach
from kb_engine.store.postgres.connection import Db, rows
from kb_engine.store.postgres.search.state import MOST_REACHES, Extent, ReachedSizes
from kb_engine.store.repository.reach import of_document

BUDGET_CHUNKS = 10_000
BUDGET_SHARE = 0.15  # the budget is the larger of `BUDGET_CHUNKS` and this share of the base
CACHED_FROM = 500  # minimum count that is cached; counting rarer words again is cheaper
CACHE_SIZE = 100_000  # maximum number of cached counts, of all access scopes
DRIFT = 0.02  # an earlier count serves as an estimate until the size of the base has changed by this share

Known = tuple[str, int]  # a term that occurs, and its approximate number of chunks


def affordable(known: list[Known], extent: Extent) -> tuple[list[Known], list[Known]]:
    """Return the rarest terms within the budget, at least one, and the rest."""
    left = max(BUDGET_CHUNKS, extent.size * BUDGET_SHARE)
    for place, (_, count) in enumerate(known):
        left -= count
        if left < 0 and place > 0:
            return known[:place], known[place:]
    return known, []


@dataclass(frozen=True, slots=True)
class Terms:
    """Distinct terms with their weights, and the total weight of their query."""

    terms: Sequence[str] = ()
    weights: Sequence[float] = ()
    total_weight: float = 0.0

    def __add__(self, others: Terms) -> Terms:
        """Return these and further terms of the same query."""
        return Terms([*self.terms, *others.terms], [*self.weights, *others.weights], self.total_weight)


def weighed(known: Sequence[Known], weights: Mapping[str, float], total_weight: float) -> Terms:
    """Return these terms of a query with their weights."""
    terms = [term for term, _ in known]
    return Terms(terms, [weights[term] for term in terms], total_weight)


class Words:
    """Cache of the number of chunks with each frequent word within each access scope."""

    def __init__(self) -> None:
        self.sizes = ReachedSizes()
        self._counts: dict[Reach | None, dict[str, tuple[int, int, int]]] = {}

    async def known(self, db: Db, terms: Sequence[str], extent: Extent) -> tuple[list[Known], dict[str, int]]:
        """Return the terms that occur, the rarest first, and the ones just counted; cached counts may be
        slightly outdated.
        """
        about = {term: self._about(term, extent) for term in terms}
        counted = await self._count(db, [term for term, count in about.items() if count is None], extent)
        known = [(term, about[term] or counted[term]) for term in terms if about[term] or counted[term]]
        return sorted(known, key=lambda entry: entry[1]), counted

    async def exactly(
        self, db: Db, chosen: Sequence[Known], counted: Mapping[str, int], extent: Extent
    ) -> list[Known]:
        """Return the same terms with their counts in this state of the base; `counted` are such counts."""
        known = {term: counted.get(term) or self._cached(term, extent) for term, _ in chosen}
        further = await self._count(db, [term for term, count in known.items() if count is None], extent)
        return [(term, known[term] or further[term]) for term, _ in chosen]

    async def _count(self, db: Db, terms: Sequence[str], extent: Extent) -> dict[str, int]:
        if not terms:
            return {}
        sql, values = "SELECT p.term, count(*) FROM postings p", [terms]
        where, reached = "", []
        if extent.reach is not None:
            sql += " JOIN chunks c ON c.id = p.chunk_id"
            condition, found = of_document(extent.reach, "c.document_id")
            where, reached = f" AND {condition}", list(found)
        sql += f" WHERE p.term = ANY (?::text[]){where} GROUP BY p.term"
        counts = dict.fromkeys(terms, 0) | dict(await rows(db, sql, [*values, *reached]))
        frequent = {
            term: (count, extent.size, extent.generation)
            for term, count in counts.items()
            if count >= CACHED_FROM
        }
        if frequent:
            if len(self._counts) > MOST_REACHES or sum(map(len, self._counts.values())) >= CACHE_SIZE:
                self._counts.clear()
            self._counts.setdefault(extent.reach, {}).update(frequent)
        return counts

    def _noted(self, term: str, extent: Extent) -> tuple[int, int, int]:
        """Return the cached count (0: none), and the size and generation to which it belongs."""
        return self._counts.get(extent.reach, {}).get(term, (0, 0, -1))

    def _about(self, term: str, extent: Extent) -> int | None:
        """Return an approximate count, sufficient to order words, if one is cached."""
        count, size, _ = self._noted(term, extent)
        return count if count and abs(size - extent.size) <= size * DRIFT else None

    def _cached(self, term: str, extent: Extent) -> int | None:
        """Return the count in this state of the base, if it is cached."""
        count, _, generation = self._noted(term, extent)
        return count if generation == extent.generation else None
