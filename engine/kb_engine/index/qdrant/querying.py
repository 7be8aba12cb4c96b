"""The best chunks, from Qdrant's nearest by meaning and its nearest by words.

Qdrant returns the best `depth` points by each method under the filters. Each point comes with the length of
its chunk and the frequencies of the query's terms, so that BM25 is computed here, as in every index: with the
document frequency of each term and the mean length of the whole collection, which are counted at their first
use in a state. For points found by words only, the cosine is requested by their ids.

A chunk in neither list has a cosine and a BM25 below the last one of each list. This bounds the score of
unseen chunks (the threshold algorithm): if the last of the best results is above this bound, the results are
proven. Otherwise more points are requested, and finally the result is marked as inexact. This is valid only
if Qdrant compared all vectors, which it does up to `QDRANT_EXACT_UP_TO` chunks; results of its graph (HNSW)
beyond that are never marked as exact.

The sparse vectors were computed for texts of the reference length (`Mark.reference`). If chunks have become
longer since, BM25 exceeds the score by which Qdrant ordered them by at most the ratio of the lengths.

`total` counts known matches. It is exact if no unseen chunk matches, or if the unseen matches can be counted:
by their terms, as long as none matches by meaning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from qdrant_client import models as q

from kb_contracts.access.reach import Reach
from kb_engine.index.port import Candidate, Candidates, IndexQuery
from kb_engine.index.qdrant.collection import Collection
from kb_engine.index.qdrant.mark import BESIDES_THE_MARK, Mark
from kb_engine.index.qdrant.points import MEANING, WORDS, among, equals, reached, selected, share, term_number
from kb_engine.index.score import Formula, select
from kb_engine.index.words import Analyser, looked_up, weigh_words

FIRST_DEPTH = 256
MOST_DEPTH = 1_024  # maximum depth per method, unless a search asks for more results
DEEPER = 4
MOST_REACHES = 1_000  # maximum number of access scopes with cached statistics
ROUNDING = 1 + 1e-5  # Qdrant's scores are in single precision


@dataclass(slots=True)
class Statistics:
    """Cached statistics of words for one state of the collection, filled by searches.

    With an access scope they cover the chunks within it.
    """

    mark: Mark
    reach: Reach | None
    chunks: int
    average: float  # mean number of words per chunk
    counts: dict[int, int] = field(default_factory=dict)  # number of chunks with each term


@dataclass(frozen=True, slots=True)
class Question:
    """A query with the weights of its terms that occur, and the conditions on every result."""

    query: IndexQuery
    weights: dict[int, float]
    total_weight: float
    conditions: list[q.Condition]
    average: float

    @property
    def formula(self) -> Formula:
        return Formula(self.query.mode, self.query.scoring, self.total_weight)

    @property
    def by_meaning(self) -> bool:
        return self.query.mode != "fts"

    @property
    def by_words(self) -> bool:
        return self.query.mode != "vector"


@dataclass(slots=True)
class Seen:
    """The chunks seen so far, and upper bounds for unseen ones."""

    bm25: dict[int, float] = field(default_factory=dict)
    cosines: dict[int, float] = field(default_factory=dict)
    most_cosine: float = -1.0
    most_bm25: float = 0.0
    everything: bool = False  # true if all chunks that could be results were seen


class Searcher:
    """Searches a collection, and caches the document frequencies of terms.

    Raises: `IndexUnavailable`.
    """

    def __init__(self, collection: Collection, exact_up_to: int) -> None:
        self._collection = collection
        self._exact_up_to = exact_up_to
        self._statistics: dict[Reach | None, Statistics] = {}

    async def search(self, query: IndexQuery, mark: Mark) -> Candidates:
        """Return the best candidates of the state that the mark names, or of a later one."""
        if not mark.dimensions:
            return Candidates((), 0, generation=mark.generation)
        statistics = await self._statistics_of(mark, query.selection.reach)
        question = await self._question(query, statistics)
        if question.by_words and not question.by_meaning and not question.weights:
            return Candidates((), 0, question.total_weight, generation=mark.generation)
        compares_all = await self._compares_all(question, statistics)
        depth = max(FIRST_DEPTH, query.top)
        while True:
            seen = await self._see(question, depth, compares_all, statistics)
            found = _ranked(question, seen)
            proven = compares_all and _is_proven(question, seen, found)
            if proven or not compares_all or depth * DEEPER > MOST_DEPTH:
                break
            depth *= DEEPER
        total, counted = await self._total(question, seen, found.total)
        return replace(
            found,
            total=total,
            # If only a part was seen, the number of chunks that pass the filters would cost another request.
            size=len(seen.cosines) if question.by_meaning and seen.everything else statistics.chunks,
            exact=proven,
            total_exact=counted and compares_all,
            generation=mark.generation,
        )

    async def _statistics_of(self, mark: Mark, reach: Reach | None) -> Statistics:
        known = self._statistics.get(reach)
        if known is None or known.mark != mark:
            lengths = await self._collection.values("length", q.Filter(must=_within(reach)))
            chunks = sum(lengths.values())
            words = sum(length * count for length, count in lengths.items())
            if len(self._statistics) > MOST_REACHES:
                self._statistics.clear()
            known = Statistics(mark, reach, chunks, words / chunks if words else 1.0)
            self._statistics[reach] = known
        return known

    async def _question(self, query: IndexQuery, statistics: Statistics) -> Question:
        conditions = selected(query.selection)
        if query.required:
            required = await asyncio.to_thread(lambda: Analyser().required(query.required, query.languages))
            conditions += [among("terms", list(map(term_number, word))) for word in required]
        if query.among is not None:
            conditions.append(q.HasIdCondition(has_id=list(query.among)))
        if query.mode == "vector":
            return Question(query, {}, 0.0, conditions, statistics.average)
        words = await asyncio.to_thread(lambda: Analyser().words_of(query.text, query.languages))
        numbers = {term: term_number(term) for term in looked_up(words)}
        unknown = [number for number in dict.fromkeys(numbers.values()) if number not in statistics.counts]
        counts = await asyncio.gather(
            *(
                self._collection.count(q.Filter(must=[equals("terms", term), *_within(statistics.reach)]))
                for term in unknown
            )
        )
        statistics.counts.update(zip(unknown, counts, strict=True))
        counted = {term: statistics.counts[number] for term, number in numbers.items()}
        of_terms, total_weight = weigh_words(words, counted, statistics.chunks)
        weights: dict[int, float] = {}
        for term, weight in of_terms.items():
            if counted[term]:
                weights[numbers[term]] = weights.get(numbers[term], 0.0) + weight
        if not words and query.mode == "hybrid":
            query = replace(query, mode="vector")
        return Question(query, weights, total_weight, conditions, statistics.average)

    async def _compares_all(self, question: Question, statistics: Statistics) -> bool:
        """True if the filtered vectors are few enough for an exhaustive comparison."""
        if not question.by_meaning or statistics.chunks <= self._exact_up_to:
            return True
        if not question.conditions:
            return False
        left = q.Filter(must=question.conditions, must_not=BESIDES_THE_MARK.must_not)
        return await self._collection.count(left) <= self._exact_up_to

    async def _see(self, question: Question, depth: int, compares_all: bool, statistics: Statistics) -> Seen:
        """Return the best `depth` chunks by each method, with both parts of the score."""
        query, seen, requests = question.query, Seen(), []
        if question.by_meaning:
            assert query.vector is not None, "the mode needs one"
            requests.append(_nearest(question, question.conditions, depth, exact=compares_all))
        if question.weights:
            words = q.SparseVector(indices=list(question.weights), values=list(question.weights.values()))
            requests.append(
                q.QueryRequest(
                    query=words,
                    using=WORDS,
                    filter=q.Filter(must=question.conditions),
                    limit=depth,
                    with_payload=_payload_of(question),
                )
            )
        answers = await self._collection.query(requests)
        if question.by_meaning:
            near = answers.pop(0)
            seen.cosines = {int(point.id): point.score for point in near}
            seen.everything = len(near) < depth
            seen.most_cosine = near[-1].score if len(near) == depth else -1.0
            seen.bm25 = _scored(question, near)
        if question.weights:
            (holding,) = answers
            seen.bm25 |= _scored(question, holding)
            longer = max(1.0, statistics.average / statistics.mark.reference)
            seen.most_bm25 = holding[-1].score * longer * ROUNDING if len(holding) == depth else 0.0
        if not question.by_meaning:
            seen.everything = not seen.most_bm25
        missing = [chunk_id for chunk_id in seen.bm25 if chunk_id not in seen.cosines]
        if question.by_meaning and missing:
            those: list[q.Condition] = [q.HasIdCondition(has_id=list(missing))]
            (near,) = await self._collection.query([_nearest(question, those, len(missing), exact=True)])
            seen.cosines |= {int(point.id): point.score for point in near}
        return seen

    async def _total(self, question: Question, seen: Seen, known: int) -> tuple[int, bool]:
        """Return the number of matches, and whether it is exact."""
        query = question.query
        if seen.everything or _best_unseen(question, seen) < query.min_score:
            return known, True
        near = question.by_meaning and seen.most_cosine >= query.scoring.cosine_floor
        if not seen.most_bm25:
            return known, not near
        if query.min_score > 0:
            return known, False
        holding = await self._collection.count(
            q.Filter(must=[*question.conditions, among("terms", list(question.weights))])
        )
        without = sum(
            cosine >= query.scoring.cosine_floor and not seen.bm25.get(chunk_id)
            for chunk_id, cosine in seen.cosines.items()
        )
        return max(known, holding + without), not near


def _within(reach: Reach | None) -> list[q.Condition]:
    return [] if reach is None else [reached(reach)]


def _nearest(question: Question, those: list[q.Condition], limit: int, *, exact: bool) -> q.QueryRequest:
    assert question.query.vector is not None, "the mode needs one"
    return q.QueryRequest(
        query=question.query.vector.tolist(),
        using=MEANING,
        filter=q.Filter(must=those),
        limit=limit,
        params=q.SearchParams(exact=exact),
        with_payload=_payload_of(question),
    )


def _payload_of(question: Question) -> q.WithPayloadInterface:
    """Return the payload fields needed for BM25."""
    return ["length", *(f"words.{term}" for term in question.weights)] if question.weights else False


def _scored(question: Question, points: Iterable[q.ScoredPoint]) -> dict[int, float]:
    if not question.by_words:
        return {}
    scores = {}
    for point in points:
        payload = point.payload or {}
        held = payload.get("words", {})
        scores[int(point.id)] = sum(
            question.weights[int(term)] * share(frequency, payload["length"], question.average)
            for term, frequency in held.items()
        )
    return scores


def _ranked(question: Question, seen: Seen) -> Candidates:
    """Return the best of the seen chunks, and the number of matches among them."""
    ids = sorted(seen.cosines if question.by_meaning else seen.bm25)
    cosines = np.array([seen.cosines[one] for one in ids]) if question.by_meaning else None
    bm25 = np.array([seen.bm25.get(one, 0.0) for one in ids]) if question.by_words else None
    return select(np.array(ids, np.int64), cosines, bm25, question.query, question.total_weight)


def _best_unseen(question: Question, seen: Seen) -> float:
    """Return the highest possible score of an unseen chunk."""
    (most,) = question.formula.of([Candidate(0, seen.most_cosine, seen.most_bm25)])
    return most


def _is_proven(question: Question, seen: Seen, found: Candidates) -> bool:
    """True if no unseen chunk can be among the best."""
    if seen.everything:
        return True
    unseen = _best_unseen(question, seen)
    if unseen < question.query.min_score:
        return True
    if len(found.best) < question.query.top:
        return False
    (worst,) = question.formula.of(found.best[-1:])
    return unseen < worst
