"""What a document holds: chunks, their words and their vectors, written and removed together."""

from __future__ import annotations

import asyncio

from kb_engine.index.postgres.postings import Tokenizer
from kb_engine.store.port import Prepared
from kb_engine.store.postgres.connection import Db, rows, value
from kb_engine.store.postgres.write import PostgresWrite
from kb_engine.store.rules import new_uid, one_vector_each

_CHUNKS = (
    "id",
    "uid",
    "document_id",
    "position",
    "text",
    "page",
    "heading",
    "first",
    "beyond",
    "tokens",
    "words",
)
_POSTINGS = ("term", "chunk_id", "frequency", "length")


async def insert(write: PostgresWrite, document_id: int, title: str, prepared: Prepared) -> None:
    """Store the chunks of a document that has none.

    Raises:
        ValueError: not one vector for each chunk.
        EngineError: `not_ready` where the base has vectors of another length.
    """
    one_vector_each(prepared)
    if not prepared.chunks:
        return
    await write.expect_vectors(prepared.vectors.shape[1])
    ids = await write.next_chunks(len(prepared.chunks))
    texts = [(chunk_id, c.heading, c.text) for chunk_id, c in zip(ids, prepared.chunks, strict=True)]
    postings, lengths = await asyncio.to_thread(lambda: Tokenizer().postings(title, texts))
    await _copy_chunks(write.db, document_id, ids, prepared, lengths)
    await write.db.copy_records_to_table("postings", columns=_POSTINGS, records=postings)
    await write.db.executemany(
        "INSERT INTO vectors (chunk_id, document_id, vector) VALUES ($1, $2, $3::real[]::vector)",
        (
            (chunk_id, document_id, vector)
            for chunk_id, vector in zip(ids, prepared.vectors.tolist(), strict=True)
        ),
    )
    await write.count_chunks(len(ids), sum(lengths))


async def _copy_chunks(db: Db, document_id: int, ids: range, prepared: Prepared, lengths: list[int]) -> None:
    await db.copy_records_to_table(
        "chunks",
        columns=_CHUNKS,
        records=[
            (
                i,
                new_uid(),
                document_id,
                position,
                c.text,
                c.page,
                c.heading,
                c.start,
                c.end,
                c.tokens,
                words,
            )
            for position, (i, c, words) in enumerate(zip(ids, prepared.chunks, lengths, strict=True))
        ],
    )


async def remove(write: PostgresWrite, document_id: int) -> None:
    gone = "DELETE FROM chunks WHERE document_id = ? RETURNING id, words"
    found = await rows(write.db, gone, (document_id,))
    ids = [chunk_id for chunk_id, _ in found]
    await rows(write.db, "DELETE FROM postings WHERE chunk_id = ANY (?::bigint[])", (ids,))
    await rows(write.db, "DELETE FROM vectors WHERE document_id = ?", (document_id,))
    await rows(write.db, "DELETE FROM next_vectors WHERE document_id = ?", (document_id,))
    await write.count_chunks(-len(found), -sum(words for _, words in found))


async def remove_all(write: PostgresWrite) -> None:
    # At once, however many there are. A search that has begun keeps its rows or finds none; documents and
    # chunks are deleted one by one, for what reads those must see its own state of the base.
    await write.db.execute("TRUNCATE postings, vectors, next_vectors")
    await write.db.execute("DELETE FROM chunks")
    found = await value(write.db, "SELECT words FROM base")
    chunks = await value(write.db, "SELECT chunks FROM base")
    await write.count_chunks(-int(chunks), -int(found))
