"""Foreign tags that kb can keep: without commas and slashes, and at most 64 in a document."""

from __future__ import annotations

from collections.abc import Iterable

from kb_contracts.api import models as m
from kb_server.collection_tags import validate_tags
from kb_server.tool import ToolError

_NAMED = 10
_LONGEST = 200


def sorted_out(tags: Iterable[str], taken: int) -> tuple[list[str], dict[str, list[str]], list[str]]:
    """Return the kept tags, each once; the metadata that keep the rest, except texts too long to be a tag;
    and the remark on the rest for the user. `taken` is the number of tags set already.
    """
    kept: list[str] = []
    left_out: list[str] = []
    for tag in dict.fromkeys(tags):
        try:
            validate_tags([tag])
        except ToolError:
            left_out.append(tag)
        else:
            (kept if len(kept) + taken < m.MAX_TAGS else left_out).append(tag)
    if not left_out:
        return kept, {}, []
    meant = [tag for tag in left_out if len(tag) <= _LONGEST]
    more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
    note = f"tags left out: {', '.join(tag[:60] for tag in left_out[:_NAMED])}{more}"
    return kept, {"tags_left_out": meant[: m.MAX_TAGS]} if meant else {}, [note]
