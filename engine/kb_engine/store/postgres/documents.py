"""Documents: found, listed, changed and removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kb_contracts.api import models as m
from kb_engine.store import rules
from kb_engine.store.port import NewJob, Prepared
from kb_engine.store.postgres import content, jobs, tags
from kb_engine.store.postgres.connection import Db, changed, marks, row, rows, texts, value
from kb_engine.store.postgres.write import Write
from kb_engine.store.rows import (
    CHUNK_COLUMNS,
    DOCUMENT_COLUMNS_BARE,
    SUMMARY_COLUMNS_BARE,
    chunk,
    document,
    document_fields,
)
from kb_engine.store.sqlite.write import new_uid
from kb_engine.store.times import following

_TAGS = "ARRAY(SELECT t.tag FROM document_tags t WHERE t.document_id = d.id ORDER BY t.id)"
_SOURCES = "ARRAY(SELECT s.source_path FROM document_sources s WHERE s.document_id = d.id ORDER BY s.id)"
DOCUMENT_LISTS = f"{_SOURCES}, {_TAGS}"
DOCUMENT_COLUMNS = f"{DOCUMENT_COLUMNS_BARE}, {DOCUMENT_LISTS}"
SUMMARY_COLUMNS = f"{SUMMARY_COLUMNS_BARE}, {_TAGS}"


async def find(db: Db, key: int | str) -> m.Document:
    """By number or uid. Raises `document_not_found`."""
    return document(_with_lists(await _find_row(db, key)))


async def _find_row(db: Db, key: int | str) -> Any:
    found = None
    if (named := rules.named(key)) is not None:
        column, known_as = named
        sql = f"SELECT {DOCUMENT_COLUMNS} FROM documents d WHERE d.{column} = ?"  # noqa: S608
        found = await row(db, sql, (known_as,))
    if found is None:
        raise rules.document_not_found(key)
    return found


def _with_lists(found: Sequence[Any]) -> list[Any]:
    *values, sources, tags = found
    return [*values, texts(sources), texts(tags)]


async def detail(db: Db, key: int | str, chunk_offset: int, chunk_limit: int) -> m.DocumentDetail:
    """A document and a slice of its chunks."""
    fields = document_fields(_with_lists(await _find_row(db, key)))
    found = await rows(
        db,
        f"SELECT {CHUNK_COLUMNS} FROM chunks c WHERE c.document_id = ? AND c.position >= ?::bigint "  # noqa: S608
        "ORDER BY c.position LIMIT ?",
        (fields["id"], chunk_offset, chunk_limit),
    )
    return m.DocumentDetail(
        **fields, chunks=[chunk(one) for one in found], chunk_offset=chunk_offset, chunk_limit=chunk_limit
    )


async def page(
    db: Db,
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
    total = await value(db, f"SELECT count(*) FROM documents d WHERE {condition}", values)  # noqa: S608
    found = await rows(
        db,
        f"SELECT {DOCUMENT_COLUMNS} FROM documents d WHERE {condition} "  # noqa: S608
        f"ORDER BY {place} {sort_order}, d.id {sort_order} LIMIT ? OFFSET ?",
        (*values, limit, offset),
    )
    return m.DocumentList(
        documents=[document(_with_lists(one)) for one in found], total=total, limit=limit, offset=offset
    )


async def insert(write: Write, job: NewJob, prepared: Prepared) -> m.Document:
    """A new document with all that belongs to it."""
    document_id = await write.next_document()
    columns = {"id": document_id, **rules.document_columns(job, prepared, new_uid(), write.now)}
    await rows(
        write.db,
        f"INSERT INTO documents ({', '.join(columns)}) VALUES ({marks(len(columns))})",  # noqa: S608
        tuple(columns.values()),
    )
    if job.kind == "note":
        sql = "INSERT INTO note_texts (document_id, text) VALUES (?, ?)"
        await rows(write.db, sql, (document_id, job.text or ""))
    await add_source(write, document_id, job.source_path)
    await tags.add(write, document_id, job.tags)
    await content.insert(write, document_id, prepared.title, prepared)
    await write.touch_base(document_id)
    return await find(write.db, document_id)


async def add_source(write: Write, document_id: int, source_path: str | None) -> bool:
    """Keep where a document came from; whether that is news."""
    if source_path is None:
        return False
    known = "SELECT true FROM document_sources WHERE document_id = ? AND source_path = ?"
    if await value(write.db, known, (document_id, source_path)):
        return False
    sql = "INSERT INTO document_sources (document_id, source_path) VALUES (?, ?)"
    await rows(write.db, sql, (document_id, source_path))
    return True


async def raise_version(write: Write, document_id: int) -> None:
    """A change of the document: the next version, and a later `updated_at`."""
    earlier = await value(write.db, "SELECT updated_at FROM documents WHERE id = ?", (document_id,))
    sql = "UPDATE documents SET version = version + 1, updated_at = ? WHERE id = ?"
    await rows(write.db, sql, (following(write.now, earlier), document_id))
    await write.touch_base(document_id)


async def delete(write: Write, key: int | str) -> m.Removed:
    """Raises `document_not_found`."""
    await write.hold_base()
    gone = await find(write.db, key)
    await content.remove(write, gone.id)
    await rows(write.db, "DELETE FROM documents WHERE id = ?", (gone.id,))
    await write.touch_base(gone.id)
    return m.Removed(documents=1, chunks=gone.chunk_count, bytes=gone.size_bytes)


async def clear(write: Write, *, collections: bool) -> m.Removed:
    """All documents and the jobs that would bring new ones; with `collections` the descriptions of those."""
    await write.hold_base()
    ((documents, chunks, size),) = await rows(
        write.db,
        "SELECT count(*), coalesce(sum(chunk_count), 0), coalesce(sum(size_bytes), 0)::bigint FROM documents",
    )
    await content.remove_all(write)
    await rows(write.db, "DELETE FROM documents")
    if collections:
        await rows(write.db, "DELETE FROM collections")
    await write.touch_base(None)
    cancelled = await jobs.cancel_all(write)
    return m.Removed(documents=documents, chunks=chunks, bytes=size, jobs_cancelled=cancelled)


async def note(db: Db, document_id: int) -> tuple[m.Document, str]:
    """A note and its text. Raises `document_not_found` or `not_a_note`."""
    standing = await find(db, document_id)
    text = await value(db, "SELECT text FROM note_texts WHERE document_id = ?", (standing.id,))
    if text is None:
        raise rules.not_a_note(document_id)
    return standing, str(text)


async def replace_note(write: Write, document_id: int, text: str, prepared: Prepared) -> m.Document:
    """Another text in the same note; the base is held."""
    await content.remove(write, document_id)
    await content.insert(write, document_id, prepared.title, prepared)
    columns = rules.note_columns(text, prepared)
    assignments = ", ".join(f"{name} = ?" for name in columns)
    await rows(
        write.db,
        f"UPDATE documents SET {assignments} WHERE id = ?",  # noqa: S608
        (*columns.values(), document_id),
    )
    await changed(write.db, "UPDATE note_texts SET text = ? WHERE document_id = ?", (text, document_id))
    await raise_version(write, document_id)
    return await find(write.db, document_id)


async def add_tags(write: Write, key: int | str, wanted: Sequence[str], if_match: int | None) -> m.Document:
    """Raises `document_not_found` or `version_conflict`."""
    await write.hold_base()
    standing = await find(write.db, key)
    rules.expect_version(standing, if_match)
    if await tags.add(write, standing.id, wanted):
        await raise_version(write, standing.id)
    return await find(write.db, standing.id)


async def remove_tag(write: Write, key: int | str, tag: str, if_match: int | None) -> m.Document:
    """Raises `document_not_found`, `version_conflict` or `tag_not_found`."""
    await write.hold_base()
    standing = await find(write.db, key)
    rules.expect_version(standing, if_match)
    await tags.remove(write, standing.id, tag)
    await raise_version(write, standing.id)
    return await find(write.db, standing.id)
