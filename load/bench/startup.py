"""`bench startup`: time of `kb stdio` to its first response, beside its imports.

In turns: the import of the official SDK's server and of aiohttp alone; `kb stdio` with the toolset `kb`, to
the answer to `initialize` and to that of a search, by the engine that the first of them has started and that
all share; `kb stdio` with the toolset `textfile` over a file of 10 MiB. Each is a process of its own; the
clock runs from its start until the whole answer has been read (for the import: until it ends).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from bench import Option
from bench.runner import Report
from kb_config.rendezvous import Rendezvous
from kb_load.messages import CLIENT, HANDSHAKE
from kb_load.processes import clean_environment

_FILE_BYTES = 10 * 1024 * 1024
_IMPORT = "import mcp.server, aiohttp"
_SEARCH = "kb stdio, to a search, its engine running"
_LINGER_SECONDS = 5
_CASES: dict[str, tuple[str, ...]] = {
    _IMPORT: ("-c", _IMPORT),
    "kb stdio": ("-m", "kb_cli.main", "stdio"),
    _SEARCH: ("-m", "kb_cli.main", "stdio"),
    "kb stdio, textfile of 10 MiB": (
        *("-m", "kb_cli.main", "stdio", "--toolset", "textfile", "--file", "FILE"),
    ),
}
_INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
    "protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": CLIENT,
}}  # fmt: skip

_SEARCHED = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
    "name": "kb_search", "arguments": {"query": "granite"}, "_meta": {"progressToken": 2},
}}  # fmt: skip


class Median(NamedTuple):
    """Seconds of a case, and their ratio to those of the import alone."""

    case: str
    seconds: float
    ratio: float


class StartupReport(Report, frozen=True, kw_only=True):
    """The whole run: seconds by case."""

    columns: ClassVar = {
        "to the first answer": "{0.case}",
        "s, median": "{0.seconds:.3f}",
        "ratio": "{0.ratio:.2f}",
    }
    seconds: dict[str, list[float]]

    def rows(self) -> list[Median]:
        medians = {case: statistics.median(values) for case, values in self.seconds.items()}
        return [Median(case, median, median / medians[_IMPORT]) for case, median in medians.items()]


def run(
    *,
    rounds: Annotated[int, Option("number of rounds")] = 7,
    warm: Annotated[int, Option("turns before them that do not count", 0)] = 1,
    note: Callable[[str], None] = print,
) -> StartupReport:
    """Measure in turns; the first one fills the caches of the disk."""
    report = StartupReport(seconds={case: [] for case in _CASES})
    ask = json.dumps(_INITIALIZE).encode() + b"\n"
    search = ask + json.dumps(_SEARCHED).encode() + b"\n"
    with _data_folder() as home, tempfile.NamedTemporaryFile(suffix=".txt") as text:
        text.write((b"All work and no play makes a dull text. " * (_FILE_BYTES // 40 + 1))[:_FILE_BYTES])
        text.flush()
        for turn in range(1 - warm, rounds + 1):
            for case, arguments in _CASES.items():
                command = [sys.executable, *(text.name if each == "FILE" else each for each in arguments)]
                started = time.perf_counter()
                with subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=clean_environment(
                        KB_HOME=home, KB_EMBEDDER="hash", KB_ENGINE_LINGER=str(_LINGER_SECONDS)
                    ),
                ) as process:
                    assert process.stdin is not None
                    assert process.stdout is not None
                    if case == _IMPORT:
                        process.wait()
                        taken, good = time.perf_counter() - started, process.returncode == 0
                    else:
                        process.stdin.write(search if case == _SEARCH else ask)
                        process.stdin.flush()
                        if case == _SEARCH:
                            process.stdout.readline()
                        answer = json.loads(process.stdout.readline())
                        taken, good = time.perf_counter() - started, "result" in answer
                    process.stdin.close()
                if not good:
                    raise RuntimeError(f"{command} does not start")
                if turn > 0:
                    report.seconds[case].append(round(taken, 4))
            note(f"turn {turn} of {rounds}")
    return report


@contextmanager
def _data_folder() -> Iterator[str]:
    """Yield a data folder; remove it after its shared engine has ended."""
    with tempfile.TemporaryDirectory() as home:
        yield home
        place = Rendezvous(Path(home) / "engine")
        for _ in range(4 * _LINGER_SECONDS):
            if place.url() is None:
                break
            time.sleep(1.0)
