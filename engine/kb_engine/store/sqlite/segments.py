"""The index beside a base: its files opened, made from the base where they are missing, and kept few.

    <base>.index/    a file for each segment, of any name

The base holds the list of its segments, which changes in the transaction that makes a change of them visible.
So whatever happens, files and base agree: a file that is not in the list is none of the base's and goes, one
that is missing or damaged is made again, and the chunks behind the last segment are read into memory. Which
rows of a segment are alive is what chunks there are, for ids are never given again.
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
from kb_engine.store.sqlite.connection import (
    VECTOR_TYPE,
    connect,
    integers,
    roll_back,
    rows,
    transaction,
    value,
)

BATCH_ROWS = 1_024
_AT_ONCE = 16
"""So many blocks in memory are written to a file while a base is read."""
PAUSE_SECONDS = 30.0
"""After a failure, as on a full disk; searches are right meanwhile, and slower."""
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
    """The store is being closed; the segment is made anew another time."""


class Renewal(NamedTuple):
    """A segment made anew, None for nothing; and the languages of documents that had none."""

    name: str
    block: Block | None
    languages: Mapping[int, str]


def open_index(db: apsw.Connection, path: Path, dimensions: int) -> State:
    """The index of the base at `path`, as it is now. Files that are none of its segments are removed.

    Raises:
        OSError: a file cannot be written.
    """
    folder = folder_of(path)
    folder.mkdir(mode=0o700, exist_ok=True)
    present = np.sort(integers(value(db, "SELECT group_concat(id) FROM chunks")))
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
    """Where the files of the index of the base at `path` are."""
    return path.with_name(f"{path.name}.index")


def sweep(folder: Path, state: State) -> None:
    """Remove what is none of the index's files."""
    names = {part.name for part in state.parts}
    for file in folder.iterdir():
        if file.name not in names:
            file.unlink(missing_ok=True)


def _part(folder: Path, name: str, dimensions: int, present: Ids) -> Part | None:
    """A segment, of whose chunks these are in the base; None: it has to be made again."""
    try:
        block = open_segment(folder / name, dimensions)
    except (UnreadableIndexFile, OSError) as error:
        logger.warning("a part of the search index is made again", extra={"why": str(error)})
        return None
    if np.array_equal(block.chunk_ids, present):
        return Part(block, name)
    alive = np.isin(block.chunk_ids, present, assume_unique=True)
    return Part(block, name, alive) if np.count_nonzero(alive) == len(present) else None


def _read(db: apsw.Connection, path: Path, state: State, first: int, last: int) -> State:
    """The state with the chunks of these ids from the base, the latest of them in memory."""
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
    """The state when so many parts, or more, that are to be united have been; `db` None: not the base's."""
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
    """Write what remains of these parts to a file; its name, and the block, which is None for nothing."""
    name = uuid4().hex
    if not (rest := remaining(parts)):
        return name, None
    write_segment(folder / name, rest)
    return name, open_segment(folder / name, dimensions)


def _note(db: apsw.Connection, parts: Sequence[Part], name: str, block: Block | None) -> None:
    """Note that a segment takes the place of these parts."""
    _forget(db, [part.name for part in parts if part.name is not None])
    if block is not None:
        ends = (name, int(block.chunk_ids[0]), int(block.chunk_ids[-1]))
        db.execute("INSERT INTO index_segments (name, first, last) VALUES (?, ?, ?)", ends)


def _forget(db: apsw.Connection, names: Sequence[str]) -> None:
    db.executemany("DELETE FROM index_segments WHERE name = ?", [(name,) for name in names])


def _renewed(path: Path, part: Part, dimensions: int, is_stopped: Callable[[], bool]) -> Renewal:
    """A segment with the chunks of this one that are in the base, from the base.

    Raises:
        OSError: a file cannot be written.
        RenewalStopped: as it says.
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
    """The language of a document in the base; None where that is not certain."""
    sql = "SELECT text FROM chunks WHERE document_id = ? ORDER BY position LIMIT ?"
    return language_of(title, [text for (text,) in rows(db, sql, (document_id, PASSAGES))])


Writer = Callable[[Callable[[apsw.Connection], None]], Coroutine[Any, Any, None]]
"""Does work on the thread that writes to the base."""


class Upkeep:
    """Unites parts of the index, and makes anew those of an earlier analyser, in a thread of its own, while
    others search it and change it."""

    def __init__(self, index: EmbeddedIndex, path: Path, write: Writer) -> None:
        self._index = index
        self._path = path
        self._folder = folder_of(path)
        self._write = write
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="kb-index", initializer=lower_priority, initargs=(_NICENESS,)
        )
        self._woken = asyncio.Event()
        self._changing = asyncio.Lock()
        self._task = asyncio.create_task(self._run())

    def wake(self) -> None:
        """The index has changed."""
        self._woken.set()

    async def close(self) -> None:
        """Stop, when what is being written has been; it may be called again."""
        self._stopped.set()
        self._task.cancel()
        await asyncio.wait([self._task])
        await asyncio.to_thread(self._thread.shutdown)

    async def renew_damaged(self) -> int:
        """Read the files of all segments, and make anew those that are not as they were written; how many.

        Raises as `_renewed`.
        """
        renewed = 0
        for part in self._index.state.parts:
            if part.name is None or await self._worked(partial(is_sound, self._folder / part.name)):
                continue
            async with self._changing:
                if any(each.name == part.name for each in self._index.state.parts):  # else it went meanwhile
                    await self._renew(part)
                    renewed += 1
        if renewed:
            self.wake()
        return renewed

    async def _run(self) -> None:
        swept: set[str | None] = set()
        while True:
            self._woken.clear()
            try:
                async with self._changing:
                    while await self._unite_some() or await self._renew_one():
                        pass
                state = self._index.state
                if swept != (names := {part.name for part in state.parts}):
                    await asyncio.to_thread(sweep, self._folder, state)
                    swept = names
            except Exception as error:  # whatever goes wrong, searches are right without it, and slower
                trace = None if isinstance(error, OSError | EngineError) else error
                logger.warning("the search index is not tidied up", extra={"why": str(error)}, exc_info=trace)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            await self._woken.wait()

    async def _unite_some(self) -> bool:
        """Whether there was something to be united."""
        state = self._index.state
        if not (parts := next_union(state)):
            return False
        renewal = Renewal(*await self._worked(partial(_unite, self._folder, state.dimensions, parts)), {})
        await self._write(partial(self._replace, parts, renewal))
        return True

    async def _renew_one(self) -> bool:
        """Whether there was something to be made anew."""
        state = self._index.state
        if (part := next_renewal(state)) is None:
            return False
        await self._renew(part)
        return True

    async def _renew(self, part: Part) -> None:
        work = partial(_renewed, self._path, part, self._index.state.dimensions, self._stopped.is_set)
        renewal = await self._worked(work)
        await self._write(partial(self._replace, [part], renewal))
        logger.info("a part of the search index has been made anew", extra={"passages": len(part.block)})

    async def _worked(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _replace(self, parts: Sequence[Part], renewal: Renewal, db: apsw.Connection) -> None:
        following = united(self._index.state, parts, renewal.block, renewal.name)
        if following is None:  # everything was removed meanwhile
            return
        db.execute("BEGIN IMMEDIATE")
        try:
            _note(db, parts, renewal.name, renewal.block)
            found = [(language, document) for document, language in renewal.languages.items()]
            db.executemany("UPDATE documents SET language = ? WHERE id = ? AND language IS NULL", found)
            with self._index.guard:
                db.execute("COMMIT")
                self._index.publish(following)
        except BaseException:
            roll_back(db)
            raise
