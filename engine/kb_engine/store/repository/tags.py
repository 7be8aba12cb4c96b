"""Tags of documents, in the order in which they were added, and how much carries each."""

from __future__ import annotations

from collections.abc import Sequence

from kb_contracts.api import models as m
from kb_contracts.semantics.documents import tag_not_found, tags_to_unite
from kb_engine.store.repository.transaction import Read, Write

_LAST = 0x10FFFF
_BEFORE_SURROGATES, _AFTER_SURROGATES = 0xD7FF, 0xE000


async def add(write: Write, document_id: int, tags: Sequence[str]) -> bool:
    """Add what is not there yet; whether anything was."""
    added = 0
    for tag in tags:
        added += await write.changed(
            "INSERT INTO document_tags (document_id, tag) VALUES (?, ?) ON CONFLICT DO NOTHING",
            (document_id, tag),
        )
    return added > 0


async def unite(write: Write, document_id: int, tags: Sequence[str]) -> bool:
    """Add the tags of a duplicate, but no second collection; whether anything was added."""
    found = await write.rows(
        "SELECT tag FROM document_tags WHERE document_id = ? ORDER BY id", (document_id,)
    )
    return await add(write, document_id, tags_to_unite([tag for (tag,) in found], tags))


async def remove(write: Write, document_id: int, tag: str) -> None:
    gone = "DELETE FROM document_tags WHERE document_id = ? AND tag = ?"
    if not await write.changed(gone, (document_id, tag)):
        raise tag_not_found(tag)


async def page(read: Read, prefix: str, limit: int, offset: int) -> m.TagList:
    condition, values = starts_with("tag", prefix)
    total = await read.value(f"SELECT count(DISTINCT tag) FROM document_tags WHERE {condition}", values)  # noqa: S608
    found = await read.rows(
        "SELECT tag, count(*), sum(d.chunk_count) FROM document_tags "  # noqa: S608
        f"JOIN documents d ON d.id = document_id WHERE {condition} "
        "GROUP BY tag ORDER BY tag LIMIT ? OFFSET ?",
        (*values, limit, offset),
    )
    counts = [m.TagCount(tag=tag, documents=documents, chunks=chunks) for tag, documents, chunks in found]
    return m.TagList(tags=counts, total=total, limit=limit, offset=offset)


def starts_with(column: str, prefix: str) -> tuple[str, list[str]]:
    """A condition that uses the column's index and knows no wildcards: a range up to the next prefix."""
    if not prefix:
        return "true", []
    beyond = prefix.rstrip(chr(_LAST))
    if not beyond:
        return f"{column} >= ?", [prefix]
    last = ord(beyond[-1])
    following = _AFTER_SURROGATES if last == _BEFORE_SURROGATES else last + 1
    return f"{column} >= ? AND {column} < ?", [prefix, beyond[:-1] + chr(following)]
