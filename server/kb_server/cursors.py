"""Cursors of lists that the engine gives by offset: what is added meanwhile moves the others on."""

from __future__ import annotations

import re

from kb_server.tool import INVALID, ToolError

_CURSOR = re.compile(r"after-(?P<offset>[0-9]{1,12})")


def offset_of(cursor: str | None) -> int:
    """How many entries the page at `cursor` passes over; None: the first page.

    Raises:
        ToolError: no list gave this cursor.
    """
    if cursor is None:
        return 0
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise ToolError(INVALID, "The cursor is none of this list's: leave it out.", parameter="cursor")
    return int(found["offset"])


def next_cursor(offset: int, listed: int, total: int) -> str | None:
    """The cursor of the page after one with `listed` entries; None where it was the last."""
    following = offset + listed
    return f"after-{following}" if listed and following < total else None
