"""Keeps an answer within what a model's context can take, and says what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from kb_contracts.semantics.search import longest_prefix
from kb_server.toolsets.ragler.tool import MAX_CHARS

S = TypeVar("S", bound=msgspec.Struct)


def fitting(items: Sequence[S]) -> list[S]:
    """The first of `items`, as many as fit together; none where the first does not."""
    return longest_prefix(items, chars, MAX_CHARS)


def chars(item: msgspec.Struct) -> int:
    """The length of its JSON, in characters."""
    return len(msgspec.json.encode(item).decode())
