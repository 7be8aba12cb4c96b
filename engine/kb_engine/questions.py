"""Counts questions, those that found nothing apart, and keeps the texts of the latter if that is switched on.

A search only adds to a list in memory. The counts are written to the base at intervals and at the end, in
transactions of their own, so that a search never waits for them; a killed engine loses those of one interval.
"""

from __future__ import annotations

import asyncio
import logging

from kb_contracts.api import models as m
from kb_contracts.api import ragler as r
from kb_contracts.semantics.history import QUESTION_DAYS, is_question
from kb_engine.store.clock import stamp
from kb_engine.store.repository import questions
from kb_engine.store.store import Store, utc_now
from kb_engine.tasks import end, repeat

MOST_PENDING = 100
"""Number of pending searches, after which they are counted at once: a cursor has up to 256 KB."""
_PAUSE_SECONDS = 20.0
_TEXT_CHARS = 300  # maximum length of a kept text, in characters

logger = logging.getLogger(__name__)


class Questions:
    """The questions of one engine. With `keeps_texts` the texts of those that found nothing are kept."""

    def __init__(self, store: Store, *, keeps_texts: bool) -> None:
        self._store = store
        self.pending: list[tuple[m.SearchRequest | r.VectorSearchRequest, bool]] = []
        """Searches to be counted, each with True if it was answered; from `MOST_PENDING` on `count` them."""
        self._keeps_texts = keeps_texts
        self._days: dict[str, tuple[int, int]] = {}
        self._texts: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None

    def count(self) -> None:
        """Count the pending searches."""
        now = stamp(utc_now())
        total, unanswered = self._days.get(now[:10], (0, 0))
        for request, is_answered in self.pending:
            if isinstance(request, m.SearchRequest) and not is_question(request):
                continue
            total, unanswered = total + 1, unanswered + (not is_answered)
            if self._keeps_texts and not is_answered:
                text = request.query.strip()[:_TEXT_CHARS]
                self._texts.pop(text, None)  # so that the latest is the last
                self._texts[text] = stamp(utc_now())
        self.pending.clear()
        if total:
            self._days[now[:10]] = total, unanswered
        while len(self._texts) > questions.KEPT_TEXTS:
            del self._texts[next(iter(self._texts))]

    async def by_day(self) -> list[m.QuestionDay]:
        """Return the latest days with a question, the oldest first."""
        self.count()
        async with self._lock:
            found = {each.day: each for each in await self._store.read(questions.by_day)}
            for day, (total, unanswered) in self._days.items():
                before = found.get(day, m.QuestionDay(day=day, total=0, unanswered=0))
                total, unanswered = before.total + total, before.unanswered + unanswered
                found[day] = m.QuestionDay(day=day, total=total, unanswered=unanswered)
        return [found[day] for day in sorted(found)][-QUESTION_DAYS:]

    async def texts(self) -> list[str]:
        """Return the kept texts of questions that found nothing, the latest first."""
        self.count()
        async with self._lock:
            kept = await self._store.read(questions.texts) if self._keeps_texts else []
            return list(dict.fromkeys([*reversed(self._texts), *kept]))[: questions.KEPT_TEXTS]

    async def write(self) -> None:
        """Write the counts to the base. After a failure they stay for the next time."""
        self.count()
        async with self._lock:
            days, texts = self._days, self._texts
            if not days:
                return
            self._days, self._texts = {}, {}
            try:
                await self._store.write(questions.add, days, texts)
            except Exception:
                for day, (total, unanswered) in self._days.items():
                    before = days.get(day, (0, 0))
                    days[day] = before[0] + total, before[1] + unanswered
                self._days, self._texts = days, texts | self._texts
                raise

    def start(self) -> None:
        self._writing = asyncio.create_task(self._write_often(), name="questions")

    async def stop(self) -> None:
        """Write the last counts, if the base can be written."""
        await end(self._writing)
        try:
            await self.write()
        except Exception as error:  # noqa: BLE001 - boundary: the other parts of the engine are stopped next
            logger.warning("the last counts of questions were not written", extra={"reason": str(error)})

    async def begin(self) -> None:
        """Remove the texts of an earlier setting."""
        if self._keeps_texts:
            return
        texts = await self._store.read(questions.texts)
        if texts:
            await self._store.write(questions.forget_texts)

    async def _write_often(self) -> None:
        try:
            await self.begin()
        except Exception:  # boundary: they are removed at the next start
            logger.exception("the texts of an earlier setting were not removed")
        await repeat(self.write, _PAUSE_SECONDS, "the counts of questions were not written")
