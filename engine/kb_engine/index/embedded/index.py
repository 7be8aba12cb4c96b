"""The index of a SQLite base: what it holds, how it changes, and which of its parts are to be united.

A state is a row of parts, the oldest first: segments in files, blocks in memory that are still to be written,
and the tail. A part is a block and which of its rows are alive. Blocks never change, so a state needs no lock
and cannot be torn; a change makes a new one, which shares what it did not touch.

A change is staged inside the store's transaction (memory is found, or the transaction fails) and published
after the commit. A reader takes the latest state under `guard` together with the snapshot of its SQL
transaction, so that both are of the same state.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from kb_engine.index.embedded.block import Block, Rest
from kb_engine.index.embedded.tail import Batch, Tail
from kb_engine.index.embedded.vectors import Mask
from kb_engine.index.embedded.words import Rows
from kb_engine.index.port import Ids
from kb_engine.index.words import ANALYSER, Analyser

TAIL_ROWS = 4_096
"""So many new chunks are in memory alone; after a death of the process they are read from the base."""
LARGEST_ROWS = 1 << 18
"""Of a segment: to unite more saves a search less than a millisecond, and takes many seconds."""
REMOVED_SHARE = 4
"""A segment is written anew when one in so many of its rows is removed."""


@dataclass(slots=True)
class Changes:
    """What an operation does to the chunks: first `cleared`, then `removed`, then `added`."""

    cleared: bool = False
    removed: list[int] = field(default_factory=list)
    """Documents whose chunks go."""
    added: list[Batch] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.cleared or bool(self.removed) or bool(self.added)


@dataclass(frozen=True, eq=False)
class Part:
    """A block as it is now. `name` is that of its file; None: it is in memory. `alive` None: all rows are."""

    block: Block
    name: str | None = None
    alive: Mask | None = None

    @cached_property
    def size(self) -> int:
        """How many chunks it has."""
        return len(self.block) if self.alive is None else int(np.count_nonzero(self.alive))

    @cached_property
    def tokens(self) -> float:
        """How many tokens these have."""
        lengths = self.block.words.lengths
        return float((lengths if self.alive is None else lengths[self.alive]).sum(dtype=np.float64))

    @cached_property
    def removed(self) -> Rows:
        """The rows that are alive no more."""
        return np.flatnonzero(~self.alive if self.alive is not None else ()).astype(np.uint32)

    def rows_of(self, documents: Ids) -> Mask:
        """Which rows are those of these documents, alive or not."""
        return np.repeat(np.isin(self.block.document_ids, documents), self.block.document_rows)

    def allowed(self, documents: Ids | None) -> Mask | None:
        """Which rows may answer where only these documents may (None: all may); None: all rows."""
        if documents is None or (rows := self.rows_of(documents)).all():
            return self.alive
        return rows if self.alive is None else rows & self.alive

    def without(self, documents: Ids) -> Part:
        """It, when these are removed."""
        gone = self.rows_of(documents)
        if self.alive is not None:
            gone &= self.alive
        if not gone.any():
            return self
        return Part(self.block, self.name, ~gone if self.alive is None else self.alive & ~gone)


@dataclass(frozen=True, eq=False)
class State:
    """A state of the index. `tail` is what the last part is a view of; None before the first vectors."""

    dimensions: int
    parts: tuple[Part, ...] = ()
    tail: Tail | None = None

    @cached_property
    def size(self) -> int:
        """How many chunks it has."""
        return sum(part.size for part in self.parts)

    def without(self, documents: Iterable[int]) -> State:
        """It, when these are removed."""
        gone = np.fromiter(documents, np.int64)
        return replace(self, parts=tuple(part.without(gone) for part in self.parts))

    def with_added(self, batch: Batch, analyser: Analyser) -> State:
        """It, with new chunks. They stand in the tail, behind the rows that this state knows.

        Raises:
            ValueError: vectors of another shape, or chunk ids that do not grow.
        """
        rows, dimensions = batch.vectors.shape
        if rows != len(batch.chunk_ids) or dimensions != (self.dimensions or dimensions):
            raise ValueError(f"{len(batch.chunk_ids)} chunks, but vectors of shape {batch.vectors.shape}")
        last = self.parts[-1].block.chunk_ids[-1:] if self.parts else ()
        if np.any(np.diff(np.concatenate([last, batch.chunk_ids])) <= 0):
            raise ValueError("chunk ids must grow")
        parts, tail, alive = self.parts, self.tail, None
        # What a transaction appended that failed stays in the tail that it failed with.
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
    """The latest state, and how the next one is made. `dimensions` 0: those of the first vectors."""

    def __init__(self, state: State) -> None:
        self.guard = threading.Lock()
        """Held while a commit and its change become visible together, and to take the state."""
        self.state = state
        """The latest published one."""
        self._analyser = Analyser()

    def stage(self, changes: Changes, earlier: State | None = None) -> State:
        """The state after the changes, visible to nobody yet; `earlier` is one that was staged before it.

        Raises:
            ValueError: vectors of another shape, or chunk ids that do not grow.
        """
        state = earlier or self.state
        if changes.cleared:
            state = State(state.dimensions)
        if changes.removed:
            state = state.without(changes.removed)
        for batch in changes.added:
            state = state.with_added(batch, self._analyser)
        return state

    def publish(self, staged: State) -> None:
        """Make a staged state the latest."""
        self.state = staged


# Parts are united in the background: blocks that are in memory are written to a file, small segments become
# larger ones, removed rows leave, and what an earlier analyser made is made anew. Meanwhile the index
# changes; what was united takes the parts' place as these are then.


def next_union(state: State) -> tuple[Part, ...]:
    """Which parts, side by side, are to be united into one now; none when nothing is to be done.

    New blocks are written together with the segments before them that are no larger. So a row is written
    about as often as the number of parts has binary digits.
    """
    parts = state.parts[:-1] if state.tail is not None else state.parts
    start = next((number for number, part in enumerate(parts) if part.name is None), len(parts))
    if start < len(parts):
        size = sum(part.size for part in parts[start:])
        while start and parts[start - 1].size <= min(size, LARGEST_ROWS - size):
            start -= 1
            size += parts[start].size
        return parts[start:]
    wasteful = (part for part in parts if len(part.removed) * REMOVED_SHARE > len(part.block))
    return tuple(wasteful)[:1]


def next_renewal(state: State) -> Part | None:
    """A segment whose words are those of an earlier analyser; None where there is none."""
    return next((part for part in state.parts if part.name and part.block.analyser != ANALYSER), None)


def remaining(parts: Iterable[Part]) -> list[Rest]:
    """What is to be written of them."""
    return [(part.block, part.alive) for part in parts if part.size]


def united(state: State, parts: Sequence[Part], block: Block | None, name: str) -> State | None:
    """The state with a segment in place of these parts, of which it holds what remained of them, or of late.

    `block` None: nothing did. None where the state has not all of these parts any more.
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
    return replace(state, parts=(*state.parts[:start], *segment, *state.parts[start + len(parts) :]))


def _alive(part: Part) -> Mask:
    return np.ones(len(part.block), np.bool_) if part.alive is None else part.alive
