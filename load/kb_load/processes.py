"""Processes under load: started on free loopback ports, watched, and ended by their ids."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

LOOPBACK = "127.0.0.1"
READY_SECONDS = 90.0
_STOP_SECONDS = 20.0
_SETTINGS = ("KB_", "RAGLER_", "MCP_", "LOG_LEVEL", "ENABLE_METRICS", "REQUEST_TIMEOUT", "FASTMCP_")


class NotReady(RuntimeError):
    """A process ended, or did not listen in time; the message shows the end of its log."""


def free_port() -> int:
    """A port on loopback that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without any setting of kb, and with `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    return {**kept, **extra}


@dataclass(frozen=True, slots=True)
class Running:
    """A process that was started here. Its output goes to the file `log`, so that nobody must read it."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    def tail(self, lines: int = 20) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def cpu_seconds(self) -> float:
        """Processor seconds that it and its children have used, of all threads, user and system."""
        return self._total(lambda process: sum(process.cpu_times()[:2]))

    def resident_bytes(self) -> float:
        """Resident memory of it and its children."""
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
        """SIGTERM; after a while SIGKILL to its group."""
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
    """`python <arguments>` with its output in `folder`, listening on `port`; stopped in the end.

    Raises:
        NotReady: it does not come to listen.
    """
    log = folder / f"{name.replace(' ', '-')}.log"
    with log.open("wb") as output:
        popen = subprocess.Popen(
            [sys.executable, *arguments],
            env=clean_environment(**environment),
            cwd=folder,  # where no kb.toml lies
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process = Running(name, popen, log)
    try:
        _wait_until_listening(process, port)
        yield process
    finally:
        process.stop()


def _wait_until_listening(process: Running, port: int) -> None:
    pause = threading.Event()
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.popen.poll() is not None:
            raise NotReady(f"{process.name} ended with {process.popen.returncode}:\n{process.tail()}")
        try:
            with socket.create_connection((LOOPBACK, port), timeout=1.0):
                return
        except OSError:
            pause.wait(0.05)
    raise NotReady(f"{process.name} does not listen on port {port}:\n{process.tail()}")
