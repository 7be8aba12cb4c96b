"""Lists of pages and names in remarks on a document, truncated if long."""

from __future__ import annotations

from collections.abc import Sequence

_PAGES = 8
_NAMES = 50


def pages_listed(numbers: Sequence[int]) -> str:
    """ "Page 3", "Pages 3 and 7"; a long list ends with the number of further pages."""
    ordered = sorted(numbers)
    if len(ordered) == 1:
        return f"Page {ordered[0]:,}"
    if len(ordered) > _PAGES:
        named, last = ordered[: _PAGES - 1], f"{len(ordered) - _PAGES + 1:,} more"
    else:
        named, last = ordered[:-1], f"{ordered[-1]:,}"
    return f"Pages {', '.join(f'{number:,}' for number in named)} and {last}"


def names_listed(names: Sequence[str]) -> str:
    """ "a.pdf, b.zip"; a long list ends with the number of further names."""
    more = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
