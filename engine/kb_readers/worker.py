"""The child process that reads one file: standard input to a report on standard output.

Run as `python -m kb_readers.worker TASK`. It binds itself by limits before it looks at the file,
since what reads the file is not to be trusted with what is in it.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module

import msgspec

from kb_readers.failures import ExtractionFailed, crashed, not_loaded, too_much_memory
from kb_readers.model import Context, Extraction, Failure, Limits, PageBegun, Progress, Report, Task

_NICENESS = 10
_OPEN_FILES = 64
_REPORT_SLACK_BYTES = 16 << 20
_ALARM_SLACK_SECONDS = 5.0
_CPU_SLACK_SECONDS = 1  # a process that reaches both bounds at once is killed without a signal that says why
_PR_SET_PDEATHSIG = 1
_NO_ROOM = "failed to map segment"  # the loader's words when the memory limit is smaller than a library


def main() -> None:
    """Read the file and report. Never returns: it leaves without the clean-up of what may be broken."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    _end_with(task.parent)
    _bind(task)
    # The report has the standard output for itself; whatever prints, prints into the errors.
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _write(out, msgspec.msgpack.encode(_report(task)))
    # Threads of a library may still be running, and destructors that meet a broken state may crash.
    os._exit(0)


def _report(task: Task) -> Report:
    try:
        read = _load(task)
        return read(sys.stdin.buffer.read()).within(task.limits)
    except ExtractionFailed as failed:
        return Failure.of(failed)
    except MemoryError:
        return Failure.of(too_much_memory(task.limits.memory_bytes))
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError) and _NO_ROOM in str(error):
            return Failure.of(too_much_memory(task.limits.memory_bytes))
        return Failure.of(not_loaded(error.name or "that reads it"))
    except BaseException as error:  # noqa: BLE001 - the boundary; a panic in Rust is no Exception
        return Failure.of(crashed(type(error).__name__))


def _load(task: Task) -> Callable[[bytes], Extraction]:
    """The reader, imported only now: the parsers are most of the start-up."""
    read: Callable[..., Extraction] = getattr(import_module(task.reader.module), task.reader.function)
    if not task.reader.takes_context:
        return read
    known = None
    if task.known_fd is not None:
        with os.fdopen(task.known_fd, "rb") as file:
            known = msgspec.msgpack.decode(file.read(), type=Extraction)
    context = Context(task.format, task.limits, partial(_report_progress, task), known)
    return lambda data: read(data, context)


def _report_progress(task: Task, progress: Progress) -> None:
    os.write(task.progress_fd, progress.record)
    if isinstance(progress, PageBegun):
        _set_alarm(task.limits)


def _end_with(parent: int) -> None:
    """Die with the parent, even when it was killed: by the kernel's promise where there is one."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _bind(task: Task) -> None:
    limits = task.limits
    os.nice(_NICENESS)
    # The parent ends a reader that takes too long; these end one whose parent no longer can.
    _set_alarm(limits)
    _limit(resource.RLIMIT_CPU, math.ceil(_cpu_seconds(task)) + 1, _CPU_SLACK_SECONDS)
    _limit(resource.RLIMIT_AS, limits.memory_bytes)
    _limit(resource.RLIMIT_FSIZE, limits.text_bytes + _REPORT_SLACK_BYTES)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _limit(resource.RLIMIT_CORE, 0)


def _cpu_seconds(task: Task) -> float:
    limits = task.limits
    match task.reader.cpu_limit:
        case "wall":
            return limits.wall_seconds
        case "ocr":
            return limits.wall_seconds + limits.ocr_seconds
        case "size":
            by_size = limits.cpu_seconds + os.fstat(sys.stdin.fileno()).st_size / limits.cpu_bytes
            return min(limits.wall_seconds, by_size)


def _set_alarm(limits: Limits) -> None:
    signal.setitimer(signal.ITIMER_REAL, limits.wall_seconds + _ALARM_SLACK_SECONDS)


def _limit(what: int, most: int, slack: int = 0) -> None:
    """Bound a resource for good, or leave the tighter bound that is there; the kernel kills past `slack`."""
    _, hard = resource.getrlimit(what)
    last = most + slack if hard == resource.RLIM_INFINITY else min(most + slack, hard)
    resource.setrlimit(what, (min(most, last), last))


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


if __name__ == "__main__":
    main()
