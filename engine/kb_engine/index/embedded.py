"""The index of a SQLite base: words in FTS5, in the base itself, and vectors exactly, in memory.

It takes part in the store's transactions instead of following them: one commit, synced once, makes rows,
words and vectors visible together, and a search reads all three in one state.

The vectors are a float32 matrix, one row a chunk (1,536 bytes at 384 dimensions). Published rows never
change, so a snapshot needs no lock and cannot be torn: new rows go behind the last one, removed ones are only
marked, and compacting builds new arrays. At 100,000 chunks of 384 the matrix takes 150 MB and a full pass
about 8 ms.

A change is staged inside the store's transaction (memory is found, or the transaction fails) and published
after the commit. A reader takes a snapshot under `guard` together with the snapshot of its SQL transaction,
so that both are of the same state.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import apsw
import numpy as np
from numpy.typing import NDArray

from kb_engine.index.port import Candidates, Ids, IndexQuery, Vectors
from kb_engine.index.ranking import select
from kb_engine.index.words import Corpus, Words

Rows = NDArray[np.intp]

FIRST_CAPACITY = 256
COMPACT_FROM = 256
"""Removed rows below this number are not worth a copy."""
GATHER_BELOW = 0.25
"""Share of the rows under which copying them out beats a pass over the whole matrix."""
BLOCK_ROWS = 2_048
"""Rows copied out at once, few enough to stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Batch:
    """New chunks, one row each in all three; ids grow within a batch and from one batch to the next."""

    document_ids: Ids
    chunk_ids: Ids
    vectors: Vectors


@dataclass(slots=True)
class Changes:
    """What one transaction does to the vectors: first `cleared`, then `removed`, then `added`."""

    cleared: bool = False
    removed: list[int] = field(default_factory=list)
    """Documents whose chunks go."""
    added: list[Batch] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.cleared or bool(self.removed) or bool(self.added)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of the index: the first `count` rows of the arrays, those that are `alive`."""

    generation: int
    count: int
    matrix: Vectors
    chunk_ids: Ids
    document_ids: Ids
    alive: NDArray[np.bool_]
    size: int

    def rows(self, documents: Ids | None) -> Rows:
        """The rows of these documents; of all when None."""
        if documents is None:
            return np.flatnonzero(self.alive)
        return np.flatnonzero(self.alive & np.isin(self.document_ids[: self.count], documents))

    def cosines(self, vector: NDArray[np.float32], rows: Rows) -> NDArray[np.float32]:
        """Exactly, for each of the rows."""
        if not rows.size:
            return np.empty(0, np.float32)  # also while the length of vectors is unknown
        query = np.ascontiguousarray(vector, dtype=np.float32)
        if rows.size >= self.count * GATHER_BELOW:
            return _products(self.matrix[: self.count], query)[rows]
        found = np.empty(rows.size, np.float32)
        for start in range(0, rows.size, BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            found[block] = _products(self.matrix[rows[block]], query)
        return found


def _products(matrix: Vectors, vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Row by row, not as one matrix product: that is twice as slow here, starts threads that fight over
    the processors with those of other searches, and its last bits depend on how many rows there are."""
    return np.asarray(np.vecdot(matrix, vector), np.float32)


def empty(dimensions: int, generation: int = 0, capacity: int = FIRST_CAPACITY) -> Snapshot:
    """A state without rows."""
    return Snapshot(
        generation=generation,
        count=0,
        matrix=np.empty((capacity, dimensions), np.float32),
        chunk_ids=np.empty(capacity, np.int64),
        document_ids=np.empty(capacity, np.int64),
        alive=np.empty(0, np.bool_),
        size=0,
    )


