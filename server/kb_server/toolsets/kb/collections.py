"""The collections that a base has, and what is said where a name is none of them."""

from __future__ import annotations

import msgspec

from kb_contracts.api.operations import LIST_TAGS, TagsQuery
from kb_server.collection_tags import PREFIX, is_name
from kb_server.engine_client.errors import EngineFault
from kb_server.engine_client.port import Engine

MOST_NAMED = 50


class Collections(msgspec.Struct, frozen=True):
    """The first `MOST_NAMED` names in alphabetical order, and how many collections there are."""

    names: list[str]
    total: int


async def collections_of(engine: Engine) -> Collections | None:
    """Those that the caller reaches; None where the engine cannot list them."""
    try:
        listed = await engine.call(LIST_TAGS, query=TagsQuery(prefix=PREFIX, limit=MOST_NAMED))
    except EngineFault:
        return None
    names = [name for each in listed.tags if is_name(name := each.tag.removeprefix(PREFIX))]
    return Collections(names, listed.total)


async def unknown_collection(engine: Engine, collection: str) -> str:
    """What to say of a collection without documents, with those that there are; empty where it has some."""
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
    return f"There is no collection {collection!r}. There are {', '.join(known.names)}{more}."
