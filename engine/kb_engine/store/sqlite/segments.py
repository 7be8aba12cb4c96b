"""The index beside a base: opening its files, rebuilding missing ones, and merging them.

    <base>.index/    a file for each segment, with an arbitrary name

The base holds the list of its segments, and a change of the list commits in the transaction that makes it
visible. So files and base always agree: a file that is not listed is removed, a missing or damaged one is
rebuilt, and the chunks after the last segment are read into memory. Closing the store writes these to a
file if they are many. A row of a segment is alive if its chunk exists; ids are never reused.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import apsw
import numpy as np

from kb_contracts.api.errors import EngineError
from kb_engine.index.embedded.array_file import UnreadableIndexFile
from kb_engine.index.embedded.block import Block, is_sound, open_segment, write_segment
from kb_engine.index.embedded.index import (
    EmbeddedIndex,
    Part,
    State,
    next_renewal,
    next_union,
    remaining,
    united,
)
from kb_engine.index.embedded.tail import Batch
from kb_engine.index.languages import PASSAGES, language_of
from kb_engine.index.port import Ids
from kb_engine.index.words import Analyser
from kb_engine.priority import lower_priority
from kb_engine.store.sqlite.connection import VECTOR_TYPE, connect, rows, transaction, value
from kb_engine.store.sqlite.reserve import expect_room
from kb_engine.tasks import end

BATCH_ROWS = 1_024
_AT_ONCE = 16  # number of blocks in memory that are merged into a file while a base is read
PAUSE_SECONDS = 30.0
"""Pause after a failure such as a full disk, in seconds; searches stay correct meanwhile, but slower."""
CLOSING_ROWS = 512
"""Number of chunks in memory from which closing writes them to a file; fewer are read at the next start."""
CLOSING_UNION = 32_768
"""Number of rows up to which closing merges segments, in less than a second: each takes a search 0.2 ms."""
_ALL = 1 << 62
_NICENESS = 10

T = TypeVar("T")

_CONTENT = (
    "SELECT c.document_id, d.title, d.language, c.id, c.heading, c.text, v.vector FROM chunks c "
    "JOIN documents d ON d.id = c.document_id JOIN vectors v ON v.chunk_id = c.id "
    "WHERE c.id BETWEEN ? AND ? AND length(v.vector) = ? ORDER BY c.id"
)
logger = logging.getLogger(__name__)


class RenewalStopped(Exception):
    """The store is being closed; the segment is rebuilt after the next start."""


class Renewal(NamedTuple):
    """A rebuilt segment (`block` is None if empty), and newly detected languages of documents."""

    name: str
    block: Block | None
    languages: Mapping[int, str]


def open_index(db: apsw.Connection, path: Path, dimensions: int) -> State:
    """Open the index of the base at `path`, up to date. Files that are not segments of it are removed.
    Raises OSError: a file cannot be written.
    """
    folder = folder_of(path)
    folder.mkdir(mode=0o700, exist_ok=True)
    joined = value(db, "SELECT group_concat(id) FROM chunks") or ""  # one value, as in `documents_that_meet`
    present = np.sort(np.fromstring(joined, dtype=np.int64, sep=","))
    state, last = State(dimensions), 0
    for name, first, last in rows(db, "SELECT name, first, last FROM index_segments ORDER BY first"):
        here = present[slice(*present.searchsorted([first, last + 1]))]
        if (part := _part(folder, name, dimensions, here)) is None:
            with transaction(db):
                _forget(db, [name])
            made = _read(db, path, State(dimensions), first, last)
            parts = _united(db, folder, replace(made, tail=None)).parts
        else:
            parts = (part,)
        state = State(dimensions, (*state.parts, *parts))
    state = _read(db, path, state, last + 1, _ALL)
    sweep(folder, state)
    return state


def folder_of(path: Path) -> Path:
    """The folder of the index files of the base at `path`."""
    return path.with_name(f"{path.name}.index")


def sweep(folder: Path, state: State) -> None:
    """Remove the files that do not belong to the index."""
    names = {part.name for part in state.parts}
    for file in folder.iterdir():
        if file.name not in names:
            file.unlink(missing_ok=True)


def _part(folder: Path, name: str, dimensions: int, present: Ids) -> Part | None:
    """Open a segment, with the given chunks alive, unless it must be rebuilt."""
    try:
        block = open_segment(folder / name, dimensions)
    except (UnreadableIndexFile, OSError) as error:
        logger.warning("rebuilding a part of the search index", extra={"why": str(error)})
        return None
    if np.array_equal(block.chunk_ids, present):
        return Part(block, name)
    alive = np.isin(block.chunk_ids, present, assume_unique=True)
    return Part(block, name, alive) if np.count_nonzero(alive) == len(present) else None


def _read(db: apsw.Connection, path: Path, state: State, first: int, last: int) -> State:
    """Add the chunks with these ids from the base to the state; the last ones stay in memory."""
    analyser, folder = Analyser(), folder_of(path)
    for batch in _batches(db, state.dimensions, first, last):
        state = _united(db, folder, state.with_added(batch, analyser), at_least=_AT_ONCE)
    return state


def _batches(db: apsw.Connection, dimensions: int, first: int, last: int) -> Iterator[Batch]:
    for (document_id, title, language), found in groupby(
        db.execute(_CONTENT, (first, last, 4 * dimensions)), lambda row: row[:3]
    ):
        chunks = list(found)
        for start in range(0, len(chunks), BATCH_ROWS):
            _, _, _, ids, headings, texts, vectors = zip(*chunks[start : start + BATCH_ROWS], strict=True)
            matrix = np.frombuffer(b"".join(vectors), VECTOR_TYPE).reshape(len(ids), dimensions)
            numbers = np.array(ids, np.int64)
            yield Batch(
                document_id, title, numbers, list(zip(headings, texts, strict=True)), matrix, language
            )


def _united(db: apsw.Connection | None, folder: Path, state: State, at_least: int = 1) -> State:
    """Merge parts while at least `at_least` are due. With `db`, update the base's list of segments."""
    while len(parts := next_union(state)) >= at_least:
        name, block = _unite(folder, state.dimensions, parts)
        if db is not None:
            with transaction(db):
                _note(db, parts, name, block)
        following = united(state, parts, block, name)
        assert following is not None, "nobody else has this state"
        state = following
    return state


