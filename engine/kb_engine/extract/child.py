"""One file read in a process of its own, which is ended with everything it started when it breaks a limit.

The reader's input is the open file and its output two files without a name, so that a crash of either
side leaves nothing on the disk.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

import msgspec

from kb_engine.extract.failures import (
    ExtractionFailed,
    crashed,
    too_long,
    too_much_memory,
    too_much_text,
)
from kb_engine.extract.formats import Format
from kb_engine.extract.model import DEFAULT_LIMITS, Extraction, Limits
from kb_engine.extract.report import Failure, Report, Task
from kb_engine.extract.text import read_text

_IN_PROCESS = frozenset(["txt", "md"])
_WORKER = "kb_engine.extract.worker"
_ERROR_BYTES = 4096
_REPORT: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)

_MEMORY_SIGNS = (b"memory allocation", b"bad_alloc", b"MemoryError", b"Cannot allocate memory")
_TIME_SIGNALS = (signal.SIGXCPU, signal.SIGALRM)


async def extract(path: Path, fmt: Format, *, limits: Limits = DEFAULT_LIMITS) -> Extraction:
    """The text of the file at `path`, read as `fmt` whatever its name.

    Text and Markdown are decoded in a thread; every other format is read in a child process, which
    is killed with its whole group when it takes too long or when the awaiting task is cancelled.

    Raises ExtractionFailed; OSError when the file cannot be opened.
    """
    if fmt.name in _IN_PROCESS:
        return await asyncio.to_thread(_read_here, path, fmt, limits)
    with _files(path) as files:
        status = await _run(_command(fmt, limits), files, limits)
        return await asyncio.to_thread(_outcome, status, files, limits)


def _read_here(path: Path, fmt: Format, limits: Limits) -> Extraction:
    if path.stat().st_size > limits.text_bytes:
        raise too_much_text(limits.text_bytes)
    return read_text(path.read_bytes(), fmt.mime_type).within(limits)


class _Files(NamedTuple):
    source: IO[bytes]
    report: IO[bytes]
    errors: IO[bytes]


@contextmanager
def _files(path: Path) -> Iterator[_Files]:
    with path.open("rb") as source, TemporaryFile() as report, TemporaryFile() as errors:
        yield _Files(source, report, errors)


async def _run(command: list[str], files: _Files, limits: Limits) -> int:
    """The exit status, negative for a signal. When this returns or raises, the process is gone."""
    process = await _start(command, files)
    try:
        async with asyncio.timeout(limits.wall_seconds):
            return await process.wait()
    except TimeoutError:
        raise too_long(limits.wall_seconds) from None
    finally:
        await _end(process)


async def _start(command: list[str], files: _Files) -> Process:
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=files.source,
            stdout=files.report,
            stderr=files.errors,
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


async def _end(process: Process) -> None:
    if process.returncode is None:
        # Its own session is its own group: whatever it started goes with it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _command(fmt: Format, limits: Limits) -> list[str]:
    task = msgspec.json.encode(Task(fmt.name, limits, os.getpid()))
    return [sys.executable, "-B", "-P", "-s", "-m", _WORKER, task.decode()]


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
    if -status in _TIME_SIGNALS:
        return too_long(limits.wall_seconds)
    # A kill that was not ours is the system's, which is out of memory.
    if -status == signal.SIGKILL or any(sign in printed for sign in _MEMORY_SIGNS):
        return too_much_memory(limits.memory_bytes)
    return crashed(f"signal {-status}" if status < 0 else f"status {status}")
