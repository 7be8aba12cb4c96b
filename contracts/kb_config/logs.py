"""Structured logs of server and engine: a JSON object for each line, on stderr, as stdout carries the stdio
protocol.

On a terminal the lines are short and in words instead. The fields of a record come from `extra={...}`, as in
`logging`, and follow `timestamp`, `level`, `message` and `logger`.

A thread writes the lines, so that a blocked stderr blocks only the log. An MCP client starts a stdio server
with a pipe for stderr, and some clients never read it. Once the pipe is full, a write blocks; on the event
loop it would block the server. `logging.handlers.QueueHandler` with a `QueueListener` does the same, one
record and one write at a time. A line of a call then costs about 8 microseconds more (4 to 13 were measured),
some 3 % of a call's processor time: here many lines share a write, and `info` avoids the record.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TextIO

import msgspec

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
"""The level for each value of `LOG_LEVEL`."""

_NAMES = {"DEBUG": "debug", "INFO": "info", "WARNING": "warn", "ERROR": "error", "CRITICAL": "error"}
_FOREIGN = ("aiohttp", "anyio", "asyncio", "httpx", "mcp")
_MAX_WORDS = 200
_MIN_SECRET = 4
_TOKENS = re.compile(r"\bkb_[0-9a-f]{8}_[\w-]{43}|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*", re.ASCII)
"""Keys of kb and JSON Web Tokens. They are redacted even if not configured: any text may quote one."""
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_WAITING_LINES = 10_000
_GATHER_SECONDS = 0.02
_FLUSH_SECONDS = 1.0
_NOT_FOR_PEOPLE = {"timestamp", "level", "message", "logger", "correlation_id", "user_agent"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON.

    Of an exception it keeps the type, the location, and the first 200 characters of its first line: the rest
    often quotes the input, which may be a document.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets` of four characters or more are redacted, as are texts with the form of a token."""
        super().__init__()
        self._secrets = tuple(secret for secret in secrets if len(secret) >= _MIN_SECRET)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line without its newline."""
        entry = _standard_fields(record.created, record.levelname, record.getMessage(), record.name)
        for name, value in fields_of(record).items():
            entry.setdefault(name, value)
        if record.exc_info and record.exc_info[1] is not None:
            entry["exception"] = _exception_fields(record.exc_info[1])
        return self._redacted(self._line(entry))

    def info_line(self, logger: str, message: str, fields: Mapping[str, Any]) -> str:
        """Return the line of `format` for such a record at level `info`, at less than half the cost."""
        standard = _standard_fields(time.time(), "INFO", message, logger)
        entry = {**standard, **fields, **standard}  # first in order, and no field overrides them
        return self._redacted(self._line(entry))

    def _redacted(self, line: str) -> str:
        line = _TOKENS.sub("***", line)
        for secret in self._secrets:
            line = line.replace(secret, "***")
        return line

    def _line(self, entry: dict[str, Any]) -> str:
        try:
            return _ENCODER.encode(entry).decode()
        except (UnicodeEncodeError, OverflowError):
            # Half a surrogate pair or a number over 64 bits must not prevent a log line.
            return msgspec.json.encode({key: ascii(value) for key, value in entry.items()}).decode()


class TerminalFormatter(JsonFormatter):
    """Formats a record for a person at a terminal: local time, part, level, message, fields."""

    def __init__(self, part: str, secrets: Iterable[str] = ()) -> None:
        """`part` is the part of kb that writes."""
        super().__init__(secrets)
        self._part = part

    def _line(self, entry: dict[str, Any]) -> str:
        moment = datetime.fromisoformat(entry["timestamp"]).astimezone()
        fields = [f"{name}={_plain(value)}" for name, value in entry.items() if name not in _NOT_FOR_PEOPLE]
        words = [f"{moment:%H:%M:%S}", self._part, f"{entry['level']:5}", entry["message"], *fields]
        # A field may hold a caller's input; escaped, it cannot send control sequences to the terminal.
        return "".join(
            sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in " ".join(words)
        )


class BackgroundHandler(logging.Handler):
    """Hands formatted lines to a daemon thread that writes them to a file descriptor.

    While `waiting` lines are unwritten, further ones are dropped. A line reports their number once there is
    room.
    """

    def __init__(self, descriptor: int, *, waiting: int = _WAITING_LINES) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._waiting = waiting
        self._lines: list[str] = []
        self._dropped = 0
        # A lock of its own: logging holds the handler's lock while it flushes at exit.
        self._state = threading.Lock()
        self._some = threading.Event()
        self._hurry = threading.Event()
        self._none = threading.Event()
        self._none.set()
        self._writer: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.write_line(self.format(record))

    def write_line(self, line: str) -> None:
        """Queue a formatted line."""
        with self._state:
            if len(self._lines) >= self._waiting:
                self._dropped += 1
                return
            if self._dropped:
                words = f"{self._dropped} log lines were dropped: the log was not read"
                missing = logging.LogRecord(__name__, logging.WARNING, __file__, 0, words, (), None)
                self._lines.append(self.format(missing))
                self._dropped = 0
            self._lines.append(line)
            if self._none.is_set():
                self._none.clear()
        if not self._some.is_set():  # the writer clears it before it takes the lines, so no line is missed
            self._some.set()
        # Also after a fork, which copies the handler but not the thread.
        if self._writer is None or not self._writer.is_alive():
            self._writer = threading.Thread(target=self._write_all, name="log", daemon=True)
            self._writer.start()

    def flush(self) -> None:
        """Wait until queued lines are written, for at most one second, since stderr may be blocked."""
        self._hurry.set()
        self._none.wait(_FLUSH_SECONDS)
        self._hurry.clear()

    def close(self) -> None:
        """Write queued lines as far as stderr accepts them."""
        self.flush()
        super().close()

    def _write_all(self) -> None:
        while True:
            self._some.wait()
            self._hurry.wait(
                _GATHER_SECONDS
            )  # one write for many lines: each wake-up costs more than the write
            self._some.clear()
            with self._state:
                lines, self._lines = self._lines, []
            # Not sys.stderr: a thread that holds its lock at exit would stop the interpreter.
            data = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
            with suppress(OSError):  # stderr is closed, so the failure cannot be reported
                while data:
                    data = data[os.write(self._descriptor, data) :]
            with self._state:
                if not self._lines:
                    self._none.set()


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that the caller added to the record by `extra`."""
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def configure_logging(
    level: str, *, part: str, secrets: Iterable[str] = (), stream: TextIO | None = None
) -> None:
    """Send every log of the process to `stream` (stderr): JSON, or words on a terminal.
    Raises KeyError: `level` is not in `LEVELS`.
    """
    threshold = LEVELS[level.lower()]
    stream = stream or sys.stderr
    handler: logging.Handler
    try:
        handler = BackgroundHandler(stream.fileno())
    except (AttributeError, OSError, ValueError):
        handler = logging.StreamHandler(stream)  # in memory: it cannot block
    handler.setFormatter(TerminalFormatter(part, secrets) if stream.isatty() else JsonFormatter(secrets))
    root = logging.getLogger()
    for old in root.handlers:
        old.flush()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    for name in _FOREIGN:
        # Their lines quote whole messages, which may hold a document, or URLs with a signature.
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))


