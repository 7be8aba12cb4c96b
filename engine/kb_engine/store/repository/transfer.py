"""Whole records of a base, to be stored in another one; only their word indexes are computed again.

A document is transferred with everything that belongs to it. The remaining records, which belong to no
document or outlive it, are rows of `TABLES`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from kb_engine.store.port import MARK, UNFINISHED, Prepared
from kb_engine.store.repository import collections
from kb_engine.store.repository.content import Content, content
from kb_engine.store.repository.transaction import Read, Write

DOCUMENT = (
    "id", "uid", "kind", "title", "doc_type", "format", "filename", "source_path", "size_bytes", "sha256",
    "metadata", "source_type", "dedup_scope", "status", "status_reason", "extraction_method", "pages",
    "chunk_count", "token_count", "version", "created_at", "updated_at", "language", "unsourced",
    "note_hash", "passages_hash", "fidelity",
)  # fmt: skip
"""The columns of a document, the same on every database."""
TABLES: Mapping[str, Sequence[str]] = {
    "collections": collections.COLUMNS,
    "questions": ("day", "total", "unanswered"),
    "question_texts": ("text", "counted_at"),
    "versions": (
        "document_id", "uid", "version", "removed", "kept_at", "expires_at", "members", "text", "passages",
        "vectors", "original", "text_hash",
    ),
}  # fmt: skip
"""Columns of the tables. The key is the first column; for `versions` the first and third."""

_KEYS = {
    "collections": ("id",),
    "questions": ("day",),
    "question_texts": ("text",),
    "versions": ("document_id", "version"),
}
_ORDERS = {"versions": "versions.id"}
_TRUTHS = ("unsourced", "removed")

Fields = Mapping[str, Any]


class VectorLost(Exception):
    """A document has a passage without a vector; the message names it."""


@dataclass(frozen=True, slots=True)
class Record:
    """A document with all its records. `votes` are tuples of voice, opened, rating and time."""

    columns: Fields
    source_paths: Sequence[str]
    tags: Sequence[str]
    votes: Sequence[Sequence[Any]]
    content: Content

    @property
    def digest(self) -> str:
        """SHA-256 of the whole record, equal on every database."""
        of = self.content
        vectors = [None if vector is None else vector.astype("<f4").tobytes() for vector in of.vectors]
        texts = (of.text, of.chunks, of.positions, vectors)
        return _digest((self.columns, self.source_paths, self.tags, self.votes, texts))


def row_digest(fields: Fields) -> str:
    return _digest(fields)


# read


async def document_ids(read: Read) -> list[int]:
    """Return all documents by their first chunk: the earlier of two equal scores wins."""
    sql = (
        "SELECT d.id FROM documents d LEFT JOIN "
        "(SELECT document_id, min(id) AS first FROM chunks GROUP BY document_id) c ON c.document_id = d.id "
        "ORDER BY coalesce(c.first, 0), d.id"
    )
    return [int(number) for (number,) in await read.rows(sql)]


async def record(read: Read, document_id: int) -> Record | None:
    sql = f"SELECT {', '.join(DOCUMENT)}, {read.sources}, {read.tags} FROM documents d WHERE d.id = ?"  # noqa: S608
    row = await read.row(sql, (document_id,))
    whole = await content(read, document_id)
    if row is None or whole is None:
        return None
    *values, paths, tags = row
    votes = "SELECT voice, opened, rating, given_at FROM feedback WHERE document_id = ? ORDER BY voice"
    return Record(
        _fields(DOCUMENT, values),
        read.read_list(paths),
        read.read_list(tags),
        [tuple(vote) for vote in await read.rows(votes, (document_id,))],
        whole,
    )


async def keys(read: Read, table: str) -> list[tuple[Any, ...]]:
    """Return the keys of all rows, in order."""
    sql = f"SELECT {', '.join(_KEYS[table])} FROM {table} ORDER BY {_ORDERS.get(table, _KEYS[table][0])}"  # noqa: S608
    return [tuple(key) for key in await read.rows(sql)]


async def row(read: Read, table: str, key: Sequence[Any]) -> Fields | None:
    columns = TABLES[table]
    where = " AND ".join(f"{name} = ?" for name in _KEYS[table])
    found = await read.row(f"SELECT {', '.join(columns)} FROM {table} WHERE {where}", key)  # noqa: S608
    return None if found is None else _fields(columns, found)


async def last_document(read: Read) -> int:
    """Return the highest document id ever assigned."""
    return int(await read.value(read.last_document))


async def jobs_by_status(read: Read) -> dict[str, int]:
    return {
        str(status): int(count)
        for status, count in await read.rows("SELECT status, count(*) FROM jobs GROUP BY status")
    }


# write


async def begin(write: Write) -> None:
    """Mark the base as holding a part of another: only a migration may open it."""
    await write.rows(MARK)


async def end(write: Write) -> None:
    """Remove the mark: the base is complete."""
    await write.rows(f"DROP TABLE {UNFINISHED}")


async def continue_from(write: Write, last: int, generation: int) -> None:
    """Let new documents and changes have higher numbers than the source base has given."""
    await write.hold_base()
    await write.continue_from(last, generation)


async def put_records(write: Write, records: Sequence[Record]) -> None:
    """Insert documents under their ids, which must be unused."""
    await write.hold_base()
    for each in records:
        document_id = int(each.columns["id"])
        await write.insert("documents", each.columns)
        if each.content.text is not None:
            fields = {"document_id": document_id, "text": each.content.text}
            await write.insert("note_texts", fields)
        for path in each.source_paths:
            await write.insert("document_sources", {"document_id": document_id, "source_path": path})
        for tag in each.tags:
            await write.insert("document_tags", {"document_id": document_id, "tag": tag})
        for voice, opened, rating, given_at in each.votes:
            fields = {"voice": voice, "opened": opened, "rating": rating, "given_at": given_at}
            await write.insert("feedback", {"document_id": document_id, **fields})
        await write.insert_content(document_id, each.content.title, _prepared(each.content))
        await write.touch_base(document_id)


async def put_row(write: Write, table: str, fields: Fields) -> None:
    """Insert a row whose key is unused."""
    await write.hold_base()
    await write.insert(table, fields)


def _prepared(whole: Content) -> Prepared:
    known = [vector for vector in whole.vectors if vector is not None]
    if len(known) < len(whole.chunks) or len({vector.shape for vector in known}) > 1:
        raise VectorLost(f"document {whole.id} ({whole.title[:60]}) has a passage without its vector")
    return whole.prepared(whole.chunks, np.stack(known) if known else np.empty((0, 0), np.float32))


def _fields(columns: Sequence[str], values: Sequence[Any]) -> Fields:
    """Normalize the types of values across databases: SQLite stores booleans as integers."""
    return {
        name: bool(value) if name in _TRUTHS else value for name, value in zip(columns, values, strict=True)
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(value)).hexdigest()
