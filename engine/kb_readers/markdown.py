"""Markdown, as the readers write it and as passages and titles are taken from it.

Every reader gives Markdown, so that headings and tables stay what they are. What a file says must not become
markup by that: `escaped` and `table_row` see to it, and `headings` finds what is a heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kb_contracts.semantics import headings as semantics
from kb_contracts.semantics.headings import Heading

_LONGEST_TITLE = 200
_LONGEST_GIVEN = 500

# The beginnings of lines that Markdown would take for a heading, a fence, an underline or a rule; what
# stands farther in is code to it.
_MARKUP = re.compile(r"( {0,3})(?=#{1,6}(?:\s|$)|`{3,}[^`\n]*$|~{3}|=+\s*$|-+\s*$)", re.MULTILINE)
_BAR = "\\|"

_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_EMPHASIS = re.compile(r"\*\*|`")


def escaped(line: str) -> str:
    """The line, with a backslash before what would make it markup."""
    found = _MARKUP.match(line)
    return f"{found[1]}\\{line[found.end() :]}" if found else line


def one_line(text: str) -> str:
    """The words of the text with one space between them."""
    return " ".join(text.split())


def table_row(cells: Sequence[str]) -> str:
    """A row of a table; cells are single lines."""
    return f"| {' | '.join(cell.replace('|', _BAR) for cell in cells)} |"


def table_rule(columns: int) -> str:
    """What stands below the first row of a table."""
    return f"|{' --- |' * columns}"


def headings(text: str) -> Iterator[Heading]:
    """The headings in order, their titles without emphasis and of at most 200 characters.

    Linear in the length of the text.
    """
    for found in semantics.headings(text):
        yield Heading(found.level, _plain(found.title), found.start, found.end)


def title_of(text: str) -> str | None:
    """The first heading of the first level, if there is one with words."""
    return next((found.title for found in headings(text) if found.level == 1 and found.title), None)


def given_title(given: str | None) -> str | None:
    """The title that a file says it has, on one line; None where it says nothing by it."""
    title = " ".join((given or "").replace("\0", "").split())[:_LONGEST_GIVEN]
    return None if title.lower() in ("", "untitled") else title


def _plain(title: str) -> str:
    """Heading text without emphasis, code marks and escapes, on one line, cut at a bound.

    The bound is what keeps a breadcrumb small whatever the file holds.
    """
    words = _ESCAPE.sub(r"\1", _EMPHASIS.sub("", title[: 2 * _LONGEST_TITLE])).split()
    plain = " ".join(words)
    return plain if len(plain) <= _LONGEST_TITLE else plain[: _LONGEST_TITLE - 1] + "…"
