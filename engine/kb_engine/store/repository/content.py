"""What a base keeps of the content of documents, all of it: to be checked, and to be made again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kb_engine.index.port import Vectors
from kb_engine.store.port import Prepared, PreparedChunk
from kb_engine.store.repository.transaction import Read, Write


@dataclass(frozen=True, slots=True)
class Content:
    """A document with its text, None of a file, its chunks in order, and the vector of each, None where it is
    not there.

    `positions` are those that the chunks have; `chunk_count` is what the document says.
    """

    id: int
    title: str
    sha256: str
    chunk_count: int
    extraction_method: str
    pages: int | None
    status_reason: str | None
    language: str | None
    text: str | None
    chunks: Sequence[PreparedChunk]
    positions: Sequence[int]
    vectors: Sequence[Vectors | None]


async def note_text(read: Read, document_id: int) -> str | None:
    """The text of a note, as it was sent; None of a file."""
    text = await read.value("SELECT text FROM note_texts WHERE document_id = ?", (document_id,))
    return None if text is None else str(text)


async def assign(write: Write, document_id: int, columns: Mapping[str, Any]) -> None:
    """Set columns of a document."""
    assignments = ", ".join(f"{name} = ?" for name in columns)
    await write.rows(
        f"UPDATE documents SET {assignments} WHERE id = ?",  # noqa: S608
        (*columns.values(), document_id),
    )


async def damage(read: Read) -> list[str]:
    """What the database itself finds wrong."""
    return await read.damage()


async def count(read: Read) -> int:
    """How many documents there are."""
    return int(await read.value("SELECT count(*) FROM documents"))


async def ids_after(read: Read, document_id: int, limit: int) -> list[int]:
    """The next documents, in the order of their numbers."""
    sql = "SELECT id FROM documents WHERE id > ? ORDER BY id LIMIT ?"
    return [int(found) for (found,) in await read.rows(sql, (document_id, limit))]


async def content(read: Read, document_id: int) -> Content | None:
    """All of a document; None where it is gone."""
    columns = "id, title, sha256, chunk_count, extraction_method, pages, status_reason, language"
    row = await read.row(f"SELECT {columns} FROM documents WHERE id = ?", (document_id,))  # noqa: S608
    if row is None:
        return None
    sql = (
        f"SELECT c.text, c.page, c.heading, c.first, c.beyond, c.tokens, c.uid, c.position, {read.vector} "  # noqa: S608
        "FROM chunks c LEFT JOIN vectors v ON v.chunk_id = c.id WHERE c.document_id = ? ORDER BY c.position"
    )
    found = await read.rows(sql, (document_id,))
    fields: dict[str, Any] = dict(zip(columns.split(", "), row, strict=True))
    return Content(
        **fields,
        text=await note_text(read, document_id),
        chunks=[
            PreparedChunk(text, page, heading, first, beyond, tokens or 0, uid)
            for text, page, heading, first, beyond, tokens, uid, _, _ in found
        ],
        positions=[row[7] for row in found],
        vectors=[_vector(read, row[8]) for row in found],
    )


async def lacks_words(read: Read, document_id: int) -> bool:
    """Whether words of a document are missing in the base; those of an index in files are not looked at."""
    return bool(await read.value(read.lacking_words, (document_id,)))


async def renew(write: Write, document_id: int, prepared: Prepared) -> None:
    """Put the chunks of a document in again, with their words and vectors; no version changes."""
    await write.hold_base()
    await write.hold_document(document_id)
    await write.remove_content(document_id)
    await write.insert_content(document_id, prepared.title, prepared)
    counts = {
        "chunk_count": len(prepared.chunks),
        "token_count": sum(each.tokens for each in prepared.chunks),
    }
    await assign(write, document_id, counts)
    await write.touch_base(document_id)


def _vector(read: Read, stored: Any) -> Vectors | None:
    if stored is None:
        return None
    try:
        vector: Vectors = read.vectors_of([stored])[0]
        return vector
    except ValueError:  # not a whole number of numbers
        return None
