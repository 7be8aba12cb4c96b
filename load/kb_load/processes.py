"""Start, sample and stop processes under load, and describe the machine.

Samples hold resident memory, processor share and open sockets.
"""

from __future__ import annotations

import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import linear_regression

import msgspec
import psutil

PACKAGES = (
    "kb-for-agents", "aiohttp", "msgspec", "uvloop", "mcp", "fastmcp", "uvicorn", "httptools", "starlette",
    "httpx", "locust", "apsw", "numpy", "onnxruntime", "openvino",
)  # fmt: skip
LOOPBACK = "127.0.0.1"
_PORTS = range(16_384, 32_768)
READY_SECONDS = 300.0
_TAIL_LINES = 20
_STOP_SECONDS = 20.0
_SETTINGS = (
    *("KB_", "RAGLER_", "MCP_", "FASTMCP_", "OPENAI_", "OTEL_", "QDRANT_"),
    *("LOG_LEVEL", "ENABLE_METRICS", "REQUEST_TIMEOUT", "VECTOR_DB_TYPE"),
)
MEBIBYTE = 1024 * 1024
_MOST_SAMPLES = 20_000


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine, its load at the start of the measurement, and the versions of the packages."""

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
        """Return one line for a plot or a table."""
        return (
            f"{self.processor}, {self.cores} cores, {self.memory_gib:.0f} GiB, load {self.load_before:.1f} "
            f"before, Python {self.python}, commit {self.commit}, {self.measured_at}"
        )


def describe() -> Machine:
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    commit = "unknown"
    with suppress(OSError, subprocess.SubprocessError):
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout.strip()
    return Machine(
        measured_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        system=f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        processor=names[0] if names else platform.processor() or "unknown processor",
        cores=os.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        load_before=round(os.getloadavg()[0], 2),
        python=platform.python_version(),
        commit=commit,
        versions=versions,
    )


class NotReady(RuntimeError):
    """A process ended, or did not listen in time; the message has the end of its log."""


def free_port() -> int:
    """Return a loopback port without a listener.

    It is below the ephemeral ports, which the system could give to a connection before the port is bound.
    """
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port


def clean_environment(**extra: str) -> dict[str, str]:
    """Return this process's environment without settings of kb, and with `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    return {**kept, **extra}


class Leash:
    """Send a signal to a process when this process ends, even if killed, unless released before.

    A shell waits for the end of a pipe from this process. PR_SET_PDEATHSIG would signal at the end of the
    parent's thread, and asyncio starts processes from threads that end earlier than the process.
    """

    _WAIT = 'exec 3<&0; (read -r _ <&3 || kill -s "$1" -- "$2") >/dev/null 2>&1 &'

    def __init__(self, target: int, signal_name: str) -> None:
        """`target` is a process id, or the negative id of a process group."""
        waits, self._held = os.pipe()
        try:
            command = ["/bin/sh", "-c", self._WAIT, "sh", signal_name, str(target)]
            subprocess.run(command, stdin=waits, check=True, start_new_session=True)
        finally:
            os.close(waits)

    def release(self) -> None:
        """Cancel the signal, after the process has ended."""
        if self._held >= 0:
            with suppress(BrokenPipeError):
                os.write(self._held, b"\n")
            os.close(self._held)
            self._held = -1


@dataclass(frozen=True, slots=True)
class Running:
    """A process started by `running`. Its output goes to the file `log`: an unread pipe would block it."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    def tail(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    def cpu_seconds(self) -> float:
        """Return the processor seconds, user and system, of the process and its children."""
        return self._total(lambda process: sum(process.cpu_times()[:2]))

    def resident_bytes(self) -> float:
        return self._total(lambda process: process.memory_info().rss)

    def _total(self, read: Callable[[psutil.Process], float]) -> float:
        total = 0.0
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.pid)
            for process in [parent, *parent.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    total += read(process)
        return total

    def stop(self) -> None:
        """Send SIGTERM, and after a time-out SIGKILL to the process group."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        try:
            self.popen.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait(_STOP_SECONDS)


@contextmanager
def running(
    name: str, arguments: Sequence[str], folder: Path, *, port: int, **environment: str
) -> Iterator[Running]:
    """Run `python <arguments>` with its output in `folder`; yield when it listens on `port`, and stop it at
    exit. Raises NotReady: the process does not listen in time.
    """
    log = folder / f"{name.replace(' ', '-')}.log"
    with log.open("wb") as output:
        popen = subprocess.Popen(
            [sys.executable, *arguments],
            env=clean_environment(**environment),
            cwd=folder,  # without a kb.toml
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process = Running(name, popen, log)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            if popen.poll() is not None:
                raise NotReady(f"{name} ended with {popen.returncode}:\n{process.tail()}")
            if time.monotonic() > deadline:
                raise NotReady(f"{name} does not listen on port {port}:\n{process.tail()}")
            try:
                socket.create_connection((LOOPBACK, port), timeout=1.0).close()
                break
            except OSError:
                time.sleep(0.05)
        yield process
    finally:
        process.stop()


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Resource usage of a process and its children at one moment; `cpu` in cores."""

    seconds: float
    name: str
    resident_mib: float
    cpu: float
    sockets: int


class Sampler:
    """Sample each process every `interval` seconds from a thread, until the context exits."""

    def __init__(self, processes: Mapping[str, int], *, interval: float = 1.0, sockets: bool = True) -> None:
        """`processes` maps names to process ids."""
        self._roots = {name: psutil.Process(pid) for name, pid in processes.items()}
        self._interval = interval
        self._sockets = sockets
        self._began = time.monotonic()
        self._before: dict[str, tuple[float, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self.samples: list[Sample] = []

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10)

    def _run(self) -> None:
        while len(self.samples) < _MOST_SAMPLES:
            for name, root in self._roots.items():
                with suppress(psutil.NoSuchProcess):
                    self.samples.append(self._take(name, root))
            if self._ended.wait(self._interval):
                return

    def _take(self, name: str, root: psutil.Process) -> Sample:
        resident = cpu_seconds = 0.0
        sockets = 0
        for process in [root, *root.children(recursive=True)]:
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    resident += process.memory_info().rss
                    cpu_seconds += times.user + times.system
                if self._sockets:
                    sockets += len(process.net_connections(kind="tcp"))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        now = time.monotonic()
        then, before = self._before.get(name, (now, cpu_seconds))
        self._before[name] = (now, cpu_seconds)
        share = (cpu_seconds - before) / (now - then) if now > then else 0.0
        return Sample(
            seconds=round(now - self._began, 2),
            name=name,
            resident_mib=round(resident / MEBIBYTE, 2),
            cpu=round(max(0.0, share), 3),
            sockets=sockets,
        )


def of(samples: Sequence[Sample], name: str) -> list[Sample]:
    """Return the samples of one process, in order of time."""
    return [sample for sample in samples if sample.name == name]


def slope(samples: Sequence[Sample]) -> float:
    """Return the growth of resident memory in MiB a minute, by least squares.
    Raises ValueError: the samples are of fewer than two moments.
    """
    if len({sample.seconds for sample in samples}) < 2:
        raise ValueError("a slope needs two samples at different moments")
    minutes = [sample.seconds / 60 for sample in samples]
    return linear_regression(minutes, [sample.resident_mib for sample in samples]).slope
