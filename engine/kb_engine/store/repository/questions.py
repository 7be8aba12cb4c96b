"""Questions: their number by day, and the texts of those that found nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from kb_contracts.api import models as m
from kb_contracts.semantics.history import QUESTION_DAYS
from kb_engine.store.clock import parse
from kb_engine.store.repository.transaction import Read, Write

KEPT_TEXTS = 100  # number of texts that are kept, the latest ones
_KEPT_DAYS = timedelta(days=400)


async def add(write: Write, days: Mapping[str, tuple[int, int]], texts: Mapping[str, str]) -> None:
    """Add the questions of `days` (total, unanswered), and `texts` with their times; forget the oldest."""
    for day, counts in days.items():
        await write.rows(
            "INSERT INTO questions (day, total, unanswered) VALUES (?, ?, ?) ON CONFLICT (day) DO UPDATE "
            "SET total = questions.total + EXCLUDED.total, "
            "unanswered = questions.unanswered + EXCLUDED.unanswered",
            (day, *counts),
        )
    oldest = (parse(write.now) - _KEPT_DAYS).date().isoformat()
    await write.rows("DELETE FROM questions WHERE day < ?", (oldest,))
    for text, counted_at in texts.items():
        await write.rows(
            "INSERT INTO question_texts (text, counted_at) VALUES (?, ?) "
            "ON CONFLICT (text) DO UPDATE SET counted_at = EXCLUDED.counted_at",
            (text, counted_at),
        )
    if texts:
        await write.rows(
            "DELETE FROM question_texts WHERE text NOT IN "
            "(SELECT text FROM question_texts ORDER BY counted_at DESC, text LIMIT ?)",
            (KEPT_TEXTS,),
        )


async def by_day(read: Read) -> list[m.QuestionDay]:
    """Return the latest days with a question, the oldest first."""
    found = await read.rows(
        "SELECT day, total, unanswered FROM questions ORDER BY day DESC LIMIT ?", (QUESTION_DAYS,)
    )
    return [m.QuestionDay(day=day, total=total, unanswered=none) for day, total, none in reversed(found)]


async def texts(read: Read) -> list[str]:
    """Return the texts, the latest first."""
    return [
        text for (text,) in await read.rows("SELECT text FROM question_texts ORDER BY counted_at DESC, text")
    ]


async def forget_texts(write: Write) -> None:
    await write.rows("DELETE FROM question_texts")
