"""Processes under load: started on free loopback ports, watched, and ended by their ids."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

    def family(self) -> list[psutil.Process]:
        """The process and those it started."""
        try:
            parent = psutil.Process(self.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_seconds(self) -> float:
        """Processor seconds that it and its children have used, of all threads, user and system."""
        total = 0.0
        for process in self.family():
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def resident_bytes(self) -> int:
        """Resident memory of it and its children."""
        total = 0
        for process in self.family():
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
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
    process = start(name, arguments, folder, **environment)
    try:
        wait_until_listening(process, port)
        yield process
    finally:
        process.stop()


def start(name: str, arguments: Sequence[str], folder: Path, **environment: str) -> Running:
    """Start `python <arguments>`; whoever starts it stops it."""
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
    return Running(name, popen, log)


def wait_until_listening(process: Running, port: int) -> None:
    """Return when somebody listens on `port`. Raises `NotReady`."""
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
