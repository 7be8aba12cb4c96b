"""Markdown, as the readers write it and as passages and titles are taken from it.

Every reader gives Markdown, so that headings and tables stay what they are. What a file says must not become
markup by that: `escaped` and `table_row` see to it, and `headings` finds what is a heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

_LONGEST_TITLE = 200
_LONGEST_GIVEN = 500

# The beginnings of lines that Markdown would take for a heading, a fence, an underline or a rule.
_MARKUP = re.compile(r"(?=#{1,6}(?:\s|$)|`{3}|~{3}|=+\s*$|--+\s*$)", re.MULTILINE)
_BAR = "\\|"

# Only lines that could open a fence, be a heading, or underline one are looked at, so that a text of
# many megabytes is scanned by the expression and not line by line in Python. Nothing in it backtracks.
_LINE = re.compile(
    r"^ {0,3}(?:(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)"
    r"|(?P<marks>\#{1,6})(?P<title>[ \t\r][^\n]*|$)"
    r"|(?P<underline>=+|-+)[ \t\r]*$)",
    re.MULTILINE,
)
_FRONT_MATTER = re.compile(
    r"---[ \t\r]*\n(?:(?!---[ \t\r]*$)[^\n]{0,1000}\n){0,200}?---[ \t\r]*$", re.MULTILINE
)
_CLOSING_MARKS = re.compile(r"(?:^|[ \t])#+$")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_EMPHASIS = re.compile(r"\*\*|`")
_PARAGRAPH = re.compile(r" {0,3}[^\s#>|`~=*+-]")


def escaped(line: str) -> str:
    """The line, with a backslash before what would make it markup."""
    return f"\\{line}" if _MARKUP.match(line) else line


def one_line(text: str) -> str:
    """The words of the text with one space between them."""
    return " ".join(text.split())


def table_row(cells: Sequence[str]) -> str:
    """A row of a table; cells are single lines."""
    return f"| {' | '.join(cell.replace('|', _BAR) for cell in cells)} |"


def table_rule(columns: int) -> str:
    """What stands below the first row of a table."""
    return f"|{' --- |' * columns}"


class Heading(msgspec.Struct, frozen=True):
    """One heading and where its line or lines lie, in code points."""

    level: int
    """1 to 6."""
    title: str
    """Without marks, of at most 200 characters; may be empty."""
    start: int
    end: int
    """After the last character of its line, the line break not included."""


def headings(text: str) -> Iterator[Heading]:
    """The headings in order, `#` and underlined ones; what stands in a fence or front matter is none.

    Linear in the length of the text.
    """
    fence = ""
    front_matter = _FRONT_MATTER.match(text)
    last_end = front_matter.end() if front_matter else 0
    for line in _LINE.finditer(text, last_end):
        if mark := line["fence"]:
            if not fence:
                # Backticks after the fence make it inline code, not a fence.
                if not (mark[0] == "`" and "`" in line["info"]):
                    fence = mark
            elif mark.startswith(fence) and not line["info"].strip():
                fence = ""
        elif fence:
            continue
        elif marks := line["marks"]:
            title = _CLOSING_MARKS.sub("", line["title"].strip())
            yield Heading(len(marks), _plain(title), line.start(), line.end())
            last_end = line.end()
        elif (above := _line_above(text, line.start(), last_end)) is not None:
            start, title = above
            level = 1 if line["underline"][0] == "=" else 2
            yield Heading(level, _plain(title), start, line.end())
            last_end = line.end()


def title_of(text: str) -> str | None:
    """The first heading of the first level, if there is one with words."""
    return next((found.title for found in headings(text) if found.level == 1 and found.title), None)


def given_title(given: str | None) -> str | None:
    """The title that a file says it has, on one line; None where it says nothing by it."""
    title = " ".join((given or "").replace("\0", "").split())[:_LONGEST_GIVEN]
    return None if title.lower() in ("", "untitled") else title


def _line_above(text: str, start: int, after: int) -> tuple[int, str] | None:
    """Where the line before `start` begins, and what it says, if an underline makes it a heading.

    The line before that one must be blank: an underline below a paragraph of several lines is taken
    for a rule. `after` is the end of the heading before, which must not be used twice.
    """
    line_start = text.rfind("\n", after, start - 1) + 1 or after
    line = text[line_start : start - 1]
    if start - 1 <= after or len(line) > _LONGEST_TITLE or not _PARAGRAPH.match(line):
        return None
    if line_start > after:
        before = text[text.rfind("\n", after, line_start - 1) + 1 or after : line_start - 1]
        if before.strip():
            return None
    return line_start, line.strip()


def _plain(title: str) -> str:
    """Heading text without emphasis, code marks and escapes, on one line, cut at a bound.

    The bound is what keeps a breadcrumb small whatever the file holds.
    """
    words = _ESCAPE.sub(r"\1", _EMPHASIS.sub("", title[: 2 * _LONGEST_TITLE])).split()
    plain = " ".join(words)
    return plain if len(plain) <= _LONGEST_TITLE else plain[: _LONGEST_TITLE - 1] + "…"
