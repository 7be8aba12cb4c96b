"""Documents: found, listed, changed and removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from kb_contracts.api import models as m
from kb_engine.store import rules
from kb_engine.store.port import NewJob, Prepared
from kb_engine.store.rows import CHUNK_COLUMNS, DOCUMENT_COLUMNS, chunk, document, document_fields
from kb_engine.store.sqlite import content, jobs, tags
from kb_engine.store.sqlite.connection import marks, row, rows, value
from kb_engine.store.sqlite.write import Write, new_uid
from kb_engine.store.times import following


def find(db: apsw.Connection, key: int | str) -> m.Document:
    """By number or uid. Raises `document_not_found`."""
    return document(_find_row(db, key))


def _find_row(db: apsw.Connection, key: int | str) -> tuple[Any, ...]:
    found = None
    if (named := rules.named(key)) is not None:
        column, known_as = named
        found = row(db, f"SELECT {DOCUMENT_COLUMNS} FROM documents d WHERE d.{column} = ?", (known_as,))  # noqa: S608
    if found is None:
        raise rules.document_not_found(key)
    return found


def detail(db: apsw.Connection, key: int | str, chunk_offset: int, chunk_limit: int) -> m.DocumentDetail:
    """A document and a slice of its chunks."""
    fields = document_fields(_find_row(db, key))
    found = rows(
        db,
        f"SELECT {CHUNK_COLUMNS} FROM chunks c WHERE c.document_id = ? AND c.position >= ? "  # noqa: S608
        "ORDER BY c.position LIMIT ?",
        (fields["id"], chunk_offset, chunk_limit),
    )
    return m.DocumentDetail(
        **fields, chunks=[chunk(one) for one in found], chunk_offset=chunk_offset, chunk_limit=chunk_limit
    )


def page(
    db: apsw.Connection,
    source_path: str | None,
    tag: str | None,
    doc_type: m.DocType | None,
    sort_by: m.SortBy,
    sort_order: m.SortOrder,
    limit: int,
    offset: int,
) -> m.DocumentList:
    """One page of the documents that match, ties by id in the same direction."""
    condition, values = rules.listed(source_path, tag, doc_type)
    place = rules.BY_FILENAME if sort_by == "filename" else f"d.{sort_by}"
    total = value(db, f"SELECT count(*) FROM documents d WHERE {condition}", values)  # noqa: S608
    found = rows(
        db,
        f"SELECT {DOCUMENT_COLUMNS} FROM documents d WHERE {condition} "  # noqa: S608
        f"ORDER BY {place} {sort_order}, d.id {sort_order} LIMIT ? OFFSET ?",
        (*values, limit, offset),
    )
    return m.DocumentList(documents=[document(one) for one in found], total=total, limit=limit, offset=offset)


def insert(write: Write, job: NewJob, prepared: Prepared) -> m.Document:
    """A new document with all that belongs to it."""
    columns = rules.document_columns(job, prepared, new_uid(), write.now)
    write.db.execute(
        f"INSERT INTO documents ({', '.join(columns)}) VALUES ({marks(len(columns))})",  # noqa: S608
        tuple(columns.values()),
    )
    document_id = write.db.last_insert_rowid()
    if job.kind == "note":
        write.db.execute(
            "INSERT INTO note_texts (document_id, text) VALUES (?, ?)", (document_id, job.text or "")
        )
    add_source(write, document_id, job.source_path)
    tags.add(write, document_id, job.tags)
    content.insert(write, document_id, prepared.title, prepared)
    write.touch_base(document_id)
    return find(write.db, document_id)


def add_source(write: Write, document_id: int, source_path: str | None) -> bool:
    """Keep where a document came from; whether that is news."""
    if source_path is None:
        return False
    write.db.execute(
        "INSERT INTO document_sources (document_id, source_path) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (document_id, source_path),
    )
    return write.db.changes() > 0


def raise_version(write: Write, document_id: int) -> None:
    """A change of the document: the next version, and a later `updated_at`."""
    earlier = value(write.db, "SELECT updated_at FROM documents WHERE id = ?", (document_id,))
    write.db.execute(
        "UPDATE documents SET version = version + 1, updated_at = ? WHERE id = ?",
        (following(write.now, earlier), document_id),
    )
    write.touch_base(document_id)


def delete(write: Write, key: int | str) -> m.Removed:
    """Raises `document_not_found`."""
    gone = find(write.db, key)
    content.remove(write, gone.id)
    write.db.execute("DELETE FROM documents WHERE id = ?", (gone.id,))
    write.touch_base(gone.id)
    return m.Removed(documents=1, chunks=gone.chunk_count, bytes=gone.size_bytes)


def clear(write: Write, *, collections: bool) -> m.Removed:
    """All documents and the jobs that would bring new ones; with `collections` the descriptions of those."""
    documents, chunks, size = rows(
        write.db,
        "SELECT count(*), coalesce(sum(chunk_count), 0), coalesce(sum(size_bytes), 0) FROM documents",
    )[0]
    content.remove_all(write)
    write.db.execute("DELETE FROM documents")
    if collections:
        write.db.execute("DELETE FROM collections")
    write.touch_base(None)
    return m.Removed(documents=documents, chunks=chunks, bytes=size, jobs_cancelled=jobs.cancel_all(write))


def note(db: apsw.Connection, document_id: int) -> tuple[m.Document, str]:
    """A note and its text. Raises `document_not_found` or `not_a_note`."""
    standing = find(db, document_id)
    text = value(db, "SELECT text FROM note_texts WHERE document_id = ?", (standing.id,))
    if text is None:
        raise rules.not_a_note(document_id)
    return standing, str(text)


def replace_note(write: Write, document_id: int, text: str, prepared: Prepared) -> m.Document:
    """Another text in the same note."""
    content.remove(write, document_id)
    content.insert(write, document_id, prepared.title, prepared)
    _update(write, document_id, rules.note_columns(text, prepared))
    write.db.execute("UPDATE note_texts SET text = ? WHERE document_id = ?", (text, document_id))
    raise_version(write, document_id)
    return find(write.db, document_id)


def _update(write: Write, document_id: int, columns: dict[str, Any]) -> None:
    assignments = ", ".join(f"{name} = ?" for name in columns)
    write.db.execute(
        f"UPDATE documents SET {assignments} WHERE id = ?",  # noqa: S608
        (*columns.values(), document_id),
    )


def add_tags(write: Write, key: int | str, wanted: Sequence[str], if_match: int | None) -> m.Document:
    """Raises `document_not_found` or `version_conflict`."""
    standing = find(write.db, key)
    rules.expect_version(standing, if_match)
    if tags.add(write, standing.id, wanted):
        raise_version(write, standing.id)
    return find(write.db, standing.id)


def remove_tag(write: Write, key: int | str, tag: str, if_match: int | None) -> m.Document:
    """Raises `document_not_found`, `version_conflict` or `tag_not_found`."""
    standing = find(write.db, key)
    rules.expect_version(standing, if_match)
    tags.remove(write, standing.id, tag)
    raise_version(write, standing.id)
    return find(write.db, standing.id)
