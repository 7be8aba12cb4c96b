"""The collections of a base, and the message for an unknown name."""

from __future__ import annotations

import msgspec

from kb_contracts.api.operations import LIST_TAGS, TagsQuery
from kb_server.collection_tags import PREFIX, is_name
from kb_server.engine_client.errors import EngineFault
from kb_server.engine_client.port import Engine

MOST_NAMED = 50


class Collections(msgspec.Struct, frozen=True):
    """The first `MOST_NAMED` names in alphabetical order, and the number of collections."""

    names: list[str]
    total: int


async def collections_of(engine: Engine) -> Collections | None:
    """Return the collections within the caller's access scope, or None if the engine cannot list them."""
    try:
        listed = await engine.call(LIST_TAGS, query=TagsQuery(prefix=PREFIX, limit=MOST_NAMED))
    except EngineFault:
        return None
    names = [name for each in listed.tags if is_name(name := each.tag.removeprefix(PREFIX))]
    return Collections(names, listed.total)


async def unknown_collection(engine: Engine, collection: str) -> str:
    """Return a message for a collection without documents, with the existing ones; "" if it has documents."""
    try:
        found = await engine.call(LIST_TAGS, query=TagsQuery(prefix=PREFIX + collection, limit=1))
    except EngineFault:
        return ""
    if any(each.tag == PREFIX + collection for each in found.tags):
        return ""
    known = await collections_of(engine)
    if known is None or not known.names:
        return f"There is no collection {collection!r}, nor any other."
    more = f" and {known.total - len(known.names)} more" if known.total > len(known.names) else ""
    return f"There is no collection {collection!r}. Collections: {', '.join(known.names)}{more}."