def _unite(folder: Path, dimensions: int, parts: Sequence[Part]) -> tuple[str, Block | None]:
    """Write the living rows of these parts to a file; return its name and its block, if a row is left."""
    name = uuid4().hex
    if not (rest := remaining(parts)):
        return name, None
    write_segment(folder / name, rest)
    return name, open_segment(folder / name, dimensions)


def _note(db: apsw.Connection, parts: Sequence[Part], name: str, block: Block | None) -> None:
    """Record that a segment replaces these parts."""
    _forget(db, [part.name for part in parts if part.name is not None])
    if block is not None:
        ends = (name, int(block.chunk_ids[0]), int(block.chunk_ids[-1]))
        db.execute("INSERT INTO index_segments (name, first, last) VALUES (?, ?, ?)", ends)


def _forget(db: apsw.Connection, names: Sequence[str]) -> None:
    db.executemany("DELETE FROM index_segments WHERE name = ?", [(name,) for name in names])


def _renewed(path: Path, part: Part, dimensions: int, is_stopped: Callable[[], bool]) -> Renewal:
    """Rebuild a segment from the base, with the chunks of it that still exist.

    Raises:
        OSError: a file cannot be written.
        RenewalStopped: the store is being closed.
    """
    ids, folder, analyser = part.block.chunk_ids, folder_of(path), Analyser()
    languages: dict[int, str | None] = {}
    state = State(dimensions)
    with closing(connect(path)) as db:
        for batch in _batches(db, dimensions, int(ids[0]), int(ids[-1])):
            if is_stopped():
                raise RenewalStopped
            if batch.language is None:
                if batch.document_id not in languages:
                    languages[batch.document_id] = language_in(db, batch.document_id, batch.title)
                batch = replace(batch, language=languages[batch.document_id])
            state = state.with_added(batch, analyser)
            state = _united(None, folder, state, at_least=_AT_ONCE)
    found = {document: language for document, language in languages.items() if language is not None}
    return Renewal(*_unite(folder, dimensions, state.parts), found)


def language_in(db: apsw.Connection, document_id: int, title: str) -> str | None:
    """Detect the language of a document in the base, if it is certain enough."""
    sql = "SELECT text FROM chunks WHERE document_id = ? ORDER BY position LIMIT ?"
    return language_of(title, [text for (text,) in rows(db, sql, (document_id, PASSAGES))])


Writer = Callable[[Callable[[apsw.Connection], None]], Coroutine[Any, Any, None]]
"""Runs a function on the thread that writes to the base."""


def _trace(error: Exception) -> Exception | None:
    """Return the error if its message alone does not explain it."""
    return None if isinstance(error, OSError | EngineError) else error


