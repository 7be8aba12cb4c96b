"""Rules for the id of a collection, and for the collection of a search."""

from __future__ import annotations

from kb_contracts.api import ragler as r
from kb_contracts.api.errors import EngineError


def check_description(
    id_: str, name: str, *, described_as: str | None, owner: str | None, in_use: bool
) -> None:
    """Refuse to describe the collection `name` under `id_` if the id does not belong to it.

    `described_as` is the id of its earlier description, or None; `owner` is the name of another collection
    that was described under `id_`; `in_use`: documents carry its tag.
    Raises EngineError: `collection_exists`.
    """
    own = r.collection_id(name)
    if described_as is not None:
        if described_as == id_:
            return
        detail = f"The collection {name!r} has the id {described_as}; describe it under this id."
    elif owner is not None:
        detail = f"{id_} is the id of the collection {owner!r}, and a name never changes. Use another id."
    elif not r.may_have_id(name, id_):
        detail = (
            f"An id of version 5 is derived from a name, and {id_} is not the id of {name!r}. "
            f"Describe it under {own}, or under an id of version 4."
        )
    elif id_ != own and in_use:
        detail = f"The collection {name!r} is in use and has the id {own}; describe it under this id."
    else:
        return
    raise EngineError("collection_exists", detail, parameter="collection_id")


def no_collection_id(id_: str) -> EngineError:
    """No collection has this id."""
    return EngineError(
        "collection_not_found", f"There is no collection {id_}. List the collections to see which exist."
    )


def no_collection_name(name: str) -> EngineError:
    """No collection has this name."""
    return EngineError(
        "collection_not_found",
        f"There is no collection {name!r}. List the collections to see which exist.",
        parameter="collectionName",
    )


def check_same_collection(name: str | None, found: str) -> None:
    """Raise `contradiction` if a search has the id of `found` and another name."""
    if name is not None and name != found:
        raise EngineError(
            "contradiction",
            f"collectionId is the id of the collection {found!r}, but collectionName is {name!r}; send one.",
            parameter="collectionName",
        )
