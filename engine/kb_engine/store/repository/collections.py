"""Collections: their descriptions, and the statistics of the documents in them.

Nothing is stored of a collection that nobody has described: it exists while a document carries its tag, and
its id is derived from its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from kb_contracts.api import ragler as r
from kb_contracts.semantics.access import check_described
from kb_contracts.semantics.collections import check_description, no_collection_id
from kb_engine.store.repository.reach import Condition
from kb_engine.store.repository.transaction import Read, Write, following

_BEYOND = "collection;"  # the first text after all that begin with the prefix
IN_USE = "tag > ? AND tag < ?"
_RANGE = (r.PREFIX, _BEYOND)

# From one tag to the next: a collection costs one step in the index, however many documents are in it.
NAMES = f"""
WITH RECURSIVE used (tag) AS (
  SELECT min(tag) FROM document_tags WHERE {IN_USE}
  UNION ALL
  SELECT (SELECT min(tag) FROM document_tags WHERE tag > used.tag AND tag < ?) FROM used WHERE tag IS NOT NULL
)
SELECT tag FROM used WHERE tag IS NOT NULL
"""  # noqa: S608
STATISTICS = """
SELECT tag, sum(d.chunk_count), sum(d.token_count), min(d.created_at), max(d.updated_at)
FROM document_tags JOIN documents d{index} ON d.id = document_id
WHERE {condition} GROUP BY tag
"""
_DESCRIPTIONS = (
    "SELECT id, name, description, created_by, target_audience, usage_scenarios, created_at, updated_at "
    "FROM collections"
)
_STORE = """
INSERT INTO collections (id, name, description, created_by, target_audience, usage_scenarios, created_at,
  updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET description = EXCLUDED.description, created_by = EXCLUDED.created_by,
  target_audience = EXCLUDED.target_audience, usage_scenarios = EXCLUDED.usage_scenarios,
  updated_at = EXCLUDED.updated_at
"""


@dataclass(frozen=True, slots=True)
class _Description:
    """What somebody has described; the lists are JSON."""

    id: str
    name: str
    description: str
    created_by: str
    target_audience: str | None
    usage_scenarios: str | None
    created_at: str
    updated_at: str

    @property
    def content(self) -> tuple[str | None, ...]:
        """All but name, id and times."""
        return self.description, self.created_by, self.target_audience, self.usage_scenarios


@dataclass(frozen=True, slots=True)
class _Stats:
    """Sums over the documents; when the first was created and the last one changed, empty for none."""

    name: str
    chunks: int = 0
    tokens: int = 0
    first: str = ""
    last: str = ""


async def every(read: Read) -> r.CollectionList:
    """Those that are in use and those that are described, by name (in the order of code points)."""
    stats = await _stats(read, IN_USE, _RANGE)
    every = (_Description(*row) for row in await read.rows(_DESCRIPTIONS))
    described = {one.name: one for one in every if _is_within(read, one.name)}
    names = sorted(stats.keys() | described.keys())
    return r.CollectionList(
        collections=[_summary(described.get(name), stats.get(name, _Stats(name))) for name in names],
        total=len(names),
    )


async def detail(read: Read, id_: str) -> r.CollectionDetail:
    """One with its figures. Raises `collection_not_found`."""
    return await _detail(read, await name_of(read, id_))


async def name_of(read: Read, id_: str) -> str:
    """The name alone, which costs no counting. Raises `collection_not_found`."""
    known = await read.value("SELECT name FROM collections WHERE id = ?", (id_,))
    if known is not None and _is_within(read, known):
        return str(known)
    for (tag,) in await read.rows(*_names(read)):
        name = tag.removeprefix(r.PREFIX)
        # A name that is described under another id has that one alone.
        if r.collection_id(name) == id_ and await _description(read, name) is None:
            return str(name)
    raise no_collection_id(id_)


async def ids(read: Read, names: Iterable[str]) -> dict[str, str]:
    """The ids by name, of those that are collections; costs no counting either."""
    found = {}
    for name in dict.fromkeys(names):
        if (standing := await _description(read, name)) is not None:
            found[name] = standing.id
        elif await _is_in_use(read, name):
            found[name] = r.collection_id(name)
    return found


async def put(write: Write, id_: str, wanted: r.CollectionRequest) -> r.CollectionDetail:
    """Describe a collection. What it says already changes nothing, `updated_at` neither.

    `created_at` is that of the first document in it, else now. Raises `collection_exists` where the id
    is another name's, the name has another id (also one that nobody has described, while a document is
    in it), or the id may not be this name's (`ragler.may_have_id`); `forbidden` where that is out of reach.
    """
    await write.hold_descriptions()
    standing = await _description(write, wanted.name)
    check_described(write.reach, wanted.name, id_, standing.id if standing else None)
    check_description(
        id_,
        wanted.name,
        described_as=standing.id if standing else None,
        owner=await write.value("SELECT name FROM collections WHERE id = ?", (id_,)),
        in_use=await _is_in_use(write, wanted.name),
    )
    stats = await _stats_of(write, wanted.name)
    audience, scenarios = (
        None if items is None else msgspec.json.encode(items).decode()
        for items in (wanted.target_audience, wanted.usage_scenarios)
    )
    later = _Description(
        id=id_,
        name=wanted.name,
        description=wanted.description,
        created_by=wanted.created_by or (standing.created_by if standing else r.ENGINE_USER),
        target_audience=audience,
        usage_scenarios=scenarios,
        created_at=standing.created_at if standing else stats.first or write.now,
        updated_at=following(write.now, max(standing.updated_at if standing else "", stats.last)),
    )
    if standing is None or standing.content != later.content:
        await write.rows(_STORE, (later.id, later.name, *later.content, later.created_at, later.updated_at))
    return await _detail(write, wanted.name)


def _names(read: Read) -> Condition:
    """The statement for the tags of collections that documents within reach carry."""
    within, reached = read.within("document_id")
    if not within:
        return NAMES, (*_RANGE, _BEYOND)
    sql = f"SELECT DISTINCT tag FROM document_tags WHERE {IN_USE}{within} ORDER BY tag"  # noqa: S608
    return sql, (*_RANGE, *reached)


def _is_within(read: Read, name: str) -> bool:
    """Whether what was said of a collection is there for the caller. One that is in use within reach is there
    without it."""
    return read.reach is None or read.reach.has(r.PREFIX + name)


async def _is_in_use(read: Read, name: str) -> bool:
    within, reached = read.within("document_id")
    sql = f"SELECT 1 FROM document_tags WHERE tag = ?{within} LIMIT 1"  # noqa: S608
    return await read.row(sql, (r.PREFIX + name, *reached)) is not None


async def _description(read: Read, name: str) -> _Description | None:
    if not _is_within(read, name):
        return None
    found = await read.row(f"{_DESCRIPTIONS} WHERE name = ?", (name,))
    return _Description(*found) if found else None


async def _stats(read: Read, condition: str, values: Sequence[str]) -> dict[str, _Stats]:
    """By name."""
    within, reached = read.within("document_id")
    sql = STATISTICS.format(index=read.statistics_index, condition=condition + within)
    found = await read.rows(sql, (*values, *reached))
    stats = [_Stats(tag.removeprefix(r.PREFIX), *sums) for tag, *sums in found]
    return {one.name: one for one in stats}


async def _stats_of(read: Read, name: str) -> _Stats:
    return (await _stats(read, "tag = ?", (r.PREFIX + name,))).get(name, _Stats(name))


def _undescribed(stats: _Stats) -> _Description:
    id_ = r.collection_id(stats.name)
    return _Description(id_, stats.name, "", r.ENGINE_USER, None, None, stats.first, stats.last)


def _summary(description: _Description | None, stats: _Stats) -> r.CollectionSummary:
    known = description or _undescribed(stats)
    return r.CollectionSummary(
        id=known.id,
        name=known.name,
        description=known.description,
        chunk_count=stats.chunks,
        created_by=known.created_by,
        created_at=known.created_at,
    )


async def _detail(read: Read, name: str) -> r.CollectionDetail:
    description, stats = await _description(read, name), await _stats_of(read, name)
    known = description or _undescribed(stats)
    audience, scenarios = (
        msgspec.UNSET if text is None else msgspec.json.decode(text, type=list[str])
        for text in (known.target_audience, known.usage_scenarios)
    )
    return r.CollectionDetail(
        **msgspec.structs.asdict(_summary(description, stats)),
        updated_at=max(known.updated_at, stats.last),
        target_audience=audience,
        usage_scenarios=scenarios,
        statistics=r.CollectionStatistics(
            total_tokens=stats.tokens,
            avg_chunk_size=round(stats.tokens / stats.chunks, 3) if stats.chunks else 0.0,
            last_published=stats.last or known.updated_at,
        ),
    )
