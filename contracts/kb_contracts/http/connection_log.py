"""What is logged of connections: of a request that is not HTTP one line, and not an error with a traceback.

Every client that reaches the port can send such bytes, as often as it likes, and they are read before any key
is checked. They are not logged themselves: they may be a header with a key, or the URL of an upload.
"""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

log = logging.getLogger(__name__)


class _Malformed(logging.Filter):
    """Takes out the records of requests that could not be parsed, and writes a line for each."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is of something else."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError | RequestPayloadError):
            return True
        log.info("Refused a request that is not HTTP: %s", type(error).__name__)
        return False


_MALFORMED = _Malformed()


def connection_log() -> logging.Logger:
    """The logger to hand to `web.AppRunner(logger=...)`. Faults of handlers keep their tracebacks in it."""
    logger = logging.getLogger("aiohttp.server.connections")
    logger.addFilter(_MALFORMED)  # once, however often this is called
    return logger
