"""Cursors of lists that the engine pages by offset: an addition in between shifts later entries."""

from __future__ import annotations

import re

from kb_server.tool import INVALID, ToolError

_CURSOR = re.compile(r"after-(?P<offset>[0-9]{1,12})")


def offset_of(cursor: str | None) -> int:
    """Return the offset of the page at `cursor`; 0 without a cursor. Raises ToolError: it is invalid."""
    if cursor is None:
        return 0
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise ToolError(INVALID, "The cursor is not from this list. Leave it out.", parameter="cursor")
    return int(found["offset"])


def next_cursor(offset: int, listed: int, total: int) -> str | None:
    """Return the cursor of the page after one with `listed` entries, or None after the last page."""
    following = offset + listed
    return f"after-{following}" if listed and following < total else None
