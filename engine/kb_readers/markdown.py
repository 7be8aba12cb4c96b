"""Lines and tables of Markdown that say what the file says and nothing more."""

from __future__ import annotations

import re
from collections.abc import Sequence

# The beginnings of lines that Markdown would take for a heading, a fence, an underline or a rule.
_MARKUP = re.compile(r"(?=#{1,6}(?:\s|$)|`{3}|~{3}|=+\s*$|--+\s*$)", re.MULTILINE)
_BAR = "\\|"


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
