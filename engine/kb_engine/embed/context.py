"""The context of an embedded passage: the title of its document and the headings above it.

A passage alone often does not name its subject: the second half of an abstract does not repeat it, and
"Press the button for five seconds" depends on the heading.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_LONGEST = 200
"""Maximum characters of a title or of headings: more adds little, and would outweigh the passage."""


class Passage(NamedTuple):
    """A chunk with its context."""

    title: str
    heading: str | None  # with the header row of its table on a second line
    text: str


def in_context(passage: Passage, fits: Callable[[str], bool]) -> str:
    """Return the text to embed: title, headings and text, a line each. The text is complete; title and
    headings are dropped if they do not pass `fits`.

    A title or heading at the beginning of the text, as in a note, is not repeated.
    """
    heading, _, columns = (passage.heading or "").partition("\n| ")
    above = " > ".join(filter(None, [heading, columns.removesuffix(" |")]))
    title, heading = _line(passage.title, passage.text), _line(above, passage.text)
    for lines in ((title, heading), (title or heading,)):
        context = "".join(f"{line}\n" for line in lines if line)
        if context and fits(context):
            return context + passage.text
    return passage.text


def _line(name: str, text: str) -> str:
    line = " ".join(name.split())[:_LONGEST]
    return "" if line.rstrip("…") in " ".join(text[: 2 * _LONGEST].split())[: len(line) + 8] else line
