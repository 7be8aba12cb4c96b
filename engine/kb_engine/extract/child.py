"""One file read in a process of its own, which is ended with everything it started when it breaks a limit.

The reader's input is the open file, its output goes to files without a name, so that a crash of either
side leaves nothing on the disk. How far it is it tells through a pipe.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

import msgspec

from kb_engine.extract.failures import (
    ExtractionFailed,
    crashed,
    page_too_long,
    pages_too_long,
    too_long,
    too_much_memory,
    too_much_work,
)
from kb_engine.extract.model import Extraction, Limits
from kb_engine.extract.report import Failure, PageBegun, Reading, Report, Task
from kb_engine.extract.telling import Told, told_by_a_child

_WORKER = "kb_engine.extract.worker"
_ERROR_BYTES = 4096
_REPORT: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)

_MEMORY_SIGNS = (b"memory allocation", b"bad_alloc", b"MemoryError", b"Cannot allocate memory")

OnPage = Callable[[Reading], Awaitable[None]]
"""Called when the pages are counted, and before one is read by OCR; what it raises ends the reader."""


async def read_in_child(
    path: Path, reader: str, limits: Limits, on_page: OnPage, known: Extraction | None = None
) -> Extraction:
    """The text of the file at `path`, by the reader of that name, which may add to what is known.

    The child is killed with its whole group when it takes too long or when the awaiting task is cancelled.
    Raises ExtractionFailed; OSError when the file cannot be opened.
    """
    with _files(path) as files, told_by_a_child(limits.ocr_pages) as told:
        if known is not None:
            await asyncio.to_thread(_put, files.known, known)
        start = None if known is None else files.known.fileno()
        command = _command(Task(reader, limits, os.getpid(), told.writer, start))
        status = await _run(command, files, told, limits, on_page)
        return await asyncio.to_thread(_outcome, status, files, limits)


class _Files(NamedTuple):
    source: IO[bytes]
    known: IO[bytes]
    report: IO[bytes]
    errors: IO[bytes]


@contextmanager
def _files(path: Path) -> Iterator[_Files]:
    with (
        path.open("rb") as source,
        TemporaryFile() as known,
        TemporaryFile() as report,
        TemporaryFile() as errors,
    ):
        yield _Files(source, known, report, errors)


def _put(file: IO[bytes], known: Extraction) -> None:
    file.write(msgspec.msgpack.encode(known))
    file.seek(0)


async def _run(command: list[str], files: _Files, told: Told, limits: Limits, on_page: OnPage) -> int:
    """The exit status, negative for a signal. When this returns or raises, the process is gone."""
    process = await _start(command, files, told)
    bounds = _Bounds(limits)
    try:
        async with asyncio.timeout(limits.wall_seconds) as timeout:
            while (page := await told.next()) is not None:
                left = bounds.left(timeout.when())
                timeout.reschedule(None)  # whoever is told may have to wait; the reader has its own alarm
                await on_page(page)
                timeout.reschedule(bounds.after(page) if isinstance(page, PageBegun) else bounds.in_(left))
            return await process.wait()
    except TimeoutError:
        raise bounds.broken() from None
    finally:
        await _end(process)


class _Bounds:
    """When a reader has taken too long: each page that it comes to gives it time anew, within a whole."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._last: PageBegun | None = None
        self._end_of_all = 0.0

    def left(self, end: float | None) -> float:
        """The seconds until an end by the clock of the loop."""
        return 0.0 if end is None else end - self._loop.time()

    def in_(self, seconds: float) -> float:
        """So many seconds from now: to have counted the pages gives no time anew."""
        return self._loop.time() + seconds

    def after(self, page: PageBegun) -> float:
        """When it has to be further than this page, by the clock of the loop."""
        now = self._loop.time()
        if self._last is None:
            self._end_of_all = now + self._limits.ocr_seconds
        self._last = page
        return min(now + self._limits.wall_seconds, self._end_of_all)

    def broken(self) -> ExtractionFailed:
        """What to say of a reader that was not."""
        if self._last is None:
            return too_long(self._limits.wall_seconds)
        if self._loop.time() >= self._end_of_all:
            return pages_too_long(self._last.number, self._last.pages, self._limits.ocr_seconds)
        return page_too_long(self._last.number, self._limits.wall_seconds)


async def _start(command: list[str], files: _Files, told: Told) -> Process:
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=files.source,
            stdout=files.report,
            stderr=files.errors,
            pass_fds=(told.writer, files.known.fileno()),
            env=_environment(),
            cwd="/",
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # Cancelled half-way there would be nobody to end what had started.
        await _end(await starting)
        raise
    finally:
        told.let_go()


async def _end(process: Process) -> None:
    if process.returncode is None:
        # Its own session is its own group: whatever it started goes with it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _command(task: Task) -> list[str]:
    return [sys.executable, "-B", "-P", "-s", "-m", _WORKER, msgspec.json.encode(task).decode()]


def _environment() -> dict[str, str]:
    """What the reader needs and no more: the modules of this process, one thread, and no place to write."""
    nowhere = os.devnull  # not a folder, so that no folder can be made in it
    return {
        "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry),
        "PYTHONUTF8": "1",
        "HOME": nowhere,
        "XDG_CACHE_HOME": nowhere,
        "TMPDIR": nowhere,
        "TOKIO_WORKER_THREADS": "1",
        "RAYON_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OPENCV_FOR_THREADS_NUM": "1",
        "MALLOC_ARENA_MAX": "2",  # each arena reserves address space, which the memory limit counts
    }


def _outcome(status: int, files: _Files, limits: Limits) -> Extraction:
    files.report.seek(0)
    try:
        report: Report = _REPORT.decode(files.report.read())
    except msgspec.DecodeError:
        raise _died(status, files.errors, limits) from None
    if isinstance(report, Failure):
        raise ExtractionFailed(report.code, report.message)
    return report


def _died(status: int, errors: IO[bytes], limits: Limits) -> ExtractionFailed:
    """Why a reader that left no report ended. What it printed may quote the file, so it is not shown."""
    errors.seek(0)
    printed = errors.read(_ERROR_BYTES)
    if -status == signal.SIGXCPU:
        return too_much_work()
    if -status == signal.SIGALRM:
        return too_long(limits.wall_seconds)
    # A kill that was not ours is the system's, which is out of memory.
    if -status == signal.SIGKILL or any(sign in printed for sign in _MEMORY_SIGNS):
        return too_much_memory(limits.memory_bytes)
    return crashed(f"signal {-status}" if status < 0 else f"status {status}")
