"""Foreign tags that kb can keep: without commas and slashes, and at most 64 in a document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kb_contracts.api import models as m
from kb_server.collection_tags import validate_tags
from kb_server.tool import ToolError

_NAMED = 10
_LONGEST = 200


def sorted_out(tags: Iterable[str], taken: int) -> tuple[list[str], list[str]]:
    """Return the kept tags, each once, and the rest; `taken` is the number of tags set already."""
    kept: list[str] = []
    left_out: list[str] = []
    for tag in dict.fromkeys(tags):
        try:
            validate_tags([tag])
        except ToolError:
            left_out.append(tag)
        else:
            (kept if len(kept) + taken < m.MAX_TAGS else left_out).append(tag)
    return kept, left_out


def noted(left_out: Sequence[str]) -> dict[str, list[str]]:
    """Return the metadata that keep the rest, except texts too long to be a tag."""
    meant = [tag for tag in left_out if len(tag) <= _LONGEST]
    return {"tags_left_out": meant[: m.MAX_TAGS]} if meant else {}


def note(left_out: Sequence[str]) -> list[str]:
    """Return the remark on them for the user."""
    if not left_out:
        return []
    more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
    return [f"tags left out: {', '.join(tag[:60] for tag in left_out[:_NAMED])}{more}"]
