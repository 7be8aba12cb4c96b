"""Searches in further processes, once searches wait for each other.

The interpreter's lock lets one thread of a process run at a time. So a search is handed to a process that
has the base open and the files of the index mapped; `search_process.py` is its program. This process keeps
all further work: requests, embedding, writing, and all searches that no other process can answer.

    searches overlap ─▶ start processes ─▶ share the index ─▶ hand over ─▶ unused for a while: end them
                                             ▲      the index changed │
                                             └────────────────────────┘

A process has one state of the index and the generation of the base to which it belongs. A search is handed
over only if that state is the latest one here, and answered only if the snapshot of the base has that
generation: so it sees every change that was acknowledged before it began. In all other cases, such as a
process that has ended, `found` returns None and the search is done here.

Segments are shared by the names of their files. Chunks that are in memory only are written to files in
`<base>.shared`, which are removed once they are mapped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import shutil
import socket
from asyncio.subprocess import DEVNULL, Process
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import Struct
from typing import cast
from uuid import uuid4

import msgspec

from kb_contracts.api.errors import EngineError
from kb_engine.index.embedded.block import write_segment
from kb_engine.index.embedded.index import EmbeddedIndex, State, remaining
from kb_engine.index.embedded.vectors import Mask
from kb_engine.store.port import Found, Query
from kb_engine.store.sqlite.reserve import expect_room
from kb_engine.tasks import end
from kb_readers.child import reader_command, reader_environment

logger = logging.getLogger(__name__)

HEAD = Struct("<I")
"""Precedes each message: its length in bytes."""
DECLINED = b""
"""The answer of a process that cannot answer; any other answer is a `Found`."""
MAPPED = b"mapped"
"""The answer to `IndexFiles` whose files are mapped."""
encode_found = msgspec.json.Encoder().encode  # JSON, for integers of any size in metadata
_decode_found = msgspec.json.Decoder(Found).decode

_PROGRAM = "kb_engine.store.sqlite.search_process"
_OVERLAPS = 20
"""Number of overlapping searches after which processes are started."""
_CALM_SECONDS = 10.0
"""Time without overlapping searches after which they are counted anew, in seconds."""
_UNUSED_SECONDS = 30.0
"""Time without a search after which the processes are ended, in seconds."""
_SILENT_SECONDS, _START_SECONDS = 10.0, 60.0
"""Maximum time that a process may take for an answer to a search, and to start and map files, in seconds."""
_LEAST_PAUSE, _PAUSE_SHARE = 0.02, 4
"""Pause between two states that are shared: the least in seconds, and in times of the duration of sharing."""
_FAILURE_PAUSE = 30.0
"""Pause after a process has ended or could not be started, or nothing could be shared, in seconds."""


@dataclass(frozen=True, slots=True)
class IndexFiles:
    """A state of the index and its generation; `parts` None: the state that was shared before."""

    generation: int
    dimensions: int
    parts: Sequence[tuple[Path, Mask | None]] | None


Snapshot = Callable[[], Awaitable[tuple[State, int]]]
"""Returns the latest state of the index, and its generation of the base."""


def _environment() -> dict[str, str]:
    """Return an environment in which numpy rounds as it does here."""
    computing = ("OPENBLAS_", "NPY_")
    return {
        name: text for name, text in os.environ.items() if name.startswith(computing)
    } | reader_environment()


def folder_of(path: Path) -> Path:
    """The folder of files that are shared with search processes of the base at `path`."""
    return path.with_name(f"{path.name}.shared")


class ProcessLost(Exception):
    """All search processes have ended, or could not be started."""


class SearchProcesses:
    """Up to `most` processes that search the base at `path`; `state` is one that any has, or None."""

    def __init__(
        self, path: Path, segments: Path, index: EmbeddedIndex, most: int, snapshot: Snapshot
    ) -> None:
        self._path = path
        self._segments = segments
        self._index = index
        self._most = most
        self._snapshot = snapshot
        self.state: State | None = None
        self._processes: list[_SearchProcess] = []
        self._keeping: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._overlaps = 0
        self._overlapped_at = self._used_at = 0.0
        self._start_at = 0.0
        """Time from which missing processes are started."""

    def crowded(self) -> None:
        """Note that a search has begun while another one runs."""
        now = asyncio.get_running_loop().time()
        if now - self._overlapped_at > _CALM_SECONDS:
            self._overlaps = 0
        self._overlapped_at = self._used_at = now
        self._overlaps += 1
        if self._keeping is None and self._overlaps >= _OVERLAPS:
            self._keeping = asyncio.create_task(self._keep())
        elif self.state is not self._index.state:
            self._woken.set()

    @property
    def under_way(self) -> int:
        """Number of searches in progress in the processes."""
        return sum(len(each.waiting) for each in self._processes)

    async def found(self, query: Query) -> Found | None:
        """Return the answer of a process to a query with its vector; None if no process can answer."""
        now = asyncio.get_running_loop().time
        self._used_at = now()
        state = self._index.state
        able = [each for each in self._processes if each.state is state]
        if not able:
            return None
        process = min(able, key=lambda each: len(each.waiting))
        if (answer := await process.ask(query, _SILENT_SECONDS)) != DECLINED:
            return _decode_found(answer)
        process.state = None  # the base has changed, or the process is lost
        self._note_state()
        self._woken.set()
        return None

    async def close(self) -> None:
        """End the processes; may be called again."""
        await end(self._keeping)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while loop.time() - self._used_at < _UNUSED_SECONDS:
                self._woken.clear()
                pause = 0.0
                try:
                    pause = await self._renew()
                except (OSError, EngineError, ProcessLost) as error:
                    logger.warning("searches run in this process only", extra={"why": str(error)})
                    pause = _FAILURE_PAUSE
                await asyncio.sleep(pause)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_UNUSED_SECONDS):
                        await self._woken.wait()
        finally:
            self.state, self._overlaps = None, 0
            ended, self._processes = self._processes, []
            await asyncio.shield(asyncio.gather(*(each.end() for each in ended)))
            await asyncio.to_thread(shutil.rmtree, folder_of(self._path), ignore_errors=True)
            self._keeping = None

    async def _renew(self) -> float:
        """Start missing processes, and share the latest state; return the pause until the next time."""
        now = asyncio.get_running_loop().time
        for process in [each for each in self._processes if each.is_lost]:
            logger.warning("a search process ended")
            self._processes.remove(process)
            self._start_at = now() + _FAILURE_PAUSE
            await process.end()
        try:
            while len(self._processes) < self._most and now() >= self._start_at:
                self._processes.append(await _SearchProcess.start(self._path))
        except OSError as error:
            self._start_at = now() + _FAILURE_PAUSE
            logger.warning("a search process cannot be started", extra={"why": str(error)})
        if not self._processes:
            raise ProcessLost("no search process runs")
        began = now()
        state, generation = await self._snapshot()
        behind = [each for each in self._processes if each.state is not state]
        if not behind or not state.dimensions:
            return _LEAST_PAUSE
        files: list[Path] = []
        folder = folder_of(self._path)
        try:
            parts: list[tuple[Path, Mask | None]] | None = None
            for process in behind:
                if process.known is state:
                    sent = IndexFiles(generation, state.dimensions, None)
                else:
                    if parts is None:
                        parts = await asyncio.to_thread(self._written, state, folder, files)
                    sent = IndexFiles(generation, state.dimensions, parts)
                if await process.ask(sent, _START_SECONDS) == MAPPED:
                    process.state = process.known = state
        finally:
            self._note_state()
            for file in files:
                file.unlink(missing_ok=True)
        return max(_LEAST_PAUSE, _PAUSE_SHARE * (now() - began))

    def _written(self, state: State, folder: Path, files: list[Path]) -> list[tuple[Path, Mask | None]]:
        """Return the files of all parts; parts in memory are written, and noted in `files`."""
        parts: list[tuple[Path, Mask | None]] = []
        for part in state.parts:
            if part.name is not None:
                parts.append((self._segments / part.name, part.alive))
            elif rest := remaining([part]):
                expect_room(folder.parent)
                folder.mkdir(mode=0o700, exist_ok=True)
                files.append(folder / uuid4().hex)
                write_segment(files[-1], rest)
                parts.append((files[-1], None))
        return parts

    def _note_state(self) -> None:
        self.state = next((each.state for each in self._processes if each.state is not None), None)


class _SearchProcess(asyncio.Protocol):
    """A process, and the connection to it: it answers in the order of the questions.

    `state` is the state that it searches, or None while it must not be asked; `known` is the last one that
    was shared with it.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answered_at = 0.0
        self.waiting: deque[asyncio.Future[bytes]] = deque()
        self.state: State | None = None
        self.known: State | None = None

    @classmethod
    async def start(cls, path: Path) -> _SearchProcess:
        """Raises OSError."""
        here, there = socket.socketpair()
        try:
            with there:
                process = await asyncio.create_subprocess_exec(
                    *reader_command(_PROGRAM),
                    str(there.fileno()),
                    str(path),
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    pass_fds=(there.fileno(),),
                    env=_environment(),
                    start_new_session=True,  # so that it does not get the Ctrl-C of a terminal
                )
            connection = partial(cls, process)
            _, started = await asyncio.get_running_loop().create_unix_connection(connection, sock=here)
        except BaseException:
            here.close()  # this ends the process
            raise
        return started

    @property
    def is_lost(self) -> bool:
        return self._transport is None

    async def ask(self, question: Query | IndexFiles, seconds: float) -> bytes:
        """Return the answer; `DECLINED` if the process ends, or was killed after `seconds` of silence."""
        if self._transport is None:
            return DECLINED
        message = pickle.dumps(question, pickle.HIGHEST_PROTOCOL)
        self._transport.write(HEAD.pack(len(message)) + message)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        if not self.waiting:
            self._answered_at = loop.time()
        self.waiting.append(answer)  # once it is sent: each answer belongs to the first of them
        while not (await asyncio.wait([answer], timeout=seconds))[0]:
            if loop.time() - self._answered_at >= seconds:
                with suppress(ProcessLookupError):
                    self._process.kill()
                return DECLINED
        return answer.result()

    async def end(self) -> None:
        """Close the connection, which ends the process, and wait for that."""
        if self._transport is not None:
            self._transport.close()
        try:
            async with asyncio.timeout(_SILENT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's classes are not derived from it

    def data_received(self, data: bytes) -> None:
        self._answered_at = asyncio.get_running_loop().time()
        received = self._received
        received += data
        while len(received) >= HEAD.size:
            end = HEAD.size + HEAD.unpack_from(received)[0]
            if len(received) < end:
                return
            self.waiting.popleft().set_result(bytes(received[HEAD.size : end]))
            del received[:end]

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = self.state = None
        while self.waiting:
            self.waiting.popleft().set_result(DECLINED)
