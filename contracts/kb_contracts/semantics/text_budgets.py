"""How an answer is kept within a number of characters (`max_chars`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from kb_contracts.api.models import SearchResult

T = TypeVar("T")


def longest_prefix(items: Sequence[T], size: Callable[[T], int], budget: int) -> list[T]:
    """The first items, as many as fit together; none where the first does not fit."""
    left = budget
    for count, item in enumerate(items):
        left -= size(item)
        if left < 0:
            return list(items[:count])
    return list(items)


def within_budget(results: Sequence[SearchResult], max_chars: int | None) -> tuple[list[SearchResult], int]:
    """The results that fit into `max_chars` characters of text, and how many were left out.

    The best come first and take what they need. One that does not fit whole loses its neighbours, then
    the end of its text, and is marked as truncated; when no room is left, the rest is left out.
    """
    if max_chars is None:
        return list(results), 0
    kept: list[SearchResult] = []
    left = max_chars
    for result in results:
        if left <= 0:
            break
        size = sum(len(chunk.text) for chunk in (result.chunk, *result.before, *result.after))
        if size > left:
            chunk = msgspec.structs.replace(result.chunk, text=result.chunk.text[:left])
            result = msgspec.structs.replace(result, chunk=chunk, before=[], after=[], truncated=True)
            size = len(chunk.text)
        kept.append(result)
        left -= size
    return kept, len(results) - len(kept)