class ExactVectors:
    """The latest state, and how the next one is made. `dimensions` 0: those of the first vectors."""

    def __init__(self, dimensions: int, capacity: int = FIRST_CAPACITY) -> None:
        self.guard = threading.Lock()
        """Held while a commit and its change become visible together, and to take a snapshot."""
        self.snapshot = empty(dimensions, capacity=max(capacity, FIRST_CAPACITY))
        """The latest published state."""

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has; 0 before the first vectors."""
        return int(self.snapshot.matrix.shape[1])

    def stage(self, changes: Changes, after: Snapshot | None = None) -> Snapshot:
        """The state after the changes, visible to nobody yet; those of one that was staged come first.

        Raises:
            ValueError: vectors of another shape, or chunk ids that do not grow.
        """
        state = before = after or self.snapshot
        if changes.cleared:
            state = empty(before.matrix.shape[1], before.generation)
        if changes.removed:
            state = _without(state, changes.removed)
        for batch in changes.added:
            state = self._with(state, batch)
        return replace(state, generation=before.generation + 1)

    def publish(self, staged: Snapshot) -> None:
        """Make a staged state the latest."""
        self.snapshot = staged

    def _with(self, state: Snapshot, batch: Batch) -> Snapshot:
        if not state.matrix.shape[1]:
            state = empty(batch.vectors.shape[1], state.generation)
        if batch.vectors.shape != (len(batch.chunk_ids), state.matrix.shape[1]):
            raise ValueError(f"{len(batch.chunk_ids)} chunks, but vectors of shape {batch.vectors.shape}")
        last = state.chunk_ids[state.count - 1 : state.count]
        if np.any(np.diff(np.concatenate([last, batch.chunk_ids])) <= 0):
            raise ValueError("chunk ids must grow")
        end = state.count + len(batch.chunk_ids)
        state = _with_room(state, end)
        # Rows behind `count` belong to no snapshot yet, so writing them disturbs nobody.
        state.matrix[state.count : end] = batch.vectors
        state.chunk_ids[state.count : end] = batch.chunk_ids
        state.document_ids[state.count : end] = batch.document_ids
        alive = np.concatenate([state.alive, np.ones(len(batch.chunk_ids), np.bool_)])
        return replace(state, count=end, alive=alive, size=state.size + len(batch.chunk_ids))


def _with_room(state: Snapshot, needed: int) -> Snapshot:
    capacity = len(state.chunk_ids)
    if needed <= capacity:
        return state
    larger = empty(state.matrix.shape[1], capacity=max(needed, capacity * 2))
    larger.matrix[: state.count] = state.matrix[: state.count]
    larger.chunk_ids[: state.count] = state.chunk_ids[: state.count]
    larger.document_ids[: state.count] = state.document_ids[: state.count]
    return replace(state, matrix=larger.matrix, chunk_ids=larger.chunk_ids, document_ids=larger.document_ids)


def _without(state: Snapshot, documents: Iterable[int]) -> Snapshot:
    gone = np.isin(state.document_ids[: state.count], np.fromiter(documents, np.int64))
    alive = state.alive & ~gone
    state = replace(state, alive=alive, size=int(np.count_nonzero(alive)))
    dead = state.count - state.size
    if dead < COMPACT_FROM or dead * 4 <= state.count:
        return state
    kept = np.flatnonzero(state.alive)
    return replace(
        state,
        count=len(kept),
        matrix=state.matrix[kept],
        chunk_ids=state.chunk_ids[kept],
        document_ids=state.document_ids[kept],
        alive=np.ones(len(kept), np.bool_),
    )


def search(
    db: apsw.Connection, vectors: Snapshot, words: Words, documents: Ids | None, query: IndexQuery
) -> Candidates:
    """The best chunks of these documents (None: of all), best first.

    The scores of all chunks are computed, not those of some candidates: words and vectors are arrays over
    the same rows. Cosines and filters are exact; of a question's words those within a budget count
    (`kb_engine.index.words`), so that where a large base holds frequent words the ranking is not that of a
    full BM25.

    `db` and `vectors` are of the same state of the base.
    """
    rows = vectors.rows(documents)
    chunk_ids = vectors.chunk_ids[rows]  # ascending
    cosines = bm25 = None
    if query.mode != "fts":
        assert query.vector is not None, "the mode needs one"
        cosines = vectors.cosines(query.vector, rows).astype(np.float64)
    if query.mode != "vector":
        corpus = Corpus(len(chunk_ids), vectors.size, vectors.generation, chunk_ids)
        bm25 = words.scores(db, query.text, corpus)
    return select(chunk_ids, cosines, bm25, query)
