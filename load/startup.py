"""How long `kb stdio` takes from its start to its first answer, beside what it must import.

    python -m load.startup [--runs 7]

In turns: the import of the official SDK's server and of aiohttp alone; `kb stdio` with the toolset `kb`;
`kb stdio` with the toolset `textfile` over a file of 10 MiB. Each is a process of its own; the clock runs
from its start until the whole answer to `tools/list` has been read (for the import: until it ends).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from load.stats import table
from tests.stack import clean_environment

FILE_BYTES = 10 * 1024 * 1024
REQUEST = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
    "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "startup", "version": "1"},
}}  # fmt: skip


def import_seconds() -> float:
    """Seconds of the import alone."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import mcp.server, aiohttp"], check=True)
    return time.perf_counter() - started


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


def main() -> None:
    """Measure in turns, print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_bytes((b"All work and no play makes a dull text. " * (FILE_BYTES // 40 + 1))[:FILE_BYTES])
        cases: dict[str, Callable[[], float]] = {
            "import mcp.server, aiohttp": import_seconds,
            "kb stdio": lambda: first_answer_seconds(),
            "kb stdio, textfile of 10 MiB": lambda: first_answer_seconds(
                "--toolset", "textfile", "--file", str(text)
            ),
        }
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        for turn in range(runs + 1):
            for name, measure in cases.items():
                taken = measure()
                if turn:  # the first turn fills the caches of the disk
                    seconds[name].append(taken)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    yardstick = next(iter(medians.values()))
    rows = [[name, f"{median:.3f}", f"{median / yardstick:.2f}"] for name, median in medians.items()]
    print(table(["to the first answer", "s, median", "ratio"], rows))


if __name__ == "__main__":
    main()
