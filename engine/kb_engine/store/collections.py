"""Collections: what is said of them, and what the documents in them add up to.

Nothing is kept of a collection that nobody has described: it is there while a document carries its tag, and
its id is derived from its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import apsw
import msgspec

from kb_contracts import ragler as r
from kb_contracts.errors import EngineError
from kb_engine.store.connection import row, rows, value
from kb_engine.store.rows import json_text
from kb_engine.store.times import following
from kb_engine.store.write import Write

_BEYOND = "collection;"  # the first text after all that begin with the prefix
_IN_USE = "tag > ? AND tag < ?"
_RANGE = (r.PREFIX, _BEYOND)

# Row after row of the index alone: SQLite would take the table by its key, and read the metadata on the way.
_FIGURES = """
SELECT tag, sum(d.chunk_count), sum(d.token_count), min(d.created_at), max(d.updated_at)
FROM document_tags JOIN documents d INDEXED BY documents_figures ON d.id = document_id
WHERE {condition} GROUP BY tag
"""
# From one tag to the next: a collection costs one step in the index, however many documents are in it.
_NAMES = f"""
WITH RECURSIVE used (tag) AS (
  SELECT min(tag) FROM document_tags WHERE {_IN_USE}
  UNION ALL
  SELECT (SELECT min(tag) FROM document_tags WHERE tag > used.tag AND tag < ?) FROM used WHERE tag IS NOT NULL
)
SELECT tag FROM used WHERE tag IS NOT NULL
"""  # noqa: S608
_DESCRIBED = (
    "SELECT id, name, description, created_by, target_audience, usage_scenarios, created_at, updated_at "
    "FROM collections"
)


@dataclass(frozen=True, slots=True)
class _Described:
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
class _Figures:
    """What the documents add up to: when the first was created and the last one changed, empty for none."""

    name: str
    chunks: int
    tokens: int
    first: str
    last: str


def every(db: apsw.Connection) -> r.CollectionList:
    """Those in use and those described, by name."""
    figures = _figures(db, _IN_USE, _RANGE)
    described = {one.name: one for one in _described(rows(db, _DESCRIBED))}
    names = sorted(figures.keys() | described.keys())
    return r.CollectionList(
        collections=[_summary(described.get(name), figures.get(name, _none(name))) for name in names]
    )


def detail(db: apsw.Connection, id_: str) -> r.CollectionDetail:
    """One with its figures. Raises `collection_not_found`."""
    return _detail(db, name_of(db, id_))


def name_of(db: apsw.Connection, id_: str) -> str:
    """The name that belongs to an id. Raises `collection_not_found`."""
    if (described := value(db, "SELECT name FROM collections WHERE id = ?", (id_,))) is not None:
        return str(described)
    for (tag,) in rows(db, _NAMES, (*_RANGE, _BEYOND)):
        name = tag.removeprefix(r.PREFIX)
        # A name that is described under another id has that one alone.
        if r.collection_id(name) == id_ and _described_as(db, name) is None:
            return str(name)
    raise EngineError(
        "collection_not_found", f"There is no collection {id_}. List the collections to see which there are."
    )


def ids(db: apsw.Connection, names: Iterable[str]) -> dict[str, str]:
    """The ids by name, of those that are collections."""
    found = {}
    for name in dict.fromkeys(names):
        if (described := _described_as(db, name)) is not None:
            found[name] = described.id
        elif _is_in_use(db, name):
            found[name] = r.collection_id(name)
    return found


def put(write: Write, id_: str, wanted: r.CollectionRequest) -> r.CollectionDetail:
    """Describe a collection. Raises `collection_exists`."""
    db, standing = write.db, _described_as(write.db, wanted.name)
    if standing is None:
        _check_new(db, id_, wanted.name)
    elif standing.id != id_:
        raise _taken(f"The collection {wanted.name!r} has the id {standing.id}; describe it under that.")
    figures = _figures_of(db, wanted.name)
    later = _Described(
        id=id_,
        name=wanted.name,
        description=wanted.description,
        created_by=wanted.created_by or (standing.created_by if standing else r.ENGINE_USER),
        target_audience=_list(wanted.target_audience),
        usage_scenarios=_list(wanted.usage_scenarios),
        created_at=standing.created_at if standing else figures.first or write.now,
        updated_at=following(write.now, max(standing.updated_at if standing else "", figures.last)),
    )
    if standing is None or standing.says != later.says:
        db.execute(
            "INSERT OR REPLACE INTO collections (id, name, description, created_by, target_audience, "
            "usage_scenarios, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (later.id, later.name, *later.says, later.created_at, later.updated_at),
        )
    return _detail(db, wanted.name)


def _check_new(db: apsw.Connection, id_: str, name: str) -> None:
    """Raises `collection_exists` where the id or the name is another one's."""
    if (other := value(db, "SELECT name FROM collections WHERE id = ?", (id_,))) is not None:
        raise _taken(f"{id_} is the collection {other!r}, and a name never changes. Take another id.")
    own = r.collection_id(name)
    if not r.may_have_id(name, id_):
        raise _taken(
            f"An id of version 5 is derived from a name, and {id_} is not that of {name!r}. "
            f"Describe it under {own}, or under an id of version 4."
        )
    if id_ != own and _is_in_use(db, name):
        raise _taken(f"The collection {name!r} is in use and has the id {own}; describe it under that.")


def _taken(detail: str) -> EngineError:
    return EngineError("collection_exists", detail, parameter="collection_id")


def _list(items: Sequence[str] | None) -> str | None:
    return None if items is None else json_text(items)


def _is_in_use(db: apsw.Connection, name: str) -> bool:
    return row(db, "SELECT 1 FROM document_tags WHERE tag = ? LIMIT 1", (r.PREFIX + name,)) is not None


def _described(found: Iterable[Sequence[str]]) -> list[_Described]:
    return [_Described(*one) for one in found]


def _described_as(db: apsw.Connection, name: str) -> _Described | None:
    found = _described(rows(db, f"{_DESCRIBED} WHERE name = ?", (name,)))
    return found[0] if found else None


def _figures(db: apsw.Connection, condition: str, values: Sequence[str]) -> dict[str, _Figures]:
    found = rows(db, _FIGURES.format(condition=condition), values)
    return {(name := tag.removeprefix(r.PREFIX)): _Figures(name, *one) for tag, *one in found}


def _figures_of(db: apsw.Connection, name: str) -> _Figures:
    return _figures(db, "tag = ?", (r.PREFIX + name,)).get(name, _none(name))


def _none(name: str) -> _Figures:
    return _Figures(name, chunks=0, tokens=0, first="", last="")


def _undescribed(figures: _Figures) -> _Described:
    """What can be said of a collection of which nobody has said anything."""
    return _Described(
        id=r.collection_id(figures.name),
        name=figures.name,
        description="",
        created_by=r.ENGINE_USER,
        target_audience=None,
        usage_scenarios=None,
        created_at=figures.first,
        updated_at=figures.last,
    )


def _summary(described: _Described | None, figures: _Figures) -> r.CollectionSummary:
    said = described or _undescribed(figures)
    return r.CollectionSummary(
        id=said.id,
        name=said.name,
        description=said.description,
        chunk_count=figures.chunks,
        created_by=said.created_by,
        created_at=said.created_at,
    )


def _detail(db: apsw.Connection, name: str) -> r.CollectionDetail:
    figures = _figures_of(db, name)
    said = _described_as(db, name) or _undescribed(figures)
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
