"""Collections: their descriptions, and the statistics of their documents.

A collection without a description is not stored: it exists while a document carries its tag, and its id is
derived from its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from kb_contracts.api import ragler as r
from kb_contracts.semantics.access import check_described
from kb_contracts.semantics.collections import check_description, no_collection_id
from kb_engine.store.clock import following
from kb_engine.store.repository.reach import Condition
from kb_engine.store.repository.transaction import Read, Write, placeholders

_BEYOND = "collection;"  # the first text after all that begin with the prefix
IN_USE = "tag > ? AND tag < ?"
_RANGE = (r.PREFIX, _BEYOND)

# Skip scan from one tag to the next: a collection costs one index lookup, however many documents it has.
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


class _Description(NamedTuple):
    """A stored description; the lists are JSON."""

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
        """Return all fields except name, id and times."""
        return tuple(getattr(self, name) for name in _CONTENT)


COLUMNS = _Description._fields
_CONTENT = ("description", "created_by", "target_audience", "usage_scenarios")
_CHANGED = ", ".join(f"{name} = EXCLUDED.{name}" for name in (*_CONTENT, "updated_at"))
_DESCRIPTIONS = f"SELECT {', '.join(COLUMNS)} FROM collections"  # noqa: S608
_STORE = (
    f"INSERT INTO collections ({', '.join(COLUMNS)}) VALUES ({placeholders(len(COLUMNS))}) "  # noqa: S608
    f"ON CONFLICT (id) DO UPDATE SET {_CHANGED}"
)


@dataclass(frozen=True, slots=True)
class _Stats:
    """Sums over the documents; `first` is the earliest creation and `last` the latest change, empty if there
    are no documents.
    """

    name: str
    chunks: int = 0
    tokens: int = 0
    first: str = ""
    last: str = ""


async def every(read: Read) -> r.CollectionList:
    """List the collections that are in use or described, by name (in the order of code points)."""
    stats = await _stats(read, IN_USE, _RANGE)
    every = (_Description(*row) for row in await read.rows(_DESCRIPTIONS))
    described = {one.name: one for one in every if _is_within(read, one.name)}
    names = sorted(stats.keys() | described.keys())
    return r.CollectionList(
        collections=[_summary(described.get(name), stats.get(name, _Stats(name))) for name in names],
        total=len(names),
    )


async def detail(read: Read, id_: str) -> r.CollectionDetail:
    """Return a collection with its statistics. Raises `collection_not_found`."""
    return await _detail(read, await name_of(read, id_))


async def name_of(read: Read, id_: str) -> str:
    """Return the name only, without counting. Raises `collection_not_found`."""
    known = await read.value("SELECT name FROM collections WHERE id = ?", (id_,))
    if known is not None and _is_within(read, known):
        return str(known)
    for (tag,) in await read.rows(*_names(read)):
        name = tag.removeprefix(r.PREFIX)
        # A name described under another id has only that id.
        if r.collection_id(name) == id_ and await _description(read, name) is None:
            return str(name)
    raise no_collection_id(id_)


async def ids(read: Read, names: Iterable[str]) -> dict[str, str]:
    """Return the ids of the names that are collections, without counting."""
    found = {}
    for name in dict.fromkeys(names):
        if (standing := await _description(read, name)) is not None:
            found[name] = standing.id
        elif await _is_in_use(read, name):
            found[name] = r.collection_id(name)
    return found


async def put(write: Write, id_: str, wanted: r.CollectionRequest) -> r.CollectionDetail:
    """Describe a collection. An identical description changes nothing, not even `updated_at`.

    `created_at` is that of the first document, or the current time. Raises `collection_exists` if the id
    belongs to another name, the name has another id (even without a description, while a document is in it),
    or the id is not allowed for this name (`ragler.may_have_id`); `forbidden` outside the access scope.
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
        await write.rows(_STORE, later)
    return await _detail(write, wanted.name)


def _names(read: Read) -> Condition:
    """The statement for the collection tags of documents within the access scope."""
    within, reached = read.within("document_id")
    if not within:
        return NAMES, (*_RANGE, _BEYOND)
    sql = f"SELECT DISTINCT tag FROM document_tags WHERE {IN_USE}{within} ORDER BY tag"  # noqa: S608
    return sql, (*_RANGE, *reached)


def _is_within(read: Read, name: str) -> bool:
    """True if the caller may see the description of this collection. The collection itself is also visible
    through its documents within the access scope.
    """
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
