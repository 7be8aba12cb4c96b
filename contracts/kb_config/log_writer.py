"""Writes log lines from a thread: whoever stops reading stderr stops the log, and nothing else.

An MCP client starts a stdio server with a pipe for stderr, and some never read it. Once the pipe is
full a write blocks; on the event loop that would be the end of the server.

`logging.handlers.QueueHandler` with a `QueueListener` does this too, a record and a write at a time. A
line of a call then costs about 8 microseconds more (4 to 13 were measured), some 3 % of a call's processor
time: here many lines share a write, and `logs.info` spares the record.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress

_WAITING_LINES = 10_000
_GATHER_SECONDS = 0.02
_FLUSH_SECONDS = 1.0


class BackgroundHandler(logging.Handler):
    """Hands formatted lines to a daemon thread that writes them to a file descriptor.

    When `waiting` lines have not been written, further ones are dropped, and counted in a line of
    their own once there is room.
    """

    def __init__(self, descriptor: int, *, waiting: int = _WAITING_LINES) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._waiting = waiting
        self._lines: list[str] = []
        self._dropped = 0
        # A lock of our own: logging holds the handler's while it flushes at exit.
        self._state = threading.Lock()
        self._some = threading.Event()
        self._hurry = threading.Event()
        self._none = threading.Event()
        self._none.set()
        self._writer: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record's line."""
        self.write_line(self.format(record))

    def write_line(self, line: str) -> None:
        """Queue a line that is formatted already."""
        with self._state:
            if len(self._lines) >= self._waiting:
                self._dropped += 1
                return
            if self._dropped:
                self._lines.append(self._missing())
                self._dropped = 0
            self._lines.append(line)
            if self._none.is_set():
                self._none.clear()
        if not self._some.is_set():  # the writer clears it before it takes the lines, so none is left behind
            self._some.set()
        # Also after a fork, which takes the handler along but not the thread.
        if self._writer is None or not self._writer.is_alive():
            self._writer = threading.Thread(target=self._write_all, name="log", daemon=True)
            self._writer.start()

    def flush(self) -> None:
        """Wait until what is queued is written; a second at most, for nobody may be reading."""
        self._hurry.set()
        self._none.wait(_FLUSH_SECONDS)
        self._hurry.clear()

    def close(self) -> None:
        """Write what is queued, as far as anybody reads it."""
        self.flush()
        super().close()

    def _missing(self) -> str:
        words = f"{self._dropped} log lines were dropped: nobody read them"
        return self.format(logging.LogRecord(__name__, logging.WARNING, __file__, 0, words, (), None))

    def _write_all(self) -> None:
        while True:
            self._some.wait()
            self._hurry.wait(_GATHER_SECONDS)  # one write for many lines: waking for each costs more than it
            self._some.clear()
            with self._state:
                lines, self._lines = self._lines, []
            with suppress(OSError):  # stderr is closed: there is nowhere left to say so
                self._write("".join(f"{line}\n" for line in lines))
            with self._state:
                if not self._lines:
                    self._none.set()

    def _write(self, text: str) -> None:
        # Bare writes, not sys.stderr: a thread that holds its lock at exit would stop the interpreter.
        data = text.encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(self._descriptor, data) :]
