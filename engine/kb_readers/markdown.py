"""Markdown output of the readers, and the extraction of headings and titles from it.

Readers return Markdown to keep headings and tables. Text of a file must not become markup: `escaped` and
`table_row` ensure that, and `headings` finds the headings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from kb_contracts.api.models import visible_title
from kb_contracts.semantics import headings as semantics
from kb_contracts.semantics.headings import Heading

_LONGEST_TITLE = 200
_LONGEST_GIVEN = 500

# Beginnings of lines that Markdown reads as a heading, fence, underline or rule; with more indent it is code.
_MARKUP = re.compile(r"( {0,3})(?=#{1,6}(?:\s|$)|`{3,}[^`\n]*$|~{3}|=+\s*$|-+\s*$)", re.MULTILINE)
_BAR = "\\|"

_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_EMPHASIS = re.compile(r"\*\*|`")
_BACKTICKS = re.compile(r"`{3,}")


def escaped(line: str) -> str:
    """Return the line, with a backslash before text that would be markup."""
    found = _MARKUP.match(line)
    return f"{found[1]}\\{line[found.end() :]}" if found else line


def one_line(text: str) -> str:
    """Collapse white space to single spaces."""
    return " ".join(text.split())


def fenced(code: str, language: str = "") -> str:
    """Return the code in a fence that it cannot close."""
    fence = "`" * (max(map(len, _BACKTICKS.findall(code)), default=2) + 1)
    return f"{fence}{language}\n{code}\n{fence}"


def table_row(cells: Sequence[str]) -> str:
    """Return a row of a table; cells are single lines."""
    return f"| {' | '.join(cell.replace('|', _BAR) for cell in cells)} |"


def table_rule(columns: int) -> str:
    """Return the line below the header row of a table."""
    return f"|{' --- |' * columns}"


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return a table, of which the first row is the header."""
    header, *others = rows
    return "\n".join([table_row(header), table_rule(len(header)), *map(table_row, others)])


def headings(text: str) -> Iterator[Heading]:
    """Yield the headings in order, titles plain and of at most 200 characters, in linear time."""
    for found in semantics.headings(text):
        yield Heading(found.level, _plain(found.title), found.start, found.end)


def title_of(text: str) -> str | None:
    """Return the first non-empty heading of level 1, or None."""
    return next((found.title for found in headings(text) if found.level == 1 and found.title), None)


def given_title(given: str | None) -> str | None:
    """Return the declared title of a file on one line, or None if it is blank or "untitled"."""
    title = " ".join((given or "").replace("\0", "").split())[:_LONGEST_GIVEN]
    return None if title.lower() == "untitled" else visible_title(title)


def office_title(given: str | None) -> str | None:
    """Return the title in the properties of an Office file; None also for the default of a program."""
    title = given_title(given)
    return None if title is not None and title.lower() == "powerpoint presentation" else title


def _plain(title: str) -> str:
    """Return a heading without emphasis, code marks and escapes, truncated for breadcrumbs."""
    words = _ESCAPE.sub(r"\1", _EMPHASIS.sub("", title[: 2 * _LONGEST_TITLE])).split()
    plain = " ".join(words)
    return plain if len(plain) <= _LONGEST_TITLE else plain[: _LONGEST_TITLE - 1] + "…"
