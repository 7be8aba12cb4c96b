"""Feedback: one row for each voice and document, removed with its document."""

from __future__ import annotations

from collections.abc import Iterable

from kb_contracts.api import models as m
from kb_contracts.semantics.feedback import NO_VOTES, Vote, Votes, feedback_of, voted
from kb_engine.store.repository import documents
from kb_engine.store.repository.transaction import Read, Write

_TALLY = (
    "SELECT document_id, count(*), sum(CASE WHEN opened = 1 OR rating > 0 THEN 1 ELSE 0 END), "
    "sum(CASE WHEN rating > 0 THEN 1 ELSE 0 END), sum(CASE WHEN rating < 0 THEN 1 ELSE 0 END) "
    "FROM feedback WHERE document_id {among} GROUP BY document_id"
)


async def give(write: Write, key: int | str, voice: str, signal: m.Signal) -> m.Feedback:
    """Store a voice's feedback; a repetition changes nothing. Raises `document_not_found`."""
    document_id = (await documents.hold(write, key)).id
    found = await write.row(
        "SELECT opened, rating FROM feedback WHERE document_id = ? AND voice = ?", (document_id, voice)
    )
    standing = None if found is None else Vote(bool(found[0]), found[1])
    if (vote := voted(standing, signal)) != standing:
        await write.rows(
            "INSERT INTO feedback (document_id, voice, opened, rating, given_at) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (document_id, voice) DO UPDATE SET opened = EXCLUDED.opened, "
            "rating = EXCLUDED.rating, given_at = EXCLUDED.given_at",
            (document_id, voice, int(vote.opened), vote.rating, write.now),
        )
    return feedback_of(document_id, (await votes(write, [document_id])).get(document_id, NO_VOTES))


async def votes(read: Read, document_ids: Iterable[int]) -> dict[int, Votes]:
    """Return the votes on these documents by id; documents without votes are left out."""
    wanted = read.list_value(list(dict.fromkeys(document_ids)))
    found = await read.rows(_TALLY.format(among=read.among), (wanted,))
    return {document_id: Votes(*counts) for document_id, *counts in found}
