"""What is said of collections and what they add up to, put together without SQL, for both stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kb_contracts.api import ragler as r
from kb_contracts.api.errors import EngineError
from kb_contracts.semantics import collections
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
DESCRIBED = (
    "SELECT id, name, description, created_by, target_audience, usage_scenarios, created_at, updated_at "
    "FROM collections"
)


@dataclass(frozen=True, slots=True)
class Described:
    """What somebody has said; the lists are JSON."""

    id: str
    name: str
    description: str
    created_by: str
    target_audience: str | None
    usage_scenarios: str | None
    created_at: str
    updated_at: str

    @property
    def says(self) -> tuple[str | None, ...]:
        """All of it but name, id and times."""
        return self.description, self.created_by, self.target_audience, self.usage_scenarios


@dataclass(frozen=True, slots=True)
class Figures:
    """What the documents add up to: when the first was created and the last one changed, empty for none."""

    name: str
    chunks: int
    tokens: int
    first: str
    last: str


def figures(found: Iterable[Sequence[object]]) -> dict[str, Figures]:
    """By name, from rows of tag, chunks, tokens, first and last."""
    made = {}
    for tag, *one in found:
        name = str(tag).removeprefix(r.PREFIX)
        made[name] = Figures(name, *one)  # type: ignore[arg-type]
    return made


def none(name: str) -> Figures:
    """Those of a collection without a document."""
    return Figures(name, chunks=0, tokens=0, first="", last="")


def every(figures: Mapping[str, Figures], described: Iterable[Described]) -> r.CollectionList:
    """Those in use and those described, by name."""
    said = {one.name: one for one in described}
    names = sorted(figures.keys() | said.keys())
    return r.CollectionList(
        collections=[_summary(said.get(name), figures.get(name, none(name))) for name in names],
        total=len(names),
    )


def not_found(id_: str) -> EngineError:
    """Nothing has this id."""
    return collections.no_collection_id(id_)


def anew(
    id_: str, wanted: r.CollectionRequest, standing: Described | None, figures: Figures, now: str
) -> Described:
    """What is said after a description."""
    return Described(
        id=id_,
        name=wanted.name,
        description=wanted.description,
        created_by=wanted.created_by or (standing.created_by if standing else r.ENGINE_USER),
        target_audience=_list(wanted.target_audience),
        usage_scenarios=_list(wanted.usage_scenarios),
        created_at=standing.created_at if standing else figures.first or now,
        updated_at=following(now, max(standing.updated_at if standing else "", figures.last)),
    )


def check_same(standing: Described, id_: str) -> None:
    """Raises `collection_exists` where the name that stands has another id."""
    collections.check_description(id_, standing.name, described_as=standing.id, owner=None, in_use=False)


def check_new(id_: str, name: str, *, other: str | None, in_use: bool) -> None:
    """Raises `collection_exists` where the id is of an `other` name, or the name has an id of its own."""
    collections.check_description(id_, name, described_as=None, owner=other, in_use=in_use)


def _list(items: Sequence[str] | None) -> str | None:
    return None if items is None else json_text(items)


def _undescribed(figures: Figures) -> Described:
    """What can be said of a collection of which nobody has said anything."""
    return Described(
        id=r.collection_id(figures.name),
        name=figures.name,
        description="",
        created_by=r.ENGINE_USER,
        target_audience=None,
        usage_scenarios=None,
        created_at=figures.first,
        updated_at=figures.last,
    )


def _summary(described: Described | None, figures: Figures) -> r.CollectionSummary:
    said = described or _undescribed(figures)
    return r.CollectionSummary(
        id=said.id,
        name=said.name,
        description=said.description,
        chunk_count=figures.chunks,
        created_by=said.created_by,
        created_at=said.created_at,
    )


def detail(described: Described | None, figures: Figures) -> r.CollectionDetail:
    """One with its figures."""
    said = described or _undescribed(figures)
    return r.CollectionDetail(
        **msgspec.structs.asdict(_summary(said, figures)),
        updated_at=max(said.updated_at, figures.last),
        target_audience=_items(said.target_audience),
        usage_scenarios=_items(said.usage_scenarios),
        statistics=r.CollectionStatistics(
            total_tokens=figures.tokens,
            avg_chunk_size=round(figures.tokens / figures.chunks, 3) if figures.chunks else 0.0,
            last_published=figures.last or said.updated_at,
        ),
    )


def _items(text: str | None) -> list[str] | msgspec.UnsetType:
    return msgspec.UNSET if text is None else msgspec.json.decode(text, type=list[str])