def info(logger: logging.Logger, message: str, argument: str, fields: Mapping[str, Any]) -> None:
    """Log like `logger.info` with one argument and with `fields`, for lines of every call.

    If this module's handler is the only one, no record is made: the line goes directly to the writer.
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    handler, formatter = _only_handler(logger)
    if handler is None or formatter is None:
        logger.info(message, argument, extra=fields)
    else:
        handler.write_line(formatter.info_line(logger.name, message % argument, fields))


def _only_handler(logger: logging.Logger) -> tuple[BackgroundHandler | None, JsonFormatter | None]:
    """Return handler and formatter if they are this module's, and no further handler or filter applies."""
    root = logging.root
    if logger.handlers or logger.filters or logger.parent is not root or not logger.propagate:
        return None, None
    if len(root.handlers) != 1 or not isinstance(handler := root.handlers[0], BackgroundHandler):
        return None, None
    formatter = handler.formatter
    if handler.filters or handler.level > logging.INFO or not isinstance(formatter, JsonFormatter):
        return None, None
    return handler, formatter


def utc_text(moment: float, digits: int) -> str:
    """Return seconds since the epoch as RFC 3339 in UTC, with `digits` decimals of the second."""
    second = int(moment)
    return f"{_second(second)}.{int((moment - second) * 10**digits):0{digits}}Z"


def _standard_fields(created: float, level: str, message: str, logger: str) -> dict[str, Any]:
    return {
        "timestamp": utc_text(created, 3),
        "level": _NAMES.get(level, level.lower()),
        "message": message,
        "logger": logger,
    }


@lru_cache(maxsize=2)  # many lines fall into one second
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _exception_fields(error: BaseException) -> dict[str, Any]:
    words = str(error).partition("\n")[0][:_MAX_WORDS]
    frames = [
        f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    fields: dict[str, Any] = {"type": type(error).__qualname__, "message": words, "traceback": frames}
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        fields["cause"] = _exception_fields(cause)
    return fields


def _plain(value: object) -> str:
    if isinstance(value, dict) and "traceback" in value:
        raised = value["traceback"][-1] if value["traceback"] else "?"
        return f"{value['type']}: {value['message']} ({raised})"
    return _words(value)


def _words(value: object) -> str:
    return str(value)[:_MAX_WORDS]


_ENCODER = msgspec.json.Encoder(enc_hook=_words)
