"""What a store asks of an index of vectors.

A change is staged inside the store's transaction (memory is found, or the transaction fails) and
published after it committed. A reader takes a snapshot under `guard` together with the snapshot of
its SQL transaction, so that both tell of the same state.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
"""Shape (n, dimensions), each row of length 1."""
Ids = NDArray[np.int64]
Rows = NDArray[np.intp]

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Batch:
    """New chunks, one row each in all three; ids grow within a batch and from one batch to the next."""

    document_ids: Ids
    chunk_ids: Ids
    vectors: Vectors


@dataclass(slots=True)
class Changes:
    """What one transaction does to the index: first `cleared`, then `removed`, then `added`."""

    cleared: bool = False
    removed: list[int] = field(default_factory=list)
    """Documents whose chunks go."""
    added: list[Batch] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.cleared or bool(self.removed) or bool(self.added)


class VectorSnapshot(Protocol):
    """An unchanging view. A row is a place in it; rows ascend with the chunk ids."""

    @property
    def generation(self) -> int:
        """Another one for every published change."""

    @property
    def size(self) -> int:
        """How many chunks it holds."""

    def rows(self, documents: Ids | None) -> Rows:
        """The rows of these documents; of all when None."""

    def chunks(self, rows: Rows) -> Ids:
        """The chunk ids of the rows, ascending."""

    def cosines(self, vector: NDArray[np.float32], rows: Rows) -> NDArray[np.float32]:
        """Exactly, for each of the rows."""


class VectorIndex(Protocol[S]):
    """The index itself. One thread stages and publishes, any thread takes snapshots."""

    @property
    def guard(self) -> AbstractContextManager[object]:
        """Held while a commit and its change become visible together, and to take a snapshot."""

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has; 0 until the first vectors are published that tell."""

    @property
    def snapshot(self) -> VectorSnapshot:
        """The latest published state."""

    def stage(self, changes: Changes) -> S:
        """The state after the changes, visible to nobody yet."""

    def publish(self, staged: S) -> None:
        """Make a staged state the latest."""
