"""The index of a SQLite base: its state, its changes, and the choice of parts to merge.

A state is a sequence of parts, the oldest first: segments in files, blocks in memory that are waiting to be
written, and the tail. A part is a block and a mask of its living rows. Blocks are immutable, so a state needs
no lock and is always consistent; a change creates a new state, which shares the unchanged parts.

A change is staged inside the store's transaction (memory is allocated, or the transaction fails) and
published after the commit. A reader takes the latest state with its generation, and a snapshot of the
base. If that has another generation, a commit is being published: the reader takes both again under `guard`.
So both have the same contents, and a reader hardly ever waits while a commit is synced to the disk.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from kb_contracts.semantics.query import Wording
from kb_engine.index.embedded.block import Block, Rest
from kb_engine.index.embedded.postings import Rows
from kb_engine.index.embedded.tail import Batch, Tail
from kb_engine.index.embedded.vectors import Mask
from kb_engine.index.port import Ids
from kb_engine.index.words import ANALYSER, Analyser

TAIL_ROWS = 4_096
"""Number of new chunks that are in memory only; after a crash they are read from the base."""
LARGEST_ROWS = 1 << 18
"""Maximum number of rows of a segment: larger ones would save a search less than a millisecond, but take many
seconds to merge.
"""
COMPARED_ROWS = 20_000_000
"""Maximum number of rows times phrases that a search compares; beyond, texts are read."""
REMOVED_SHARE = 4
"""A segment is rewritten if more than one row in `REMOVED_SHARE` is removed."""


@dataclass(slots=True)
class Changes:
    """The changes of an operation to the chunks, in this order: `cleared`, `removed`, `added`."""

    cleared: bool = False
    removed: list[int] = field(default_factory=list)
    """Ids of the documents whose chunks are removed."""
    added: list[Batch] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.cleared or bool(self.removed) or bool(self.added)


@dataclass(frozen=True, eq=False)
class Part:
    """A block with its current state. `name` is that of its file, if any; `alive` None: all rows."""

    block: Block
    name: str | None = None
    alive: Mask | None = None

    @cached_property
    def size(self) -> int:
        """Number of living chunks."""
        return len(self.block) if self.alive is None else int(np.count_nonzero(self.alive))

    @cached_property
    def tokens(self) -> float:
        """Total number of tokens in the living chunks."""
        lengths = self.block.words.lengths
        return float((lengths if self.alive is None else lengths[self.alive]).sum(dtype=np.float64))

    @cached_property
    def removed(self) -> Rows:
        """The rows that are no longer alive."""
        return np.flatnonzero(~self.alive if self.alive is not None else ()).astype(np.uint32)

    def without(self, documents: Ids) -> Part:
        """Return this part after the removal of these documents."""
        others = np.isin(self.block.document_ids, documents, invert=True)
        alive: Mask = np.repeat(others, self.block.document_rows)
        if self.alive is not None:
            alive &= self.alive
        return self if np.count_nonzero(alive) == self.size else Part(self.block, self.name, alive)


@dataclass(frozen=True, eq=False)
class State:
    """A state of the index. `tail` is the source of the last part; it is created with the first vectors."""

    dimensions: int
    parts: tuple[Part, ...] = ()
    tail: Tail | None = None

    @cached_property
    def size(self) -> int:
        """Number of living chunks."""
        return sum(part.size for part in self.parts)

    def finds(self, wording: Wording) -> bool:
        """True if the order of all words is known, and comparing them takes less than about half a second."""
        known = all(part.block.order is not None for part in self.parts)
        return known and wording.scans * self.size <= COMPARED_ROWS

    def without(self, documents: Iterable[int]) -> State:
        """Return this state after the removal of these documents."""
        gone = np.fromiter(documents, np.int64)
        return replace(self, parts=tuple(part.without(gone) for part in self.parts))

    def with_added(self, batch: Batch, analyser: Analyser) -> State:
        """Return this state with new chunks. They are appended to the tail, after the rows of this state.
        Raises ValueError: the vectors have another shape, or the chunk ids do not ascend.
        """
        rows, dimensions = batch.vectors.shape
        if rows != len(batch.chunk_ids) or dimensions != (self.dimensions or dimensions):
            raise ValueError(f"{len(batch.chunk_ids)} chunks, but vectors of shape {batch.vectors.shape}")
        last = self.parts[-1].block.chunk_ids[-1:] if self.parts else ()
        if np.any(np.diff(np.concatenate([last, batch.chunk_ids])) <= 0):
            raise ValueError("chunk ids must grow")
        parts, tail, alive = self.parts, self.tail, None
        # A failed transaction leaves its rows in the tail; then a new tail is begun.
        if tail is not None and TAIL_ROWS > len(tail) == len(parts[-1].block):
            alive = parts[-1].alive
            parts = parts[:-1]
        else:
            tail = Tail(dimensions)
        tail.append(batch, analyser.chunks(batch.title, batch.texts, batch.language))
        if alive is not None:
            alive = np.concatenate([alive, np.ones(rows, np.bool_)])
        return State(dimensions, (*parts, Part(tail.view(len(tail)), alive=alive)), tail)


class EmbeddedIndex:
    """The latest state, and the creation of the next one. `generation` is that of the base."""

    def __init__(self, state: State, generation: int = 0) -> None:
        self.guard = threading.Lock()
        """Held while a commit and its change become visible together."""
        self.latest = state, generation
        """The latest published state, and its generation of the base."""
        self.state = state
        """The state in `latest`."""
        self._analyser = Analyser()

    def stage(self, changes: Changes, earlier: State | None = None) -> State:
        """Return the state after the changes, without publishing it; `earlier` is a state staged before it.
        Raises ValueError: the vectors have another shape, or the chunk ids do not ascend.
        """
        state = earlier or self.state
        if changes.cleared:
            state = State(state.dimensions)
        if changes.removed:
            state = state.without(changes.removed)
        for batch in changes.added:
            state = state.with_added(batch, self._analyser)
        return state

    def publish(self, staged: State, generation: int | None = None) -> None:
        """Make a staged state the latest; without a `generation` its contents are those of the latest."""
        self.latest = staged, self.latest[1] if generation is None else generation
        self.state = staged


# Parts are merged in the background: blocks in memory are written to a file, small segments are merged into
# larger ones, removed rows are dropped, and segments of an earlier analyser are rebuilt. The index may change
# meanwhile; the merged segment replaces the parts with the removals made until then.


def next_union(state: State, small: int = 0) -> tuple[Part, ...]:
    """Return the adjacent parts to merge next; empty if there is nothing to do.

    New blocks are merged with the preceding segments that are no larger, so that a row is rewritten about
    log2(number of parts) times; and with any that make up to `small` rows with them.
    """
    parts = state.parts[:-1] if state.tail is not None else state.parts
    start = next((number for number, part in enumerate(parts) if part.name is None), len(parts))
    if start < len(parts):
        size = sum(part.size for part in parts[start:])
        while start and parts[start - 1].size <= min(max(size, small - size), LARGEST_ROWS - size):
            start -= 1
            size += parts[start].size
        return parts[start:]
    wasteful = (part for part in parts if len(part.removed) * REMOVED_SHARE > len(part.block))
    return tuple(wasteful)[:1]


def next_renewal(state: State) -> Part | None:
    """Return a segment with the words of an earlier analyser, or without their order, if any."""
    return next(
        (
            part
            for part in state.parts
            if part.name and (part.block.analyser != ANALYSER or part.block.order is None)
        ),
        None,
    )


def remaining(parts: Iterable[Part]) -> list[Rest]:
    """Return the remaining rows of these parts, for `write_segment`."""
    return [(part.block, part.alive) for part in parts if part.size]


def united(state: State, parts: Sequence[Part], block: Block | None, name: str) -> State | None:
    """Return the state with a segment in place of these parts, without the rows removed since it was written.

    `block` is None if no row remained. Return None if the state does not contain all of these parts any more.
    """
    blocks = [part.block for part in state.parts]
    start = next((number for number, each in enumerate(blocks) if each is parts[0].block), len(blocks))
    now = state.parts[start : start + len(parts)]
    if [part.block for part in now] != [part.block for part in parts]:
        return None
    segment = []
    if block is not None:
        ids = np.concatenate([part.block.chunk_ids[_alive(part)] for part in now])
        alive = np.isin(block.chunk_ids, ids, assume_unique=True)
        segment = [Part(block, name, None if alive.all() else alive)]
    later = state.parts[start + len(parts) :]
    return State(state.dimensions, (*state.parts[:start], *segment, *later), state.tail if later else None)


def _alive(part: Part) -> Mask:
    return np.ones(len(part.block), np.bool_) if part.alive is None else part.alive
