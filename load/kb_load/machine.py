"""On what a figure was measured: without it a figure says nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import psutil

PACKAGES = (
    "kb-for-agents", "aiohttp", "msgspec", "uvloop", "mcp", "fastmcp", "uvicorn", "httptools", "starlette",
    "httpx", "locust", "apsw", "numpy", "onnxruntime",
)  # fmt: skip


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine, its load when the measurement began, and the versions of what ran."""

    measured_at: str
    system: str
    processor: str
    cores: int
    memory_gib: float
    load_before: float
    python: str
    commit: str
    versions: dict[str, str]

    def line(self) -> str:
        """One line for a plot or a table."""
        return (
            f"{self.processor}, {self.cores} cores, {self.memory_gib:.0f} GiB, load {self.load_before:.1f} "
            f"before, Python {self.python}, commit {self.commit}, {self.measured_at}"
        )


def describe() -> Machine:
    """This machine, now."""
    return Machine(
        measured_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        system=f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        load_before=round(os.getloadavg()[0], 2),
        python=platform.python_version(),
        commit=_commit(),
        versions={name: version for name in PACKAGES for version in _versions(name)},
    )


def _versions(name: str) -> Iterator[str]:
    with suppress(PackageNotFoundError):
        yield version(name)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
