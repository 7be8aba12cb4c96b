"""The engine's log on stderr, without texts of documents and without secrets.

One JSON object a line; on a terminal, where a person reads them, short lines in words instead.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_NAMES = {logging.WARNING: "warn", logging.CRITICAL: "error"}
_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

access = logging.getLogger("kb_engine.access")


class JsonFormatter(logging.Formatter):
    """`timestamp` (ISO 8601, UTC), `level`, `logger`, `message`, then the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        entry: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": _NAMES.get(record.levelno, record.levelname.lower()),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in record.__dict__.items() if name not in _OWN}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry, enc_hook=str).decode()


class TerminalFormatter(logging.Formatter):
    """For a person at a terminal: local time, part, level, message, then the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it where there is one."""
        moment = datetime.fromtimestamp(record.created).astimezone()
        level = _NAMES.get(record.levelno, record.levelname.lower())
        fields = [f"{name}={value}" for name, value in record.__dict__.items() if name not in _OWN]
        line = " ".join([f"{moment:%H:%M:%S}", "engine", f"{level:5}", record.getMessage(), *fields])
        # A field may hold what a file or a caller brought; escaped, it cannot steer the terminal.
        line = "".join(
            sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in line
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class AccessLogger(AbstractAccessLogger):
    """A line a request, at level debug: the route and never its values, which may be tags or keys."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Log one answered request; `time` is in seconds."""
        match = request.match_info if isinstance(request, web.Request) else None
        route = match.route.resource.canonical if match and match.route.resource else "unknown"
        access.debug(
            "request",
            extra={
                "method": request.method,
                "route": route,
                "status": response.status,
                "milliseconds": round(time * 1000, 1),
            },
        )

    @property
    def enabled(self) -> bool:
        """Whether anybody reads these lines."""
        return access.isEnabledFor(logging.DEBUG)


def configure_logging(level: str) -> None:
    """Send this process's log to stderr, from `level` (debug, info, warn or error) on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TerminalFormatter() if sys.stderr.isatty() else JsonFormatter())
    logging.basicConfig(level=_LEVELS[level], handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
