"""What a note is called when nobody gave it a title."""

from __future__ import annotations

_TITLE_CHARS = 80


def note_title(text: str) -> str:
    """The first line that is not blank, white space collapsed, cut to 80 characters."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    title = " ".join(first.split())
    return title if len(title) <= _TITLE_CHARS else title[: _TITLE_CHARS - 1].rstrip() + "…"


def title_after_update(title: str, old_text: str, text: str) -> str:
    """The title of a note whose text changes: one taken from the old text goes with it, a given one stays."""
    return note_title(text) if title == note_title(old_text) else title
