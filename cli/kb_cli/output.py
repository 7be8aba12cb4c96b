"""Output of a command for terminals, pipes and programs, and its exit status.

Output is coloured tables on a terminal, tab-separated lines into a pipe, or JSON. A table wider than the
terminal is written row by row instead, so that no id or value is ever cut. rich is imported only for a
terminal: it costs a script a tenth of a second.

Text from a knowledge base is untrusted: a control character can move the cursor, rename the window or type
for the user, and a bidirectional override can show another order than the one stored. Each is written as its
escape instead.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

if TYPE_CHECKING:
    from rich.console import Console

EXIT_STATUSES = """\
exit status:
  0  done
  1  the engine refused or failed, a job failed, or a part could not start
  2  the command line or a setting is wrong; nothing was done
  3  no engine answers
  4  no such document, job or collection
  5  some items failed, the others are done
"""
_CONTROL = "\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_IN_TEXT = re.compile(f"[\x00-\x08\x0b-\x1f{_CONTROL}]")
_IN_LINE = re.compile(f"[\x00-\x1f\u2028\u2029{_CONTROL}]")
_IN_JSON = re.compile(f"[{_CONTROL}]")
_UNBOUNDED = 100_000  # wider than any table, to measure without wrapping
_INDENT = 2
_PROSE = 24
"""Least width of a column of texts, which may wrap, in characters."""


class Exit(IntEnum):
    """Exit statuses of `kb`; `EXIT_STATUSES` describes them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    PARTLY = 5
    INTERRUPTED = 130
    """Ctrl-C."""
    BROKEN_PIPE = 141
    """The reader closed the output."""


class CliError(Exception):
    """A failure for people: one line with the failure and advice. Each class has its exit status."""

    status = Exit.FAILED

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UsageError(CliError):
    """The command line or a setting is wrong."""

    status = Exit.USAGE


class Unreachable(CliError):
    """No engine answers."""

    status = Exit.UNREACHABLE


class NotFound(CliError):
    """There is no such document, job or collection."""

    status = Exit.NOT_FOUND


class Interrupted(CliError):
    """Ctrl-C, with the state that it left."""

    status = Exit.INTERRUPTED


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that suggests the nearest of `known`; empty if none is near."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, which takes an "s" unless it is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def confirmed(question: str) -> bool:
    """True if the user at the terminal confirms. Raises CliError: there is no terminal."""
    if not sys.stdin.isatty():
        raise UsageError("this needs a confirmation on a terminal; without one, pass --yes")
    sys.stderr.write(printable_line(question) + " [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def printable_text(value: str) -> str:
    """Return `value` without control characters except newline and tab; CRLF counts as a newline."""
    return _IN_TEXT.sub(_escape, value.replace("\r\n", "\n"))


def printable_line(value: str) -> str:
    """Return `value` on one line: white space is collapsed, other control characters are escaped."""
    return _IN_LINE.sub(_escape, " ".join(value.split()))


def printable_json(encoded: str) -> str:
    """Return JSON whose strings hold only printable characters; JSON itself escapes those under U+0020."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


@dataclass
class Output:
    """The standard streams of one command. All text is made printable on the way.

    `as_json`: the output is one JSON document, and stdout has no other text.
    """

    as_json: bool = False
    stdout: TextIO = field(default_factory=lambda: sys.stdout)
    stderr: TextIO = field(default_factory=lambda: sys.stderr)

    @property
    def is_terminal(self) -> bool:
        """True if stdout is a terminal and the output is not JSON."""
        return not self.as_json and self.stdout.isatty()

    def when(self, moment: str | None) -> str:
        """Return an RFC 3339 time as people read it, in the local time zone.

        Into a pipe, and if it is no time, it is unchanged.
        """
        if moment and self.is_terminal:
            with suppress(ValueError, OverflowError):
                return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M}"
        return moment or ""

    def answered(self, value: Any) -> bool:
        """Write `value` if the output is JSON; True if so."""
        if self.as_json:
            self.document(value)
        return self.as_json

    def document(self, value: Any) -> None:
        """Write `value` as one JSON document."""
        try:
            encoded = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        except UnicodeEncodeError:  # a file name that is not UTF-8
            encoded = json.dumps(msgspec.to_builtins(value), indent=2)
        self.stdout.write(printable_json(encoded) + "\n")

    def text(self, value: str, style: str = "") -> None:
        """Write a text of one or more lines; `style` is rich's and shows on a terminal only."""
        printed = printable_text(value)
        if style and self.is_terminal:
            from rich.text import Text

            self.console().print(Text(printed, style=style), soft_wrap=True)
        else:
            self.stdout.write(printed + "\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
        """Write a table; into a pipe without the title, a header line first.

        On a narrow terminal, texts wrap. If it is still too wide, each row is its first cell and, indented
        below, the other non-empty cells with their column names.
        """
        texts = [["" if cell is None else printable_line(str(cell)) for cell in row] for row in rows]
        if not self.is_terminal:
            self.stdout.writelines("\t".join(row) + "\n" for row in (columns, *texts))
            return
        from rich.box import SIMPLE_HEAD
        from rich.cells import cell_len
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        console = self.console()
        table = Table(box=SIMPLE_HEAD, title=Text(title) if title else None, title_justify="left")
        for name, *cells in zip(columns, *texts, strict=True):
            is_prose = max(map(len, cells), default=0) > _PROSE and any(" " in cell for cell in cells)
            least = _PROSE if is_prose else max(map(cell_len, (name, *cells)))
            table.add_column(name, no_wrap=not is_prose, min_width=least)
        for row in texts:
            table.add_row(*map(Text, row))
        if console.measure(table, options=console.options.update(width=_UNBOUNDED)).minimum <= console.width:
            console.print(table)
            return
        if title:
            console.print(Text(title))
        for first, *others in texts:
            console.print(Text(first, style="bold"))
            lines: list[Text] = []
            for name, cell in zip(columns[1:], others, strict=True):
                part = Text.assemble((name, "dim"), " ", cell)
                if cell and lines and lines[-1].cell_len + part.cell_len + 2 * _INDENT <= console.width:
                    lines[-1].append(" " * _INDENT).append_text(part)
                elif cell:
                    lines.append(part)
            console.print(Padding(Text("\n").join(lines), (0, 0, 0, _INDENT)))

    def facts(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Write names and values, one pair a line; a value of None or "" is omitted."""
        printed = [
            (name, printable_line(str(value))) for name, value in pairs if value is not None and value != ""
        ]
        if self.is_terminal:
            from rich.table import Table
            from rich.text import Text

            grid = Table.grid(padding=(0, 2))
            for name, text in printed:
                grid.add_row(Text(name, style="dim"), Text(text))
            self.console().print(grid)
        else:
            self.stdout.writelines(f"{name}\t{value}\n" for name, value in printed)

    def note(self, message: str) -> None:
        """Write a message for people to stderr, beside the output."""
        self.stderr.write(printable_line(message) + "\n")

    def progress(self, count: str, *, is_last: bool) -> None:
        """Write a count to stderr in place of the previous one, if stdout is a terminal."""
        if self.is_terminal:
            self.stderr.write(f"\r{count}" + ("\n" if is_last else ""))
            self.stderr.flush()

    def console(self) -> Console:
        """Return a console on stdout that does not interpret markup in texts."""
        from rich.console import Console

        return Console(file=self.stdout, markup=False, highlight=False, emoji=False)
