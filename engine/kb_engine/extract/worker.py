"""The child process that reads one file: standard input to a report on standard output.

Run as `python -m kb_engine.extract.worker TASK`. It binds itself by limits before it looks at the file,
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

import msgspec

from kb_config.installing import install_command
from kb_engine.extract.failures import ExtractionFailed, crashed, too_much_memory
from kb_engine.extract.formats import FORMATS
from kb_engine.extract.model import Extraction, Limits
from kb_engine.extract.report import SCANS, Failure, PageBegun, Reading, Report, Task

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
    # xberg's threads may still be running, and its destructors have been seen to crash.
    os._exit(0)


def _report(task: Task) -> Report:
    try:
        return _reader(task)(sys.stdin.buffer.read()).within(task.limits)
    except ExtractionFailed as failed:
        return Failure.of(failed)
    except MemoryError:
        return Failure.of(too_much_memory(task.limits.memory_bytes))
    except ImportError as error:
        return Failure.of(_not_imported(error, task.limits))
    except BaseException as error:  # noqa: BLE001 - the boundary; a panic in Rust is no Exception
        return Failure.of(crashed(type(error).__name__))


def _not_imported(error: ImportError, limits: Limits) -> ExtractionFailed:
    if not isinstance(error, ModuleNotFoundError) and _NO_ROOM in str(error):
        return too_much_memory(limits.memory_bytes)
    return ExtractionFailed(
        "extraction_failed",
        f"The engine cannot load the package {error.name}. Install it with: {install_command('engine')}",
    )


def _reader(task: Task) -> Callable[[bytes], Extraction]:
    """What reads the file, imported only now: the parsers are most of the start-up."""
    match task.reader:
        case "html":
            from kb_engine.extract.html import read_html as read
        case "pdf":
            from kb_engine.extract.pdf import read_pdf

            read = partial(read_pdf, tell=partial(_tell, task))
        case "docx":
            from kb_engine.extract.docx import read_docx as read
        case "pptx":
            from kb_engine.extract.pptx import read_pptx as read
        case "xlsx":
            from kb_engine.extract.xlsx import read_xlsx as read
        case "svg":
            from kb_engine.extract.svg import read_svg as read
        case "jpg" | "png":
            from kb_engine.extract.picture import read_picture

            read = partial(read_picture, fmt=FORMATS[task.reader])
        case "scans":
            from kb_engine.extract.scans import read_scans

            read = partial(read_scans, known=_known(task), limits=task.limits, tell=partial(_tell, task))
        case _:
            raise ExtractionFailed("unsupported_format", f"No reader for the format {task.reader}.")
    return read


def _known(task: Task) -> Extraction | None:
    if task.known is None:
        return None
    with os.fdopen(task.known, "rb") as file:
        return msgspec.msgpack.decode(file.read(), type=Extraction)


def _tell(task: Task, page: Reading) -> None:
    os.write(task.told, page.record)
    if isinstance(page, PageBegun):
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
    if task.reader == "pdf":
        by_size = limits.cpu_seconds + os.fstat(sys.stdin.fileno()).st_size / limits.cpu_bytes
        return min(limits.wall_seconds, by_size)
    return limits.wall_seconds + (limits.ocr_seconds if task.reader == SCANS else 0)


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
