"""What a note is called when nobody gave it a name."""

from __future__ import annotations

_TITLE_CHARS = 80


def title_of(text: str) -> str:
    """The first line that says something, white space collapsed, cut to 80 characters.

    `text` holds more than white space.
    """
    first = next(line for line in text.splitlines() if line.strip())
    title = " ".join(first.split())
    return title if len(title) <= _TITLE_CHARS else title[: _TITLE_CHARS - 1].rstrip() + "…"


def title_after(title: str, old_text: str, text: str) -> str:
    """The title of a note whose text changes: one taken from the old text goes with it, a given one stays."""
    return title_of(text) if title == title_of(old_text) else title
