"""Indexing documents again whose words an earlier analyser made, in the background, one per transaction.

A migration lists them in `outdated_words`. Meanwhile searches find them by the terms that they have. Several
engines share the work.
"""

from __future__ import annotations

import asyncio
import logging

from kb_engine.index.languages import PASSAGES, language_of
from kb_engine.store.postgres.connection import Connections, Db, rows
from kb_engine.store.postgres.transaction import (
    SLICE,
    analysed_words,
    expect_layout,
    insert_postings,
    lock_base,
)
from kb_engine.store.postgres.word_order import insert_orders

_PAUSE_SECONDS = 30.0

_NEXT = (
    "DELETE FROM outdated_words WHERE document_id = (SELECT document_id FROM outdated_words "
    "ORDER BY document_id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING document_id"
)

logger = logging.getLogger(__name__)


async def keep_words(connections: Connections, layout: int) -> None:
    """Index all outdated documents again, and return."""
    renewed = 0
    while True:
        try:
            async with connections.statements() as db, db.transaction():
                await lock_base(db, shared=True)
                await expect_layout(db, layout)
                if not await renew_one(db):
                    break
            renewed += 1
        except Exception as error:  # noqa: BLE001 - boundary: it is tried again
            why = str(error) or type(error).__name__
            logger.warning("indexing of words again failed", extra={"why": why, "pause": _PAUSE_SECONDS})
            await asyncio.sleep(_PAUSE_SECONDS)
    if renewed:
        logger.info("indexed the words of documents again", extra={"documents": renewed})


async def renew_one(db: Db) -> bool:
    """Index the next outdated document again, and detect its language if it has none; return whether there
    was a document. `db` is in a transaction that has locked the base.
    """
    if not (found := await rows(db, _NEXT)):
        return False
    ((document_id,),) = found
    # It may have been deleted since it was listed.
    held = "SELECT title, language FROM documents WHERE id = ? FOR UPDATE"
    for title, language in await rows(db, held, (document_id,)):
        await _renew(db, document_id, title, language)
    return True


async def _renew(db: Db, document_id: int, title: str, language: str | None) -> None:
    sql = "SELECT id, words, heading, text FROM chunks WHERE document_id = ? ORDER BY position"
    chunks = await rows(db, sql, (document_id,))
    texts = [(heading, text) for *_, heading, text in chunks]

    first_texts = [text for _, text in texts[:PASSAGES]]
    language = language or await asyncio.to_thread(language_of, title, first_texts)
    ids = [chunk[0] for chunk in chunks]
    lengths: list[int] = []
    await rows(db, "UPDATE documents SET language = ? WHERE id = ?", (language, document_id))
    for table in ("postings", "word_orders"):
        await rows(db, f"DELETE FROM {table} WHERE chunk_id = ANY (?::bigint[])", (ids,))  # noqa: S608
    for first in range(0, len(chunks), SLICE):
        part = slice(first, first + SLICE)
        words = await analysed_words(title, texts[part], language)
        await insert_postings(db, ids[part], words)
        await insert_orders(db, ids[part], title, texts[part])
        lengths += [each.length for each in words]
    await rows(
        db,
        "UPDATE chunks c SET words = n.words FROM unnest(?::bigint[], ?::bigint[]) n (id, words) "
        "WHERE c.id = n.id",
        (ids, lengths),
    )
    more = sum(lengths) - sum(chunk[1] for chunk in chunks)
    await rows(db, "UPDATE base SET words = words + ?, generation = generation + 1", (more,))
