"""Lines and tables of Markdown out of what has neither."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARKUP = re.compile(r"(?=#{1,6}(?:\s|$)|`{3}|~{3}|=+\s*$|--+\s*$)", re.MULTILINE)


def escaped(line: str) -> str:
    """The line, with a backslash before what would make it a heading, a fence or a rule."""
    return f"\\{line}" if _MARKUP.match(line) else line


def one_line(text: str) -> str:
    """The words with one space between them."""
    return " ".join(text.split())


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table: the first row, a rule, the other rows."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]
