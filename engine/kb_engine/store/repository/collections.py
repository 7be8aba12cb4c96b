"""Collections: their descriptions, and the statistics of the documents in them.

Nothing is stored of a collection that nobody has described: it exists while a document carries its tag, and
its id is derived from its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kb_contracts.api import ragler as r
from kb_contracts.semantics.collections import check_description, no_collection_id
from kb_engine.store import collection_rules
from kb_engine.store.collection_rules import (
    BEYOND,
    DESCRIPTIONS,
    IN_USE,
    NAMES,
    RANGE,
    CollectionDescription,
    CollectionStats,
)
from kb_engine.store.repository.transaction import Read, Write

STATISTICS = """
SELECT tag, sum(d.chunk_count), sum(d.token_count), min(d.created_at), max(d.updated_at)
FROM document_tags JOIN documents d{index} ON d.id = document_id
WHERE {condition} GROUP BY tag
"""
_STORE = """
INSERT INTO collections (id, name, description, created_by, target_audience, usage_scenarios, created_at,
  updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET description = EXCLUDED.description, created_by = EXCLUDED.created_by,
  target_audience = EXCLUDED.target_audience, usage_scenarios = EXCLUDED.usage_scenarios,
  updated_at = EXCLUDED.updated_at
"""


async def every(read: Read) -> r.CollectionList:
    return collection_rules.collection_list(
        await _stats(read, IN_USE, RANGE),
        [CollectionDescription(*one) for one in await read.rows(DESCRIPTIONS)],
    )


async def detail(read: Read, id_: str) -> r.CollectionDetail:
    return await _detail(read, await name_of(read, id_))


async def name_of(read: Read, id_: str) -> str:
    if (known := await read.value("SELECT name FROM collections WHERE id = ?", (id_,))) is not None:
        return str(known)
    for (tag,) in await read.rows(NAMES, (*RANGE, BEYOND)):
        name = tag.removeprefix(r.PREFIX)
        # A name that is described under another id has that one alone.
        if r.collection_id(name) == id_ and await _description(read, name) is None:
            return str(name)
    raise no_collection_id(id_)


async def ids(read: Read, names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in dict.fromkeys(names):
        if (standing := await _description(read, name)) is not None:
            found[name] = standing.id
        elif await _is_in_use(read, name):
            found[name] = r.collection_id(name)
    return found


async def put(write: Write, id_: str, wanted: r.CollectionRequest) -> r.CollectionDetail:
    """Describe a collection. Raises `collection_exists`."""
    await write.hold_base()
    standing = await _description(write, wanted.name)
    check_description(
        id_,
        wanted.name,
        described_as=standing.id if standing else None,
        owner=await write.value("SELECT name FROM collections WHERE id = ?", (id_,)),
        in_use=await _is_in_use(write, wanted.name),
    )
    later = collection_rules.merge_description(
        id_, wanted, standing, await _stats_of(write, wanted.name), write.now
    )
    if standing is None or standing.content != later.content:
        await write.rows(_STORE, (later.id, later.name, *later.content, later.created_at, later.updated_at))
    return await _detail(write, wanted.name)


async def _is_in_use(read: Read, name: str) -> bool:
    return await read.row("SELECT 1 FROM document_tags WHERE tag = ? LIMIT 1", (r.PREFIX + name,)) is not None


async def _description(read: Read, name: str) -> CollectionDescription | None:
    found = await read.row(f"{DESCRIPTIONS} WHERE name = ?", (name,))
    return CollectionDescription(*found) if found else None


async def _stats(read: Read, condition: str, values: Sequence[str]) -> dict[str, CollectionStats]:
    return collection_rules.stats_by_name(
        await read.rows(STATISTICS.format(index=read.dialect.statistics_index, condition=condition), values)
    )


async def _stats_of(read: Read, name: str) -> CollectionStats:
    found = await _stats(read, "tag = ?", (r.PREFIX + name,))
    return found.get(name, collection_rules.no_documents(name))


async def _detail(read: Read, name: str) -> r.CollectionDetail:
    return collection_rules.collection_detail(await _description(read, name), await _stats_of(read, name))
