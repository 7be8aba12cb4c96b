"""Headings of a Markdown text: they are the titles of chunks, and delimit the sections of a note.

The rules are CommonMark's except for underlines: below a paragraph of several lines, or one that begins with
emphasis or code, an underline is read as a thematic break, which is the usual intention.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_LONGEST_UNDERLINED = 200

# Only lines that could open a fence, be a heading, or underline one are examined, so that a text of many
# megabytes is scanned by the expression and not line by line in Python. It never backtracks.
_LINE = re.compile(
    r"^(?P<indent>[ \t]*)(?:"
    r"(?P<item>(?:(?:[-+*]|\d{1,9}[.)])[ \t]{1,4})*)(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)"
    r"|(?P<marks>\#{1,6})(?P<title>[ \t\r][^\n]*|$)"
    r"|(?P<underline>=+|-+)[ \t\r]*$)",
    re.MULTILINE,
)
# Its first line that is no comment has a member; other text between two rules is text.
_FRONT_MATTER = re.compile(
    r"(?P<mark>---|\+{3})[ \t\r]*\n(?=(?:[ \t\r]*(?:#[^\n]{0,1000})?\n){0,200}+[^\n]{0,1000}?[:=\[{?!&*])"
    r"(?:(?!(?P=mark)[ \t\r]*$)[^\n]{0,1000}\n){0,200}?(?P=mark)[ \t\r]*$",
    re.MULTILINE,
)
_CLOSING_MARKS = re.compile(r"(?:^|[ \t])#+$")
_PARAGRAPH = re.compile(r" {0,3}[^\s#>|`~=*+-]")


class Heading(msgspec.Struct, frozen=True):
    """One heading with the offsets of its line or lines, in code points."""

    level: int
    """1 to 6."""
    title: str
    """The text between its marks, or above its underline; may be empty."""
    start: int
    end: int
    """After the last character of its line, the line break not included."""


def headings(text: str) -> Iterator[Heading]:
    """Yield the headings in order, except in fences and front matter, in linear time."""
    fence, inside = "", 0
    front_matter = _FRONT_MATTER.match(text)
    last_end = front_matter.end() if front_matter else 0
    for line in _LINE.finditer(text, last_end):
        mark, indent = line["fence"], _columns(line["indent"])
        if indent < inside:  # the list item has ended, and with it a fence in its first line
            fence, inside = "", 0
        if fence:
            closes = mark and mark.startswith(fence) and not line["item"] and not line["info"].strip()
            if closes and indent <= inside + 3:
                fence, inside = "", 0
        elif indent > 3:  # code
            continue
        elif mark:
            # Backticks after the fence make it inline code, not a fence.
            if not (mark[0] == "`" and "`" in line["info"]):
                fence = mark
                inside = _columns(line["indent"] + line["item"]) if line["item"] else 0
        elif marks := line["marks"]:
            title = _CLOSING_MARKS.sub("", line["title"].strip())
            yield Heading(len(marks), title, line.start(), line.end())
            last_end = line.end()
        elif (above := _line_above(text, line.start(), last_end)) is not None:
            start, title = above
            level = 1 if line["underline"][0] == "=" else 2
            yield Heading(level, title, start, line.end())
            last_end = line.end()


def _columns(lead: str) -> int:
    return len(lead.expandtabs(4))


def _line_above(text: str, start: int, after: int) -> tuple[int, str] | None:
    """Return offset and text of the line before `start`, if an underline makes it a heading.

    The line before that one must be blank. `after` is the end of the previous heading, which must not be used
    twice.
    """
    line_start = text.rfind("\n", after, start - 1) + 1 or after
    line = text[line_start : start - 1]
    if start - 1 <= after or len(line) > _LONGEST_UNDERLINED or not _PARAGRAPH.match(line):
        return None
    if line_start > after:
        before = text[text.rfind("\n", after, line_start - 1) + 1 or after : line_start - 1]
        if before.strip():
            return None
    return line_start, line.strip()
