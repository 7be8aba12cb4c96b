"""What a passage is embedded with: the title of its document and the headings above it.

A passage alone often does not say what it is about: the second half of an abstract names its subject nowhere,
and "Press the button for five seconds" is about whatever the heading says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_LONGEST = 200
"""Characters of a title or of headings: what is longer says little more, and a passage has to stay the main
thing."""


class Passage(NamedTuple):
    """A chunk as it is embedded."""

    title: str
    heading: str | None
    text: str


def in_context(passage: Passage, fits: Callable[[str], bool]) -> str:
    """The text to embed: title, headings and text, a line each; of the first two no more than `fits` beside
    all of the text.

    What the text begins with anyway, as a note does with the title that was taken from it, is not said twice.
    """
    title, heading = _line(passage.title, passage.text), _line(passage.heading or "", passage.text)
    for lines in ((title, heading), (title or heading,)):
        context = "".join(f"{line}\n" for line in lines if line)
        if context and fits(context):
            return context + passage.text
    return passage.text


def _line(name: str, text: str) -> str:
    line = " ".join(name.split())[:_LONGEST]
    return "" if line.rstrip("…") in " ".join(text[: 2 * _LONGEST].split())[: len(line) + 8] else line
