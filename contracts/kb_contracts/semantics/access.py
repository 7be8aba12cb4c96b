"""What a caller with a reach may do to tags: which it may give and take, and where a document may go.

A document is within reach where one of its tags is; then all of it is, its other tags included. Tags that
begin with `collection:` say whose it is, so that only those within the reach are given and taken. A caller
never takes a document out of its own reach: it would be gone for it. To move one it names the new tag with
the old one (`removeTag` with `add`).
"""

from __future__ import annotations

from collections.abc import Iterable

from kb_contracts.access.reach import Reach
from kb_contracts.api.errors import EngineError
from kb_contracts.api.ragler import PREFIX, collection_id

_NAMED = 5


def check_submission(reach: Reach | None, tags: Iterable[str]) -> None:
    """Whether something may be taken in under these tags. Raises EngineError: `forbidden`."""
    if reach is None:
        return
    given = list(tags)
    check_changes(reach, given)
    if not reach.admits(given):
        raise EngineError(
            "forbidden",
            f"This key takes in only what carries a tag that it reaches; send one of {named(reach)}.",
            parameter="tags",
        )


def check_changes(reach: Reach | None, tags: Iterable[str]) -> None:
    """Whether these tags may be given and taken. Raises EngineError: `forbidden`."""
    for tag in tags:
        if reach is not None and not reach.may_change(tag):
            raise EngineError(
                "forbidden",
                f"This key may not give or take the tag {tag!r}; of those that begin with {PREFIX!r} it may "
                f"{named(reach)}.",
                parameter="tags",
            )


def check_stays(reach: Reach | None, tags: Iterable[str]) -> None:
    """Whether a document with these tags would still be within reach. Raises EngineError: `forbidden`."""
    if reach is not None and not reach.admits(tags):
        raise EngineError(
            "forbidden",
            "Without this tag the document would be out of this key's reach. Send `add` with the tag that it "
            f"is to have instead, one of {named(reach)}.",
            parameter="add",
        )


def check_described(reach: Reach | None, name: str, id_: str, described_as: str | None) -> None:
    """Whether a collection may be described under this id, as far as the reach decides.

    With a reach it is the id that the name has of itself: any other may be that of a collection which is
    out of reach, and whether it is must not be seen.

    Raises EngineError: `forbidden`.
    """
    check_changes(reach, [PREFIX + name])
    own = collection_id(name)
    if reach is not None and described_as is None and id_ != own:
        raise EngineError(
            "forbidden",
            f"This key describes the collection {name!r} under its own id, {own}.",
            parameter="collection_id",
        )


def check_whole(reach: Reach | None) -> None:
    """Whether all of the base may be changed at once. Raises EngineError: `forbidden`."""
    if reach is not None:
        raise EngineError(
            "forbidden", "This key reaches a part of the base and may not clear it; delete documents instead."
        )


def named(reach: Reach) -> str:
    """Some of what a reach has, for a message to whoever has it."""
    each = [*map(repr, sorted(reach.tags)), *(f"{prefix!r} and more" for prefix in sorted(reach.prefixes))]
    return ", ".join(each[:_NAMED]) + (" …" if len(each) > _NAMED else "") if each else "none"
