"""How the command ends: exit statuses that a script can tell apart, and the error that carries one."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """The exit statuses of `kb`."""

    OK = 0
    FAILED = 1
    """The engine refused or failed, a part could not start, or a job failed."""
    USAGE = 2
    """The command line or a setting is wrong; nothing was done."""
    UNREACHABLE = 3
    """No engine answers."""
    NOT_FOUND = 4
    """There is no such document or job."""
    PARTLY = 5
    """Of several things some failed and some did not."""
    INTERRUPTED = 130
    """Ctrl-C."""
    BROKEN_PIPE = 141
    """Whoever read the output went away."""


TABLE = """\
exit status:
  0  done
  1  the engine refused or failed, a job failed, or a part could not start
  2  the command line or a setting is wrong; nothing was done
  3  no engine answers
  4  no such document or job
  5  some of several things failed, the others are done
"""


class CliError(Exception):
    """A failure for people: one line that says what happened and what to do, and the exit status."""

    def __init__(self, status: Exit, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
