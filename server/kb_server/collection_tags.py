"""The tags of collections, by the convention of one tag `collection:<name>` on every document.

The engine knows only tags, so the rules of collections are kept here: names are checked, and a submission
carries exactly one collection tag. The command line uses this module too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from kb_contracts.api.models import MAX_TAGS
from kb_contracts.api.ragler import PREFIX as PREFIX
from kb_server.tool import ToolError

DEFAULT = "documents"
"""The collection of a document that is added without a collection."""

CONVENTIONAL = (DEFAULT, "memory", "workspace")
"""The conventional names of agents; any valid name is a collection."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_NO_TAG = re.compile(r"[\x00-\x1f\x7f,/]|^ | $")
_MAX_TAG_CHARS = 200


class SplitTags(msgspec.Struct, frozen=True):
    """The collection's name, if any, and the other tags."""

    collection: str | None
    tags: list[str]
    is_conflicting: bool = False
    """True if there are several collections, and the document needs `repair`."""


def is_name(collection: str) -> bool:
    """True for a valid name of a collection."""
    return _NAME.fullmatch(collection) is not None


def tag_of(collection: str) -> str:
    """Return the tag of a collection.
    Raises ToolError: `invalid_collection`.
    """
    if not is_name(collection):
        raise ToolError(
            "invalid_collection",
            f"{collection[:80]!r} is not a collection name. The parameter `collection` takes 1 to 63 "
            "lower-case letters, digits, hyphens and underscores, the first a letter or a digit; such as "
            "`documents`, `memory` or `workspace`.",
            parameter="collection",
        )
    return PREFIX + collection


def tags_for_submission(collection: str | None, tags: Sequence[str]) -> list[str]:
    """Return the tags of a new document: the collection's first (default `documents`), each once.
    Raises ToolError: `invalid_collection`; `invalid_tag` if a tag is a collection's or invalid, or there
    are too many.
    """
    others = validate_tags(tags)
    if len(others) >= MAX_TAGS:
        raise ToolError(
            "invalid_tag",
            f"These are {len(others)} tags. Send {MAX_TAGS - 1} at the most: a document may have {MAX_TAGS}, "
            "and its collection is one of them.",
            parameter="tags",
        )
    return [tag_of(DEFAULT if collection is None else collection), *others]


def tags_for_search(collection: str | None, tags: Sequence[str]) -> list[str]:
    """Return the tags that a search requires: the given ones, then the collection's, if any.
    Raises ToolError: as `tags_for_submission`.
    """
    return [*validate_tags(tags), *([] if collection is None else [tag_of(collection)])]


def validate_tags(tags: Sequence[str]) -> list[str]:
    """Return the tags, each once and in order.
    Raises ToolError: `invalid_tag`.
    """
    for tag in tags:
        _check_tag(tag)
    return list(dict.fromkeys(tags))


def split_tags(tags: Sequence[str]) -> SplitTags:
    """Return the collection and the other tags; of several collections, the one added last counts."""
    collection, others, is_conflicting = None, [], False
    for tag in tags:
        if tag.startswith(PREFIX):
            is_conflicting = collection is not None
            collection = tag.removeprefix(PREFIX)
        else:
            others.append(tag)
    return SplitTags(collection, others, is_conflicting)


def _check_tag(tag: str) -> None:
    if tag.startswith(PREFIX):
        raise ToolError(
            "invalid_tag",
            f"The tag {tag[:80]!r} names a collection. Leave it out of `tags` and pass its name in the "
            "parameter `collection`.",
            parameter="tags",
        )
    if not 1 <= len(tag) <= _MAX_TAG_CHARS or tag in (".", "..") or _NO_TAG.search(tag):
        raise ToolError(
            "invalid_tag",
            f"{tag[:80]!r} is not a tag: a tag has 1 to {_MAX_TAG_CHARS} characters, no control characters, "
            "commas or slashes, no space at either end.",
            parameter="tags",
        )


def collections_in(tags: Sequence[str]) -> list[str]:
    """Return the tags of collections."""
    return [tag for tag in tags if tag.startswith(PREFIX)]
