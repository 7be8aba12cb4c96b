"""Commands of `kb` and engines, each a fork of one process, that are killed at a chosen moment.

Starting a process takes longest, so this module is also the program that has everything imported, and forks
for each order on its input. A moment is a change of the file system by Python, or the begin or end of a SQL
statement of SQLite. A kill within one, for example within the writes of a commit, is a kill after a time from
the first moment.
"""

from __future__ import annotations

import json
import mmap
import os
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import apsw

from kb_load.processes import Leash, clean_environment
from tests.support.patience import COMMAND_SECONDS, START_SECONDS

ENGINE = "engine"
"""The command that runs an engine instead of `kb`."""

_CHANGES = {
    "os.chmod", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate",
    "shutil.copyfile", "shutil.rmtree",
}  # fmt: skip
"""Audit events that are moments, besides files opened for writing."""
_NAME_BYTES = 200
_LAYOUT = struct.Struct(f"qqd{_NAME_BYTES}s")
"""Layout of the shared memory: numbers of moments and of commits, seconds from the first moment to the last,
and name of the last.
"""


@dataclass(frozen=True)
class Kill:
    """The time of a kill: at the moment or after the commit of that number, or after that many seconds."""

    kind: Literal["moment", "commit", "time"]
    value: float

    def __str__(self) -> str:
        return f"{self.kind} {self.value:.6g}"


class Moments:
    """The moments of a fork so far, in memory that it shares with the program."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _LAYOUT.size)
        self._numbers, self._commits = count(), count()
        self._kill: Kill | None = None
        self._committed = 0
        self._first = 0.0

    def begin(self, kill: Kill | None) -> None:
        """Follow the moments of this process."""
        self._kill = kill
        sys.addaudithook(self._audit)
        apsw.connection_hooks.append(self._follow)

    def read(self) -> tuple[int, int, float, str]:
        *numbers, name = _LAYOUT.unpack(self._shared[:])
        return *numbers, name.rstrip(b"\0").decode(errors="replace")

    def _add(self, name: str) -> None:
        number, now = next(self._numbers), time.monotonic()
        if number == 0:
            self._first = now
            if self._kill and self._kill.kind == "time":
                # SIGALRM without a handler ends the process as SIGKILL does.
                signal.setitimer(signal.ITIMER_REAL, self._kill.value)
        self._end_at("moment", number)
        held = (number + 1, self._committed, now - self._first, name.encode()[:_NAME_BYTES])
        self._shared[:] = _LAYOUT.pack(*held)

    def _end_at(self, kind: str, number: int) -> None:
        if self._kill and (self._kill.kind, self._kill.value) == (kind, number):
            os.kill(os.getpid(), signal.SIGKILL)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        opens = event == "open" and len(arguments) > 2 and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in _CHANGES or opens:
            self._add(f"{event} {arguments[0]}")

    def _follow(self, db: apsw.Connection) -> None:
        mask = apsw.SQLITE_TRACE_STMT | apsw.SQLITE_TRACE_PROFILE
        db.trace_v2(mask, self._trace)

    def _trace(self, event: dict[str, Any]) -> None:
        self._add(f"SQL {event['sql']}")
        if event["code"] == apsw.SQLITE_TRACE_PROFILE and event["sql"] == "COMMIT":
            number = next(self._commits)
            self._committed = number + 1
            self._end_at("commit", number)


def main() -> None:
    import kb_cli.backup
    import kb_cli.check
    import kb_cli.migrate
    import kb_engine.__main__ as engine
    from kb_cli import main as kb

    del kb_cli
    for line in sys.stdin:
        order, moments = json.loads(line), Moments()
        if not (pid := os.fork()):
            output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ.update(order["environment"])
            moments.begin(None if order["kill"] is None else Kill(*order["kill"]))
            command = order["command"]
            status = engine.main() if command == [ENGINE] else kb.main(command)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        print(pid, flush=True)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps([status, *moments.read()]), flush=True)


@dataclass(frozen=True)
class Ended:
    """The end of a command: its exit status, or a negative signal; numbers of moments and commits,
    seconds from the first moment to the last, and the last moment.
    """

    status: int
    moments: int
    commits: int
    seconds: float
    last: str
    output: str

    @property
    def is_killed(self) -> bool:
        return self.status in (-signal.SIGKILL, -signal.SIGALRM)


class Forks:
    """The program. It runs one command at a time."""

    def __init__(self, **environment: str) -> None:
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.killed"],
            env=clean_environment(OPENBLAS_NUM_THREADS="1", **environment),  # no threads before a fork
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        self._leash = Leash(-self._program.pid, "KILL")
        self._folder = tempfile.TemporaryDirectory(prefix="kb-kills-")
        self._output = Path(self._folder.name) / "output"

    def start(self, *command: str, kill: Kill | None = None, **environment: str) -> int:
        timing = None if kill is None else (kill.kind, kill.value)
        order = {"command": command, "kill": timing, "environment": environment, "output": str(self._output)}
        assert self._program.stdin is not None
        self._program.stdin.write(json.dumps(order).encode() + b"\n")
        return int(self._line())

    def has_ended(self) -> bool:
        """True if the command has ended, and `wait` has not been called since."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            return bool(selector.select(0))

    def wait(self) -> Ended:
        status, moments, commits, seconds, last = json.loads(self._line())
        return Ended(status, moments, commits, seconds, last, self._output.read_text(errors="replace"))

    def run(self, *command: str, kill: Kill | None = None, **environment: str) -> Ended:
        self.start(*command, kill=kill, **environment)
        return self.wait()

    def close(self) -> None:
        os.killpg(self._program.pid, signal.SIGKILL)
        self._program.wait(START_SECONDS)
        self._leash.release()
        for stream in (self._program.stdin, self._program.stdout):
            assert stream is not None
            stream.close()
        self._folder.cleanup()

    @property
    def _stdout(self) -> Any:
        return self._program.stdout

    def _line(self) -> str:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            assert selector.select(COMMAND_SECONDS), "the command has not ended"
        line = self._stdout.readline().decode()
        assert line, "the program has ended"
        return str(line)


@contextmanager
def forks(**environment: str) -> Iterator[Forks]:
    made = Forks(**environment)
    try:
        yield made
    finally:
        made.close()


if __name__ == "__main__":
    main()
