"""Collections: what is said of them, and what the documents in them add up to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kb_contracts.api import ragler as r
from kb_engine.store import described
from kb_engine.store.described import BEYOND, DESCRIBED, IN_USE, NAMES, RANGE, Described, Figures
from kb_engine.store.postgres.connection import Db, row, rows, value
from kb_engine.store.postgres.write import Write

_FIGURES = """
SELECT tag, sum(d.chunk_count), sum(d.token_count), min(d.created_at), max(d.updated_at)
FROM document_tags JOIN documents d ON d.id = document_id
WHERE {condition} GROUP BY tag
"""
_KEEP = """
INSERT INTO collections (id, name, description, created_by, target_audience, usage_scenarios, created_at,
  updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET description = EXCLUDED.description, created_by = EXCLUDED.created_by,
  target_audience = EXCLUDED.target_audience, usage_scenarios = EXCLUDED.usage_scenarios,
  updated_at = EXCLUDED.updated_at
"""


async def every(db: Db) -> r.CollectionList:
    """Those in use and those described, by name."""
    return described.every(
        await _figures(db, IN_USE, RANGE), [Described(*one) for one in await rows(db, DESCRIBED)]
    )


async def detail(db: Db, id_: str) -> r.CollectionDetail:
    """One with its figures. Raises `collection_not_found`."""
    return await _detail(db, await name_of(db, id_))


async def name_of(db: Db, id_: str) -> str:
    """The name that belongs to an id. Raises `collection_not_found`."""
    if (known := await value(db, "SELECT name FROM collections WHERE id = ?", (id_,))) is not None:
        return str(known)
    for (tag,) in await rows(db, NAMES, (*RANGE, BEYOND)):
        name = tag.removeprefix(r.PREFIX)
        # A name that is described under another id has that one alone.
        if r.collection_id(name) == id_ and await _described_as(db, name) is None:
            return str(name)
    raise described.not_found(id_)


async def ids(db: Db, names: Iterable[str]) -> dict[str, str]:
    """The ids by name, of those that are collections."""
    found = {}
    for name in dict.fromkeys(names):
        if (standing := await _described_as(db, name)) is not None:
            found[name] = standing.id
        elif await _is_in_use(db, name):
            found[name] = r.collection_id(name)
    return found


async def put(write: Write, id_: str, wanted: r.CollectionRequest) -> r.CollectionDetail:
    """Describe a collection. Raises `collection_exists`."""
    await write.hold_base()
    db, standing = write.db, await _described_as(write.db, wanted.name)
    if standing is None:
        other = await value(db, "SELECT name FROM collections WHERE id = ?", (id_,))
        described.check_new(id_, wanted.name, other=other, in_use=await _is_in_use(db, wanted.name))
    else:
        described.check_same(standing, id_)
    later = described.anew(id_, wanted, standing, await _figures_of(db, wanted.name), write.now)
    if standing is None or standing.says != later.says:
        await rows(db, _KEEP, (later.id, later.name, *later.says, later.created_at, later.updated_at))
    return await _detail(db, wanted.name)


async def _is_in_use(db: Db, name: str) -> bool:
    return await row(db, "SELECT 1 FROM document_tags WHERE tag = ? LIMIT 1", (r.PREFIX + name,)) is not None


async def _described_as(db: Db, name: str) -> Described | None:
    found = await row(db, f"{DESCRIBED} WHERE name = ?", (name,))
    return Described(*found) if found else None


async def _figures(db: Db, condition: str, values: Sequence[str]) -> dict[str, Figures]:
    return described.figures(await rows(db, _FIGURES.format(condition=condition), values))


async def _figures_of(db: Db, name: str) -> Figures:
    found = await _figures(db, "tag = ?", (r.PREFIX + name,))
    return found.get(name, described.none(name))


async def _detail(db: Db, name: str) -> r.CollectionDetail:
    return described.detail(await _described_as(db, name), await _figures_of(db, name))
