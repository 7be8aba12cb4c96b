"""`kb bench startup`: how long `kb stdio` takes to its first answer, beside what it must import.

In turns: the import of the official SDK's server and of aiohttp alone; `kb stdio` with the toolset `kb`;
`kb stdio` with the toolset `textfile` over a file of 10 MiB. Each is a process of its own; the clock runs
from its start until the whole answer to `initialize` has been read (for the import: until it ends).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from kb_load.bench import Option
from kb_load.machine import Machine, describe
from kb_load.plots import Sheet
from kb_load.processes import clean_environment
from kb_load.stats import table

FILE_BYTES = 10 * 1024 * 1024
REQUEST = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
    "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "startup", "version": "1"},
}}  # fmt: skip


IMPORT = "import mcp.server, aiohttp"
CASES: dict[str, tuple[str, ...] | None] = {
    IMPORT: None,
    "kb stdio": (),
    "kb stdio, textfile of 10 MiB": ("--toolset", "textfile", "--file", "FILE"),
}


class StartupReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run: seconds by case."""

    machine: Machine
    seconds: dict[str, list[float]]


def first_answer_seconds(*arguments: str) -> float:
    """Seconds until `kb stdio` has answered its first request."""
    command = [sys.executable, "-m", "kb_cli.main", "stdio", *arguments]
    started = time.perf_counter()
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=clean_environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(REQUEST).encode() + b"\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        seconds = time.perf_counter() - started
        process.stdin.close()
    if "result" not in answer:
        raise RuntimeError(f"{command}: {answer}")
    return seconds


def run(*, rounds: Annotated[int, Option("turns")] = 7, note: Callable[[str], None] = print) -> StartupReport:
    """Measure in turns; the first turn fills the caches of the disk and does not count."""
    machine = describe()
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_bytes((b"All work and no play makes a dull text. " * (FILE_BYTES // 40 + 1))[:FILE_BYTES])
        for turn in range(rounds + 1):
            for name, arguments in CASES.items():
                if arguments is None:
                    started = time.perf_counter()
                    subprocess.run([sys.executable, "-c", IMPORT], check=True)
                    taken = time.perf_counter() - started
                else:
                    taken = first_answer_seconds(
                        *(str(text) if each == "FILE" else each for each in arguments)
                    )
                if turn:
                    seconds[name].append(round(taken, 4))
            note(f"turn {turn} of {rounds}")
    return StartupReport(machine=machine, seconds=seconds)


def text(report: StartupReport) -> str:
    """The report for people: medians, and ratios to the import alone."""
    medians = {name: statistics.median(values) for name, values in report.seconds.items()}
    yardstick = medians[IMPORT]
    rows = [[name, f"{median:.3f}", f"{median / yardstick:.2f}"] for name, median in medians.items()]
    return f"{table(['to the first answer', 's, median', 'ratio'], rows)}\n{report.machine.line()}"


def plot(report: StartupReport, path: Path) -> None:
    """Draw the medians."""
    medians = {name: [statistics.median(values)] for name, values in report.seconds.items()}
    sheet = Sheet(1, title="kb stdio: to the first answer")
    sheet.bars(["median"], medians, "{:.2f}", y="seconds")
    sheet.save(path, under=report.machine.line())