class Upkeep:
    """Merges parts of the index and rebuilds outdated segments, in its own thread, while it is used."""

    def __init__(self, index: EmbeddedIndex, path: Path, write: Writer) -> None:
        self._index = index
        self._path = path
        self._folder = folder_of(path)
        self._write = write
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="kb-index", initializer=lower_priority, initargs=(_NICENESS,)
        )
        self._swept: set[str | None] = set()
        """The files when superfluous ones were last removed."""
        self._woken = asyncio.Event()
        self._changing = asyncio.Lock()
        self._task = asyncio.create_task(self._run())

    def wake(self) -> None:
        """Signal that the index has changed."""
        self._woken.set()

    async def close(self) -> None:
        """Complete the current merge, and write the chunks in memory, which the next start would have to read
        from the base; may be called again.
        """
        is_first = not self._stopped.is_set()
        self._stopped.set()
        async with self._changing:
            await end(self._task)
            if is_first:
                await self._finish()
        await asyncio.to_thread(self._thread.shutdown)

    async def renew_damaged(self) -> int:
        """Rebuild the damaged segments; return their number. Raises the errors of `_renewed`."""
        renewed = 0
        for part in self._index.state.parts:
            if part.name is None or await self._worked(partial(is_sound, self._folder / part.name)):
                continue
            async with self._changing:
                # The part may have been replaced meanwhile.
                if any(each.name == part.name for each in self._index.state.parts):
                    await self._renew(part)
                    renewed += 1
        if renewed:
            self.wake()
        return renewed

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                async with self._changing:
                    while not self._stopped.is_set():
                        if not (await self._unite_some(self._index.state) or await self._renew_one()):
                            break
                    await self._sweep()
            except RenewalStopped:
                return
            except Exception as error:  # on any failure searches stay correct without the upkeep, but slower
                logger.warning(
                    "maintenance of the search index failed",
                    extra={"why": str(error)},
                    exc_info=_trace(error),
                )
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            await self._woken.wait()

    async def _finish(self) -> None:
        """Write the chunks in memory, also those of the tail, if there are many."""
        state = replace(self._index.state, tail=None)
        try:
            if sum(part.size for part in state.parts if part.name is None) >= CLOSING_ROWS:
                await self._unite_some(state, CLOSING_UNION)
            await self._sweep()
        except Exception as error:  # the next start reads them from the base
            logger.warning(
                "new passages were not added to the index files",
                extra={"why": str(error)},
                exc_info=_trace(error),
            )

    async def _sweep(self) -> None:
        """Remove replaced files, if there are any."""
        state = self._index.state
        if self._swept != (names := {part.name for part in state.parts}):
            await asyncio.to_thread(sweep, self._folder, state)
            self._swept = names

    async def _unite_some(self, state: State, small: int = 0) -> bool:
        """Merge the next parts, see `next_union`; return whether there were any."""
        if not (parts := next_union(state, small)):
            return False
        expect_room(self._path.parent)
        renewal = Renewal(*await self._worked(partial(_unite, self._folder, state.dimensions, parts)), {})
        await self._write(partial(self._replace, parts, renewal))
        return True

    async def _renew_one(self) -> bool:
        """Rebuild the next outdated segment; return whether there was one."""
        state = self._index.state
        if (part := next_renewal(state)) is None:
            return False
        await self._renew(part)
        return True

    async def _renew(self, part: Part) -> None:
        expect_room(self._path.parent)
        work = partial(_renewed, self._path, part, self._index.state.dimensions, self._stopped.is_set)
        renewal = await self._worked(work)
        await self._write(partial(self._replace, [part], renewal))
        logger.info("rebuilt a part of the search index", extra={"passages": len(part.block)})

    async def _worked(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, done at low priority; unless closing waits for it."""
        thread = None if self._stopped.is_set() else self._thread
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    def _replace(self, parts: Sequence[Part], renewal: Renewal, db: apsw.Connection) -> None:
        following = united(self._index.state, parts, renewal.block, renewal.name)
        if following is None:  # everything was removed meanwhile
            return
        db.execute("BEGIN IMMEDIATE")
        _note(db, parts, renewal.name, renewal.block)
        found = [(language, document) for document, language in renewal.languages.items()]
        db.executemany("UPDATE documents SET language = ? WHERE id = ? AND language IS NULL", found)
        with self._index.guard:
            db.execute("COMMIT")
            self._index.publish(following)
