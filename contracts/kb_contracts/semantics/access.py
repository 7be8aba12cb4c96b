"""Rules for tags under an access scope: which tags a caller may add and remove, and where a document may go.

A document is within the scope if one of its tags is; then all of it is accessible, including its other tags.
Tags that begin with `collection:` determine the owner, so only the ones within the scope may be added and
removed. A caller never moves a document out of its own scope, since it could not see it any more. To move a
document it names the new tag together with the old one (`removeTag` with `add`).
"""

from __future__ import annotations

from collections.abc import Iterable

from kb_contracts.access.reach import Reach
from kb_contracts.api.errors import EngineError
from kb_contracts.api.ragler import PREFIX, collection_id

_NAMED = 5


def check_submission(reach: Reach | None, tags: Iterable[str]) -> None:
    """Refuse a submission whose tags are not permitted. Raises EngineError: `forbidden`."""
    if reach is None:
        return
    given = list(tags)
    check_changes(reach, given)
    if not reach.admits(given):
        raise EngineError(
            "forbidden",
            f"This key requires a tag of its access scope; send one of {named(reach)}.",
            parameter="tags",
        )


def check_changes(reach: Reach | None, tags: Iterable[str]) -> None:
    """Refuse a change of tags that are not permitted. Raises EngineError: `forbidden`."""
    for tag in tags:
        if reach is not None and not reach.may_change(tag):
            raise EngineError(
                "forbidden",
                f"This key may not change the collection {tag.removeprefix(PREFIX)!r}. "
                f"Use one of its own: {named(reach).replace(PREFIX, '')}.",
                parameter="tags",
            )


def check_stays(reach: Reach | None, tags: Iterable[str]) -> None:
    """Refuse tags that would move a document out of the scope. Raises EngineError: `forbidden`."""
    if reach is not None and not reach.admits(tags):
        raise EngineError(
            "forbidden",
            "Without this tag the document would be outside of this key's access scope. Send `add` with the "
            f"new tag, one of {named(reach)}.",
            parameter="add",
        )


def check_described(reach: Reach | None, name: str, id_: str, described_as: str | None) -> None:
    """Refuse to describe a collection under this id if the access scope does not permit it.

    With a limited scope the id must be the default id of the name: any other id may be that of a collection
    outside the scope, and the response must not reveal its existence.

    Raises EngineError: `forbidden`.
    """
    check_changes(reach, [PREFIX + name])
    own = collection_id(name)
    if reach is not None and described_as is None and id_ != own:
        raise EngineError(
            "forbidden",
            f"This key may describe the collection {name!r} only under its own id, {own}.",
            parameter="collection_id",
        )


def check_whole(reach: Reach | None) -> None:
    """Refuse a change of the whole base by a limited caller. Raises EngineError: `forbidden`."""
    if reach is not None:
        raise EngineError(
            "forbidden",
            "The access scope of this key is limited, so it cannot clear the base; delete documents instead.",
        )


def named(reach: Reach) -> str:
    """Return some of the tags in the scope, for a message to its caller."""
    each = [*map(repr, sorted(reach.tags)), *(f"{prefix!r} and more" for prefix in sorted(reach.prefixes))]
    return ", ".join(each[:_NAMED]) + (" …" if len(each) > _NAMED else "") if each else "none"
