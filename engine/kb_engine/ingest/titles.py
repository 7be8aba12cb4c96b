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
