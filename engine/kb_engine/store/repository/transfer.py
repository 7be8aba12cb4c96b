"""Whole records of a base, as they are put into another one: nothing is made of them again but their words.

A document goes with all that belongs to it. What belongs to none, or outlives it, is rows of `TABLES`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from kb_engine.store.port import MARK, UNFINISHED, Prepared
from kb_engine.store.repository.content import Content, content
from kb_engine.store.repository.transaction import Read, Write, placeholders

DOCUMENT = (
    "id", "uid", "kind", "title", "doc_type", "format", "filename", "source_path", "size_bytes", "sha256",
    "metadata", "source_type", "dedup_scope", "status", "status_reason", "extraction_method", "pages",
    "chunk_count", "token_count", "version", "created_at", "updated_at", "language", "unsourced",
    "note_hash", "passages_hash",
)  # fmt: skip
"""The columns of a document, in every layout."""
TABLES: Mapping[str, Sequence[str]] = {
    "collections": (
        "id", "name", "description", "created_by", "target_audience", "usage_scenarios", "created_at",
        "updated_at",
    ),
    "versions": (
        "document_id", "uid", "version", "removed", "kept_at", "expires_at", "members", "text", "passages",
        "vectors", "original", "text_hash",
    ),
}  # fmt: skip
"""Their columns, of which the first and, of versions, the third are the key."""

_KEYS = {"collections": ("id",), "versions": ("document_id", "version")}
_ORDERS = {"collections": "id", "versions": "versions.id"}
_TRUTHS = ("unsourced", "removed")

Fields = Mapping[str, Any]


class VectorLost(Exception):
    """A document cannot be taken as it is; the message names it."""


@dataclass(frozen=True, slots=True)
class Record:
    """A document with all that belongs to it. `votes` are a voice, what it gave, and when."""

    columns: Fields
    source_paths: Sequence[str]
    tags: Sequence[str]
    votes: Sequence[Sequence[Any]]
    content: Content

    @property
    def digest(self) -> str:
        """SHA-256 of all of it, the same on every database."""
        of = self.content
        vectors = [None if vector is None else vector.astype("<f4").tobytes() for vector in of.vectors]
        texts = (of.text, of.chunks, of.positions, vectors)
        return _digest((self.columns, self.source_paths, self.tags, self.votes, texts))


def row_digest(fields: Fields) -> str:
    """SHA-256 of a row."""
    return _digest(fields)


# read


async def document_ids(read: Read) -> list[int]:
    """All documents, in the order in which their chunks were stored: of two equal scores the earlier wins."""
    sql = (
        "SELECT d.id FROM documents d LEFT JOIN "
        "(SELECT document_id, min(id) AS first FROM chunks GROUP BY document_id) c ON c.document_id = d.id "
        "ORDER BY coalesce(c.first, 0), d.id"
    )
    return [int(number) for (number,) in await read.rows(sql)]


async def record(read: Read, document_id: int) -> Record | None:
    """All of a document; None where it is gone."""
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
    """The keys of all rows, in their order."""
    sql = f"SELECT {', '.join(_KEYS[table])} FROM {table} ORDER BY {_ORDERS[table]}"  # noqa: S608
    return [tuple(key) for key in await read.rows(sql)]


async def row(read: Read, table: str, key: Sequence[Any]) -> Fields | None:
    """A row by its key."""
    columns = TABLES[table]
    where = " AND ".join(f"{name} = ?" for name in _KEYS[table])
    found = await read.row(f"SELECT {', '.join(columns)} FROM {table} WHERE {where}", key)  # noqa: S608
    return None if found is None else _fields(columns, found)


async def last_document(read: Read) -> int:
    """The highest number that a document ever had."""
    return int(await read.value(read.last_document))


async def jobs_by_status(read: Read) -> dict[str, int]:
    """How many jobs are known in each state."""
    return {
        str(status): int(count)
        for status, count in await read.rows("SELECT status, count(*) FROM jobs GROUP BY status")
    }


# write


async def begin(write: Write) -> None:
    """Mark the base as one that holds a part of another: it is opened by a migration alone."""
    await write.rows(MARK)


async def end(write: Write) -> None:
    """Take the mark away: the base is whole."""
    await write.rows(f"DROP TABLE {UNFINISHED}")


async def continue_from(write: Write, last: int, generation: int) -> None:
    """Give new documents and changes higher numbers than the base has that these are of."""
    await write.hold_base()
    await write.continue_from(last, generation)


async def put_records(write: Write, records: Sequence[Record]) -> None:
    """Insert documents, of which none is here, under their numbers."""
    await write.hold_base()
    for each in records:
        document_id = int(each.columns["id"])
        await _insert(write, "documents", each.columns)
        if each.content.text is not None:
            fields = {"document_id": document_id, "text": each.content.text}
            await _insert(write, "note_texts", fields)
        for path in each.source_paths:
            await _insert(write, "document_sources", {"document_id": document_id, "source_path": path})
        for tag in each.tags:
            await _insert(write, "document_tags", {"document_id": document_id, "tag": tag})
        for voice, opened, rating, given_at in each.votes:
            fields = {"voice": voice, "opened": opened, "rating": rating, "given_at": given_at}
            await _insert(write, "feedback", {"document_id": document_id, **fields})
        await write.insert_content(document_id, each.content.title, _prepared(each.content))
        await write.touch_base(document_id)


async def put_row(write: Write, table: str, fields: Fields) -> None:
    """Insert a row, of which there is none."""
    await write.hold_base()
    await _insert(write, table, fields)


async def _insert(write: Write, table: str, fields: Fields) -> None:
    sql = f"INSERT INTO {table} ({', '.join(fields)}) VALUES ({placeholders(len(fields))})"  # noqa: S608
    await write.rows(sql, tuple(fields.values()))


def _prepared(whole: Content) -> Prepared:
    known = [vector for vector in whole.vectors if vector is not None]
    if len(known) < len(whole.chunks) or len({vector.shape for vector in known}) > 1:
        raise VectorLost(f"document {whole.id} ({whole.title[:60]}) has a passage without its vector")
    return Prepared(
        title=whole.title,
        extraction_method=whole.extraction_method,
        pages=whole.pages,
        chunks=whole.chunks,
        vectors=np.stack(known) if known else np.empty((0, 0), np.float32),
        status_reason=whole.status_reason,
        language=whole.language,
    )


def _fields(columns: Sequence[str], values: Sequence[Any]) -> Fields:
    """As all databases take them: SQLite has numbers for truth values."""
    return {
        name: bool(value) if name in _TRUTHS else value for name, value in zip(columns, values, strict=True)
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(value)).hexdigest()
