"""The exact index: what it holds, what a snapshot sees, and how it stays small."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kb_engine.index.embedded import BLOCK_ROWS, COMPACT_FROM, Batch, Changes, ExactVectors, Snapshot
from kb_engine.index.port import Vectors

DIMENSIONS = 4


def vectors(count: int, seed: int = 0) -> Vectors:
    found = np.random.default_rng(seed).normal(size=(count, DIMENSIONS)).astype(np.float32)
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float32)


def batch(document: int, first: int, count: int) -> Batch:
    """Chunks of one document, numbered from `first`."""
    ids = np.arange(first, first + count, dtype=np.int64)
    return Batch(np.full(count, document, np.int64), ids, vectors(count, seed=first))


def apply(index: ExactVectors, changes: Changes) -> None:
    index.publish(index.stage(changes))


def filled(*sizes: int) -> ExactVectors:
    """Documents 1, 2, ... of these sizes, chunks numbered from 1."""
    index, first = ExactVectors(DIMENSIONS), 1
    for document, size in enumerate(sizes, 1):
        apply(index, Changes(added=[batch(document, first, size)]))
        first += size
    return index


def ids(snapshot: Snapshot, *documents: int) -> list[int]:
    """The chunks of these documents; of all without any."""
    wanted = np.array(documents, np.int64) if documents else None
    return list(snapshot.chunk_ids[snapshot.rows(wanted)])


def query() -> NDArray[np.float32]:
    return vectors(1, seed=99)[0]


def test_rows_are_chosen_by_document() -> None:
    snapshot = filled(2, 3, 1).snapshot
    assert (ids(snapshot), ids(snapshot, 2), ids(snapshot, 1, 3)) == (
        [1, 2, 3, 4, 5, 6],
        [3, 4, 5],
        [1, 2, 6],
    )
    assert len(snapshot.rows(np.array([], np.int64))) == 0


def test_cosines_are_those_of_the_rows_asked_for() -> None:
    """To the last bit the same for few rows and for all, so that filters change no score."""
    size = BLOCK_ROWS + 100
    snapshot = filled(size, size * 9).snapshot
    everything = snapshot.cosines(query(), snapshot.rows(None))
    few = snapshot.cosines(query(), snapshot.rows(np.array([1])))
    assert np.array_equal(everything[:size], few)
    assert np.allclose(everything[:size], vectors(size, seed=1) @ query(), atol=1e-6)


def test_a_snapshot_does_not_change() -> None:
    index = filled(3, COMPACT_FROM * 2)
    before = index.snapshot
    known = (ids(before), before.cosines(query(), before.rows(None)))
    apply(index, Changes(removed=[2], added=[batch(3, 10_000, 5_000)]))
    apply(index, Changes(cleared=True, added=[batch(4, 20_000, 10)]))
    assert ids(before) == known[0]
    assert np.array_equal(before.cosines(query(), before.rows(None)), known[1])
    assert ids(index.snapshot) == list(range(20_000, 20_010))


def test_what_was_staged_and_not_published_was_never_there() -> None:
    """A transaction that rolled back leaves no row, and its ids may come again."""
    index = filled(2)
    index.stage(Changes(added=[batch(2, 3, 4)]))
    assert (ids(index.snapshot), index.snapshot.size) == ([1, 2], 2)
    apply(index, Changes(added=[batch(9, 3, 1)]))
    assert ids(index.snapshot, 9) == [3]


def test_every_publication_has_a_generation_of_its_own() -> None:
    index = filled(1, 1)
    seen = {index.snapshot.generation}
    for changes in (Changes(removed=[1]), Changes(cleared=True), Changes(added=[batch(7, 50, 1)])):
        apply(index, changes)
        seen.add(index.snapshot.generation)
    assert len(seen) == 4


def test_removed_rows_do_not_pile_up() -> None:
    index = filled(10)
    for number in range(200):
        apply(index, Changes(removed=[1], added=[batch(1, 11 + 10 * number, 10)]))
    assert index.snapshot.size == 10
    assert index.snapshot.count < 4 * COMPACT_FROM


def test_a_document_can_be_replaced_in_one_change() -> None:
    index = filled(2, 1)
    apply(index, Changes(removed=[1], added=[batch(1, 4, 1)]))
    assert (ids(index.snapshot), ids(index.snapshot, 1)) == ([3, 4], [4])


@pytest.mark.parametrize(
    "wrong",
    [
        Batch(np.array([1]), np.array([9]), vectors(1)[:, :2]),
        Batch(np.array([1, 1]), np.array([9, 10]), vectors(1)),
        Batch(np.array([1]), np.array([2]), vectors(1)),
        Batch(np.array([1, 1]), np.array([9, 9]), vectors(2)),
    ],
    ids=["short vectors", "too few", "an old id", "an id twice"],
)
def test_a_batch_that_does_not_fit_is_refused_whole(wrong: Batch) -> None:
    index = filled(3)
    with pytest.raises(ValueError, match="chunk"):
        index.stage(Changes(added=[wrong]))
    assert ids(index.snapshot) == [1, 2, 3]


def test_a_change_of_nothing_is_false() -> None:
    assert not Changes()
    assert all((Changes(cleared=True), Changes(removed=[1]), Changes(added=[batch(1, 1, 1)])))


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5), st.integers(1, 400)),
        st.tuples(st.just("remove"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(CHANGES)
def test_the_index_agrees_with_a_dictionary(changes: list[tuple[str, int, int]]) -> None:
    index, model, first = ExactVectors(DIMENSIONS), dict[int, tuple[int, NDArray[np.float32]]](), 1
    for kind, document, count in changes:
        if kind == "add":
            new = batch(document, first, count)
            apply(index, Changes(added=[new]))
            model |= {int(i): (document, v) for i, v in zip(new.chunk_ids, new.vectors, strict=True)}
            first += count
        elif kind == "remove":
            apply(index, Changes(removed=[document]))
            model = {i: entry for i, entry in model.items() if entry[0] != document}
        else:
            apply(index, Changes(cleared=True))
            model = {}
    snapshot = index.snapshot
    assert (ids(snapshot), snapshot.size) == (sorted(model), len(model))
    expected = [float(np.vecdot(model[i][1], query())) for i in sorted(model)]
    assert np.allclose(snapshot.cosines(query(), snapshot.rows(None)), expected, atol=1e-6)
