"""Documents: found, listed, changed and removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kb_contracts.api import models as m
from kb_contracts.semantics.documents import check_version, document_not_found, not_a_note
from kb_engine.store import rules
from kb_engine.store.port import NewJob, Prepared
from kb_engine.store.repository import jobs, tags
from kb_engine.store.repository.transaction import Read, Write, placeholders
from kb_engine.store.rows import CHUNK_COLUMNS, DOCUMENT_COLUMNS, chunk, document_fields
from kb_engine.store.times import following


async def find(read: Read, key: int | str) -> m.Document:
    """By number or uid. Raises `document_not_found`."""
    return m.Document(**await _fields(read, key))


async def _fields(read: Read, key: int | str) -> dict[str, Any]:
    if (named := rules.named(key)) is not None:
        column, known_as = named
        if found := await _rows(read, f"WHERE d.{column} = ?", (known_as,)):
            return found[0]
    raise document_not_found(key)


async def _rows(read: Read, condition: str, values: Sequence[Any]) -> list[dict[str, Any]]:
    """The members of documents `d`, by name."""
    columns = f"{DOCUMENT_COLUMNS}, {read.dialect.sources}, {read.dialect.tags}"
    found = await read.rows(f"SELECT {columns} FROM documents d {condition}", values)  # noqa: S608
    return [document_fields(one, read.dialect.read_list) for one in found]


async def detail(read: Read, key: int | str, chunk_offset: int, chunk_limit: int) -> m.DocumentDetail:
    fields = await _fields(read, key)
    found = await read.rows(
        f"SELECT {CHUNK_COLUMNS} FROM chunks c WHERE c.document_id = ? AND c.position >= CAST(? AS bigint) "  # noqa: S608
        "ORDER BY c.position LIMIT ?",
        (fields["id"], chunk_offset, chunk_limit),
    )
    return m.DocumentDetail(
        **fields, chunks=[chunk(one) for one in found], chunk_offset=chunk_offset, chunk_limit=chunk_limit
    )


async def page(
    read: Read,
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
    total = await read.value(f"SELECT count(*) FROM documents d WHERE {condition}", values)  # noqa: S608
    found = await _rows(
        read,
        f"WHERE {condition} ORDER BY {place} {sort_order}, d.id {sort_order} LIMIT ? OFFSET ?",
        (*values, limit, offset),
    )
    listed = [m.Document(**fields) for fields in found]
    return m.DocumentList(documents=listed, total=total, limit=limit, offset=offset)


async def insert(write: Write, job: NewJob, prepared: Prepared) -> m.Document:
    """A new document with all that belongs to it."""
    document_id = await write.next_document()
    columns = {"id": document_id, **rules.document_columns(job, prepared, rules.new_uid(), write.now)}
    await write.rows(
        f"INSERT INTO documents ({', '.join(columns)}) VALUES ({placeholders(len(columns))})",  # noqa: S608
        tuple(columns.values()),
    )
    if job.kind == "note":
        sql = "INSERT INTO note_texts (document_id, text) VALUES (?, ?)"
        await write.rows(sql, (document_id, job.text or ""))
    await add_source(write, document_id, job.source_path)
    await tags.add(write, document_id, job.tags)
    await write.dialect.content.insert(write, document_id, prepared.title, prepared)
    await write.touch_base(document_id)
    return await find(write, document_id)


async def add_source(write: Write, document_id: int, source_path: str | None) -> bool:
    """Keep where a document came from; whether that was not known."""
    if source_path is None:
        return False
    known = "SELECT true FROM document_sources WHERE document_id = ? AND source_path = ?"
    if await write.value(known, (document_id, source_path)):
        return False
    sql = "INSERT INTO document_sources (document_id, source_path) VALUES (?, ?)"
    await write.rows(sql, (document_id, source_path))
    return True


async def raise_version(write: Write, document_id: int) -> None:
    """A change of the document: the next version, and a later `updated_at`."""
    earlier = await write.value("SELECT updated_at FROM documents WHERE id = ?", (document_id,))
    sql = "UPDATE documents SET version = version + 1, updated_at = ? WHERE id = ?"
    await write.rows(sql, (following(write.now, earlier), document_id))
    await write.touch_base(document_id)


async def delete(write: Write, key: int | str) -> m.Removed:
    await write.hold_base()
    gone = await find(write, key)
    await write.dialect.content.remove(write, gone.id)
    await write.rows("DELETE FROM documents WHERE id = ?", (gone.id,))
    await write.touch_base(gone.id)
    return m.Removed(documents=1, chunks=gone.chunk_count, bytes=gone.size_bytes)


async def clear(write: Write, *, collections: bool) -> m.Removed:
    await write.hold_base()
    ((documents, chunks, size),) = await write.rows(
        "SELECT count(*), coalesce(sum(chunk_count), 0), CAST(coalesce(sum(size_bytes), 0) AS bigint) "
        "FROM documents"
    )
    await write.dialect.content.remove_all(write)
    await write.rows("DELETE FROM documents")
    if collections:
        await write.rows("DELETE FROM collections")
    await write.touch_base(None)
    cancelled = await jobs.cancel_all(write)
    return m.Removed(documents=documents, chunks=chunks, bytes=size, jobs_cancelled=cancelled)


async def note(read: Read, document_id: int) -> tuple[m.Document, str]:
    standing = await find(read, document_id)
    text = await read.value("SELECT text FROM note_texts WHERE document_id = ?", (standing.id,))
    if text is None:
        raise not_a_note(document_id)
    return standing, str(text)


async def replace_note(write: Write, document_id: int, text: str, prepared: Prepared) -> m.Document:
    """Another text in the same note; the base is held."""
    await write.dialect.content.remove(write, document_id)
    await write.dialect.content.insert(write, document_id, prepared.title, prepared)
    columns = rules.note_columns(text, prepared)
    assignments = ", ".join(f"{name} = ?" for name in columns)
    await write.rows(
        f"UPDATE documents SET {assignments} WHERE id = ?",  # noqa: S608
        (*columns.values(), document_id),
    )
    await write.rows("UPDATE note_texts SET text = ? WHERE document_id = ?", (text, document_id))
    await raise_version(write, document_id)
    return await find(write, document_id)


async def add_tags(write: Write, key: int | str, wanted: Sequence[str], if_match: int | None) -> m.Document:
    await write.hold_base()
    standing = await find(write, key)
    check_version(standing, if_match)
    if await tags.add(write, standing.id, wanted):
        await raise_version(write, standing.id)
    return await find(write, standing.id)


async def remove_tag(write: Write, key: int | str, tag: str, if_match: int | None) -> m.Document:
    await write.hold_base()
    standing = await find(write, key)
    check_version(standing, if_match)
    await tags.remove(write, standing.id, tag)
    await raise_version(write, standing.id)
    return await find(write, standing.id)
