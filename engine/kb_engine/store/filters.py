"""Which documents may answer a search, as SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from kb_engine.index.embedded.words import numbers
from kb_engine.index.port import Ids, Selection
from kb_engine.store.repository.tags import starts_with
from kb_engine.store.repository.transaction import placeholders
from kb_engine.store.sqlite.connection import value
from kb_engine.store.times import stamp

Condition = tuple[str, Sequence[Any]]


def documents(db: apsw.Connection, selection: Selection) -> Ids | None:
    """The ids of the documents selected; None when that is all of them."""
    where, values = condition(selection)
    if not where:
        return None
    sql = f"SELECT group_concat(d.id) FROM documents d WHERE {where}"  # noqa: S608
    return numbers(value(db, sql, values))


def condition(selection: Selection) -> Condition:
    """What documents `d` have to meet, a `?` for each value; empty when that is nothing."""
    conditions = list(_conditions(selection))
    where = " AND ".join(sql for sql, _ in conditions)
    return where, [one for _, values in conditions for one in values]


def _conditions(selection: Selection) -> Iterator[Condition]:
    tagged = "d.id IN (SELECT document_id FROM document_tags WHERE tag"
    for tag in selection.tags:
        yield f"{tagged} = ?)", [tag]
    if selection.tags_any:
        yield f"{tagged} IN ({placeholders(len(selection.tags_any))}))", selection.tags_any
    if selection.doc_type is not None:
        yield "d.doc_type = ?", [selection.doc_type]
    if selection.formats:
        yield f"d.format IN ({placeholders(len(selection.formats))})", selection.formats
    if selection.source_types:
        named = [one for one in selection.source_types if one is not None]
        either = [f"d.source_type IN ({placeholders(len(named))})"] if named else []
        if None in selection.source_types:
            either.append("d.source_type IS NULL")
        yield f"({' OR '.join(either)})", named
    if selection.source_path_prefix:
        sql, values = starts_with("source_path", selection.source_path_prefix)
        yield f"d.id IN (SELECT document_id FROM document_sources WHERE {sql})", values  # noqa: S608
    if selection.date_from is not None:
        yield f"d.{selection.date_field} >= ?", [stamp(selection.date_from)]
    if selection.date_to is not None:
        yield f"d.{selection.date_field} <= ?", [stamp(selection.date_to)]
