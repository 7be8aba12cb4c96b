"""What a document holds: chunks, their words and their vectors, written and removed together."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import numpy as np

from kb_engine.index.embedded import words
from kb_engine.index.embedded.vectors import Batch
from kb_engine.store.port import Prepared, PreparedChunk
from kb_engine.store.rules import new_uid, one_vector_each
from kb_engine.store.sqlite.connection import value
from kb_engine.store.sqlite.write import SqliteWrite

VECTOR_TYPE = "<f4"


async def insert(write: SqliteWrite, document_id: int, title: str, prepared: Prepared) -> None:
    """Store the chunks of a document that has none.

    Raises:
        ValueError: not one vector for each chunk.
    """
    one_vector_each(prepared)
    if not prepared.chunks:
        return
    ids = _next_ids(write.db, len(prepared.chunks))
    _insert_chunks(write.db, document_id, ids, prepared.chunks)
    words.insert(
        write.db,
        title,
        ((chunk_id, c.heading, c.text) for chunk_id, c in zip(ids, prepared.chunks, strict=True)),
    )
    vectors = np.ascontiguousarray(prepared.vectors, dtype=VECTOR_TYPE)
    write.db.executemany(
        "INSERT INTO vectors (chunk_id, vector) VALUES (?, ?)",
        ((chunk_id, vector.tobytes()) for chunk_id, vector in zip(ids, vectors, strict=True)),
    )
    numbers = np.arange(ids.start, ids.stop, dtype=np.int64)
    write.changes.added.append(Batch(np.full_like(numbers, document_id), numbers, vectors))


async def remove(write: SqliteWrite, document_id: int) -> None:
    words.remove(write.db, document_id)
    write.db.execute("DELETE FROM chunks WHERE document_id = ?", (document_id,))
    write.changes.removed.append(document_id)


async def remove_all(write: SqliteWrite) -> None:
    words.remove_all(write.db)
    write.db.execute("DELETE FROM vectors")
    write.db.execute("DELETE FROM chunks")
    write.changes.cleared = True


def _next_ids(db: apsw.Connection, count: int) -> range:
    """Ids never given before, also not to chunks that are gone (AUTOINCREMENT keeps the highest)."""
    last = value(db, "SELECT seq FROM sqlite_sequence WHERE name = 'chunks'") or 0
    return range(last + 1, last + 1 + count)


def _insert_chunks(
    db: apsw.Connection, document_id: int, ids: Sequence[int], chunks: Sequence[PreparedChunk]
) -> None:
    db.executemany(
        "INSERT INTO chunks (id, uid, document_id, position, text, page, heading, first, beyond, "
        "tokens) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (
                chunk_id,
                new_uid(),
                document_id,
                position,
                c.text,
                c.page,
                c.heading,
                c.start,
                c.end,
                c.tokens,
            )
            for position, (chunk_id, c) in enumerate(zip(ids, chunks, strict=True))
        ),
    )
