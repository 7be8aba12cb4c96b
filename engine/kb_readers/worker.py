"""The child process that reads one file: standard input to a report on standard output.

Run as `python -m kb_readers.worker TASK`. It sets resource limits and enters the sandbox before it looks at
the file, since the parsers may have bugs that a hostile file exploits.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import sys
from collections.abc import Callable
from importlib import import_module

import msgspec

from kb_readers.failures import ExtractionFailed, crashed, no_sandbox, too_much_memory
from kb_readers.model import Context, Extraction, Failure, Limits, PageBegun, Picture, Progress, Report, Task
from kb_readers.sandbox import enter

_NICENESS = 10
_OPEN_FILES = 64
_REPORT_SLACK_BYTES = 16 << 20
_ALARM_SLACK_SECONDS = 5.0
_CPU_SLACK_SECONDS = 1  # if the soft and hard limits are equal, the kernel kills without SIGXCPU
_PR_SET_PDEATHSIG = 1
_NO_ROOM = "failed to map segment"  # the loader's message when a library exceeds the memory limit


def main() -> None:
    """Read the file, report, and exit the process without clean-up, which may hang or crash."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    # Die with the parent, even if it is killed; on Linux the kernel ensures that.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != task.parent:
        os._exit(1)
    _bind(task)
    missing = {} if task.limits.sandbox == "off" else enter(task.reader.package).missing
    # Standard output is reserved for the report; prints of libraries go to standard error.
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if missing and task.limits.sandbox == "require":
        outcome: Report = Failure.of(no_sandbox(missing))
    else:
        outcome = _report(task)
    report = memoryview(msgspec.msgpack.encode(outcome))
    while report:
        report = report[os.write(out, report) :]
    # Threads of a library may still be running, and destructors may crash in a broken state.
    os._exit(0)


def _report(task: Task) -> Report:
    def report_progress(progress: Progress) -> None:
        os.write(task.progress_fd, progress.record)
        if isinstance(progress, PageBegun):
            _set_alarm(task.limits)

    try:
        # Imported late: the parsers take most of the start-up time.
        read: Callable[..., Extraction | Picture] = getattr(
            import_module(task.reader.module), task.reader.function
        )
        known = None
        if task.known_fd is not None:
            with os.fdopen(task.known_fd, "rb") as file:
                known = msgspec.msgpack.decode(file.read(), type=Extraction)
        context = [Context(task.format, task.limits, report_progress, known)] * task.reader.takes_context
        outcome = read(sys.stdin.buffer.read(), *context)
        return outcome.within(task.limits) if isinstance(outcome, Extraction) else outcome
    except ExtractionFailed as failed:
        return Failure.of(failed)
    except MemoryError:
        return Failure.of(too_much_memory(_memory_of(task)))
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError) and _NO_ROOM in str(error):
            return Failure.of(too_much_memory(_memory_of(task)))
        package = error.name or "that reads it"
        return Failure(
            "extraction_failed",
            f"The package {package} cannot be loaded. Install it again, then send the file again.",
        )
    except BaseException as error:  # noqa: BLE001 - the boundary; a panic in Rust is no Exception
        return Failure.of(crashed(type(error).__name__))


def _bind(task: Task) -> None:
    limits, size = task.limits, os.fstat(sys.stdin.fileno()).st_size
    cpu_seconds = {
        "wall": limits.wall_seconds,
        "ocr": limits.wall_seconds + limits.ocr_seconds,
        "size": min(limits.wall_seconds, limits.cpu_seconds + size / limits.cpu_bytes),
    }[task.reader.cpu_limit]
    os.nice(_NICENESS)
    # The parent ends slow readers; these limits end a reader whose parent no longer can.
    _set_alarm(limits)
    _limit(resource.RLIMIT_CPU, math.ceil(cpu_seconds) + 1, _CPU_SLACK_SECONDS)
    _limit(resource.RLIMIT_AS, _memory_of(task))
    _limit(resource.RLIMIT_FSIZE, limits.text_bytes + _REPORT_SLACK_BYTES)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _limit(resource.RLIMIT_CORE, 0)


def _memory_of(task: Task) -> int:
    return task.limits.memory_for(task.reader, os.fstat(sys.stdin.fileno()).st_size)


def _set_alarm(limits: Limits) -> None:
    signal.setitimer(signal.ITIMER_REAL, limits.wall_seconds + _ALARM_SLACK_SECONDS)


def _limit(what: int, most: int, slack: int = 0) -> None:
    """Limit a resource permanently, unless a lower limit is set; the kernel kills beyond `slack`."""
    _, hard = resource.getrlimit(what)
    last = most + slack if hard == resource.RLIM_INFINITY else min(most + slack, hard)
    resource.setrlimit(what, (min(most, last), last))


if __name__ == "__main__":
    main()
