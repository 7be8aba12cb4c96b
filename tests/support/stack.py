"""The real system for tests: `kb` as a new user starts it, in its own processes, on free ports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from kb_http.certificate import trusting
from kb_load.processes import Leash, clean_environment
from tests.support.eventually import eventually
from tests.support.patience import ANSWER_SECONDS, START_SECONDS

ROOT = Path(__file__).resolve().parents[2]


_ENDPOINT = re.compile(r"^  endpoint +(\S+)/mcp$", re.MULTILINE)
_ENGINE = re.compile(r"^  engine +(\S+)", re.MULTILINE)
"""Lines with addresses in the output of `kb up`."""


@dataclass
class Process:
    """A running command whose output is kept."""

    popen: subprocess.Popen[str]
    leash: Leash
    lines: list[str] = field(default_factory=list)
    _readers: list[threading.Thread] = field(default_factory=list)

    @classmethod
    def start(cls, *arguments: str, python: str = sys.executable, **environment: str) -> Process:
        popen = subprocess.Popen(
            [python, *arguments],
            env=clean_environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        process = cls(popen, Leash(-popen.pid, "KILL"))
        for stream in (popen.stdout, popen.stderr):
            assert stream is not None
            reader = threading.Thread(target=lambda s=stream: process.lines.extend(s), daemon=True)
            reader.start()
            process._readers.append(reader)
        return process

    @property
    def pid(self) -> int:
        return self.popen.pid

    def output(self) -> str:
        return "".join(self.lines)

    def told(self, pattern: re.Pattern[str]) -> str:
        """Wait for output that matches, and return its first group, for example a bound address.

        Raises:
            AssertionError: the process ended first, or printed no match in time.
        """

        def look() -> re.Match[str] | None:
            found = pattern.search(self.output())
            ended = found is None and self.popen.poll() is not None
            assert not ended, f"ended with {self.popen.returncode}:\n{self.output()}"
            return found

        found = eventually(look, seconds=START_SECONDS, what=f"output like {pattern.pattern}")
        assert found is not None
        return found[1]

    def stop(self, seconds: float = START_SECONDS) -> int:
        """Send SIGTERM and return the exit status; on a time-out, kill the process group."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        try:
            status = self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            for reader in self._readers:
                reader.join(ANSWER_SECONDS)
            self.leash.release()
            for stream in (self.popen.stdout, self.popen.stderr):
                if stream is not None:
                    stream.close()
        return status

    def kill(self) -> None:
        os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(START_SECONDS)


def wait_until_ready(url: str, process: Process, trusted: str | None = None) -> None:
    """Return when `url` answers 200, with a certificate that the file `trusted` verifies.

    Raises:
        AssertionError: the process ended, or did not answer in time; the message has its output.
    """

    # Loading the default certificates would take processor time from the awaited process.
    tls = trusting(Path(trusted)) if trusted else False

    def answers() -> bool:
        assert process.popen.poll() is None, f"ended with {process.popen.returncode}:\n{process.output()}"
        try:
            return http.get(url).status_code == 200
        except httpx.TransportError:
            return False

    with httpx.Client(timeout=ANSWER_SECONDS, verify=tls) as http:
        eventually(answers, seconds=START_SECONDS, what=f"an answer of {url}")


@dataclass(frozen=True)
class Stack:
    """Engine and server of one `kb up`."""

    process: Process
    home: Path
    engine_url: str
    server_url: str

    @property
    def mcp_url(self) -> str:
        return f"{self.server_url}/mcp"


@contextmanager
def running_stack(home: Path, *flags: str, **environment: str) -> Iterator[Stack]:
    """Yield a ready `kb up` with data in `home`; it is stopped afterwards.

    A certificate given by `KB_TLS_CERT` is trusted as its own issuer.
    """
    ports = {"KB_ENGINE_PORT": "0", "KB_MCP_PORT": "0"}
    process = Process.start("-m", "kb_cli.main", "up", *flags, KB_HOME=str(home), **ports | environment)
    try:
        server, engine = (process.told(pattern) for pattern in (_ENDPOINT, _ENGINE))
        wait_until_ready(f"{server}/readyz", process, environment.get("KB_TLS_CERT"))
        yield Stack(process, home, engine, server)
    finally:
        process.stop()


def own_children() -> list[psutil.Process]:
    """Descendants of this process, without those that stay for all tests of the run.

    Left out are the database server, and the resource tracker that `multiprocessing` starts with its first
    process.
    """
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.name() != "postgres" and "resource_tracker" not in " ".join(child.cmdline()):
                found.append(child)
    return found
