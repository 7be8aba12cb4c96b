"""The rules of collections, without I/O: how descriptions and statistics become what callers see.

The queries here read the same on both databases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kb_contracts.api import ragler as r
from kb_engine.store.rows import json_text
from kb_engine.store.times import following

BEYOND = "collection;"  # the first text after all that begin with the prefix
IN_USE = "tag > ? AND tag < ?"
RANGE = (r.PREFIX, BEYOND)

# From one tag to the next: a collection costs one step in the index, however many documents are in it.
NAMES = f"""
WITH RECURSIVE used (tag) AS (
  SELECT min(tag) FROM document_tags WHERE {IN_USE}
  UNION ALL
  SELECT (SELECT min(tag) FROM document_tags WHERE tag > used.tag AND tag < ?) FROM used WHERE tag IS NOT NULL
)
SELECT tag FROM used WHERE tag IS NOT NULL
"""  # noqa: S608
DESCRIPTIONS = (
    "SELECT id, name, description, created_by, target_audience, usage_scenarios, created_at, updated_at "
    "FROM collections"
)


@dataclass(frozen=True, slots=True)
class CollectionDescription:
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
class CollectionStats:
    """Sums over the documents; when the first was created and the last one changed, empty for none."""

    name: str
    chunks: int
    tokens: int
    first: str
    last: str


def stats_by_name(found: Iterable[Sequence[object]]) -> dict[str, CollectionStats]:
    """By name, from rows of tag, chunks, tokens, first and last."""
    made = {}
    for tag, *one in found:
        name = str(tag).removeprefix(r.PREFIX)
        made[name] = CollectionStats(name, *one)  # type: ignore[arg-type]
    return made


def no_documents(name: str) -> CollectionStats:
    return CollectionStats(name, chunks=0, tokens=0, first="", last="")


def collection_list(
    stats: Mapping[str, CollectionStats], descriptions: Iterable[CollectionDescription]
) -> r.CollectionList:
    by_name = {one.name: one for one in descriptions}
    names = sorted(stats.keys() | by_name.keys())
    return r.CollectionList(
        collections=[_summary(by_name.get(name), stats.get(name, no_documents(name))) for name in names],
        total=len(names),
    )


def merge_description(
    id_: str,
    wanted: r.CollectionRequest,
    standing: CollectionDescription | None,
    stats: CollectionStats,
    now: str,
) -> CollectionDescription:
    """The description that a request leads to."""
    return CollectionDescription(
        id=id_,
        name=wanted.name,
        description=wanted.description,
        created_by=wanted.created_by or (standing.created_by if standing else r.ENGINE_USER),
        target_audience=_list(wanted.target_audience),
        usage_scenarios=_list(wanted.usage_scenarios),
        created_at=standing.created_at if standing else stats.first or now,
        updated_at=following(now, max(standing.updated_at if standing else "", stats.last)),
    )


def _list(items: Sequence[str] | None) -> str | None:
    return None if items is None else json_text(items)


def _undescribed(stats: CollectionStats) -> CollectionDescription:
    return CollectionDescription(
        id=r.collection_id(stats.name),
        name=stats.name,
        description="",
        created_by=r.ENGINE_USER,
        target_audience=None,
        usage_scenarios=None,
        created_at=stats.first,
        updated_at=stats.last,
    )


def _summary(description: CollectionDescription | None, stats: CollectionStats) -> r.CollectionSummary:
    known = description or _undescribed(stats)
    return r.CollectionSummary(
        id=known.id,
        name=known.name,
        description=known.description,
        chunk_count=stats.chunks,
        created_by=known.created_by,
        created_at=known.created_at,
    )


def collection_detail(
    description: CollectionDescription | None, stats: CollectionStats
) -> r.CollectionDetail:
    known = description or _undescribed(stats)
    return r.CollectionDetail(
        **msgspec.structs.asdict(_summary(description, stats)),
        updated_at=max(known.updated_at, stats.last),
        target_audience=_items(known.target_audience),
        usage_scenarios=_items(known.usage_scenarios),
        statistics=r.CollectionStatistics(
            total_tokens=stats.tokens,
            avg_chunk_size=round(stats.tokens / stats.chunks, 3) if stats.chunks else 0.0,
            last_published=stats.last or known.updated_at,
        ),
    )


def _items(text: str | None) -> list[str] | msgspec.UnsetType:
    return msgspec.UNSET if text is None else msgspec.json.decode(text, type=list[str])
