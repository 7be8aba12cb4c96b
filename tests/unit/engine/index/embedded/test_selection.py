"""The selection from quantised vectors equals that of the exact scorer, for any vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar, get_args
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kb_contracts.api.models import Mode
from kb_engine.index import score
from kb_engine.index.embedded import selection
from kb_engine.index.embedded import vectors as embedded_vectors
from kb_engine.index.embedded.selection import RECOUNT_ROWS, Originals, Segment, WordScores, select
from kb_engine.index.embedded.vectors import (
    SHARED_FROM,
    SHARED_UP_TO,
    QuantisedVectors,
    Turn,
    Turns,
    quantise,
    quantise_query,
)
from kb_engine.index.port import Candidate, Candidates, Ids, IndexQuery, Scoring, Vectors

REACH = 8.0
SCORING = Scoring(weight=0.5, saturation=0.5, floor=0.35, cosine_floor=0.3)
MODES = get_args(Mode)
T = TypeVar("T")


def rows_of(kind: str, count: int, dimensions: int, random: np.random.Generator) -> Vectors:
    found = random.normal(size=(count, dimensions))
    if kind == "few distinct":
        found = found[random.integers(0, 3, count) % max(count, 1)]
    elif kind == "near one another":
        found = found[:1] + 1e-4 * found
    elif kind == "clustered":
        found = found[random.integers(0, 3, count) % max(count, 1)] + 0.3 * found
    elif kind == "one component":
        found = np.eye(dimensions)[random.integers(0, dimensions, count)]
    elif kind == "with zeros":
        found[random.random(count) < 0.5] = 0
    found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-30)
    if kind == "of any length":
        found *= 10.0 ** random.integers(-40, 7, (count, 1))
    return found.astype(np.float32)


KINDS = [
    "spread",
    "clustered",
    "few distinct",
    "near one another",
    "one component",
    "with zeros",
    "of any length",
]


def selected(
    vectors: Vectors,
    bm25: NDArray[np.float32] | None,
    allowed: NDArray[np.bool_] | None,
    query: IndexQuery,
    *,
    cuts: Sequence[int] = (),
    originals: Originals | None = None,
    scanner: Executor | None = None,
    recount: int = RECOUNT_ROWS,
    segments: Sequence[Segment] | None = None,
    turn: Turn | None = None,
) -> Candidates:
    """Return the selection among the rows of several segments, with chunks numbered from 1."""
    parts = [slice(start, stop) for start, stop in zip([0, *cuts], [*cuts, len(vectors)], strict=True)]
    segments = segments or [
        Segment(
            np.arange(part.start + 1, part.stop + 1),
            quantise(vectors[part]),
            None if allowed is None else allowed[part],
        )
        for part in parts
    ]

    def words() -> WordScores:
        assert bm25 is not None
        return WordScores([bm25[part] for part in parts], REACH)

    return select(segments, words, query, originals or originals_of(vectors), scanner, recount, turn)


def originals_of(vectors: Vectors) -> Originals:
    return lambda chunk_ids: vectors[chunk_ids - 1]


def exactly(
    vectors: Vectors, bm25: NDArray[np.float32], allowed: NDArray[np.bool_] | None, query: IndexQuery
) -> Candidates:
    """Return the selection of a scorer that computes every cosine in float32."""
    rows = np.arange(len(vectors)) if allowed is None else np.flatnonzero(allowed)
    cosines = None
    if query.mode != "fts":
        assert query.vector is not None
        cosines = np.vecdot(vectors[rows], query.vector).astype(np.float64)
    words = None if query.mode == "vector" else bm25[rows].astype(np.float64)
    return score.select(rows + 1, cosines, words, query, REACH)


@given(
    kind=st.sampled_from(KINDS),
    mode=st.sampled_from(MODES),
    count=st.integers(0, 400),
    dimensions=st.sampled_from([1, 2, 16, 64]),
    top=st.sampled_from([1, 3, 10, 200]),
    min_score=st.sampled_from([0.0, 0.15, 1.0, None]),
    floor=st.sampled_from([0.3, None]),
    weight=st.sampled_from([0.0, 0.01, 0.15, 0.5, 0.9, 1.0]),
    worded=st.sampled_from([0.0, 0.1, 1.0]),
    few_values=st.booleans(),
    share=st.sampled_from([None, 0.0, 0.1, 0.9]),
    near_rows=st.sampled_from([0, 50, selection.NEAR_ROWS]),
    seed=st.integers(0, 2**32),
)
def test_the_selection_is_that_of_the_exact_scorer(
    kind: str,
    mode: Mode,
    count: int,
    dimensions: int,
    top: int,
    min_score: float | None,
    floor: float | None,
    weight: float,
    worded: float,
    few_values: bool,
    share: float | None,
    near_rows: int,
    seed: int,
) -> None:
    """None: a row lies exactly at the least score, or at the floor of the cosines."""
    random = np.random.default_rng(seed)
    vectors = rows_of(kind, count, dimensions, random)
    bm25 = random.gamma(1, 3, count).astype(np.float32)
    if few_values:  # so that some scores are equal
        bm25 = random.choice(np.array([0.5, 1.0, 7.25], np.float32), count)
    bm25[random.random(count) >= worded] = 0
    allowed = None if share is None else random.random(count) < share
    vector = vectors[0] if count and seed % 2 else rows_of("spread", 1, dimensions, random)[0]
    query = IndexQuery("", mode, vector, replace(SCORING, weight=weight), max(count, 1))
    rows = score.rank(exactly(vectors, bm25, allowed, query), query)
    if floor is None and rows:
        cosine = rows[seed % len(rows)].candidate.cosine or 0.0
        query = replace(query, scoring=replace(query.scoring, cosine_floor=cosine))
    if min_score is None:
        min_score = rows[seed % len(rows)].score if rows else 0.0
    query = replace(query, top=top, min_score=min_score)
    cuts = sorted(random.integers(0, count + 1, 2).tolist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "NEAR_ROWS", near_rows)
        found = selected(vectors, bm25, allowed, query, cuts=cuts)
    expected = exactly(vectors, bm25, allowed, query)
    assert list(found.best) == list(expected.best)
    assert found.total == expected.total
    assert found.total_exact


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_rows_far_from_the_query_are_found_and_counted_by_their_words(weight: float) -> None:
    away, to = np.eye(2, dtype=np.float32)
    vectors, bm25 = np.tile(away, (400, 1)), np.random.default_rng(0).gamma(1, 3, 400).astype(np.float32)
    every = IndexQuery("", "hybrid", to, replace(SCORING, weight=weight), 400)
    for row in score.rank(exactly(vectors, bm25, None, every), every)[::40]:
        query = replace(every, top=1, min_score=row.score)
        found, expected = (
            selected(vectors, bm25, None, query, cuts=[200]),
            exactly(vectors, bm25, None, query),
        )
        assert (list(found.best), found.total) == (list(expected.best), expected.total)


@given(st.sampled_from([0.0, 0.15, 0.9]), st.floats(0, 1), st.floats(0.01, 100))
def test_the_bm25_needed_beside_a_cosine_gives_the_score(weight: float, cosine: float, bm25: float) -> None:
    formula = score.Formula("hybrid", replace(SCORING, weight=weight), REACH)
    needed = formula.bm25_needed(cosine, score.fused(weight, cosine, float(formula.words(np.array(bm25)))))
    assert needed == pytest.approx(bm25, rel=1e-6)
    assert formula.bm25_needed(cosine, score.fused(weight, cosine, 1.01)) == math.inf
    assert formula.bm25_needed(cosine, score.fused(weight, cosine, -0.01)) == 0


@given(
    st.sampled_from(MODES),
    st.sampled_from([0.0, 0.15, 0.9, 1.0]),
    st.lists(st.tuples(st.floats(-1.01, 1.01), st.just(0.0) | st.floats(0.01, 100)), max_size=20),
)
def test_the_scores_of_candidates_are_those_of_the_selection_to_the_last_bit(
    mode: Mode, weight: float, parts: list[tuple[float, float]]
) -> None:
    formula = score.Formula(mode, replace(SCORING, weight=weight), REACH)
    cosines, bm25 = np.array(parts, np.float64).reshape(-1, 2).T
    found = formula.of(
        [
            Candidate(number, None if mode == "fts" else cosine, None if mode == "vector" else words)
            for number, (cosine, words) in enumerate(parts)
        ]
    )
    expected = formula.exact(None if mode == "fts" else cosines, None if formula.weight == 1 else bm25)
    assert found == expected.tolist()


@pytest.mark.parametrize("scanners", [0, 1, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("share", [0.6, 0.2])
def test_blocks_threads_and_a_full_pool_change_nothing(
    mode: Mode, scanners: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_vectors, "BLOCK_ROWS", 64)
    monkeypatch.setattr(selection, "POOL_ROWS", 100)
    monkeypatch.setattr(embedded_vectors, "BESIDE_ROWS", 0)
    random = np.random.default_rng(3)
    with ThreadPoolExecutor(max(1, scanners)) as scanner:
        for kind in KINDS:
            vectors = rows_of(kind, 2_000, 16, random)
            bm25 = random.integers(0, 3, 2_000).astype(np.float32)
            allowed = np.repeat(random.random(200) < share, 10)
            query = IndexQuery("", mode, vectors[7], SCORING, 10)
            using = scanner if scanners else None
            found = selected(vectors, bm25, allowed, query, cuts=[500], scanner=using, recount=2_000)
            expected = exactly(vectors, bm25, allowed, query)
            assert (list(found.best), found.total) == (list(expected.best), expected.total), kind


@given(
    kind=st.sampled_from(KINDS),
    count=st.integers(1, 400),
    others=st.integers(0, 10),
    filtered=st.none() | st.integers(0, 10),
    seed=st.integers(0, 2**32),
)
def test_searches_that_share_a_scan_find_what_they_find_alone(
    kind: str, count: int, others: int, filtered: int | None, seed: int
) -> None:
    random = np.random.default_rng(seed)
    vectors = rows_of(kind, count, 16, random)
    bm25 = random.integers(0, 3, count).astype(np.float32)
    segments = [Segment(np.arange(1, count + 1), quantise(vectors))]
    turns, searches = Turns(), rows_of("spread", others + 1, 16, random)
    waiting = [
        Turn(turns, None if number == filtered else quantise_query(vector))
        for number, vector in enumerate(searches)
    ]

    def leave(turn: Turn) -> None:
        turns.waiting = tuple(each for each in waiting if each in turns.waiting and each is not turn)

    turns.waiting = tuple(waiting[1:])
    gone = waiting[1:][-1:] if seed % 2 else []  # cancelled after the first scan
    for number, (turn, vector) in enumerate(zip(waiting, searches, strict=True)):
        if number == 1 and filtered is None:
            shared = min(others, SHARED_UP_TO - 1)
            assert [bool(each.ready) for each in waiting[1:]] == [
                shared >= SHARED_FROM - 1 and place < shared for place in range(others)
            ]
            for each in gone:
                leave(each)
        if turn in gone:
            continue
        leave(turn)
        query = IndexQuery("", "hybrid", vector, SCORING, 10)
        found = selected(vectors, bm25, None, query, segments=segments, turn=turn)
        assert found == selected(vectors, bm25, None, query, segments=segments)
        assert not turn.ready
    assert filtered is not None or gone or turns.waiting == ()


def test_a_search_that_fails_leaves_nothing_to_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_vectors, "BLOCK_ROWS", 64)
    monkeypatch.setattr(embedded_vectors, "BESIDE_ROWS", 0)
    vectors = rows_of("spread", 2_000, 16, np.random.default_rng(0))
    begun: list[tuple[Future[Any], Callable[..., Any]]] = []

    class Never(Executor):
        def submit(self, fn: Callable[..., T], /, *_args: object, **_kwargs: object) -> Future[T]:
            begun.append((Future(), fn))
            return begun[-1][0]

    with pytest.raises(AssertionError):  # raised by the lookup of words
        selected(vectors, None, None, IndexQuery("", "hybrid", vectors[0], SCORING, 10), scanner=Never())
    ((future, scan),) = begun
    assert future.cancelled()
    multiply = Mock()
    monkeypatch.setattr(QuantisedVectors, "products", multiply)
    scan()  # like a scanner that had already begun
    multiply.assert_not_called()


def test_a_failed_scan_on_a_thread_fails_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_vectors, "BESIDE_ROWS", 0)
    vectors = rows_of("spread", 10, 16, np.random.default_rng(0))

    class Broken(Executor):
        def submit(self, fn: Callable[..., T], /, *_args: object, **_kwargs: object) -> Future[T]:
            future: Future[T] = Future()
            future.set_exception(MemoryError())
            return future

    with pytest.raises(MemoryError):
        selected(vectors, None, None, IndexQuery("", "vector", vectors[0], SCORING, 10), scanner=Broken())


def test_few_rows_are_scored_exactly() -> None:
    vectors = rows_of("spread", 5_000, 384, np.random.default_rng(0))
    query = IndexQuery("", "vector", vectors[0], SCORING, 10)
    asked: list[int] = []

    def counted(chunk_ids: Ids) -> Vectors:
        asked.append(len(chunk_ids))
        return vectors[chunk_ids - 1]

    selected(vectors, None, None, query, originals=counted)
    assert 10 <= sum(asked) < 500


def test_a_total_that_would_cost_too_much_is_a_lower_bound() -> None:
    random = np.random.default_rng(0)
    vectors = rows_of("spread", 4_000, 64, random)
    bm25 = (random.random(4_000) < 0.1).astype(np.float32)
    query = IndexQuery("", "hybrid", vectors[0], SCORING, 10)
    found = selected(vectors, bm25, None, query, recount=5)
    expected = exactly(vectors, bm25, None, query)
    assert not found.total_exact
    assert np.count_nonzero(bm25) <= found.total <= expected.total
    assert list(found.best) == list(expected.best)


def test_an_empty_selection_has_no_results() -> None:
    vectors = rows_of("spread", 10, 16, np.random.default_rng(0))
    query = IndexQuery("", "vector", vectors[0], SCORING, 10)
    for some in (vectors[:0], vectors):
        found = selected(some, None, np.zeros(len(some), np.bool_), query)
        assert (list(found.best), found.total, found.total_exact) == ([], 0, True)
