"""Reads one file in a child process, which is killed with its descendants when it exceeds a limit.

The child's input is the open file, and its output goes to unnamed temporary files, so that a crash of either
side leaves nothing on the disk. Progress comes through a pipe.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TypeVar

import msgspec

from kb_contracts.api.formats import Format
from kb_readers.failures import ExtractionFailed, crashed, too_long, too_much_memory
from kb_readers.memory import MemoryBudget
from kb_readers.model import (
    RECORD_BYTES,
    Extraction,
    Failure,
    Limits,
    PageBegun,
    PagesCounted,
    Picture,
    Progress,
    Reader,
    Report,
    Task,
)

T = TypeVar("T", Extraction, Picture)

OnProgress = Callable[[Progress], Awaitable[None]]
"""Called when the pages are counted, and before each OCR page; an exception ends the reader."""

_WORKER = "kb_readers.worker"
_REPORT: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
_ERROR_BYTES = 4096
_THREADS = (
    "TOKIO_WORKER_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)  # fmt: skip
_MEMORY_SIGNS = (b"memory allocation", b"bad_alloc", b"MemoryError", b"Cannot allocate memory")


async def read_in_child(
    source: IO[bytes],
    fmt: Format,
    reader: Reader,
    limits: Limits,
    on_progress: OnProgress,
    known: Extraction | None = None,
    *,
    memory: MemoryBudget | None = None,
    result: type[T] = Extraction,  # type: ignore[assignment]  # mypy: a default of a type variable
) -> T:
    """Return the text or a picture of an open file; the reader may complete the extraction `known`.

    `source` has a file descriptor. The child starts once `memory` has room for it, and is killed with its
    process group when it exceeds the time or the awaiting task is cancelled. Raises ExtractionFailed.
    """
    most_bytes = limits.memory_for(reader, os.fstat(source.fileno()).st_size)
    async with nullcontext() if memory is None else memory.reserved(most_bytes):
        outcome = await _read(source, fmt, reader, limits, most_bytes, on_progress, known)
    if not isinstance(outcome, result):
        raise crashed("it reported another kind of result")
    return outcome


async def _read(
    source: IO[bytes],
    fmt: Format,
    reader: Reader,
    limits: Limits,
    most_bytes: int,
    on_progress: OnProgress,
    known: Extraction | None,
) -> Extraction | Picture:
    with (
        TemporaryFile() as known_file,
        TemporaryFile() as report,
        TemporaryFile() as errors,
        open_progress_pipe(limits.ocr_pages) as pipe,
    ):
        if known is not None:
            await asyncio.to_thread(known_file.write, msgspec.msgpack.encode(known))
            known_file.seek(0)
        known_fd = None if known is None else known_file.fileno()
        task = Task(reader, fmt.name, limits, os.getpid(), pipe.writer, known_fd)
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *_command(task),
                stdin=source,
                stdout=report,
                stderr=errors,
                pass_fds=(pipe.writer, known_file.fileno()),
                env=reader_environment(),
                cwd="/",
                start_new_session=True,
            )
        )
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Without the shield, a cancellation during the start would leave the child running.
            await _end(await starting)
            raise
        finally:
            pipe.close_writer()
        status = await _run(process, pipe, limits, on_progress)
        return await asyncio.to_thread(_outcome, status, report, errors, reader, limits, most_bytes)


async def _run(process: Process, pipe: ProgressPipe, limits: Limits, on_progress: OnProgress) -> int:
    """Return the exit status, negative for a signal. Each OCR page extends the time limit, up to a bound."""
    loop = asyncio.get_running_loop()
    last: PageBegun | None = None
    end_of_all = 0.0
    try:
        async with asyncio.timeout(limits.wall_seconds) as timeout:
            while (progress := await pipe.next()) is not None:
                left = (timeout.when() or loop.time()) - loop.time()
                timeout.reschedule(None)  # no limit while `on_progress` waits; the reader has its own alarm
                await on_progress(progress)
                now = loop.time()
                if isinstance(progress, PageBegun):
                    if last is None:
                        end_of_all = now + limits.ocr_seconds
                    last = progress
                    timeout.reschedule(min(now + limits.wall_seconds, end_of_all))
                else:  # counting the pages does not extend the time
                    timeout.reschedule(now + left)
            return await process.wait()
    except TimeoutError:
        if last is None:
            raise too_long(limits.wall_seconds) from None
        if loop.time() >= end_of_all:
            raise ExtractionFailed(
                "extraction_timeout",
                f"Reading the pages by OCR took more than {limits.ocr_seconds:g} seconds: it came to page "
                f"{last.number:,} of {last.pages:,}. Split the file and add the parts.",
            ) from None
        raise ExtractionFailed(
            "extraction_timeout",
            f"Page {last.number:,} was not read by OCR within {limits.wall_seconds:g} seconds. "
            "Take it out of the file and add the rest.",
        ) from None
    finally:
        await _end(process)


async def _end(process: Process) -> None:
    if process.returncode is None:
        # The child leads a session, and so a process group, which includes all its descendants.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _command(task: Task) -> list[str]:
    return [*reader_command(_WORKER), msgspec.json.encode(task).decode()]


def reader_command(module: str) -> list[str]:
    """Return the command that runs a module of ours as readers are run."""
    return [sys.executable, "-B", "-P", "-s", "-m", module]


def reader_environment() -> dict[str, str]:
    """Return a minimal environment: the modules of this process, one thread, no writable folder."""
    return {
        "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry),
        "PYTHONUTF8": "1",
        **dict.fromkeys(["HOME", "XDG_CACHE_HOME", "TMPDIR"], os.devnull),  # no folder can be made in it
        **dict.fromkeys(_THREADS, "1"),
        "MALLOC_ARENA_MAX": "2",  # each arena reserves address space, which the memory limit counts
    }


def _outcome(
    status: int, report: IO[bytes], errors: IO[bytes], reader: Reader, limits: Limits, most_bytes: int
) -> Extraction | Picture:
    report.seek(0)
    try:
        outcome: Report = _REPORT.decode(report.read())
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _died(status, errors, reader, limits, most_bytes) from None
    if isinstance(outcome, Failure):
        raise ExtractionFailed(outcome.code, outcome.message)
    return outcome


def _died(
    status: int, errors: IO[bytes], reader: Reader, limits: Limits, most_bytes: int
) -> ExtractionFailed:
    """Return the reason for a missing report. Messages never repeat output, which may quote the file."""
    errors.seek(0)
    printed = errors.read(_ERROR_BYTES)
    if -status == signal.SIGXCPU:
        return ExtractionFailed(
            "extraction_timeout",
            "Reading the file takes far more work than its size accounts for: what is in it may refer to "
            "itself. Open it in the program that made it, save it again and try once more.",
        )
    if -status == signal.SIGALRM:
        return too_long(limits.wall_seconds)
    is_denied = -status == signal.SIGABRT and reader.aborts_without_memory
    # A SIGKILL not sent by this process comes from the kernel's out-of-memory killer.
    if is_denied or -status == signal.SIGKILL or any(sign in printed for sign in _MEMORY_SIGNS):
        return too_much_memory(most_bytes)
    return crashed(f"signal {-status}" if status < 0 else f"status {status}")


@contextmanager
def open_progress_pipe(most_pages: int) -> Iterator[ProgressPipe]:
    """Yield a pipe, closed at the end. The child may report at most `most_pages` OCR pages."""
    reader, writer = os.pipe()
    pipe = ProgressPipe(reader, writer, most_pages)
    try:
        yield pipe
    finally:
        pipe.close_writer()
        os.close(reader)


class ProgressPipe:
    """The parent's end. `writer` is the child's descriptor; close it here once the child has started."""

    def __init__(self, reader: int, writer: int, most_pages: int) -> None:
        self._reader = reader
        self._writer: int | None = writer
        self._most_pages = most_pages
        self._counted = False
        self._last = -1

    @property
    def writer(self) -> int:
        assert self._writer is not None, "it was closed"
        return self._writer

    def close_writer(self) -> None:
        """Close the child's end in this process, so that the pipe ends when the child does."""
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None

    async def next(self) -> Progress | None:
        """Return the number of pages, or the next page; None after the child has closed its end.

        Raises ExtractionFailed for invalid records, or records that would extend the time limit forever.
        """
        record = b""
        while len(record) < RECORD_BYTES:
            await self._readable()
            if not (data := os.read(self._reader, RECORD_BYTES - len(record))):
                return None
            record += data
        page = PageBegun.of(record)
        if page == (0, page.pages, 0, 0) and page.pages and not self._counted and self._last < 0:
            self._counted = True
            return PagesCounted(page.pages)
        if not (self._last < page.done < page.wanted <= self._most_pages and 0 < page.number <= page.pages):
            raise crashed("it reported a page that does not exist")
        self._last = page.done
        return page

    async def _readable(self) -> None:
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._reader, arrived.set)
        try:
            await arrived.wait()
        finally:
            loop.remove_reader(self._reader)
