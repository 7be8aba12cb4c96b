"""Collections: what is said of them, and what the documents in them add up to.

Nothing is kept of a collection that nobody has described: it is there while a document carries its tag, and
its id is derived from its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import apsw

from kb_contracts.api import ragler as r
from kb_engine.store import described
from kb_engine.store.described import BEYOND, DESCRIBED, IN_USE, NAMES, RANGE, Described, Figures
from kb_engine.store.sqlite.connection import row, rows, value
from kb_engine.store.sqlite.write import Write

# Row after row of the index alone: SQLite would take the table by its key, and read the metadata on the way.
_FIGURES = """
SELECT tag, sum(d.chunk_count), sum(d.token_count), min(d.created_at), max(d.updated_at)
FROM document_tags JOIN documents d INDEXED BY documents_figures ON d.id = document_id
WHERE {condition} GROUP BY tag
"""


def every(db: apsw.Connection) -> r.CollectionList:
    """Those in use and those described, by name."""
    return described.every(_figures(db, IN_USE, RANGE), [Described(*one) for one in rows(db, DESCRIBED)])


def detail(db: apsw.Connection, id_: str) -> r.CollectionDetail:
    """One with its figures. Raises `collection_not_found`."""
    return _detail(db, name_of(db, id_))


def name_of(db: apsw.Connection, id_: str) -> str:
    """The name that belongs to an id. Raises `collection_not_found`."""
    if (known := value(db, "SELECT name FROM collections WHERE id = ?", (id_,))) is not None:
        return str(known)
    for (tag,) in rows(db, NAMES, (*RANGE, BEYOND)):
        name = tag.removeprefix(r.PREFIX)
        # A name that is described under another id has that one alone.
        if r.collection_id(name) == id_ and _described_as(db, name) is None:
            return str(name)
    raise described.not_found(id_)


def ids(db: apsw.Connection, names: Iterable[str]) -> dict[str, str]:
    """The ids by name, of those that are collections."""
    found = {}
    for name in dict.fromkeys(names):
        if (standing := _described_as(db, name)) is not None:
            found[name] = standing.id
        elif _is_in_use(db, name):
            found[name] = r.collection_id(name)
    return found


def put(write: Write, id_: str, wanted: r.CollectionRequest) -> r.CollectionDetail:
    """Describe a collection. Raises `collection_exists`."""
    db, standing = write.db, _described_as(write.db, wanted.name)
    if standing is None:
        other = value(db, "SELECT name FROM collections WHERE id = ?", (id_,))
        described.check_new(id_, wanted.name, other=other, in_use=_is_in_use(db, wanted.name))
    else:
        described.check_same(standing, id_)
    later = described.anew(id_, wanted, standing, _figures_of(db, wanted.name), write.now)
    if standing is None or standing.says != later.says:
        db.execute(
            "INSERT OR REPLACE INTO collections (id, name, description, created_by, target_audience, "
            "usage_scenarios, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (later.id, later.name, *later.says, later.created_at, later.updated_at),
        )
    return _detail(db, wanted.name)


def _is_in_use(db: apsw.Connection, name: str) -> bool:
    return row(db, "SELECT 1 FROM document_tags WHERE tag = ? LIMIT 1", (r.PREFIX + name,)) is not None


def _described_as(db: apsw.Connection, name: str) -> Described | None:
    found = row(db, f"{DESCRIBED} WHERE name = ?", (name,))
    return Described(*found) if found else None


def _figures(db: apsw.Connection, condition: str, values: Sequence[str]) -> dict[str, Figures]:
    return described.figures(rows(db, _FIGURES.format(condition=condition), values))


def _figures_of(db: apsw.Connection, name: str) -> Figures:
    return _figures(db, "tag = ?", (r.PREFIX + name,)).get(name, described.none(name))


def _detail(db: apsw.Connection, name: str) -> r.CollectionDetail:
    return described.detail(_described_as(db, name), _figures_of(db, name))
