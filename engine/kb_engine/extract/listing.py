"""Pages named in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

_NAMED = 8


def pages_listed(numbers: Sequence[int]) -> str:
    """ "Page 3", "Pages 3 and 7" or, of many, the first ones and how many more."""
    ordered = sorted(numbers)
    if len(ordered) == 1:
        return f"Page {ordered[0]:,}"
    if len(ordered) > _NAMED:
        named, last = ordered[: _NAMED - 1], f"{len(ordered) - _NAMED + 1:,} more"
    else:
        named, last = ordered[:-1], f"{ordered[-1]:,}"
    return f"Pages {', '.join(f'{number:,}' for number in named)} and {last}"
